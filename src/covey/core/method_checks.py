"""Whether something is a method: its functions, and how they are called."""

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

from covey.core.algorithm import FUNCTIONS, Algorithm, Hooks, Posterior, Preparation

_CALLS: dict[str, tuple[str, ...]] = {  # by field of an algorithm, a dot before a part of it
    "init": ("key", "spec"),
    "broadcast": ("state",),
    "server": ("key", "state", "aggregate"),
    "init_client": ("key", "down", "data"),
    "client": ("key", "down", "state", "data"),
    "commit": ("pending", "sent"),
    "predict": ("key", "down", "state", "x"),
    "adapt": ("key", "down", "data"),
    "evaluate": ("key", "down", "state", "data"),
    "refresh": ("key", "down", "state", "data"),
    "publish": ("state",),
    "privacy": ("plan",),
    "used": ("down",),
    "posterior.client": ("key", "down", "state", "data", "count"),
    "posterior.axes": ("spec",),
    "posterior.averaged_over": ("count",),
    "preparation.find": ("spec", "ask"),
    "preparation.finish": ("found",),
    "hooks.validate": ("plan",),
    "hooks.diagnose": ("down", "data"),
    "hooks.unsettled": ("state",),
    "hooks.given_up": ("state",),
    "hooks.waiting": ("state",),
    "hooks.cautions": ("state", "spec"),
}
_GROUPS = {  # fields that are no functions themselves
    "posterior": (Posterior,),
    "hooks": (Hooks,),
    "preparation": (Preparation, type(None)),
}


def need_method(given: object) -> None:
    """Check that something is a method, with all its functions.

    Args:
        given: The method, or what was given in its place.

    Raises:
        ValueError: It is no method, or a field that must be a function is none; the message names
            it.
    """
    if not isinstance(given, Algorithm):
        if callable(given):
            called = getattr(given, "__name__", "method")
            raise ValueError(
                f"{called} is a factory of methods: call it with a model, e.g. {called}(model, ...)"
            )
        raise ValueError(
            f"a method such as covey.fedavg(model) is needed, got {type(given).__name__}"
        )
    if not isinstance(given.name, str) or not given.name:
        raise ValueError(f"the name of a method must be a text, got {given.name!r}")
    if isinstance(given.exact, str):
        raise ValueError(
            f"the method {given.name!r} has exact={given.exact!r}: names of parts are a tuple, "
            f"write exact=({given.exact!r},)"
        )
    for field, kinds in _GROUPS.items():
        if not isinstance(found := getattr(given, field), kinds):
            raise ValueError(
                f"the method {given.name!r} has {field}={found!r}: a covey.core.algorithm."
                f"{kinds[0].__name__} is needed"
            )
    for field in _CALLS:
        found = _at(given, field)
        if found is None and field not in FUNCTIONS:
            continue
        if not callable(found):
            raise ValueError(
                f"the method {given.name!r} has {field}={found!r}: {field} must be a function; "
                "help(covey.Algorithm) says of which arguments"
            )
        if wrong := _misfit(field, found):
            raise ValueError(f"the method {given.name!r} has {wrong}")


def _at(method: Algorithm, field: str) -> object:
    """The function of a field, or of a part of it such as "posterior.client"."""
    found: object = method
    for name in field.split("."):
        found = getattr(found, name, None)
    return found


def _misfit(field: str, function: Callable[..., Any]) -> str | None:
    """The mistake in a function's arguments, or None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return None
    try:
        signature.bind(*_CALLS[field])
    except TypeError:
        given, called = signature.replace(return_annotation=signature.empty), _CALLS[field]
        return f"{field}{given}{place_of(function)}: it is called as {field}({', '.join(called)})"
    return None


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code of a function, also of one that is wrapped; None where it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(inspect.unwrap(function), "__code__", None)


def place_of(function: Callable[..., Any]) -> str:
    """The file and line of a function, in brackets after a space; empty where they are unknown."""
    code = code_of(function)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
