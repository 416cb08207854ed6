"""The state of a run and its report from the files of its directory, also while it is going."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

import pandas as pd

from covey.core import toml_files
from covey.report.content import Content, Settings, Traffic
from covey.report.measures import convergence_of, fairness_of, messages_of, pooled_measures
from covey.report.units import duration, in_bytes

_RECENT = 20  # rounds that tell how long the next ones take


@dataclass(frozen=True)
class RunState:
    """The state of a run, as read from its files.

    Attributes:
        name: Name of the run.
        method: Name of the method.
        metrics: One row per round that is on disk.
        rounds: Rounds in all; None for a run that ends by itself.
        running: Whether a process holds the run directory.
        settings: Text of `config.toml`.
        tables: The same, as tables.
    """

    name: str
    method: str
    metrics: pd.DataFrame
    rounds: int | None
    running: bool
    settings: str
    tables: dict[str, Any]

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.metrics)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rounds that are left will take, at the pace of the last ones."""
        if self.rounds is None or "seconds" not in self.metrics or self.round < 2:
            return None
        pace = self.metrics["seconds"].tail(_RECENT).iloc[1:].median()
        return float(pace * max(self.rounds - self.round, 0))

    @property
    def version(self) -> str:
        """A short text that changes when the run has moved on."""
        return f"{self.round}-{'running' if self.running else 'ended'}"


def read_state(directory: Path) -> RunState:
    """Read the files of a run.

    Args:
        directory: The run directory; another process may be writing there.

    Returns:
        Its state. A last row of the metrics that is not yet whole is left out.

    Raises:
        ValueError: The directory holds no run, or its configuration is not TOML.
    """
    config = directory / "config.toml"
    if not config.exists():
        raise ValueError(f"{directory} holds no run: there is no config.toml in it")
    tables = toml_files.read(config)
    run = tables.get("run", {})
    return RunState(
        name=run.get("name") or directory.resolve().name,
        method=tables.get("method", {}).get("name", "unknown method"),
        metrics=_metrics(directory / "metrics.jsonl"),
        rounds=run.get("rounds"),
        running=_is_held(directory / "lock"),
        settings=config.read_text("utf-8"),
        tables=tables,
    )


def content_of_files(directory: Path) -> Content:
    """The report of a run from its files alone: measures, messages, sites, settings.

    Args:
        directory: The run directory.

    Returns:
        The content; a page of a run that is going asks for news (`Content.live`).
    """
    state = read_state(directory)
    of = "" if state.rounds is None else f" of {state.rounds}"
    where = "is going" if state.running else "has ended"
    sentences = [f"The run {where}: {state.round}{of} rounds of {state.method} are done."]
    left = state.seconds_left
    if state.running and left is not None:
        sentences.append(f"At the pace of the last rounds it will take {duration(left)} more.")
    if newest := pooled_measures(state.metrics):
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in newest.items())
        sentences.append(f"Newest measures: {shown}.")
    clients = directory / "clients.parquet"
    fairness = fairness_of(pd.read_parquet(clients), "evaluated") if clients.exists() else None
    messages: Any = messages_of(state.metrics, pd.DataFrame())
    facts = [("rounds", f"{state.round}{of}"), ("method", state.method)]
    if messages is not None:
        facts.append(("sent by all sites", in_bytes(messages["bytes_up"].sum())))
    values = pd.DataFrame({"setting": ["method"], "value": [state.method]})
    return Content(
        title=state.name,
        subtitle=f"{state.method}, {state.round}{of} rounds",
        facts=tuple(facts),
        sentences=tuple(sentences),
        fairness=fairness,
        traffic=None if messages is None else Traffic(None, messages),
        convergence=convergence_of(state.metrics),
        settings=Settings(values, state.settings),
        live=state.version if state.running else "",
    )


def _metrics(path: Path) -> pd.DataFrame:
    """Whole rows of the metrics."""
    rows = []
    if path.exists():
        for line in path.read_text("utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], float))


def _is_held(lock: Path) -> bool:
    """Whether the process that the lock names is there; on another machine, it is believed."""
    try:
        owner = json.loads(lock.read_bytes())
    except (OSError, ValueError):  # nobody holds it
        return False
    if owner.get("host") != gethostname():
        return True
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process of another user
        return True
    return True
