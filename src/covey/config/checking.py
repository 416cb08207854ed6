"""A configuration, checked: every table against the factory that it names."""

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from covey.config import user_code
from covey.config.catalogue import CHANNELS, COHORTS, DATA, METHODS, MODELS, TOPOLOGIES
from covey.config.options import Factory, Option, check, options_of, unknown
from covey.config.parts import PART, PREPARATION
from covey.core import toml_files
from covey.core.faults import Faults
from covey.privacy.ledger import Budget
from covey.runs import toml
from covey.runs.launch import run

_CHOICES: dict[
    str, tuple[dict[str, Factory], str | None]
] = {  # table -> the names that it can use, and the name if there is no table
    "data": (DATA, None),
    "model": (MODELS, None),
    "method": (METHODS, None),
    "cohort": (COHORTS, "full"),
    "channel": (CHANNELS, "identity"),
    "topology": (TOPOLOGIES, "complete"),
}
_KNOWN = (*_CHOICES, "faults", "privacy", "run")
_RECORD = (
    "environment"  # a run adds it to its config.toml; accepted, so that the file can be run again
)
_NOT_IN_RUN = (
    "method",
    "data",
    "unseen",
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
    """The mistakes of a configuration, one per line."""


class Configuration(NamedTuple):
    """A checked configuration.

    factories: by table, the factory that it names.
    options: by table, as the factory takes them.
    tables: everything in plain values, defaults included, as `config.toml` records it.
    """

    factories: dict[str, Factory]
    options: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, toml.Value]]


def read(path: Path, *, overrides: Sequence[str] = (), seed: int | None = None) -> Configuration:
    """Read a file, change the values of `overrides` ("table.key=value") and `seed`, and check it.

    Raises:
        ConfigurationError: with a line for each mistake.
    """
    tables = toml_files.read(path)
    for override in overrides:
        _set(tables, override)
    if seed is not None:
        tables.setdefault("run", {})["seed"] = seed
    try:
        return checked(tables, folder=path.parent)
    except ConfigurationError as error:
        raise ConfigurationError(
            "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        ) from None


def checked(tables: Mapping[str, toml.Value], *, folder: Path | None = None) -> Configuration:
    """Check the tables of a configuration against the factories that they name.

    Args:
        tables: The tables.
        folder: The folder of the configuration, searched first for a user's own files. Default:
            the current folder.

    Raises:
        ConfigurationError: With a line for each mistake.
    """
    given, errors = _tables(tables)
    factories, names, more = _factories(given, set(tables), folder)
    errors += more
    configuration = Configuration(factories, {}, {})
    for table, factory in factories.items():
        options = {
            key: value
            for key, value in given.get(table, {}).items()
            if key != "name" or table == "run"
        }
        known = _options(table, factory)
        if user_code.is_user_code(names.get(table, "")):
            unset = _without_type(table, names[table], factory, known, options)
            errors += unset.values()
            options = {key: value for key, value in options.items() if key not in unset}
        found = check(table, known, options)
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
    given: dict[str, dict[str, Any]], mentioned: set[str], folder: Path | None
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
            factories[table], names[table] = _named(table, name, known, folder)
        except ValueError as error:
            errors.append(str(error))
    factories |= {"faults": Faults} | ({"privacy": Budget} if "privacy" in given else {})
    return factories | {"run": run}, names, errors


def _named(
    table: str, name: object, known: Mapping[str, Factory], folder: Path | None
) -> tuple[Factory, str]:
    """The factory of a name: of the catalogue, or of a user's file."""
    if not isinstance(name, str):
        got = "" if name is None else f", got {name!r}"
        raise ConfigurationError(f"{table}.name: needs one of {', '.join(known)}{got}")
    if user_code.is_user_code(name):
        try:
            return user_code.load(name, folder)
        except ValueError as error:
            raise ConfigurationError(f"{table}.name: {error}") from error
    if name.endswith(".py"):
        raise ConfigurationError(
            f"{table}.name: {name!r} is a file without a function; write FILE.py:FUNCTION, e.g. "
            f"{name}:my_{table}"
        )
    if name not in known:
        raise ConfigurationError(unknown(f"{table}.name", name, known, table))
    return known[name], name


def _has_peers(given: Mapping[str, Mapping[str, Any]]) -> bool:
    return given.get("run", {}).get("engine") == "peers"


def _options(table: str, factory: Factory) -> dict[str, Option]:
    if table == "run":
        return options_of(run, without=_NOT_IN_RUN)
    options = options_of(factory, without=("model",))
    return options | {"data": PREPARATION, "channel": PART}.get(table, {})


def _without_type(
    table: str,
    name: str,
    factory: Factory,
    known: Mapping[str, Option],
    given: Mapping[str, toml.Value],
) -> dict[str, str]:
    """A line for each parameter of a user's factory that a table cannot set, and would have to."""
    unset: dict[str, str] = {}
    takes = inspect.signature(factory).parameters
    first = next(iter(takes.values()), None)
    if table == "method" and "model" not in takes and first is not None:
        by_position = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
        if first.default is first.empty and by_position:
            unset[first.name] = (
                f"{table}.name: the first parameter of {name} is called {first.name!r}; the model "
                "is passed by its name: call the parameter model"
            )
    for key, one in takes.items():
        free = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if key in (*known, *unset, "model") or free:
            continue
        if key in given or one.default is one.empty:
            kind = "no type" if one.annotation is one.empty else "a type that no table can give"
            unset[key] = (
                f"{table}.{key}: {name} has the parameter {key!r} with {kind}: annotate it as "
                f"int, float, bool, str or an optimiser, e.g. {key}: float = 0.1"
            )
    return unset


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
    """The type of a factory's argument, or of its result; None where it has none."""
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
