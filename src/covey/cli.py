"""The command line: a thin layer on `covey.config` and `covey.runs`. Everything heavy is imported
by the command that needs it.
"""

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from covey.data.federated import FederatedData
    from covey.runs.evaluation import Evaluation
    from covey.runs.run import Run
    from reproductions.result import Experiment

app = typer.Typer(
    name="covey",
    help="Federated Bayesian inference: learning from data that never leave their owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
privacy_app = typer.Typer(help="What a run would reveal of its rows.", no_args_is_help=True)
app.add_typer(privacy_app, name="privacy")
_console = Console()
_errors = Console(stderr=True)

_MISTAKE, _INTERRUPTED = 2, 130


class Kind(StrEnum):
    """What `covey list` lists."""

    methods = "methods"
    models = "models"
    data = "data"
    cohorts = "cohorts"
    channels = "channels"
    topologies = "topologies"
    experiments = "experiments"


class ScaleChoice(StrEnum):
    """How large a reproduction is."""

    quick = "quick"
    full = "full"


class SchemeChoice(StrEnum):
    """How S clients of a round are drawn."""

    uniform = "uniform"
    weighted = "weighted"


class SamplingChoice(StrEnum):
    """How a minibatch is drawn."""

    fixed = "fixed"
    poisson = "poisson"


class AccountantChoice(StrEnum):
    """Who keeps a privacy budget."""

    rdp = "rdp"
    theorem = "theorem"
    pld = "pld"


def main() -> None:
    """The entry point."""
    warnings.showwarning = _show_warning
    _keep_compiled_programs()
    app()


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    if show_version:
        _console.print(f"covey {version('covey')}", highlight=False)
        raise typer.Exit


@app.command("run")
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
    with _mistakes_in_one_line():
        from covey.config import configuration, model_selection

        settings = configuration.read(config, overrides=overrides or [], seed=seed)
        directory = out or Path("runs") / (settings.options["run"].get("name") or config.stem)
        try:
            settings = model_selection.decided(
                settings, directory, resume=resume, report=lambda line: _errors.print(Text(line))
            )
            parts = configuration.build(settings)
            done = configuration.execute(settings, parts, out=directory, resume=resume)
        except KeyboardInterrupt as interrupt:
            _errors.print(
                Text(str(interrupt) or "stopped before the first round"),
                style="yellow",
                soft_wrap=True,
            )
            if (directory / "config.toml").exists():
                quoted = shlex.quote(str(directory))
                command = (
                    f"covey run {shlex.quote(str(directory / 'config.toml'))} --resume --out "
                    f"{quoted}"
                )
                _errors.print(Text(f"to continue: {command}"), soft_wrap=True)
            raise typer.Exit(_INTERRUPTED) from None
        took_part, clients = done.participants, done.data.clients
        of = f"{clients}" if took_part == clients else f"{took_part} of {clients}"
        _console.print(
            f"{done.name}: {done.round} rounds of {done.method.name} on {of} clients",
            highlight=False,
        )
        if done.data.counts(done.split).any():
            _print_evaluation("clients", done.evaluation)
        if parts.unseen is not None:
            _print_evaluation("held-out clients", done.evaluate(parts.unseen, split="test"))
        if done.ledger is not None:
            spent = ", ".join(
                f"{value:.4g} by {name}" for name, value in done.ledger.spent(done.round).items()
            )
            _console.print(
                Text(f"revealed of a row at delta {done.ledger.budget.delta:g}: epsilon {spent}"),
                soft_wrap=True,
            )
        _console.print(
            Text(f"written to {directory}; look at {directory / 'report.html'}"), soft_wrap=True
        )


@app.command("posterior")
def posterior_command(
    directory: Annotated[
        Path, typer.Argument(help="The run directory of a finished run.", metavar="RUN_DIRECTORY")
    ],
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", help="A client's own parameters; may be repeated."
        ),
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="The shared parameters only.")] = False,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Clients that were held out from the run.")
    ] = False,
    draws: Annotated[
        int | None, typer.Option("--draws", help="Draws per chain; 1000 by default.")
    ] = None,
    chains: Annotated[
        int | None, typer.Option("--chains", help="Independent chains; 4 by default.")
    ] = None,
    probability: Annotated[
        float, typer.Option("--probability", help="Probability of the credible intervals.")
    ] = 0.9,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.nc|FILE.csv",
            help="Write the draws (.nc) or their summary (.csv).",
        ),
    ] = None,
) -> None:
    """Credible intervals of the shared parameters and of each client's own, of a finished run."""
    with _mistakes_in_one_line():
        if out is not None and out.suffix not in (".nc", ".csv"):
            raise ValueError(
                f"{out}: draws are written as .nc, their summary as .csv; end the name with one"
            )
        if shared and (clients or held_out):
            raise ValueError("--shared is about no client: leave --client and --held-out away")
        from covey.config import configuration
        from covey.core import atomic_files
        from covey.inference import trace
        from covey.inference.posterior import check_probability
        from covey.report.tables import summary_table

        check_probability(probability)
        done, held = configuration.reopen(directory)
        if held_out and held is None:
            raise ValueError(f"{directory}: no clients were held out from this run")
        wanted = _posteriors(done, held if held_out else None, clients, shared=shared)
        if out is not None and len(wanted) > 1:
            raise ValueError(f"--out writes one posterior: add --shared or --client to {out}")
        for about, posterior in wanted.items():
            drawn = posterior.trace(**_count(posterior, draws, chains))
            table = trace.summarise(drawn, probability=probability)
            title = f"{done.name}, {about}: {done.method.name} after {done.round} rounds"
            _console.print(*summary_table(title, table, probability))
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                content = trace.netcdf(drawn) if out.suffix == ".nc" else table.to_csv().encode()
                atomic_files.write(out, content)
                _console.print(Text(f"written to {out}"), soft_wrap=True)


def _count(posterior: object, draws: int | None, chains: int | None) -> dict[str, int]:
    """How many draws to ask for; those of a run's chains have been drawn already."""
    from covey.inference.posterior import SharedChains

    if not isinstance(posterior, SharedChains):
        return {
            "count": 1000 if draws is None else draws,
            "chains": 4 if chains is None else chains,
        }
    if draws is not None or chains is not None:
        raise ValueError("the chains of this run have been drawn: leave --draws and --chains away")
    return {}


def _posteriors(
    done: "Run", held: "FederatedData | None", clients: list[str] | None, *, shared: bool
) -> dict:
    """The posteriors that were asked for; all that the method has where none was named."""
    has = done.method.posterior
    own = bool(clients) or held is not None or (not shared and has.client is not None)
    found = {}
    if shared or (not clients and held is None and (has.shared is not None or not own)):
        try:
            found["shared parameters"] = done.posterior.shared
        except ValueError as error:
            if shared or not own:
                raise
            _console.print(Text(f"shared parameters: {error}"))
    if own:
        found["clients"] = done.posterior.select(clients or None, data=held)
    return found


@app.command("list")
def list_command(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List what a configuration can name, and the experiments that can be reproduced."""
    with _mistakes_in_one_line():
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, text in _listed(kind):
            table.add_row(Text(name, style="bold"), Text(text))
        _console.print(table)


@app.command("reproduce")
def reproduce_command(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="The experiment; see `covey list experiments`.")
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
        Path | None, typer.Option("--out", help="Where to write; runs/ID-SCALE by default.")
    ] = None,
) -> None:
    """Run a published experiment again and compare. Exits with 1 when a claim does not hold."""
    with _mistakes_in_one_line():
        from covey.config.configuration import value_of
        from covey.config.options import unknown
        from covey.runs.progress import duration

        _find_reproductions()
        from reproductions import EXPERIMENTS
        from reproductions.result import perform
        from reproductions.tables import result_tables

        if name not in EXPERIMENTS:
            raise ValueError(unknown("reproduce", name, EXPERIMENTS, "experiment"))
        experiment = EXPERIMENTS[name]
        expected = duration(experiment.expected_seconds[scale.value])
        _console.print(
            Text(f"{experiment.description}; expected to take {expected} on two cores"),
            soft_wrap=True,
        )
        directory = out or Path("runs") / f"{name}-{scale.value}"
        result = perform(
            name,
            experiment,
            scale=scale.value,
            out=directory,
            report=lambda line: _console.print(Text(line)),
            changes=dict(value_of(change) for change in changes or []),
        )
        _console.print(*result_tables(result))
        _console.print(Text(f"written to {directory}"), soft_wrap=True)
        if not result.holds:
            raise typer.Exit(1)


@app.command("results")
def results_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where results of `covey reproduce` are.")
    ] = Path("runs"),
    out: Annotated[
        Path | None, typer.Option("--out", help="Write all numbers to this file, as Markdown.")
    ] = None,
) -> None:
    """All reproductions of a folder in one table: how many claims hold, and which are lost."""
    with _mistakes_in_one_line():
        from covey.core import atomic_files

        _find_reproductions()
        from reproductions.results import collect, markdown
        from reproductions.tables import overview

        stored = collect(directory)
        _console.print(overview([one.result for one in stored]))
        if out is not None:
            atomic_files.write(out, markdown(stored).encode())
            _console.print(Text(f"written to {out}"), soft_wrap=True)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Where to write the figure.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Four hospitals learn together without sharing a patient: under a minute."""
    with _mistakes_in_one_line():
        from covey.demo import main as demo

        demo(out)


@privacy_app.command("plan")
def plan_command(
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="The budget: how much may be revealed of one row.")
    ],
    delta: Annotated[
        float,
        typer.Option(
            "--delta", help="The chance that more is; far below one over the number of rows."
        ),
    ],
    clients: Annotated[int, typer.Option("--clients", help="N, all clients.")],
    rows: Annotated[int, typer.Option("--rows", help="Training rows of the smallest client.")],
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Rows of a minibatch; all by default.")
    ] = None,
    local_steps: Annotated[
        int, typer.Option("--local-steps", help="K, steps of a client in a round.")
    ] = 10,
    chains: Annotated[
        int, typer.Option("--chains", help="Chains side by side; each costs as much as one.")
    ] = 1,
    temperature: Annotated[float, typer.Option("--temperature", help="tau.")] = 1.0,
    clip: Annotated[
        float, typer.Option("--clip", help="The largest norm of one row's gradient.")
    ] = 1.0,
    correlations: Annotated[
        list[float] | None, typer.Option("--correlation", help="rho; may be repeated.")
    ] = None,
    cohort_sizes: Annotated[
        list[int] | None, typer.Option("--cohort-size", help="S; may be repeated.")
    ] = None,
    rounds: Annotated[
        list[int] | None, typer.Option("--rounds", help="Rounds in all; may be repeated.")
    ] = None,
    scheme: Annotated[
        SchemeChoice, typer.Option("--scheme", help="How S clients are drawn.")
    ] = SchemeChoice.uniform,
    sampling: Annotated[
        SamplingChoice, typer.Option("--sampling", help="How minibatches are drawn.")
    ] = SamplingChoice.fixed,
    kept_by: Annotated[
        AccountantChoice, typer.Option("--kept-by", help="The accountant of the budget.")
    ] = AccountantChoice.rdp,
) -> None:
    """Step sizes for FA-LD inside a privacy budget, by noise shared, clients in a round, and
    rounds.
    """
    with _mistakes_in_one_line():
        from covey.privacy.planning import plan
        from covey.report.tables import number

        proposals = plan(
            epsilon=epsilon,
            delta=delta,
            clients=clients,
            rows=rows,
            batch_size=batch_size,
            local_steps=local_steps,
            chains=chains,
            temperature=temperature,
            clip=clip,
            correlations=correlations or None,
            cohort_sizes=cohort_sizes or None,
            rounds=rounds or None,
            scheme=scheme.value,
            sampling=sampling.value,
            kept_by=kept_by.value,
        )
        table = Table(
            title=f"epsilon {epsilon:g} at delta {delta:g}, kept by {kept_by.value}",
            title_justify="left",
        )
        for name in ("S of N", "rounds", "rho", "largest step_size", "rdp", "theorem", "pld"):
            table.add_column(name, justify="right")
        for one in proposals:
            spent = [number(one.spent.get(name)) for name in ("rdp", "theorem", "pld")]
            size = f"{one.cohort_size} of {clients}"
            table.add_row(
                size, str(one.rounds), f"{one.correlation:g}", number(one.step_size), *spent
            )
        _console.print(table)
        _console.print(
            Text(
                "An empty cell: not accounted for there. rdp and pld take it as known who is in a "
                "round; the theorem does not."
            ),
            soft_wrap=True,
        )


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """A mistake of the user is told without a stack trace, which `COVEY_DEBUG=1` brings back."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except (ValueError, OSError) as error:
        if os.environ.get("COVEY_DEBUG") == "1":
            raise
        _errors.print(Text(_message(error)), style="red", soft_wrap=True)
        raise typer.Exit(_MISTAKE) from None


def _message(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _errors.print(Text(f"warning: {message}"), style="yellow", soft_wrap=True)


def _keep_compiled_programs() -> None:
    """Let JAX keep compiled programs between commands; its own variables win. Read when JAX is
    imported.
    """
    given = os.environ.get("COVEY_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME")
    cache = Path(given) if given else (Path(user) if user else Path.home() / ".cache") / "covey"
    try:
        (cache / "jax").mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written: programs are compiled each time
        return
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _find_reproductions() -> None:
    """Make the reproductions of a clone importable; they are no part of the installed package."""
    clone = Path(__file__).parents[2]
    if not (clone / "reproductions" / "__init__.py").exists():
        raise ValueError(
            "the reproductions of published results are in the source repository, not in the "
            "installed package: clone it, "
            "run `make demo` there once, and call .venv/bin/covey"
        )
    if str(clone) not in sys.path:
        sys.path.append(str(clone))


def _listed(kind: Kind) -> list[tuple[str, str]]:
    if kind is Kind.experiments:
        from covey.runs.progress import duration

        _find_reproductions()
        from reproductions import EXPERIMENTS

        def described(experiment: "Experiment") -> str:
            times = [f"{k} {duration(s)}" for k, s in experiment.expected_seconds.items()]
            return f"{experiment.description} ({', '.join(times)})"

        return [(name, described(experiment)) for name, experiment in EXPERIMENTS.items()]
    from covey.config import catalogue

    named = {
        Kind.methods: catalogue.METHODS,
        Kind.models: catalogue.MODELS,
        Kind.data: catalogue.DATA,
        Kind.cohorts: catalogue.COHORTS,
        Kind.channels: catalogue.CHANNELS,
        Kind.topologies: catalogue.TOPOLOGIES,
    }[kind]
    return list(catalogue.described(named).items())


def _print_evaluation(title: str, evaluation: "Evaluation") -> None:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.pooled.items())
    _console.print(Text(f"{title}, {evaluation.split} rows: {shown}"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
