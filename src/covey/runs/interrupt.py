"""Ctrl-C and SIGTERM during a run: it stops between rounds, where everything can be saved."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A context in which the first Ctrl-C or SIGTERM is remembered and the second stops at once.

    Only the main thread hears signals. In another thread, and where a signal is ignored (Ctrl-C in
    a background job), nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Callable | int | None] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for one in _SIGNALS:
                if signal.getsignal(one) is not signal.SIG_IGN:
                    self._before[one] = signal.signal(one, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt(
                "stopped at once; the rounds since the last checkpoint are lost"
            )
        self.asked = True
        sys.stderr.write("\nstopping after the rounds at hand; once more stops at once\n")
