"""One run of a sweep: in its own directory, resumed where it was stopped, done once."""

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

from covey.config import configuration, model_selection
from covey.core import atomic_files
from covey.engines.record import Diverged
from covey.runs.directory import BusyError
from covey.sweeps.grid import Trial

_FILE = "result.json"
_ENDING_SECONDS = 20.0


class Outcome(NamedTuple):
    """The outcome of a run of a sweep.

    Attributes:
        round: Rounds that were run; 0 where the run did not get so far.
        measures: Metrics of the validation rows, pooled over clients; None where not finite.
        diverged: Message of the divergence; None where there was none.
        failed: Why the run could not be done; None where it could. A failed run is tried again.
        seconds: Time that the last start took.
        warnings: Warnings of the run.
    """

    round: int = 0
    measures: Mapping[str, float | None] = {}
    diverged: str | None = None
    failed: str | None = None
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()


def stored(trial: Trial) -> Outcome | None:
    """The outcome of a run that is done; None where it is not."""
    path = trial.directory / _FILE
    if not path.exists():
        return None
    found = json.loads(path.read_text("utf-8"))
    return Outcome(**(found | {"warnings": tuple(found["warnings"])}))


def conduct(trial: Trial) -> Outcome:
    """Run or resume it, and store the outcome.

    Args:
        trial: The run; its directory is created, or holds the run from an earlier start.

    Returns:
        The outcome. A run that diverges has one too, and is not tried again; one that fails, e.g.
        on a full disk, has only its error. A run that is done is left as it is.
    """
    if (before := stored(trial)) is not None:
        return before
    start = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _patiently(trial)
        except Diverged as error:
            found = Outcome(diverged=str(error))
        except (ValueError, OSError) as error:
            return Outcome(failed=_one_line(error))
    said = tuple(dict.fromkeys(str(one.message) for one in caught))
    found = found._replace(seconds=perf_counter() - start, warnings=said)
    _store(trial.directory / _FILE, found)
    return found


def _patiently(trial: Trial) -> Outcome:
    """Run it, once a process that is about to end has let go of its directory: a cluster ends the
    processes of a sweep that was killed, but not at once.
    """
    end = perf_counter() + _ENDING_SECONDS
    while True:
        try:
            return _run(trial)
        except BusyError:
            if perf_counter() > end:
                raise
            sleep(0.2)


def _run(trial: Trial) -> Outcome:
    directory = trial.directory
    resume = (directory / "config.toml").exists()
    settings = model_selection.decided(
        trial.configuration(), directory, resume=resume, report=lambda line: None
    )
    # held-out clients are for the run that is chosen
    parts = configuration.build(settings)._replace(unseen=None)
    done = configuration.execute(settings, parts, out=directory, resume=resume, progress=False)
    pooled = done.evaluation.pooled
    measures = {key: value if math.isfinite(value) else None for key, value in pooled.items()}
    lost = [key for key, value in measures.items() if value is None]
    diverged = f"{', '.join(lost)} of the validation rows: not finite" if lost else None
    return Outcome(done.round, measures, diverged)


def _store(path: Path, found: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write(path, json.dumps(found._asdict(), indent=1).encode())


def _one_line(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
