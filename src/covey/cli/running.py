"""`covey run`: the method of a configuration."""

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
    from covey.runs.evaluation import Evaluation
    from covey.runs.run import Run

_NOT_BEGUN = "stopped before the first round; nothing was saved"


def run_command(
    config: ConfigFile,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="TABLE.KEY=VALUE",
            help="Change one value of the configuration; may be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in the run directory.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run directory. Default: runs/NAME.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed, instead of that of the configuration.")
    ] = None,
) -> None:
    """Run the method of a configuration."""
    with mistakes_in_one_line(), stopping.says(lambda: _stopped(out, resume=resume)):
        from covey.config import configuration, model_selection

        settings = configuration.read(config, overrides=overrides or [], seed=seed)
        directory = out or Path("runs") / (settings.options["run"].get("name") or config.stem)
        with stopping.says(lambda: _stopped(directory, resume=resume)):
            try:
                settings = model_selection.decided(
                    settings, directory, resume=resume, report=lambda line: errors.print(Text(line))
                )
                parts = configuration.build(settings)
                done = configuration.execute(settings, parts, out=directory, resume=resume)
            except KeyboardInterrupt as interrupt:
                tell_of_stop(str(interrupt) or _NOT_BEGUN)
                if command := _how_to_continue(directory):
                    errors.print(Text(command), soft_wrap=True)
                raise typer.Exit(code_of(interrupt)) from None
            _print_results(done)
        console.print(
            Text(f"written to {directory}; look at {directory / 'report.html'}"), soft_wrap=True
        )


def _stopped(directory: Path | None, *, resume: bool) -> str:
    """The message of a run stopped outside of its rounds. None: its directory is not known."""
    if directory is None or not (command := _how_to_continue(directory)):
        return "stopped before another round; the run is as it was" if resume else _NOT_BEGUN
    saved = [path.stem for path in (directory / "checkpoints").glob("*.checkpoint")]
    reached = max((int(stem) for stem in saved if stem.isdigit()), default=0)
    said = f"stopped; round {reached} is saved in {directory}" if reached else _NOT_BEGUN
    return f"{said}\n{command}"


def _how_to_continue(directory: Path) -> str:
    """The command that resumes the run of a directory; empty where there is none."""
    if not (directory / "config.toml").exists():
        return ""
    config, out = shlex.quote(str(directory / "config.toml")), shlex.quote(str(directory))
    return f"to continue: covey run {config} --resume --out {out}"


def _print_results(done: "Run") -> None:
    took_part, clients = done.participants, done.data.clients
    of = f"{clients}" if took_part == clients else f"{took_part} of {clients}"
    console.print(
        f"{done.name}: {done.round} round{'s' * (done.round != 1)} of {done.method.name} on {of} "
        f"client{'s' * (clients != 1)}",
        highlight=False,
    )
    if done.data.counts(done.split).any():
        _print_evaluation("clients", done.evaluation)
    if done.unseen is not None:
        _print_evaluation("held-out clients", done.unseen_evaluation)
    if done.ledger is not None:
        spent = ", ".join(
            f"{value:.4g} by {name}" for name, value in done.ledger.spent(done.round).items()
        )
        console.print(
            Text(f"revealed of a row at delta {done.ledger.budget.delta:g}: epsilon {spent}"),
            soft_wrap=True,
        )


def _print_evaluation(title: str, evaluation: "Evaluation") -> None:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.pooled.items())
    console.print(Text(f"{title}, {evaluation.split} rows: {shown}"), soft_wrap=True)
