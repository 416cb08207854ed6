"""How many components a mixture needs: as many as predict rows best that nobody learned from."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from covey.config.configuration import Configuration, ConfigurationError, build, execute, method_of
from covey.runs.run import Run

CANDIDATES = (1, 2, 3, 4)


class Choice(NamedTuple):
    """The number of components that is best; for each number tried, its run, and minus its mean
    held-out log p(y | x).
    """

    components: int
    nll: dict[int, float]
    runs: dict[int, Run]


def choose_components(fit: Callable[[int], Run], candidates: Sequence[int] = CANDIDATES) -> Choice:
    """The number of components with the highest held-out likelihood; `fit(M)` makes the run with M
    of them.

    Components learn from the training rows; each client's mixture is scored on its validation rows,
    all rows counting alike.

    Example:
        choose_components(lambda m: covey.run(covey.mixture(model, components=m), data, rounds=100,
        seed=0)).components
    """
    if not candidates or min(candidates) < 1:
        raise ValueError(f"candidates must be some numbers of at least 1, got {tuple(candidates)}")
    runs = {number: fit(number) for number in candidates}
    nll = {number: done.evaluate(split="validation").pooled["nll"] for number, done in runs.items()}
    return Choice(min(nll, key=lambda number: nll[number]), nll, runs)


def decided(
    settings: Configuration, directory: Path, *, resume: bool, report: Callable[[str], None]
) -> Configuration:
    """The configuration with a number where it says `components = "auto"`: the one chosen, or, on
    resuming, that of the run.
    """
    if settings.options["method"].get("components") != "auto":
        return settings
    recorded = directory / "config.toml"
    if resume and recorded.exists():
        return _with(settings, tomllib.loads(recorded.read_text("utf-8"))["method"]["components"])
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
