"""One way to choose settings for every comparison, so that no method is helped by its grid.

Every method gets the same number of settings: `rates` client rates on a logarithmic grid, times two
values of a parameter of its own; a method without one gets a grid of rates that is twice as fine.
Where the best rate is at an end of the grid, the grid grows there by one rate until it is not.
Settings are chosen by validation rows of seeds that are not scored; the scores are of test rows and
of at least three other seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from covey.engines.record import Diverged
from covey.report.tables import cell_text
from covey.runs.evaluation import Evaluation
from covey.runs.run import Run
from reproductions.result import Report, Row, row, spread

LEAST_RATES = 4
LEAST_SEEDS = 3
OWN_VALUES = 2
MOST_EXTENSIONS = 4  # rates that a grid may grow by
Looked = TypeVar("Looked")
Split: TypeAlias = Literal["validation", "test"]


class Setting(NamedTuple):
    """A client rate, and the value of the method's own parameter; None for a method without."""

    rate: float
    own: float | None = None


class Trial(NamedTuple):
    """A setting with its scores on validation rows, one per search seed."""

    setting: Setting
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean score; minus infinity where a run has diverged."""
        return float(np.mean(self.scores)) if np.all(np.isfinite(self.scores)) else -math.inf


class Found(NamedTuple):
    """The search of one method.

    Attributes:
        method: Its name.
        best: The setting that was chosen.
        trials: All settings that were tried.
        scores: Scores on test rows, one per scored seed.
        at_edge: Whether the best rate was still at an end of the grid when it had grown as far as
            it may: the method might do better, and no claim against it should be made.
    """

    method: str
    best: Setting
    trials: tuple[Trial, ...]
    scores: tuple[float, ...]
    at_edge: bool


# (method, setting, seed, split) -> score, larger is better; NaN where the run has diverged
Score: TypeAlias = Callable[[str, Setting, int, Split], float]


class Plan(NamedTuple):
    """What every search of a comparison has in common.

    Attributes:
        lowest: Lowest client rate of the grid.
        highest: Highest client rate.
        rates: Number of rates, at least 4.
        search_seeds: Seeds by which settings are chosen.
        scored_seeds: Seeds that are scored, at least 3 and none of the others.
    """

    lowest: float
    highest: float
    rates: int
    search_seeds: tuple[int, ...]
    scored_seeds: tuple[int, ...]


def fair_search(
    methods: Mapping[str, Sequence[float]], score: Score, plan: Plan, report: Report
) -> dict[str, Found]:
    """Choose settings for all methods of a comparison in the same way, and score them.

    Args:
        methods: By name, two values of the method's own parameter, or none.
        score: Trains and scores a method.
        plan: Rates and seeds.
        report: Takes a line on how far the work is.

    Returns:
        The search and the scores of each method.

    Example:
        >>> def score(method, setting, seed, split):
        ...     return -abs(math.log(setting.rate / 0.1)) - (setting.own or 0.0)
        >>> plan = Plan(0.01, 1.0, 4, search_seeds=(0,), scored_seeds=(1, 2, 3))
        >>> found = fair_search({"a": (1.0, 2.0), "b": ()}, score, plan, lambda line: None)
        >>> [len(one.trials) for one in found.values()]
        [8, 8]
        >>> found["a"].best.own
        1.0
    """
    _check(methods, plan)
    found = {}
    for name, values in methods.items():
        report(f"{name}: search")
        trials, at_edge = searched(name, tuple(values), score, plan)
        best = max(trials, key=lambda trial: trial.mean).setting
        report(f"{name}: scores at rate {best.rate:g}")
        scores = tuple(float(score(name, best, seed, "test")) for seed in plan.scored_seeds)
        found[name] = Found(name, best, tuple(trials), scores, at_edge)
    return found


def searched(
    name: str, values: tuple[float, ...], score: Score, plan: Plan
) -> tuple[list[Trial], bool]:
    """All trials of a method, and whether the best rate is still at an end of the grid."""
    step = math.log(plan.highest / plan.lowest) / (plan.rates - 1)
    count = plan.rates if values else OWN_VALUES * plan.rates
    step = step if values else step * (plan.rates - 1) / (count - 1)
    rates = [plan.lowest * math.exp(step * index) for index in range(count)]
    own = values or (None,)

    def tried(rate: float) -> list[Trial]:
        settings = [Setting(rate, value) for value in own]
        return [
            Trial(one, tuple(float(score(name, one, s, "validation")) for s in plan.search_seeds))
            for one in settings
        ]

    trials = [trial for rate in rates for trial in tried(rate)]
    for _ in range(MOST_EXTENSIONS):
        side = _edge(trials, rates)
        if not side:
            return trials, False
        new = rates[0] / math.exp(step) if side < 0 else rates[-1] * math.exp(step)
        rates = [new, *rates] if side < 0 else [*rates, new]
        trials += tried(new)
    return trials, _edge(trials, rates) != 0


def best_of(
    done: Run,
    rounds: int,
    every: int,
    accuracy: Callable[[Evaluation], float],
    look: Callable[[Run], Looked],
) -> tuple[float, Looked]:
    """The best validation accuracy of a run that has begun, looked at now and each `every` rounds
    up to `rounds`, and what `look` saw of the run there.
    """
    highest = (accuracy(done.evaluate(split="validation")), look(done))
    while done.round < rounds:
        found = accuracy(done.advance(every).evaluate(split="validation"))
        if found > highest[0]:
            highest = (found, look(done))
    return highest


def score_at_best(
    begin: Callable[[], Run],
    rounds: int,
    every: int,
    accuracy: Callable[[Evaluation], float],
    split: Split,
) -> float:
    """Accuracy of a run where it is best by validation rows; NaN where it diverges."""
    try:
        validation, test = best_of(
            begin(),
            rounds,
            every,
            accuracy,
            lambda done: accuracy(done.evaluate(split="test")) if split == "test" else None,
        )
    except Diverged:
        return math.nan
    return validation if test is None else test


def ranking(
    panels: Mapping[str, Mapping[str, Sequence[float]]], ours: str, title: str
) -> go.Figure:
    """Test accuracy by method, from the best to the worst, with the deviation over seeds.

    Args:
        panels: Title -> method -> accuracies in percent, one per seed.
        ours: The method to point out.
        title: Title of the figure.
    """
    chart = make_subplots(cols=len(panels), subplot_titles=list(panels))
    for column, of in enumerate(panels.values(), start=1):
        scores = {
            name: np.array(of[name]) for name in sorted(of, key=lambda name: np.mean(of[name]))
        }
        bars = go.Bar(
            x=[float(one.mean()) for one in scores.values()],
            y=list(scores),
            error_x={"type": "data", "array": [spread(one) or 0.0 for one in scores.values()]},
            orientation="h",
            marker_color=["#1f6fb2" if name == ours else "#b9b9b9" for name in scores],
            showlegend=False,
        )
        chart.add_trace(bars, row=1, col=column)
    chart.update_layout(title=title, template="plotly_white")
    chart.update_xaxes(title="mean test accuracy over clients, percent")
    return chart


def search_rows(found: Mapping[str, Found]) -> list[Row]:
    """The whole search as rows of a result: every setting with its validation score, and the one
    that was chosen with its test score.
    """
    rows = []
    for one in found.values():
        edge = ", at the end of the grid" if one.at_edge else ""
        rows.append(row(f"{one.method}, test, {_words(one.best)}{edge}", np.array(one.scores)))
        rows += [
            Row(
                f"{one.method}, validation, {_words(trial.setting)}",
                None,
                trial.mean,
                spread(np.array(trial.scores)),
                len(trial.scores),
            )
            for trial in sorted(one.trials, key=lambda trial: trial.setting.rate)
            if math.isfinite(trial.mean)
        ]
        lost = [trial.setting for trial in one.trials if not math.isfinite(trial.mean)]
        if lost:
            rows.append(Row(f"{one.method}, settings that diverged", None, len(lost), None, 1))
    return rows


def _edge(trials: Sequence[Trial], rates: Sequence[float]) -> int:
    """-1 or 1 where the best rate is the lowest or the highest of the grid; 0 within."""
    best = max(trials, key=lambda trial: trial.mean)
    if best.setting.rate == rates[-1]:
        # Where all higher rates would diverge there is nothing to gain; the next one tells.
        return 1
    return -1 if best.setting.rate == rates[0] else 0


def _words(setting: Setting) -> str:
    own = "" if setting.own is None else f", own {cell_text(setting.own)}"
    return f"rate {cell_text(setting.rate)}{own}"


def _check(methods: Mapping[str, Sequence[float]], plan: Plan) -> None:
    if plan.rates < LEAST_RATES or not 0 < plan.lowest < plan.highest:
        raise ValueError(
            f"a fair search has at least {LEAST_RATES} rates, from one above 0 to a higher one; "
            f"got {plan.rates} from {plan.lowest:g} to {plan.highest:g}"
        )
    if len(set(plan.scored_seeds)) < LEAST_SEEDS:
        raise ValueError(
            f"at least {LEAST_SEEDS} different seeds are scored, got {plan.scored_seeds}"
        )
    both = set(plan.search_seeds) & set(plan.scored_seeds)
    if both or not plan.search_seeds:
        raise ValueError(
            "settings are chosen by seeds that are not scored, at least one; "
            f"seeds of both: {sorted(both)}"
        )
    for name, values in methods.items():
        if len(values) not in (0, OWN_VALUES):
            raise ValueError(
                f"{name}: every method has {OWN_VALUES} values of its own parameter, or none; got "
                f"{len(values)}"
            )
