"""What follows the rounds, traced before the first one: evaluation, predictions and draws.

A mistake in them would otherwise end a run when its rounds are done. Methods of the package are
tested for this; those of users are traced once more.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import FUNCTIONS, Algorithm, State, evaluate, published
from covey.core.method_checks import place_of
from covey.core.shard import Shard, Spec
from covey.engines.explaining import explained, explaining, is_users, kind_of, path_of

_ROWS, _STORED, _DRAWS = 3, 5, 2  # rows of a client, rows with those of others, draws


def rehearse(
    method: Algorithm, root: Key[Array, ""], spec: Spec, server: State, own: State
) -> None:
    """Trace what a user's own method does beyond its rounds.

    Args:
        method: The method; one of the package is not looked at.
        root: The key of the run.
        spec: Shapes of the rows.
        server: Shapes of the server's state.
        own: Shapes of a client's state after a round.

    Raises:
        ValueError: A function raised, or returned what cannot be used; the message names it.
    """
    functions = (getattr(method, step) for step in (*FUNCTIONS, "evaluate", "refresh"))
    if any(map(is_users, functions)):
        trace_beyond(method, root, spec, server, own)


def trace_beyond(
    method: Algorithm, root: Key[Array, ""], spec: Spec, server: State, own: State
) -> None:
    """As `rehearse`, for any method."""
    watched = explaining(method)

    def beyond(root, rows, server, own):
        data = Shard(rows, jnp.int32(0), jnp.int32(_ROWS), _ROWS)
        down = published(watched, server)
        states = {"an unseen client": watched.adapt(root, down, data)}
        if not method.hooks.adapt_before_evaluation:
            new = own if watched.refresh is None else watched.refresh(root, down, own, data)
            states["a client that took part"] = new
        for who, state in states.items():
            if method.evaluate is None:
                some = jax.tree.map(lambda leaf: leaf[:_ROWS], rows)
                _need_predictive(method, watched.predict(root, down, state, some.x), some)
            evaluate(watched, root, down, state, data)
            if (draw := method.posterior.client) is not None:
                with explained(f"{method.name}: posterior.client, of {who}"):
                    drawn = draw(root, down, state, data, _DRAWS)
                _need_leading(f"{method.name}: posterior.client{place_of(draw)}", drawn, _DRAWS)

    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((_STORED, *s.shape), s.dtype), spec.rows)
    jax.eval_shape(beyond, root, rows, server, own)


def _need_predictive(method: Algorithm, found: Any, rows: PyTree) -> None:
    """An error unless a predictive distribution says one thing per row."""
    what = f"{method.name}: predict{place_of(method.predict)}"
    if not callable(getattr(found, "measures", None)):
        raise ValueError(
            f"{what}: it returns {kind_of(found)}; return a predictive distribution, e.g. "
            "covey.models.Normal(mean, scale) with one value per row"
        )
    _need_leading(what, found, _ROWS, " rows")
    if callable(getattr(found, "log_prob", None)) and isinstance(rows.y, jax.Array):
        shape = found.log_prob(rows.y).shape
        if shape not in (rows.y.shape, (_ROWS,)):
            given = ", ".join(
                f"{path_of(path)} {list(leaf.shape)}"
                for path, leaf in jax.tree_util.tree_leaves_with_path(found)
            )
            raise ValueError(
                f"{what}: the shapes {given} do not fit outcomes {list(rows.y.shape)}: log_prob(y) "
                f"is {list(shape)}, and must have one value per row"
            )


def _need_leading(what: str, found: PyTree, length: int, unit: str = " draws") -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        if (shape := jnp.shape(leaf))[:1] != (length,):
            raise ValueError(
                f"{what}: {path_of(path)} has the shape {list(shape)} for {length}{unit}; the "
                f"leading axis must be the{unit[:-1]}"
            )
