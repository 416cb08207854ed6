"""`covey run`: a method as a configuration describes it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from covey.cli.consoles import INTERRUPTED, console, errors, mistakes_in_one_line

if TYPE_CHECKING:
    from covey.data.federated import FederatedData
    from covey.runs.evaluation import Evaluation
    from covey.runs.run import Run


def run_command(
    config: Annotated[
        Path, typer.Argument(help="The configuration, a TOML file.", metavar="CONFIG.toml")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="TABLE.KEY=VALUE",
            help="Change one value of the configuration; may be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the run directory.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run directory; runs/NAME by default.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The seed, in place of the configuration's.")
    ] = None,
) -> None:
    """Run a method as a configuration describes it."""
    with mistakes_in_one_line():
        from covey.config import configuration, model_selection

        settings = configuration.read(config, overrides=overrides or [], seed=seed)
        directory = out or Path("runs") / (settings.options["run"].get("name") or config.stem)
        try:
            settings = model_selection.decided(
                settings, directory, resume=resume, report=lambda line: errors.print(Text(line))
            )
            parts = configuration.build(settings)
            done = configuration.execute(settings, parts, out=directory, resume=resume)
        except KeyboardInterrupt as interrupt:
            _tell_how_to_continue(interrupt, directory)
            raise typer.Exit(INTERRUPTED) from None
        _print_results(done, parts.unseen)
        if parts.unseen is not None:
            _report_with(done, parts.unseen, directory)
        console.print(
            Text(f"written to {directory}; look at {directory / 'report.html'}"), soft_wrap=True
        )


def _tell_how_to_continue(interrupt: KeyboardInterrupt, directory: Path) -> None:
    errors.print(
        Text(str(interrupt) or "stopped before the first round"), style="yellow", soft_wrap=True
    )
    if (directory / "config.toml").exists():
        config, out = shlex.quote(str(directory / "config.toml")), shlex.quote(str(directory))
        errors.print(Text(f"to continue: covey run {config} --resume --out {out}"), soft_wrap=True)


def _report_with(done: "Run", unseen: "FederatedData", directory: Path) -> None:
    """The page again, with the clients held out, which a run knows nothing of."""
    from covey.report import from_run

    text = (directory / "config.toml").read_text("utf-8")
    from_run.write(done, directory / "report.html", settings=text, unseen=unseen)


def _print_results(done: "Run", unseen: "FederatedData | None") -> None:
    took_part, clients = done.participants, done.data.clients
    of = f"{clients}" if took_part == clients else f"{took_part} of {clients}"
    console.print(
        f"{done.name}: {done.round} rounds of {done.method.name} on {of} clients",
        highlight=False,
    )
    if done.data.counts(done.split).any():
        _print_evaluation("clients", done.evaluation)
    if unseen is not None:
        _print_evaluation("held-out clients", done.evaluate(unseen, split="test"))
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
