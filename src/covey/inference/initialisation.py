"""Starting points from federated sums, for fits whose random starts may end in a poor optimum."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covey.algorithms.federated_sum import federated_sum
from covey.core.shard import Shard, all_rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.models.model import flat


def spectral_start(data: FederatedData, *, effects: int) -> np.ndarray:
    """A start of phi for `linear_map`, in one round of federated sums.

    The leading eigenvectors of the sum over all rows of y^2 x x', whose expectation for centred
    Gaussian x of unit variance and y = z'phi'x + noise is c I + 2 n phi E[zz'] phi'.

    Args:
        data: The clients; their training rows are used.
        effects: Number of effects of the model, that is of eigenvectors.

    Returns:
        A matrix with orthonormal columns, for `linear_map(start=...)`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(300, 3))
        >>> data = FederatedData.from_clients({"a": (x, 2 * x[:, 1])})
        >>> start = spectral_start(data, effects=1)
        >>> bool(abs(start[1, 0]) > 0.99)
        True
    """
    columns = int(np.prod(data.spec.rows.x.shape))
    if not 1 <= effects <= columns:
        raise ValueError(
            f"spectral_start: effects must be 1 to {columns}, the columns of these rows, "
            f"got {effects}"
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
