"""The progress display of a run: a live line on a terminal, plain lines elsewhere, nothing for
work under two seconds.
"""

from collections import deque
from collections.abc import Callable
from threading import Timer, current_thread
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from covey.report.units import duration, in_bytes
from covey.runs.directory import Record

_QUIET_SECONDS = 2.0
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_OF_RATE = 10.0
_SHOWN = 4


class Display:
    """Round, rate, time left, newest metrics, bits sent; on stderr, so that results on stdout stay
    clean.

    A context: leaving it ends the live line. `last` is the last round; None for a run that ends by
    itself.
    """

    def __init__(
        self,
        name: str,
        last: int | None,
        *,
        bits: float = 0.0,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
        quiet: float = _QUIET_SECONDS,
    ):
        self._console = Console(stderr=True) if console is None else console
        self._name, self._last, self._clock = name, last, clock
        self._bits, self._quiet = bits, quiet
        self._newest: dict[str, float] = {}
        self._start = clock()
        self._line_at = -_SECONDS_BETWEEN_LINES
        self._marks: deque[tuple[float, int]] = deque()
        self._live: Progress | None = None
        # The first rounds wait for their program to be compiled, which can take longer than the
        # rounds.
        self._patience = Timer(quiet, self._tell_of_compiling)
        self._patience.daemon = True

    def __enter__(self) -> "Display":
        self._patience.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_waiting()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, done: int, records: list[Record]) -> None:
        """After a block of rounds: `done` rounds are finished, `records` are those of the block."""
        self._stop_waiting()
        now = self._clock()
        for record in records:
            self._bits += (record.get("bits_up") or 0) + (record.get("bits_down") or 0)
            self._newest |= {
                key: value for key, value in record.items() if _is_metric(key) and value is not None
            }
        rate = self._rate(now, done)
        if now - self._start < self._quiet:
            return
        if self._console.is_terminal:
            self._show(done, f"{self._of(done)}  {self._text(done, rate)}")
        elif now - self._line_at >= _SECONDS_BETWEEN_LINES:
            self._line_at = now
            self._say(f"{self._name}: round {self._of(done)}, {self._text(done, rate)}")

    def _of(self, done: int) -> str:
        return f"{done}" if self._last is None else f"{done}/{self._last}"

    def _stop_waiting(self) -> None:
        self._patience.cancel()
        if self._patience.is_alive() and self._patience is not current_thread():
            self._patience.join()

    def _tell_of_compiling(self) -> None:
        if self._console.is_terminal:
            self._show(0, "compiling")
        else:
            self._say(f"{self._name}: compiling")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _rate(self, now: float, done: int) -> float | None:
        """Recent rounds per second; None after the first block, most of which was compilation."""
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] > _SECONDS_OF_RATE:
            self._marks.popleft()
        then, before = self._marks[0]
        return (done - before) / (now - then) if now > then else None

    def _show(self, done: int, text: str) -> None:
        if self._live is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}", markup=False),
            )
            self._live = Progress(*columns, console=self._console, transient=True)
            self._live.add_task(self._name, total=self._last, text="")
            self._live.start()
        task = self._live.task_ids[0]
        self._live.update(task, completed=done, text=text)

    def _text(self, done: int, rate: float | None) -> str:
        parts = [f"{rate:.3g} rounds/s"] if rate else []
        if rate and self._last is not None:
            parts.append(f"{duration((self._last - done) / rate)} left")
        # evaluation first
        shown = sorted(self._newest, key=lambda key: key == "train_loss")[:_SHOWN]
        parts += [f"{key} {self._newest[key]:.4g}" for key in shown]
        return ", ".join([*parts, f"{in_bytes(self._bits / 8)} sent"])


def _is_metric(key: str) -> bool:
    return key == "train_loss" or key.startswith(("validation_", "test_", "train_"))
