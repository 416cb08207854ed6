"""Options of a factory, checked against its own signature: the options are written once, in the
function.
"""

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

import optax
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from covey.channel import CHANNELS
from covey.core.channel import Channel
from covey.kernels import KERNELS, Kernel
from covey.models.effects import LAWS, Law
from covey.runs import toml

Factory: TypeAlias = Callable[..., Any]  # its result depends on the table that names it

_LARGEST_RATE = 1e4  # of an optimiser; nothing learns beyond
NOTHING = "none"  # how a table says None: TOML has no null

OPTIMIZERS: dict[str, Factory] = {
    "sgd": optax.sgd,
    "adam": optax.adam,
    "adamw": optax.adamw,
    "adagrad": optax.adagrad,
    "yogi": optax.yogi,
    "rmsprop": optax.rmsprop,
}


class Kind(NamedTuple):
    """Things that a table can name beside plain values: the word for them, their factories, and an
    example.
    """

    word: str
    factories: Mapping[str, Factory]
    example: str


KINDS: dict[type, Kind] = {
    optax.GradientTransformation: Kind(
        "optimiser", OPTIMIZERS, '{name = "sgd", learning_rate = 0.1}'
    ),
    Kernel: Kind("kernel", KERNELS, '{name = "sgld", batch_size = 32}'),
    Channel: Kind("channel", CHANNELS, '{name = "dithering", levels = 7}'),
    Law: Kind("law", LAWS, '{name = "gaussian", covariance = "full"}'),
}

_SCALARS = (int, float, bool, str, Path, NoneType)
_CONTAINERS = (list, tuple, set, frozenset, dict, Sequence, Collection, Iterable, Mapping, Literal)
_REQUIRED = inspect.Parameter.empty


class Option(NamedTuple):
    """One option: its type as far as TOML can give it, and its default (`_REQUIRED` without
    one).
    """

    kind: Any
    default: object


class Checked(NamedTuple):
    """Options as the factory takes them, as `config.toml` records them, and the mistakes, one
    per line.
    """

    values: dict[str, object]
    table: dict[str, toml.Value]
    errors: list[str]


def options_of(factory: Factory, *, without: Collection[str] = ()) -> dict[str, Option]:
    """The options of a factory that a table can set."""
    found = {}
    for name, parameter in inspect.signature(factory, eval_str=True).parameters.items():
        kind = _plain(parameter.annotation)
        if name not in without and kind is not None:
            found[name] = Option(kind, parameter.default)
    return found


def check(table: str, options: Mapping[str, Option], given: Mapping[str, toml.Value]) -> Checked:
    """Check a table against the options of its factory; `table` is the table's name in messages."""
    checked = Checked({}, {}, [])
    for name, option in options.items():
        where = f"{table}.{name}"
        if name in given:
            value, recorded, errors = _value(where, option, given[name])
            checked.errors.extend(errors)
            checked.values[name] = value
            if recorded is not None:
                checked.table[name] = recorded
        elif option.default is _REQUIRED:
            checked.errors.append(f"{where} is missing ({_words(option.kind)})")
        elif toml.holds(option.default):
            checked.table[name] = _recorded(option.default)
    checked.errors.extend(
        unknown(f"{table}.{name}", name, options, "key") for name in given if name not in options
    )
    return checked


def unknown(where: str, name: str, known: Collection[str], what: str) -> str:
    """The line for a name that does not exist, with the nearest that does."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{where}: unknown {what} {name!r}{hint} (known: {', '.join(known) or 'none'})"


def named(where: str, kind: type, given: toml.Value) -> tuple[Any, list[str]]:
    """An optimiser, kernel, channel or law from `{name = "sgd", learning_rate = 0.1}`, or from its
    name where that is enough.
    """
    word, factories, example = KINDS[kind]
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not isinstance(name := table.get("name"), str):
        return None, [f"{where}: {_with_article(word)} is a table such as {example}, got {given!r}"]
    if name not in factories:
        return None, [unknown(where, name, factories, word)]
    checked = check(
        where,
        options_of(factories[name]),
        {key: value for key, value in table.items() if key != "name"},
    )
    if checked.errors and isinstance(given, str):
        return None, [f"{where}: {name} needs more than its name; write a table such as {example}"]
    if checked.errors:
        return None, checked.errors
    rate = checked.values.get("learning_rate")
    if isinstance(rate, int | float) and not 0 < rate <= _LARGEST_RATE:
        return None, [
            f"{where}.learning_rate: must be above 0 and at most {_LARGEST_RATE:g}, got {rate:g}"
        ]
    try:
        return factories[name](**checked.values), []
    except ValueError as error:  # a factory refuses its options
        return None, [f"{where}: {error}"]


def _value(
    where: str, option: Option, given: toml.Value
) -> tuple[object, toml.Value | None, list[str]]:
    """The value, how it is recorded (None: not at all), and errors."""
    members = _members(option.kind)
    if given == NOTHING and NoneType in members:
        return None, None if option.default is None else NOTHING, []
    for kind in KINDS:
        if kind in members:
            value, errors = named(where, kind, given)
            return value, given, errors
    try:
        adapter = TypeAdapter(option.kind, config=ConfigDict(strict=True))
        # As JSON, strict: an array may fill a tuple and a string a path, but "3" is not a number
        # and true is not 1.
        value = adapter.validate_json(json.dumps(given, default=str))
        if isinstance(value, Path):  # a run may be opened again from another folder
            value = value.expanduser().resolve()
            return value, str(value), []
        return value, _recorded(value) if toml.holds(value) else given, []
    except ValidationError as error:
        reasons = dict.fromkeys(_reason(detail["msg"]) for detail in error.errors())
        return None, None, [f"{where}: {' or '.join(reasons)}, got {given!r}"]


def _recorded(value: Any) -> toml.Value:
    return list(value) if isinstance(value, tuple) else value  # TOML has one kind of list


def _reason(message: str) -> str:
    return message[0].lower() + message[1:]


def _plain(annotation: object) -> Any:
    """The part of a type that TOML can give; None where there is no such part."""
    members = [member for member in _members(annotation) if _is_plain(member)]
    if float in members:  # array-like: any number will do, and true is not meant
        members = [member for member in members if member not in (bool, int)]
    if not [member for member in members if member is not NoneType]:
        return None
    return Union[tuple(members)]  # noqa: UP007  # built from a list


def _members(annotation: object) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_plain(member: Any) -> bool:
    if member in _SCALARS or member in KINDS:
        return True
    origin = get_origin(member) or member
    if origin is Annotated:
        return _is_plain(get_args(member)[0])
    return origin in _CONTAINERS and _has_schema(member)


def _has_schema(member: Any) -> bool:
    try:
        TypeAdapter(member)
    except PydanticUserError:
        return False
    return True


def _words(kind: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Path: "a path",
    }
    names |= {kind: _with_article(made.word) for kind, made in KINDS.items()}
    return " or ".join(
        names.get(member, str(member)) for member in _members(kind) if member is not NoneType
    )


def _with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
