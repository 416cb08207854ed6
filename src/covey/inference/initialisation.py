"""Starting points from federated sums: where a fit from a random start could end in a poor
optimum.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covey.algorithms.federated_sum import federated_sum
from covey.core.shard import Shard, all_rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.models.model import flat


def spectral_start(data: FederatedData, *, effects: int) -> np.ndarray:
    """A start for `linear_map`: the leading `effects` eigenvectors of the sum over all rows of y^2
    x x', one round of sums.

    For centred Gaussian x of unit variance and y = z'phi'x + noise its expectation is c I + 2 n phi
    E[zz'] phi'.
    """
    columns = int(np.prod(data.spec.rows.x.shape))
    if not 1 <= effects <= columns:
        raise ValueError(
            f"spectral_start: effects must be 1 to {columns}, the columns of these rows, got {effects}"
        )
    engine = Simulation(
        federated_sum(lambda key, rows: second_moment(rows), name="second moment"), data, seed=0
    )
    moment = engine.advance(engine.start(), 1)[0].server.sum
    return np.linalg.eigh(np.asarray(moment, np.float64))[1][:, ::-1][:, :effects]


def second_moment(data: Shard) -> Float[Array, "columns columns"]:
    """The sum over a client's rows of y^2 x x'."""
    rows, mask = all_rows(data)
    x = flat(rows.x)
    weight = jnp.where(mask, jnp.square(rows.y), 0.0)
    return (x * weight[:, None]).T @ x
