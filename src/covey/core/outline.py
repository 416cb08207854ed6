"""Trees of arrays that describe themselves, for messages whose shapes the reader cannot know.

`wire` needs to be told the structure. Questions and published states may have any, so these travel
with an outline in JSON: tuples, lists, dictionaries, named tuples, arrays with type and shape. A
named tuple is looked up among the classes of modules that are loaded already: nothing is imported
or executed, and its fields are arrays again. Nodes of other kinds, e.g. modules of a network, must
occur in a tree that both sides have: they travel as an index into `known`.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core import protocol, tree, wire
from covey.core.wire import WireError

_MOST_DEPTH = 32
_MOST_AXES = 16
_MOST_VALUES = 2**48  # of an array, whatever the cap of a message


def custom_nodes(*trees: PyTree) -> list[Any]:
    """The structures of all nodes in some trees that an outline has no word for.

    Args:
        trees: Trees that reader and writer have alike, e.g. the shapes of the server's state.

    Returns:
        The structures, in the order of the trees, each once.
    """
    found: list[Any] = []
    for each in trees:
        for node in _customs(each):
            structure = jax.tree.structure(node)
            if structure not in found:
                found.append(structure)
    return found


def pack(value: PyTree, known: Sequence[Any] = ()) -> bytes:
    """A tree with its outline.

    Args:
        value: Tree of arrays.
        known: `custom_nodes` of trees that the reader has as well.

    Returns:
        The bytes, for `unpack`.

    Raises:
        TypeError: A node is of a kind that neither an outline nor `known` has.

    Example:
        >>> unpack(pack({"points": np.arange(3.0)}))["points"].tolist()
        [0.0, 1.0, 2.0]
    """
    outline = _outlined(value, known, 0)
    return protocol.join([protocol.pack_text(outline), wire.pack(jax.tree.leaves(value))])


def unpack(body: bytes, known: Sequence[Any] = ()) -> PyTree:
    """The tree that `pack` made bytes of.

    Raises:
        WireError: The bytes are not what `pack` makes, or have nodes that are not known here.
    """
    text, arrays = protocol.split(body, 2)
    outline = protocol.unpack_text(text)
    likes = list(_likes(outline, 0))
    leaves = iter(wire.unpack(arrays, likes))
    return _built(outline, known, leaves)


def _customs(node: PyTree) -> Iterator[PyTree]:
    if isinstance(node, tuple | list):
        children = list(node)
    elif isinstance(node, dict):
        children = list(node.values())
    elif node is None or _is_leaf(node):
        return
    else:
        yield node
        return
    for child in children:
        yield from _customs(child)


def _is_leaf(node: Any) -> bool:
    return jax.tree.structure(node) == jax.tree.structure(0)


def _outlined(node: PyTree, known: Sequence[Any], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise TypeError(f"a tree of more than {_MOST_DEPTH} levels cannot be sent")
    if node is None:
        return None
    if isinstance(node, tuple | list):
        children = [_outlined(child, known, depth + 1) for child in node]
        if isinstance(node, list):
            return ["list", children]
        if hasattr(node, "_fields"):
            return ["named", f"{type(node).__module__}:{type(node).__qualname__}", children]
        return ["tuple", children]
    if isinstance(node, dict):
        keys = sorted(node)  # as JAX orders them
        return ["dict", keys, [_outlined(node[key], known, depth + 1) for key in keys]]
    if _is_leaf(node):
        spec = tree.specs(node)
        return ["array", str(spec.dtype), list(spec.shape)]
    structure = jax.tree.structure(node)
    if structure not in known:
        raise TypeError(f"a {type(node).__name__} cannot be sent: the receiver does not know it")
    leaves = [_outlined(leaf, known, depth + 1) for leaf in jax.tree.leaves(node)]
    return ["known", list(known).index(structure), leaves]


def _likes(outline: Any, depth: int) -> Iterator[jax.ShapeDtypeStruct]:
    """The shapes of all arrays in an outline, which is checked on the way."""
    if outline is None:
        return
    if depth > _MOST_DEPTH or not isinstance(outline, list) or not outline:
        raise WireError("the outline of a tree is damaged")
    match outline:
        case ["array", str(dtype), list(shape)]:
            yield _array(dtype, shape)
        case ["tuple" | "list", list(children)]:
            yield from _likes_of(children, depth)
        case ["named", str(), list(children)]:
            yield from _likes_of(children, depth)
        case ["dict", list(keys), list(children)]:
            texts = all(isinstance(key, str) for key in keys)
            if not texts or keys != sorted(set(keys)) or len(keys) != len(children):
                raise WireError("the outline of a dictionary is damaged")
            yield from _likes_of(children, depth)
        case ["known", int(), list(children)]:
            yield from _likes_of(children, depth)
        case _:
            raise WireError(f"an outline has no {str(outline[0])!r:.50}")


def _likes_of(children: list[Any], depth: int) -> Iterator[jax.ShapeDtypeStruct]:
    for child in children:
        yield from _likes(child, depth + 1)


def _array(dtype: str, shape: list[Any]) -> jax.ShapeDtypeStruct:
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
    # Where an axis has length 0, the message has no bytes that bound the others: they count alone.
    most = protocol.MOST_BYTES if 0 in shape else _MOST_VALUES
    if not whole or len(shape) > _MOST_AXES or math.prod(n or 1 for n in shape) > most:
        raise WireError(f"an array cannot have the shape {shape!r:.100}")
    if dtype not in wire.DTYPES:
        raise WireError(f"an array cannot have the type {dtype!r:.50}")
    return jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype))


def _built(outline: Any, known: Sequence[Any], leaves: Iterator[Any]) -> PyTree:
    if outline is None:
        return None
    kind = outline[0]
    if kind == "array":
        return next(leaves)
    children = [_built(child, known, leaves) for child in outline[-1]]
    if kind == "list":
        return children
    if kind == "tuple":
        return tuple(children)
    if kind == "dict":
        return dict(zip(outline[1], children, strict=True))
    if kind == "named":
        return _named(outline[1], children)
    if not 0 <= outline[1] < len(known) or known[outline[1]].num_leaves != len(children):
        raise WireError("the tree has a node that is not known here")
    return jax.tree.unflatten(known[outline[1]], children)


def _named(where: str, values: list[Any]) -> Any:
    """A named tuple of a module that is loaded."""
    module, _, name = where.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):  # no getattr: a module may load what it is asked for
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    fields = getattr(found, "_fields", None) if isinstance(found, type) else None
    if fields is None or not issubclass(found, tuple) or len(fields) != len(values):
        raise WireError(f"no named tuple {where!r:.100} with {len(values)} fields is known here")
    return tuple.__new__(found, values)
