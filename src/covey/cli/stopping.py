"""Ctrl-C and SIGTERM outside of rounds, where nothing is to be saved: a command prints one line
and ends.

No exception is raised: XLA ignores one that comes during its callbacks, or aborts the process.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from covey.runs.interrupt import SIGNALS

_STDERR = 2
_SHOW_CURSOR = "\x1b[?25h"  # a live line hides it
_texts: list[Callable[[], str]] = [lambda: "stopped before the end"]
_ending = threading.Lock()


def end_on_signals() -> None:
    """From now on Ctrl-C and SIGTERM end the process, unless they are ignored or heard by a run.

    A handler of Python waits for the main thread, which may be compiling for minutes; a second
    thread does not.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for one in SIGNALS:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, _end)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(reader,), daemon=True).start()


@contextmanager
def says(text: Callable[[], str]) -> Iterator[None]:
    """The message of a command that is stopped in this context.

    Args:
        text: Makes the text when a signal has come; it imports nothing.
    """
    _texts.append(text)
    try:
        yield
    finally:
        _texts.remove(text)


def _listen(reader: int) -> None:
    while True:
        for number in os.read(reader, 64):
            if signal.getsignal(number) is _end:
                _end(number, None)


def _end(number: int, frame: FrameType | None) -> None:
    if not _ending.acquire(blocking=False):  # the other thread is at it
        return
    text = "stopped"
    with suppress(Exception):
        text = _texts[-1]()
    after_control_c = f"\n{_SHOW_CURSOR}" if os.isatty(_STDERR) else ""
    with suppress(OSError):
        os.write(_STDERR, f"{after_control_c}{text}\n".encode())
    os._exit(128 + number)
