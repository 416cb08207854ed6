"""The contract of a method: what every engine relies on, as one check that any method can take."""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.channel import bfloat16
from covey.channel.exact import keep_exact
from covey.core import tree
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Approximation,
    Chains,
    evaluate,
    published,
)
from covey.core.keys import Stream, key_for, root_key
from covey.core.method_checks import need_method
from covey.core.node import Node, first_node, node_round
from covey.core.shard import Rows, Shard
from covey.core.trimming import Used, filled, trimmed
from covey.data.federated import FederatedData
from covey.engines.explaining import explaining
from covey.engines.round import received
from covey.engines.setup import shapes_of

__all__ = [
    "check_method",
]

_DRAWS = 3
_TOLERANCE = 2e-4
_FIRST = 1  # the client that is walked through; not the first, so that its rows begin elsewhere


class Walk(NamedTuple):
    """What came of one client's round, of the server's step after it, and of what follows."""

    up: PyTree
    weight: Any
    node: Node
    server: PyTree
    metrics: PyTree
    draws: PyTree


def check_method(method: Algorithm, data: FederatedData | None = None) -> None:
    """Check that a method keeps the contract that every engine relies on.

    One client is walked through its first round with a lossy channel, the server's step, and the
    adaptation, evaluation and draws of an unseen client. Checked is that

    * all shapes are static, uploads are floats, and the server's state keeps its shapes,
    * values depend on the client's rows, and neither on the capacity that an engine gives them, nor
      on where they lie in the storage,
    * a client asked again gives the same answer, and nothing is carried outside of its state,
    * a client without rows has finite uploads and predictions,
    * entries of an upload that its round does not use are zero,
    * the posteriors have as many draws as were asked for, all finite.

    Args:
        method: The method, with its model.
        data: Data that suit the method, with at least three clients of five to thirty training
            rows. Default: a small linear regression with three features.

    Raises:
        AssertionError: The contract is broken; the message says where.

    Example:
        >>> import covey
        >>> covey.testing.check_method(covey.mb_sgd(covey.models.linear()))
    """
    data = _regression() if data is None else data
    need_method(method)
    method = explaining(method)
    method = method._replace(client=jax.jit(method.client))  # traced once per capacity
    root, spec = root_key(0), data.spec._replace(omega=2.0**-16)
    channel = keep_exact(method.exact, bfloat16())
    shapes = shapes_of(method, channel, root, spec)
    start, count = data.starts("train")[_FIRST], data.counts("train")[_FIRST]
    rows = jax.tree.map(jnp.asarray, data.rows)

    # Several programs, as the server's part does not depend on the capacity.
    @jax.jit
    def before():
        server = method.init(root, spec)
        return server, method.broadcast(server)

    @partial(jax.jit, static_argnums=4)
    def client_round(down, rows, start, count, capacity):
        shard = Shard(rows, start, count, capacity)
        node = first_node(method, channel, root, _FIRST, down, shard)
        sent, node, _ = node_round(method, channel, root, 0, _FIRST, down, node, shard)
        return *received(channel, sent), node

    @jax.jit
    def server_step(server, up, weight):
        weighted = jax.tree.map(lambda leaf: weight * leaf, up)
        aggregate = Aggregate(weighted, up, weight, jnp.ones(()))
        server, _ = method.server(key_for(root, Stream.SERVER, 0), server, aggregate)
        return server, published(method, server)

    @partial(jax.jit, static_argnums=4)
    def unseen_client(down, rows, start, count, capacity):
        shard = Shard(rows, start, count, capacity)
        state = method.adapt(root, down, shard)
        metrics = evaluate(method, root, down, state, shard)
        draw = method.posterior.client
        return metrics, () if draw is None else draw(root, down, state, shard, _DRAWS)

    def walk(rows, start, count, capacity):
        place = (rows, jnp.int32(start), jnp.int32(count), capacity)
        server, down = before()
        up, weight, node = client_round(down, *place)
        server, down = server_step(server, up, weight)
        return Walk(up, weight, node, server, *unseen_client(down, *place))

    found = walk(rows, start, count, 32)
    _need_finite("of a client with rows", found._replace(server=()))
    _need_no_nan("after a round", found.server)
    _need_same("asked again", found, walk(rows, start, count, 32))
    larger = walk(rows, start, count, 48)
    _need_same("with another capacity", found, larger)
    # The client's rows lie elsewhere in the storage, and other rows around them.
    moved = jax.tree.map(lambda leaf: jnp.asarray(np.roll(leaf, 3, axis=0)), data.rows)
    _need_same("where rows lie elsewhere", found, walk(moved, start + 3, count, 32))
    empty = walk(rows, start, 0, 32)
    _need_finite("of a client without rows", empty._replace(draws=(), server=()))
    _need_no_nan("after a round of a client without rows", empty.server)
    if method.used is not None:
        _check_used(found.up, method.used(before()[1]))
    _need_shapes("the server's state after a step", shapes.server, found.server)
    _need_shapes("the client's state after a round", shapes.node.state, found.node.state)
    for leaf in jax.tree.leaves(found.draws):
        assert leaf.shape[0] == _DRAWS, f"{_DRAWS} draws were asked for, {leaf.shape[0]} came"
    with warnings.catch_warnings():  # after one round a posterior is rough
        warnings.simplefilter("ignore")
        _check_shared(method, data, found.server)


def _check_used(up: PyTree, used: Used) -> None:
    """Entries of the upload that its round does not use are zero."""
    paths = tree.paths(up)
    for part in used:
        assert any(tree.is_below(path, part) for path in paths), (
            f"the round uses some of {part!r}, and the upload has only {', '.join(paths)}"
        )
    _need_same("past what the round uses", up, filled(trimmed(up, used), up))


def _check_shared(method: Algorithm, data: FederatedData, server: PyTree) -> None:
    """The posterior of the shared parameters."""
    shared = method.posterior.shared
    if isinstance(shared, Chains):
        kept = shared.kept(server)
        sizes = {leaf.shape[:2] for leaf in jax.tree.leaves(kept.draws)}
        assert len(sizes) == 1, f"kept draws are (size, chains, ...) in all arrays, got {sizes}"
        draws = jax.jit(jax.vmap(jax.vmap(shared.describe)))(kept.draws)
        _need_finite("of the kept draws", draws)
    elif isinstance(shared, Approximation):
        starts, counts = (
            jnp.asarray(part("train"), jnp.int32) for part in (data.starts, data.counts)
        )
        rows, capacity = jax.tree.map(jnp.asarray, data.rows), int(counts.max())

        @partial(jax.jit, static_argnums=0)
        def term(name, key, sent, start, count):
            return shared.queries[name](key, sent, Shard(rows, start, count, capacity))

        def ask(name: str, sent: PyTree) -> PyTree:
            terms = [
                term(name, root_key(client), sent, starts[client], counts[client])
                for client in range(data.clients)
            ]
            return jax.tree.map(lambda *leaves: sum(leaves), *terms)

        law = shared.fit(published(method, server), data.spec, ask)
        drawn = shared.draw(root_key(0), law, _DRAWS)
        for leaf in jax.tree.leaves(drawn):
            assert leaf.shape[0] == _DRAWS, f"{_DRAWS} draws were asked for, {leaf.shape[0]} came"


def _regression() -> FederatedData:
    """Five clients of unequal size with a linear regression each, nearly the same."""
    generator = np.random.default_rng(0)
    sizes = (12, 20, 7, 15, 9)
    x = generator.normal(size=(sum(sizes), 3)).astype(np.float32)
    truth = np.array([1.0, -0.5, 0.25]) + 0.1 * generator.normal(size=(len(sizes), 3))
    y = np.sum(x * np.repeat(truth, sizes, axis=0), axis=1) + generator.normal(size=sum(sizes))
    return FederatedData.from_rows(Rows(x, y.astype(np.float32)), sizes)


def _need_finite(what: str, tree: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.all(np.isfinite(np.asarray(leaf))), f"{what}, {_name(path)} is not finite"


def _need_no_nan(what: str, server: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(server):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert not np.any(np.isnan(np.asarray(leaf))), (
                f"{what}, {_name(path)} of the server is NaN"
            )


def _need_same(what: str, one: PyTree, other: PyTree) -> None:
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        told = f"{what}, {_name(path)} differs"
        np.testing.assert_allclose(a, b, _TOLERANCE, _TOLERANCE, err_msg=told)


def _need_shapes(what: str, expected: PyTree, found: PyTree) -> None:
    assert jax.tree.structure(expected) == jax.tree.structure(found), (
        f"{what} has another structure"
    )
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (
            f"{_name(path)} of {what} is {b.dtype}{list(b.shape)}, not {a.dtype}{list(a.shape)}"
        )


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "the only array"
