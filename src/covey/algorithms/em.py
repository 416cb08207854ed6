"""EM without memories: the baselines of FedEM."""

from covey.algorithms.averaging import Weighting
from covey.algorithms.fedem import StepSize, fedem
from covey.algorithms.memory import why_diverged
from covey.core.algorithm import Algorithm, Hooks
from covey.models.latent import LatentModel


def em(
    model: LatentModel,
    *,
    step_size: float | StepSize = 1.0,
    decay: float = 0.0,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Classical EM; with a lossy channel, naive compressed EM, whose error does not vanish.

    Every client sends C(S_i - Shat) and the server adds the mean to Shat: FedEM with alpha = 0.
    With its default options, all clients and no compression this is classical EM on the pooled
    rows. With a lossy channel the error does not vanish where clients differ: each S_i - Shat
    stays large when their mean is zero, and so does what compression adds to it. A step size below
    one only makes the error smaller.

    Args:
        model: Latent-variable model to fit, e.g. `covey.models.gaussian_mixture`.
        step_size: Step of the server's statistics (gamma), as in `fedem`. Default 1.
        decay: Steps fall like step_size / (k + 1)^decay. Default 0, constant steps.
        batch_size: Rows per client and round. Default: all rows.
        weighting: "rows" counts every row equally, "equal" every client.

    Returns:
        A method for `covey.run`.

    Example:
        >>> import numpy as np, covey
        >>> counts = np.repeat([[1.0], [9.0]], 20, axis=0)
        >>> data = covey.FederatedData.from_arrays(counts, np.zeros(40), np.arange(40) % 3)
        >>> model = covey.models.poisson_mixture(components=2, rates=[[2.0], [4.0]])
        >>> covey.run(covey.em(model), data, rounds=20, seed=0).state.theta.rates.shape
        (2, 1)

    Reference: Dempster, Laird and Rubin (1977), Maximum likelihood from incomplete data via the EM
    algorithm; the naive compressed form is the baseline of Dieuleveut et al. (2021), section 2.

    Departures from the papers: none with the default options; step sizes below one, their decay and
    minibatches are those of `fedem`.
    """
    method = fedem(
        model,
        step_size=step_size,
        decay=decay,
        memory_rate=0.0,
        batch_size=batch_size,
        weighting=weighting,
    )
    return method._replace(
        name="em", hooks=Hooks(diagnose=lambda down, data: why_diverged("em", down.memory_rate))
    )
