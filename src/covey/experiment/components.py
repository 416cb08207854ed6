"""How many components a mixture needs: as many as predict rows best that nobody learned from."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from covey.experiment.run import Run


class Choice(NamedTuple):
    """The number of components that is best; for each number tried, its run, and minus its mean held-out log p(y | x)."""

    components: int
    nll: dict[int, float]
    runs: dict[int, Run]


def choose_components(fit: Callable[[int], Run], candidates: Sequence[int] = (1, 2, 3, 4)) -> Choice:
    """The number of components with the highest held-out likelihood; `fit(M)` makes the run with M of them.

    Components learn from the training rows; each client's mixture is scored on its validation rows, all rows counting alike.

    Example:
        choose_components(lambda m: covey.run(covey.mixture(model, components=m), data, rounds=100, seed=0)).components
    """
    if not candidates or min(candidates) < 1:
        raise ValueError(f"candidates must be some numbers of at least 1, got {tuple(candidates)}")
    runs = {number: fit(number) for number in candidates}
    nll = {number: done.evaluate(part="validation").pooled["nll"] for number, done in runs.items()}
    return Choice(min(nll, key=lambda number: nll[number]), nll, runs)
