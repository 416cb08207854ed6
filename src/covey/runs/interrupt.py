"""Ctrl-C during a run: it stops between rounds, where everything can be saved, not in the middle of
one.
"""

import signal
import sys
import threading
from types import FrameType


class StopRequest:
    """A context in which the first Ctrl-C is remembered and the second stops at once.

    Only the main thread hears signals; in another, and where Ctrl-C is ignored (a job in the
    background), nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before = None

    def __enter__(self) -> "StopRequest":
        heard = threading.current_thread() is threading.main_thread()
        if heard and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt("stopped at once; the rounds since the last checkpoint are lost")
        self.asked = True
        sys.stderr.write("\nstopping after the rounds at hand; once more stops at once\n")
