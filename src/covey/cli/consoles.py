"""What every command shares: consoles, exit codes, and mistakes told in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

console = Console()
errors = Console(stderr=True)

MISTAKE, INTERRUPTED = 2, 130


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """A mistake of the user is told without a stack trace, which `COVEY_DEBUG=1` brings back."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, OSError) as error:
        if os.environ.get("COVEY_DEBUG") == "1":
            raise
        errors.print(Text(_message(error)), style="red", soft_wrap=True)
        raise typer.Exit(MISTAKE) from None


def _message(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line of the second console."""
    errors.print(Text(f"warning: {message}"), style="yellow", soft_wrap=True)
