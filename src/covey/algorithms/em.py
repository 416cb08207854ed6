"""EM without memories: the baselines of FedEM.

Every client sends C(S_i - Shat), the server adds the mean to Shat: FedEM with alpha = 0. With its
default options, all clients and a channel that changes nothing, this is classical EM on the rows of
all clients. With a lossy channel it is the naive compressed EM, whose error does not vanish where
clients differ: each S_i - Shat stays large when their mean is zero, and so does what compression
adds to it. A step size below one only makes the error smaller.
"""

from collections.abc import Callable

from jaxtyping import Array, Float, Int

from covey.algorithms.averaging import Weighting
from covey.algorithms.fedem import fedem
from covey.core.algorithm import Algorithm
from covey.models.latent import LatentModel


def em(
    model: LatentModel,
    *,
    step_size: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 1.0,
    decay: float = 0.0,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Classical EM; with a lossy channel, naive compressed EM. Step sizes and rows of a round as in
    `fedem`.
    """
    method = fedem(
        model,
        step_size=step_size,
        decay=decay,
        memory_rate=0.0,
        batch_size=batch_size,
        weighting=weighting,
    )
    return method._replace(name="em")
