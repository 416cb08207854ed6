"""Helpers of every command: consoles, exit codes, and messages of one line for mistakes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

console = Console()
errors = Console(stderr=True)

MISTAKE = 2


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """A context: mistakes of the user end in one line. `COVEY_DEBUG=1` shows the stack trace."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            tell_of_stop(str(interrupt))
        raise typer.Exit(code_of(interrupt)) from None
    except (ValueError, OSError) as error:
        if os.environ.get("COVEY_DEBUG") == "1":
            raise
        errors.print(Text(_message(error)), style="red", soft_wrap=True)
        raise typer.Exit(MISTAKE) from None


def code_of(interrupt: KeyboardInterrupt) -> int:
    """The exit code after a signal, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + getattr(interrupt, "number", signal.SIGINT)


def tell_of_stop(text: str) -> None:
    """Print the outcome of a command that was stopped."""
    errors.print(Text(text), style="yellow", soft_wrap=True)


def _message(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line of the second console."""
    errors.print(Text(f"warning: {message}"), style="yellow", soft_wrap=True)
