"""`covey reproduce` and `covey results`: published experiments, run again and compared."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line


class ScaleChoice(StrEnum):
    """The size of a reproduction."""

    quick = "quick"
    full = "full"


def reproduce_command(
    name: Annotated[
        str,
        typer.Argument(metavar="ID", help="Name of the experiment; see `covey list experiments`."),
    ],
    scale: Annotated[
        ScaleChoice, typer.Option(help="quick: at most 90 seconds; full: the paper's size.")
    ] = ScaleChoice.quick,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change one setting of the scale; may be repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the result. Default: runs/ID-SCALE, with --set runs/ID-SCALE-changed.",
        ),
    ] = None,
) -> None:
    """Run a published experiment again and compare. Exits with 1 when a claim does not hold."""
    with mistakes_in_one_line():
        from covey.config.checking import value_of
        from covey.config.options import unknown
        from covey.runs.progress import duration

        find_reproductions()
        from reproductions import EXPERIMENTS
        from reproductions.result import perform
        from reproductions.tables import result_tables

        if name not in EXPERIMENTS:
            raise ValueError(unknown("reproduce", name, EXPERIMENTS, "experiment"))
        experiment = EXPERIMENTS[name]
        expected = duration(experiment.expected_seconds[scale.value])
        console.print(
            Text(f"{experiment.description}; expected to take {expected} on two cores"),
            soft_wrap=True,
        )
        settings = dict(value_of(change) for change in changes or [])
        # The standard result is not written over by one with other settings.
        folder = f"{name}-{scale.value}{'-changed' if settings else ''}"
        directory = out or Path("runs") / folder
        result = perform(
            name,
            experiment,
            scale=scale.value,
            out=directory,
            report=lambda line: console.print(Text(line)),
            changes=settings,
        )
        console.print(*result_tables(result))
        console.print(Text(f"written to {directory}"), soft_wrap=True)
        if not result.holds:
            raise typer.Exit(1)


def results_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of results of `covey reproduce`.")
    ] = Path("runs"),
    out: Annotated[
        Path | None, typer.Option("--out", help="Write all results to this file, as Markdown.")
    ] = None,
) -> None:
    """All reproductions of a folder in one table: how many claims hold, and which are lost."""
    with mistakes_in_one_line():
        from covey.core import atomic_files

        find_reproductions()
        from reproductions.results import collect, markdown
        from reproductions.tables import overview

        stored = collect(directory)
        console.print(overview([one.result for one in stored]))
        if out is not None:
            atomic_files.write(out, markdown(stored).encode())
            console.print(Text(f"written to {out}"), soft_wrap=True)


def find_reproductions() -> None:
    """Make the reproductions of a clone importable; they are no part of the installed package."""
    clone = Path(__file__).parents[3]
    if not (clone / "reproductions" / "__init__.py").exists():
        raise ValueError(
            "the reproductions of published results are in the source repository, not in the "
            "installed package: clone it, "
            "run `make demo` there once, and call .venv/bin/covey"
        )
    if str(clone) not in sys.path:
        sys.path.append(str(clone))
