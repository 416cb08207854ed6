"""`covey demo`."""

from pathlib import Path
from typing import Annotated

import typer

from covey.cli.consoles import mistakes_in_one_line


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Where to write the figure.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Four hospitals learn together without sharing a patient: under a minute."""
    with mistakes_in_one_line():
        from covey.demo import main as demo

        demo(out)
