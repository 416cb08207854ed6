"""What the reproduction of a published result hands in, and how it is written down."""

import json
import subprocess
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from covey.config.options import unknown
from covey.core import atomic_files
from covey.runs.environment import versions

if TYPE_CHECKING:
    import plotly.graph_objects as go

_CLONE = Path(__file__).parents[1]
Scale: TypeAlias = Literal["quick", "full"]
Size = TypeVar("Size", bound=Any)  # a NamedTuple with the settings of an experiment
_changes: ContextVar[dict[str, Any]] = ContextVar(
    "changes",
    default={},  # noqa: B039  # never changed
)
Report: TypeAlias = Callable[[str], None]  # takes a line on how far the work is


class Row(NamedTuple):
    """One number of the paper beside ours: mean and standard deviation over the seeds. None where
    there is no number.
    """

    quantity: str
    paper: float | None
    ours: float
    sd: float | None
    seeds: int


def row(quantity: str, values: np.ndarray, paper: float | None = None) -> Row:
    """The line of a quantity that was found once a seed."""
    return Row(quantity, paper, float(values.mean()), spread(values), len(values))


def spread(values: np.ndarray) -> float | None:
    """The standard deviation over seeds; of a single one there is none."""
    return float(values.std(ddof=1)) if len(values) > 1 else None


class Claim(NamedTuple):
    """A statement of the paper in words, the value it is about, the bound it sets, and whether ours
    is within.
    """

    claim: str
    value: float
    bound: float
    holds: bool


class Result(NamedTuple):
    """A reproduction as it is written to `result.json`; `revision` is the commit that made it."""

    id: str
    scale: Scale
    seconds: float
    rows: list[Row]
    claims: list[Claim]
    changes: dict[str, Any] = {}  # noqa: RUF012  # never changed
    revision: str | None = None

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(claim.holds for claim in self.claims)


class Experiment(NamedTuple):
    """A reproducible result.

    run: "module:function" of `(scale, report) -> (rows, claims, figure)`; imported only when it is
        run.
    description: one line.
    expected_seconds: by scale, on two cores.
    """

    run: str
    description: str
    expected_seconds: dict[Scale, float]

    def load(self) -> Callable[[Scale, Report], tuple[list[Row], list[Claim], "go.Figure"]]:
        """The function that does the work."""
        module, _, function = self.run.partition(":")
        return getattr(import_module(module), function)


def with_changes(size: Size) -> Size:
    """The size of an experiment, with the values that `covey reproduce --set` asks for.

    Every experiment asks for its size here, once, before it starts.

    Raises:
        ValueError: The experiment has no such setting, or the value is of another type.
    """
    changes = _changes.get()
    kinds = {name: type(value) for name, value in size._asdict().items()}
    for name, value in changes.items():
        if name not in kinds:
            raise ValueError(unknown(f"--set {name}", name, kinds, "setting"))
        fits = float if kinds[name] is float and type(value) is int else type(value)
        if fits is not kinds[name]:
            raise ValueError(f"--set {name}: {kinds[name].__name__} is needed, got {value!r}")
    return size._replace(**changes)


def perform(
    name: str,
    experiment: Experiment,
    *,
    scale: Scale,
    out: Path,
    report: Report,
    changes: Mapping[str, Any] | None = None,
) -> Result:
    """Run an experiment and write `result.json` and `figure.html`.

    Args:
        name: The experiment's id.
        experiment: What to run.
        scale: "quick" or "full".
        out: Where to write.
        report: Takes a line on how far the work is.
        changes: Settings other than those of the scale, by name.
    """
    start, made_at = perf_counter(), revision()
    token = _changes.set(dict(changes or {}))
    try:
        rows, claims, figure = experiment.load()(scale, report)
    finally:
        _changes.reset(token)
    seconds = round(perf_counter() - start, 3)
    result = Result(name, scale, seconds, rows, claims, dict(changes or {}), made_at)
    write(out, result, figure)
    return result


def revision(clone: Path = _CLONE) -> str | None:
    """The commit of a clone, as `git describe` names it, with "+ changes" where files differ from
    it; None without git, and in an unpacked archive, also one that lies in a clone of something
    else.
    """
    describe = ("describe", "--tags", "--always", "--dirty= + changes")
    try:
        top, name = (
            subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=True)
            for words in (("rev-parse", "--show-toplevel"), describe)
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.stdout.strip() if Path(top.stdout.strip()) == clone.resolve() else None


def write(out: Path, result: Result, figure: "go.Figure") -> None:
    """`result.json` and the figure, self-contained, each whole or absent."""
    table = {
        **result._asdict(),
        "rows": [row._asdict() for row in result.rows],
        "claims": [claim._asdict() for claim in result.claims],
        "environment": versions(),
    }
    text = json.dumps(table, indent=2, allow_nan=False)
    page = cast("str", figure.to_html(include_plotlyjs=True, full_html=True))
    out.mkdir(parents=True, exist_ok=True)
    atomic_files.write(out / "figure.html", page.encode())
    atomic_files.write(out / "result.json", text.encode())
