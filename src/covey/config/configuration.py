"""A run from a TOML file.

Tables: `[data]`, `[model]`, `[method]`, `[run]`, and where wanted `[cohort]`, `[channel]`,
`[faults]`, `[privacy]` (a budget) and, for peers without a server, `[topology]`. All but `[run]`,
`[faults]` and `[privacy]` have a `name` (see `catalogue`); their other keys are the options of the
factory of that name. `[channel]` also takes `part`, the parts of the upload that it is for, by
name. Everything is checked before anything is loaded, and all mistakes are reported at once.
"""

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from covey.channel import masked
from covey.config import user_code
from covey.config.catalogue import CHANNELS, COHORTS, DATA, METHODS, MODELS, TOPOLOGIES
from covey.config.options import Factory, Option, check, options_of, unknown
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

_CHOICES: dict[
    str, tuple[dict[str, Factory], str | None]
] = {  # table -> what it can name, and the name if there is no table
    "data": (DATA, None),
    "model": (MODELS, None),
    "method": (METHODS, None),
    "cohort": (COHORTS, "full"),
    "channel": (CHANNELS, "identity"),
    "topology": (TOPOLOGIES, "complete"),
}
_KNOWN = (*_CHOICES, "faults", "privacy", "run")
_RECORD = (
    "environment"  # what a run adds to its config.toml; accepted, so that the file can be run again
)
_NOT_IN_RUN = (
    "method",
    "data",
    "cohort",
    "channel",
    "faults",
    "topology",
    "privacy",
    "out",
    "resume",
    "progress",
    "settings",
)


class ConfigurationError(ValueError):
    """What is wrong with a configuration, one line each."""


class Configuration(NamedTuple):
    """A checked configuration.

    factories: by table, the factory that it names.
    options: by table, as the factory takes them.
    tables: everything in plain values, defaults included, as `config.toml` records it.
    """

    factories: dict[str, Factory]
    options: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, toml.Value]]


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


def prepare(
    data: FederatedData,
    *,
    validation: float = 0.0,
    test: float = 0.0,
    split_seed: int | None = None,
    train_rows: int | None = None,
    few_rows: int | None = None,
    few_share: float = 0.0,
    standardise: bool = False,
    hold_out: Sequence[str | int] = (),
    seed: int,
) -> tuple[FederatedData, FederatedData | None]:
    """Split each client's rows, limit them, hold clients out, and standardise features by the
    training rows of the others.

    Without fractions the data keep the parts they came with. At most `train_rows` training rows a
    client are kept, and at most `few_rows` for a share `few_share` of the clients. Both are drawn
    from `split_seed`, by default the run's seed.
    """
    drawn_from = seed if split_seed is None else split_seed
    if validation or test:
        data = data.split(validation, test, seed=drawn_from)
    if train_rows is not None or few_rows is not None or few_share:
        data = data.limited(
            train_rows=train_rows, few_rows=few_rows, few_share=few_share, seed=drawn_from
        )
    data, unseen = data.hold_out(hold_out) if hold_out else (data, None)
    if standardise:
        data, scaling = data.standardised()
        unseen = None if unseen is None else unseen.standardised(scaling=scaling)[0]
    return data, unseen


def _channel(factory: Factory, *, part: str | list[str] | None = None, **options: Any) -> Channel:
    """A channel for all of an upload, or for the parts named."""
    whole = factory(**options)
    return whole if part is None else masked(part, whole)


def read(path: Path, *, overrides: Sequence[str] = (), seed: int | None = None) -> Configuration:
    """Read a file, change what `overrides` ("table.key=value") and `seed` say, and check it.

    Raises:
        ConfigurationError: with a line for each mistake.
    """
    tables = toml.read(path)
    for override in overrides:
        _set(tables, override)
    if seed is not None:
        tables.setdefault("run", {})["seed"] = seed
    try:
        return checked(tables)
    except ConfigurationError as error:
        raise ConfigurationError(
            "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        ) from None


def checked(tables: Mapping[str, toml.Value]) -> Configuration:
    """Check the tables of a configuration against the factories that they name.

    Raises:
        ConfigurationError: With a line for each mistake.
    """
    given, errors = _tables(tables)
    factories, names, more = _factories(given, set(tables))
    errors += more
    configuration = Configuration(factories, {}, {})
    for table, factory in factories.items():
        options = {
            key: value
            for key, value in given.get(table, {}).items()
            if key != "name" or table == "run"
        }
        found = check(table, _options(table, factory), options)
        errors += found.errors
        configuration.options[table] = found.values
        chosen = {"name": names[table]} if table in names else {}
        configuration.tables[table] = chosen | found.table
    errors += _misfit(factories)
    if errors:
        raise ConfigurationError("\n".join(errors))
    digests: dict[str, toml.Value] = {
        f"{table}_digest": user_code.digest(user_code.path_of(name))
        for table, name in names.items()
        if user_code.is_user_code(name)
    }
    if digests:
        configuration.tables[_RECORD] = digests
    return configuration


def _tables(tables: Mapping[str, toml.Value]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The tables that are known, and a line for each that is not, or is no table."""
    errors = [
        unknown(f"[{name}]", name, _KNOWN, "table")
        for name in tables
        if name not in (*_KNOWN, _RECORD)
    ]
    errors += [
        f"{name}: a table is needed, got {table!r}"
        for name, table in tables.items()
        if not isinstance(table, Mapping)
    ]
    given = {name: dict(table) for name, table in tables.items() if isinstance(table, Mapping)}
    if "topology" in given and not _has_peers(given):
        errors.append(
            'topology: is for peers without a server; set run.engine = "peers", or leave it out'
        )
    return given, errors


def _factories(
    given: dict[str, dict[str, Any]], mentioned: set[str]
) -> tuple[dict[str, Factory], dict[str, str], list[str]]:
    """By table, the factory that it names, and the name; a line for each name that is unknown."""
    factories: dict[str, Factory] = {}
    names: dict[str, str] = {}
    errors: list[str] = []
    for table, (known, default) in _CHOICES.items():
        if table in mentioned and table not in given:
            continue  # not a table, which is an error already
        if table == "topology" and not _has_peers(given):
            continue
        name = given.setdefault(table, {}).get("name", default)
        try:
            factories[table], names[table] = _named(table, name, known)
        except ValueError as error:
            errors.append(str(error))
    factories |= {"faults": Faults} | ({"privacy": Budget} if "privacy" in given else {})
    return factories | {"run": run}, names, errors


def _named(table: str, name: object, known: Mapping[str, Factory]) -> tuple[Factory, str]:
    """The factory of a name: of the catalogue, or of a user's file."""
    if not isinstance(name, str):
        got = "" if name is None else f", got {name!r}"
        raise ConfigurationError(f"{table}.name: needs one of {', '.join(known)}{got}")
    if user_code.is_user_code(name):
        try:
            return user_code.load(name)
        except ValueError as error:
            raise ConfigurationError(f"{table}.name: {error}") from error
    if name not in known:
        raise ConfigurationError(unknown(f"{table}.name", name, known, table))
    return known[name], name


def _has_peers(given: Mapping[str, Mapping[str, Any]]) -> bool:
    return given.get("run", {}).get("engine") == "peers"


def build(configuration: Configuration) -> Parts:
    """Load the data and make the method, the cohort and the channel."""
    factories, options = configuration.factories, configuration.options
    preparation = {key: value for key, value in options["data"].items() if key in _PREPARATION}
    loading = {key: value for key, value in options["data"].items() if key not in _PREPARATION}
    loaded = factories["data"](**loading)
    data, unseen = prepare(loaded, seed=options["run"]["seed"], **preparation)
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
        channel=_channel(factories["channel"], **options["channel"]),
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


def _options(table: str, factory: Factory) -> dict[str, Option]:
    if table == "run":
        return options_of(run, without=_NOT_IN_RUN)
    options = options_of(factory, without=("model",))
    return options | {"data": _PREPARATION, "channel": _PART}.get(table, {})


def _misfit(factories: Mapping[str, Factory]) -> list[str]:
    """A line where the method cannot use the kind of model that is made for it."""
    if "method" not in factories or "model" not in factories:
        return []
    needed = _annotation(factories["method"], "model")
    made = _annotation(factories["model"], "return")
    allowed = get_args(needed) or (needed,)
    if needed is None or made is None or made in allowed:
        return []
    fitting = [name for name, make in MODELS.items() if _annotation(make, "return") in allowed]
    method, model = factories["method"].__name__, factories["model"].__name__
    return [
        f"model.name: {method} cannot use the model {model!r}; it needs one of {', '.join(fitting)}"
    ]


def _annotation(factory: Factory, name: str) -> object | None:
    """The type of a factory's argument, or of what it returns; None where it has none."""
    signature = inspect.signature(factory, eval_str=True)
    if name == "return":
        found = signature.return_annotation
    else:
        found = signature.parameters[name].annotation if name in signature.parameters else None
    return None if found is inspect.Signature.empty else found


def value_of(setting: str) -> tuple[str, Any]:
    """Key and value of "key=value"; the value is TOML, or text where it is not."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"--set {setting}: write key=value, e.g. --set run.rounds=64")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return key.strip(), tuple(value) if isinstance(value, list) else value


def _set(tables: dict[str, Any], override: str) -> None:
    """Apply "table.key=value"."""
    path, value = value_of(override)
    *names, key = [name.strip() for name in path.split(".")]
    if not names or not all((*names, key)):
        raise ConfigurationError(
            f"--set {override}: write table.key=value, e.g. --set method.batch_size=64"
        )
    for name in names:
        tables = tables.setdefault(name, {})
        if not isinstance(tables, dict):
            raise ConfigurationError(f"--set {override}: {name} is not a table")
    tables[key] = list(value) if isinstance(value, tuple) else value


_PREPARATION = options_of(prepare, without=("data", "seed"))
_PART = {"part": options_of(_channel)["part"]}
