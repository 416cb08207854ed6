"""`covey sweep`: a grid of runs over settings and seeds."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from covey.cli import stopping
from covey.cli.consoles import (
    code_of,
    console,
    errors,
    mistakes_in_one_line,
    tell_of_stop,
)
from covey.cli.options import ConfigFile

if TYPE_CHECKING:
    from covey.sweeps.results import Choice

_STOPPED = "stopped; the same command resumes it"


def sweep_command(
    config: ConfigFile,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="TABLE.KEY=VALUE,VALUE",
            help="Values to try for one setting; may be repeated for a grid.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Seeds per setting, from the configuration's seed on.")
    ] = 1,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Measure of the validation rows to choose the settings by. Default: nll, the mean "
            "negative log-likelihood of a row; e.g. accuracy where only the predicted class "
            "counts.",
            metavar="MEASURE",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Number of runs at once, each in its own process. Default: 2, or the CPUs of the "
            "cluster.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Address of a Ray cluster whose nodes share this folder. Default: this machine.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the sweep. Default: runs/CONFIG-sweep."),
    ] = None,
) -> None:
    """Run a study for a grid of settings and seeds, and choose by validation rows.

    Started again after Ctrl-C, SIGTERM or kill -9, it continues with the unfinished runs.
    """
    with mistakes_in_one_line(), stopping.says(lambda: _STOPPED):
        from covey.sweeps.sweep import FIGURE, TABLE, sweep

        folder = out or Path("runs") / f"{config.stem}-sweep"
        try:
            found = sweep(
                config,
                settings or [],
                out=folder,
                seeds=seeds,
                by=by,
                processes=workers,
                address=address,
                report=lambda line: errors.print(Text(line), soft_wrap=True),
            )
        except KeyboardInterrupt as interrupt:
            tell_of_stop(_STOPPED)
            raise typer.Exit(code_of(interrupt)) from None
        _print_choice(found, config)
        console.print(
            Text(f"written to {folder / TABLE}; look at {folder / FIGURE}"), soft_wrap=True
        )


def _print_choice(found: "Choice", config: Path) -> None:
    marks = ["*" if chosen else "" for chosen in found.table["chosen"]]
    shown = found.table.assign(chosen=marks)
    text = shown.to_string(index=False, float_format="{:.4g}".format, na_rep="")
    console.print(Text(text), soft_wrap=True)
    for key in found.at_the_end:
        console.print(
            Text(f"{key}: the best value is at the end of its list; try values beyond it"),
            soft_wrap=True,
        )
    options = [word for key, value in found.settings for word in ("--set", f"{key}={value}")]
    command = shlex.join(["covey", "run", str(config), *options])
    console.print(Text(f"best {found.by}: {command}"), soft_wrap=True)
