"""A run in the terminal while it is going: rounds, measures, what is left."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from covey.report.from_files import RunState, read_state
from covey.report.measures import messages_of, pooled_measures
from covey.report.units import duration, in_bytes

_SECONDS = 1.0  # between looks at the files


def watch(
    directory: Path,
    console: Console,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> RunState:
    """Show a run until it ends.

    Args:
        directory: The run directory. The run may continue in another process; it is not disturbed.
        console: The output. On a terminal the lines are updated in place; elsewhere the state
            is printed once at the beginning and once at the end.
        pause: Waits for some seconds. Default: `time.sleep`.

    Returns:
        The state at the end.

    Raises:
        ValueError: The directory holds no run.
    """
    state = read_state(directory)
    if not console.is_terminal:
        console.print(shown(state))
        first = state
        while state.running:
            pause(_SECONDS)
            state = read_state(directory)
        if state is not first:
            console.print(shown(state))
        return state
    with Live(shown(state), console=console, auto_refresh=False) as live:
        while state.running:
            pause(_SECONDS)
            state = read_state(directory)
            live.update(shown(state), refresh=True)
    return state


def shown(state: RunState) -> Group:
    """The state of a run as lines of the terminal.

    Args:
        state: From `read_state`.
    """
    of = "" if state.rounds is None else f" of {state.rounds}"
    head = f"{state.name}: round {state.round}{of} of {state.method}"
    lines: list[Text | ProgressBar | Table] = [Text(f"{head}, {_where(state)}", style="bold")]
    if state.rounds:
        lines.append(ProgressBar(total=state.rounds, completed=state.round, width=40))
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in pooled_measures(state.metrics).items():
        table.add_row(Text(name.replace("_", " ")), Text(f"{value:.4g}"))
    messages: Any = messages_of(state.metrics, pd.DataFrame())
    if messages is not None:
        table.add_row(Text("sent by all sites"), Text(in_bytes(messages["bytes_up"].sum())))
    if table.row_count:
        lines.append(table)
    return Group(*lines)


def _where(state: RunState) -> str:
    if not state.running:
        done = state.rounds is None or state.round >= state.rounds
        return "ended" if done else "stopped before its end"
    left = state.seconds_left
    return "going" if left is None else f"{duration(left)} left"
