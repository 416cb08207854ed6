"""The number of components of a mixture, chosen by held-out likelihood."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from covey.config.configuration import Configuration, ConfigurationError, build, execute, method_of
from covey.core import toml_files
from covey.runs.run import Run

CANDIDATES = (1, 2, 3, 4)


class Choice(NamedTuple):
    """The chosen number of components, and the losses of all candidates.

    Attributes:
        components: The number of components with the smallest loss.
        nll: Minus the mean log p(y | x) of the validation rows, by number of components.
        runs: The run of each number of components.
    """

    components: int
    nll: dict[int, float]
    runs: dict[int, Run]


def choose_components(fit: Callable[[int], Run], candidates: Sequence[int] = CANDIDATES) -> Choice:
    """The number of components of a `covey.mixture` with the best held-out likelihood.

    Each number M of `candidates` is run once, trained on the training rows, and scored by the loss
    of each client's mixture on its validation rows,

        nll(M) = - mean over the validation rows of all clients of log sum_m pi_tm p(y | x, theta_m)

    Args:
        fit: (M) -> the run with M components. The data need validation rows.
        candidates: Numbers of components to try, each at least 1. Default: 1 to 4. The work grows
            with their sum.

    Returns:
        A `Choice`: the best number in `components`, the losses in `nll`, the runs in `runs`.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> data = data.split(validation=0.3, seed=1)
        >>> def fit(components):
        ...     method = covey.mixture(covey.models.linear(), components=components)
        ...     return covey.run(method, data, rounds=5, seed=1)
        >>> choice = covey.choose_components(fit, candidates=(1, 2))
        >>> sorted(choice.nll)
        [1, 2]
        >>> choice.nll[choice.components] == min(choice.nll.values())
        True

    Reference: Marfoq et al. (2021), Federated multi-task learning under a mixture of distributions,
    compare numbers of components in figure 1; choosing by held-out likelihood is ours.
    """
    if not candidates or min(candidates) < 1:
        raise ValueError(
            f"choose_components: candidates must be one or more numbers, each at least 1, got "
            f"{tuple(candidates)}"
        )
    runs = {count: fit(count) for count in candidates}
    nll = {count: done.evaluate(split="validation").pooled["nll"] for count, done in runs.items()}
    if not any(math.isfinite(loss) for loss in nll.values()):
        raise ValueError(
            f"choose_components: no run has a finite validation loss, got {nll}; take a smaller "
            "step size or fewer components"
        )
    best = min(nll, key=lambda count: nll[count] if math.isfinite(nll[count]) else math.inf)
    return Choice(best, nll, runs)


def decided(
    settings: Configuration, directory: Path, *, resume: bool, report: Callable[[str], None]
) -> Configuration:
    """The configuration with a number of components in place of "auto": the chosen one or, where a
    run is resumed, that of the run.
    """
    if settings.options["method"].get("components") != "auto":
        return settings
    recorded = directory / "config.toml"
    if resume and recorded.exists():
        return _with(settings, toml_files.read(recorded)["method"]["components"])
    parts = build(_with(settings, CANDIDATES[0]))
    if not parts.data.counts("validation").any():
        raise ConfigurationError(
            'method.components: "auto" chooses by validation rows and there are none; set '
            "data.validation"
        )

    def fit(components: int) -> Run:
        report(
            f"{components} component{'s' if components > 1 else ''}, to see how well they predict"
        )
        one = _with(settings, components)
        return execute(one, parts._replace(method=method_of(one)), out=None, progress=False)

    choice = choose_components(
        fit, [number for number in CANDIDATES if number <= parts.data.clients]
    )
    losses = ", ".join(f"{number}: {nll:.4f}" for number, nll in choice.nll.items())
    report(
        f"{choice.components} components are best (nll of validation rows by components: {losses})"
    )
    return _with(settings, choice.components)


def _with(settings: Configuration, components: int) -> Configuration:
    options = settings.options | {"method": settings.options["method"] | {"components": components}}
    tables = settings.tables | {"method": settings.tables["method"] | {"components": components}}
    return settings._replace(options=options, tables=tables)
