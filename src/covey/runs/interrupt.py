"""Ctrl-C and SIGTERM during a run: it stops between rounds, where everything can be saved."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler: TypeAlias = Callable[[int, FrameType | None], object]


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM has come; `number` is that of the signal."""

    def __init__(self, text: str = "", number: int = signal.SIGINT):
        super().__init__(text)
        self.number = number


class StopRequest:
    """A context in which the first Ctrl-C or SIGTERM is remembered and the second stops at once.

    Only the main thread hears signals. In another thread, and where a signal is ignored (Ctrl-C in
    a background job), nothing changes. The second signal goes to the handler that was there
    before, if a program has set one.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Callable | int | None] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None

    def __enter__(self) -> "StopRequest":
        self._before = _heard_by(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            before = self._before[number]
            if callable(before) and before is not signal.default_int_handler:
                before(number, frame)
            raise Stopped("stopped at once; the rounds since the last checkpoint are lost", number)
        self.number = number
        sys.stderr.write("\nstopping after the rounds at hand; once more stops at once\n")


@contextmanager
def raised() -> Iterator[None]:
    """Ctrl-C and SIGTERM both raise `Stopped`, for work that has processes or files to end with."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Stopped("", number)

    before = _heard_by(end)
    try:
        yield
    finally:
        _restore(before)


def _heard_by(handler: Handler) -> dict[int, Callable | int | None]:
    """Give the handler all signals that are not ignored; those that were there before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    return {one: signal.signal(one, handler) for one in heard}


def _restore(before: dict[int, Callable | int | None]) -> None:
    for one, handler in before.items():
        signal.signal(one, handler)
