"""A run from a TOML file.

Tables: `[data]`, `[model]`, `[method]`, `[run]`, and where wanted `[cohort]`, `[channel]`,
`[faults]`, `[privacy]` (a budget) and, for peers without a server, `[topology]`. All but `[run]`,
`[faults]` and `[privacy]` have a `name` (see `catalogue`); their other keys are the options of the
factory of that name. `[channel]` also takes `part`, the parts of the upload that it is for, by
name. Everything is checked before anything is loaded, and all mistakes are reported at once.
"""

import inspect
from pathlib import Path
from typing import NamedTuple

from covey.config.checking import Configuration, ConfigurationError, checked, read
from covey.config.parts import PREPARATION, channel_of, prepare
from covey.core.algorithm import Algorithm
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.core.faults import Faults
from covey.data.federated import FederatedData
from covey.privacy.ledger import Budget
from covey.runs import toml
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
    """What a configuration describes; `unseen` are the clients held out, if any."""

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
    loaded = factories["data"](**loading)
    data, unseen = prepare(loaded, seed=options["run"].get("seed", 0), **preparation)
    if unseen is not None and not unseen.counts("test").any():
        raise ConfigurationError(
            "data.hold_out: the clients held out have no test rows to be judged on; set data.test, "
            "e.g. 0.2"
        )
    return Parts(
        method=method_of(configuration),
        data=data,
        unseen=unseen,
        cohort=factories["cohort"](**options["cohort"]),
        channel=channel_of(factories["channel"], **options["channel"]),
        faults=Faults(**options["faults"]).checked(),
        topology=factories["topology"](**options["topology"]) if "topology" in factories else None,
        privacy=Budget(**options["privacy"]) if "privacy" in factories else None,
    )


def method_of(configuration: Configuration) -> Algorithm:
    """The method that a configuration describes, with its model."""
    factories, options = configuration.factories, configuration.options
    factory = factories["method"]
    model = factories["model"](**options["model"])
    takes_model = "model" in inspect.signature(factory).parameters
    made = factory(*([model] if takes_model else []), **options["method"])
    if not isinstance(made, Algorithm):
        raise ConfigurationError(
            f"method.name: {factory.__name__} returned {type(made).__name__}; a method returns a "
            "covey.Algorithm"
        )
    return made


def execute(
    configuration: Configuration,
    parts: Parts,
    *,
    out: Path | None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Run it, or go on with the run in `out`; without `out` nothing is written."""
    return run(
        parts.method,
        parts.data,
        cohort=parts.cohort,
        channel=parts.channel,
        faults=parts.faults,
        topology=parts.topology,
        privacy=parts.privacy,
        out=out,
        resume=resume,
        progress=progress,
        settings=configuration.tables,
        **configuration.options["run"],
    )


def reopen(directory: Path) -> tuple[Run, FederatedData | None]:
    """A finished run as it was left, and the clients that were held out from it, if any.

    Raises:
        ConfigurationError: there is no run, it is not finished, or it was not started from a
        configuration.
    """
    path = directory / "config.toml"
    if not path.exists():
        raise ConfigurationError(f"{directory} holds no run: there is no config.toml in it")
    tables = toml.read(path)
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
    )  # a run may have gone on past what was asked for
    parts = build(settings)
    return execute(settings, parts, out=directory, resume=True, progress=False), parts.unseen
