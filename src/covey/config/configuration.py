"""A run from a TOML file.

Tables: `[data]`, `[model]`, `[method]`, `[run]`, and where wanted `[cohort]`, `[channel]`,
`[faults]`, `[privacy]` (a budget) and, for peers without a server, `[topology]`. All but `[run]`,
`[faults]` and `[privacy]` have a `name` (see `catalogue`); their other keys are the options of the
factory of that name. `[channel]` also takes `part`, the parts of the upload that it is for, by
name. Everything is checked before anything is loaded, and all mistakes are reported at once.
"""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from covey.config import user_code
from covey.config.checking import Configuration, ConfigurationError, checked, read
from covey.config.parts import PREPARATION, channel_of, prepare
from covey.core import toml_files
from covey.core.algorithm import FUNCTIONS, Algorithm
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.core.faults import Faults
from covey.core.method_checks import need_method
from covey.data.federated import FederatedData
from covey.privacy.ledger import Budget
from covey.runs.directory import RunDirectory
from covey.runs.launch import run
from covey.runs.run import Run
from covey.topology import Topology

__all__ = [
    "Configuration",
    "ConfigurationError",
    "Parts",
    "build",
    "checked",
    "execute",
    "method_of",
    "read",
    "reopen",
]


class Parts(NamedTuple):
    """The parts of a configuration, by the names of `covey.run`; `unseen` are the clients held out,
    if any.
    """

    method: Algorithm
    data: FederatedData
    unseen: FederatedData | None
    cohort: Scheme
    channel: Channel
    faults: Faults
    topology: Topology | None
    privacy: Budget | None


def build(configuration: Configuration) -> Parts:
    """Load the data and make the method, the cohort and the channel."""
    factories, options = configuration.factories, configuration.options
    preparation = {key: value for key, value in options["data"].items() if key in PREPARATION}
    loading = {key: value for key, value in options["data"].items() if key not in PREPARATION}
    with _users_code(configuration, "data"):
        loaded = factories["data"](**loading)
        if not isinstance(loaded, FederatedData):
            raise ValueError(f"it returned {type(loaded).__name__}, not covey.FederatedData")
    data, unseen = prepare(loaded, seed=options["run"].get("seed", 0), **preparation)
    if unseen is not None and not unseen.counts("test").any():
        raise ConfigurationError(
            "data.hold_out: the clients held out have no test rows to be judged on; set data.test, "
            "e.g. 0.2"
        )
    with _users_code(configuration, "cohort"):
        cohort = factories["cohort"](**options["cohort"])
    with _users_code(configuration, "channel"):
        channel = channel_of(factories["channel"], **options["channel"])
    topology = None
    if "topology" in factories:
        with _users_code(configuration, "topology"):
            topology = factories["topology"](**options["topology"])
    return Parts(
        method=method_of(configuration),
        data=data,
        unseen=unseen,
        cohort=cohort,
        channel=channel,
        faults=Faults(**options["faults"]).checked(),
        topology=topology,
        privacy=Budget(**options["privacy"]) if "privacy" in factories else None,
    )


def method_of(configuration: Configuration) -> Algorithm:
    """The method that a configuration describes, with its model.

    Raises:
        ConfigurationError: A factory of the user's own file raised, or made no method.
    """
    factories, options = configuration.factories, configuration.options
    factory = factories["method"]
    with _users_code(configuration, "model"):
        model = factories["model"](**options["model"])
    takes = inspect.signature(factory).parameters.get("model")
    positional = [model] if takes is not None and takes.kind is takes.POSITIONAL_ONLY else []
    by_name = {} if takes is None or positional else {"model": model}
    with _users_code(configuration, "method"):
        made = factory(*positional, **by_name, **options["method"])
        if not isinstance(made, Algorithm):
            raise ValueError(
                f"it returned {type(made).__name__}; a method returns a covey.Algorithm"
            )
        need_method(made)
    return made


@contextmanager
def _users_code(configuration: Configuration, table: str) -> Iterator[None]:
    """Whatever the factory of a user's own file raises is a mistake of the configuration."""
    name = str(configuration.tables.get(table, {}).get("name"))
    try:
        yield
    except Exception as error:
        if not user_code.is_user_code(name):
            raise
        raise ConfigurationError(f"{table}.name: {name}: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, TypeError) and "Algorithm.__new__() missing" in str(error):
        missing = ", ".join(re.findall(r"'(\w+)'", str(error)))
        return (
            f"the covey.Algorithm that it makes has no {missing}; a method needs a name and the "
            f"functions {', '.join(FUNCTIONS)}"
        )
    if isinstance(error, ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}; COVEY_DEBUG=1 shows the line"


def execute(
    configuration: Configuration,
    parts: Parts,
    *,
    out: Path | None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Run it, or resume the run in `out`; without `out` nothing is written."""
    return run(
        **parts._asdict(),
        out=out,
        resume=resume,
        progress=progress,
        settings=configuration.tables,
        **configuration.options["run"],
    )


def reopen(directory: Path) -> Run:
    """A finished run as it was left.

    Raises:
        ConfigurationError: there is no run, it is not finished, or it was not started from a
        configuration.
    """
    path = directory / "config.toml"
    if not path.exists():
        raise ConfigurationError(f"{directory} holds no run: there is no config.toml in it")
    tables = toml_files.read(path)
    if "fit" in tables:
        raise ConfigurationError(
            f"{directory} is a fit of a formula: its draws are in {directory / 'posterior.nc'}, "
            f"its intervals in summary.csv and effects.csv beside it; in Python both are "
            f"covey.load_fit({str(directory)!r}).posterior"
        )
    if "data" not in tables:
        raise ConfigurationError(
            f"{directory} was started from Python: only covey.run(..., resume=True) there can open "
            "it again"
        )
    # None: the run was to end by itself, and warns again where it was stopped before
    asked, done = tables["run"].get("rounds"), RunDirectory(directory).newest_round()
    if done < (asked or 1):
        raise ConfigurationError(
            f"{directory} is at round {done}{f' of {asked}' if asked else ''}: finish it by "
            f"`covey run {path} --resume --out {directory}`"
        )
    settings = read(
        path, overrides=[f"run.rounds={done}"]
    )  # a run may have continued past the rounds of its file
    return execute(settings, build(settings), out=directory, resume=True, progress=False)
