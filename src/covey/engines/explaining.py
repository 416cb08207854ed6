"""A method whose functions say in words what is wrong with them, while they are traced.

What a function raises in a user's own code is told with the name of the method, the function and
the line. What it returns is checked: a state or a message that holds no arrays, or a result of
another kind, would otherwise be found late, far from its cause, or not at all.
"""

import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

import covey
from covey.core.algorithm import Algorithm, Local
from covey.core.method_checks import code_of, place_of

_OWN = str(Path(covey.__file__).parent)
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
_MISTAKES = (
    TypeError,
    AttributeError,
    LookupError,
    NameError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
    ValueError,
)
_MESSAGES = ("init", "broadcast", "init_client", "commit", "adapt", "refresh", "publish")
_BRANCH = (
    "the value is not known while the function is compiled; write jnp.where or jax.lax.cond in "
    "place of `if`, and jax.lax.fori_loop in place of a loop over it"
)


def explaining(method: Algorithm) -> Algorithm:
    """The method, with functions that explain what is wrong with them."""

    def watched(step: str) -> Callable[..., Any]:
        function, check = getattr(method, step), _CHECKS.get(step)

        def call(*arguments: Any) -> Any:
            with explained(f"{method.name}: {step}"):
                found = function(*arguments)
            if check is not None:
                check(f"{method.name}: {step}{place_of(function)}", found)
            return found

        return call

    steps = (*_CHECKS, "predict")
    return method._replace(**{step: watched(step) for step in steps if getattr(method, step)})


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of a user's own code become a ValueError that names the line.

    Args:
        what: Name of the code, for the message.
    """
    try:
        yield
    except _MISTAKES as error:
        frames = [frame for frame in extract_tb(error.__traceback__) if not _is_ours(frame)]
        line = next((frame for frame in reversed(frames) if _is_outside(frame.filename)), None)
        in_words = isinstance(error, ValueError) and not _is_library(frames[-1:])
        if line is None or in_words:
            raise
        raise ValueError(
            f"{what} ({line.filename}, line {line.lineno}): {type(error).__name__}: {_why(error)}"
        ) from error


def _is_ours(frame: Any) -> bool:
    return frame.filename == __file__


def is_users(function: Callable[..., Any] | None) -> bool:
    """Whether a function is written outside of the package and of installed libraries."""
    code = None if function is None else code_of(function)
    return code is not None and _is_outside(code.co_filename)


def _is_outside(filename: str) -> bool:
    return not filename.startswith((_OWN, *_LIBRARIES, "<frozen"))


def _is_library(frames: list[Any]) -> bool:
    return any(frame.filename.startswith(_LIBRARIES) for frame in frames)


def _why(error: Exception) -> str:
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return _BRANCH
    return re.sub(r"\s+", " ", str(error)).strip()[:300]


def need_arrays(what: str, tree: PyTree) -> None:
    """Raise a ValueError for a state or a message with a leaf that is no array."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, jax.Array | np.ndarray | np.generic):
            continue
        kind, at = type(leaf).__name__, path_of(path)
        if isinstance(leaf, bool | int | float | complex):
            raise ValueError(
                f"{what}: {at} is the Python {kind} {leaf!r}, whose type can change from round to "
                f"round; states and messages hold arrays: write jnp.asarray({leaf!r}, float)"
            )
        raise ValueError(f"{what}: {at} is of type {kind}; states and messages hold arrays only")


def _need_local(what: str, found: object) -> None:
    if not isinstance(found, Local):
        raise ValueError(
            f"{what}: it returns {kind_of(found)}; return Local(up, pending, info), from "
            "covey.core.algorithm"
        )
    need_arrays(what, found._replace(info=()))
    for path, leaf in jax.tree_util.tree_leaves_with_path(found.up):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"{what}: it uploads {path_of(path)} as {leaf.dtype}; uploads are summed with "
                "weights and must be floats: convert it with .astype(float)"
            )
    weight = found.weight
    if weight is not None and (
        weight.shape != () or not jnp.issubdtype(weight.dtype, jnp.floating)
    ):
        raise ValueError(
            f"{what}: the weight is {weight.dtype}{list(weight.shape)}; it is one float, e.g. "
            "data.count.astype(float)"
        )
    _need_info(what, found.info)


def _need_step(what: str, found: object) -> None:
    if type(found) is not tuple or len(found) != 2:
        raise ValueError(
            f"{what}: it returns {kind_of(found)}; return the tuple (state, info), with Empty() "
            "for an info that has nothing to report"
        )
    state, info = found
    need_arrays(what, state)
    _need_info(what, info)


def _need_metrics(what: str, found: object) -> None:
    advice = 'return {"mse": Mean(total, count)} with Mean from covey.core.metrics'
    if not isinstance(found, Mapping):
        raise ValueError(f"{what}: it returns {kind_of(found)}; {advice}")
    for name, metric in found.items():
        if not callable(getattr(metric, "value", None)):
            raise ValueError(f"{what}: {name!r} is {kind_of(metric)}, not a metric; {advice}")


def _need_info(what: str, info: object) -> None:
    """An error unless it is a NamedTuple of numbers, which metrics are made of."""
    fields = getattr(info, "_fields", None)
    if fields is None or not isinstance(info, tuple):
        raise ValueError(
            f"{what}: info is {kind_of(info)}; write a NamedTuple of numbers, or Empty() where "
            "there is nothing to report"
        )
    for name, value in zip(fields, info, strict=True):
        if not isinstance(value, jax.Array | np.ndarray | np.generic) or value.shape != ():
            shown = kind_of(value) + str(list(getattr(value, "shape", "")) or "")
            raise ValueError(
                f"{what}: {name} of info is {shown}; infos are single numbers, each an array "
                "without axes"
            )


def kind_of(value: object) -> str:
    """The kind of a value in messages, with its article."""
    if value is None:
        return "None"
    name = "array" if isinstance(value, jax.Array) else type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def path_of(path: tuple) -> str:
    """The name of a leaf in messages."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "the only array"


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(_MESSAGES, need_arrays),
    "client": _need_local,
    "server": _need_step,
    "evaluate": _need_metrics,
}
