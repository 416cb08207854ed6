"""Linear regression on features that all clients share, the model of FedPop's synthetic data."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Spec
from covey.models.mixed import MixedModel, from_mixed_predictive
from covey.models.model import flat, flat_size, need_number
from covey.models.predictive import Normal


def linear_map(*, effects: int, scale: float = 1.0, start: np.ndarray | None = None) -> MixedModel:
    """Linear regression on features phi'x that all clients share.

        y = z'phi'x + scale * noise,   phi a matrix of shape (columns, effects)

    Args:
        effects: Number of shared features, which is the number of effects of a client (d).
        scale: Standard deviation of the noise, in units of the outcome. Default: 1.
        start: Matrix at which phi starts. Default: random orthonormal columns;
            `covey.inference.spectral_start` gives a better one.

    Returns:
        A mixed model of data with a numeric outcome.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(4), np.arange(4.0))})
        >>> linear_map(effects=2).init(jax.random.key(0), data.spec).shape
        (4, 2)

    Reference: Kotelevskii et al. (2022), FedPop, section 4 (the synthetic data).
    """
    if effects < 1:
        raise ValueError(f"linear_map: effects must be at least 1, got {effects}")
    if scale <= 0:
        raise ValueError(
            f"linear_map: scale is a standard deviation and must be above 0, got {scale:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> Float[Array, "features effects"]:
        need_number("linear_map", spec)
        columns = flat_size(spec)
        if effects > columns:
            raise ValueError(
                f"linear_map: {effects} effects are more than the {columns} columns of these rows"
            )
        if start is None:
            return jax.random.orthogonal(key, columns, m=effects)
        if start.shape != (columns, effects):
            raise ValueError(
                f"linear_map: start must have shape {(columns, effects)}, got {start.shape}"
            )
        return jnp.asarray(start, float)

    def predictive(
        phi: Float[Array, "features effects"],
        z: Float[Array, " effects"],
        x: Shaped[Array, " rows *columns"],
    ) -> Normal:
        mean = flat(x) @ (phi @ z)
        return Normal(mean, jnp.full_like(mean, scale))

    return from_mixed_predictive(
        "linear_map", init, lambda key, spec: jnp.zeros(effects), predictive
    )
