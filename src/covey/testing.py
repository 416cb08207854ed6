"""The contract of a method, on which every engine relies: one check for any method."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
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
    Ask,
    Chains,
    Query,
    evaluate,
    published,
)
from covey.core.keys import Stream, key_for, root_key
from covey.core.method_checks import need_method
from covey.core.shard import Rows, Shard
from covey.core.trimming import Used, filled, trimmed
from covey.data.federated import FederatedData
from covey.engines.explaining import explaining, path_of
from covey.engines.rehearsal import trace_beyond
from covey.engines.setup import Shapes, shapes_of

__all__ = [
    "check_method",
]

_DRAWS = 3
_TOLERANCE = 2e-4
_FIRST = 1  # the client that is walked through; not the first, so that its rows begin elsewhere
_ROUNDS = (0, 2)  # the upload of the round between them is lost
_PARTICIPATION = 2.0  # the inverse of the chance to take part: weighted and plain sums differ


class Walk(NamedTuple):
    """Results of two rounds of a client and the server, and of the steps after them."""

    first_upload: PyTree
    second_upload: PyTree
    weights: list[Any]
    client_state: PyTree
    server_state: PyTree
    member_metrics: PyTree
    unseen_metrics: PyTree
    draws: PyTree


class Client(NamedTuple):
    """The rows of a client, the capacity that an engine gives them, and the count of rows for
    evaluation.
    """

    rows: PyTree
    start: Any
    count: Any
    judged: Any
    capacity: int

    @property
    def shard(self) -> Shard:
        """The client's view of its rows."""
        return Shard(self.rows, jnp.int32(self.start), jnp.int32(self.count), self.capacity)

    @property
    def test(self) -> Shard:
        """The rows that it is evaluated on."""
        return replace(self.shard, count=jnp.int32(self.judged))


def check_method(method: Algorithm, data: FederatedData | None = None) -> None:
    """Check that a method keeps the contract that every engine relies on.

    First the preparation of the method, if it has one, asks its questions. Then a client and the
    server go through two rounds with a lossy channel, with a lost upload between them; the client,
    and one that the server has not seen, are evaluated, predict and draw. The checks are that

    * functions take and return the values that the interface `Algorithm` states,
    * shapes are static, uploads are floats, and states keep their structure, shapes and types,
    * values depend on the client's rows, and neither on the capacity that an engine gives them, nor
      on where they lie in the storage,
    * a function called again returns the same: nothing is kept outside of the state, nothing is
      passed from one function to another but by state, message and `pending`, and random numbers
      come from the key,
    * a client without rows has finite uploads and predictions, and a round that heard of no rows
      leaves no NaN,
    * entries of an upload that its round does not use are zero,
    * predictions have one value per row,
    * the posteriors have as many draws as were asked for, all finite.

    Whether a client's memory should move by what was sent, rather than by what was computed, only
    the method knows: test that the sums of the server agree with those of the clients under a lossy
    channel.

    Args:
        method: The method, with its model.
        data: Data that suit the method, with at least three clients of five to thirty training
            rows. Default: a small linear regression with three features.

    Raises:
        AssertionError: The contract is broken; the message says where.
        ValueError: The argument is no method, or one of its functions raised an error or returned
            a value that it must not; the message names the function and its line.

    Example:
        >>> import covey
        >>> covey.testing.check_method(covey.mb_sgd(covey.models.linear()))
    """
    need_method(method)
    data = _regression() if data is None else data
    method = _prepared(method, data)
    watched = explaining(method)
    root, spec = root_key(0), data.spec._replace(omega=2.0**-16)
    channel = keep_exact(method.exact, bfloat16())
    traced_once = watched._replace(client=jax.jit(watched.client))
    shapes = shapes_of(traced_once, channel, root, spec)
    trace_beyond(method, root, spec, shapes.server, shapes.node.state)
    walk = _walks(traced_once, channel, root, spec)

    rows, start, count = jax.tree.map(jnp.asarray, data.rows), *_place(data, _FIRST)
    client = Client(rows, start, count, count, 32)
    with _leaks_told():
        found = walk(client)
    _need_finite("of a client with rows", found._replace(server_state=()))
    _need_no_nan("after two rounds", found.server_state)
    _need_pure(watched, root, spec, shapes, client.shard)
    _need_same("with another capacity", found, walk(client._replace(capacity=48)))
    # The client's rows lie elsewhere in the storage, and other rows around them.
    moved = jax.tree.map(lambda leaf: jnp.asarray(np.roll(leaf, 3, axis=0)), data.rows)
    there = walk(client._replace(rows=moved, start=start + 3))
    _need_same("where rows lie elsewhere", found, there)
    empty = walk(client._replace(count=0))
    # In the order in which one would follow from the other.
    first = {"first_upload": empty.first_upload, "weights": empty.weights}
    _need_finite("of a client without rows", first)
    _need_no_nan("after two rounds of a client without rows", empty.server_state)
    _need_finite("of a client without rows", empty._replace(draws=(), server_state=()))
    if method.used is not None:
        _check_used(found.first_upload, method.used(method.broadcast(method.init(root, spec))))
    with warnings.catch_warnings():  # after two rounds a posterior is rough
        warnings.simplefilter("ignore")
        _check_shared(method, data, found.server_state)


def _walks(method: Algorithm, channel: Any, root: Any, spec: Any) -> Callable[[Client], Walk]:
    """Walks a client through two rounds, in programs that are compiled once per capacity.

    A client computes and commits in two programs, as a deployed one does.
    """

    @jax.jit
    def first(down, shard):
        state = method.init_client(key_for(root, Stream.FIRST, 0, _FIRST), down, shard)
        up = jax.eval_shape(method.client, root, down, state, shard).up
        return state, channel.init(up)

    @jax.jit
    def asked(t, down, state, memory, shard):
        key = key_for(root, Stream.CLIENT, t, _FIRST)
        local = method.client(key, down, state, shard)
        uplink = key_for(root, Stream.UPLINK, t, _FIRST)
        payload, memory = channel.encode(uplink, memory, local.up)
        return local.pending, memory, channel.decode(payload), local.weight

    @jax.jit
    def begun():
        server = method.init(key_for(root, Stream.INIT, 0), spec)
        return server, method.broadcast(server)

    @jax.jit
    def stepped(t, server, up, weight):
        factor = _PARTICIPATION * (jnp.ones(()) if weight is None else weight)
        weighted = jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, up)
        aggregate = Aggregate(weighted, up, factor, jnp.ones(()))
        server, _ = method.server(key_for(root, Stream.SERVER, t), server, aggregate)
        return server, method.broadcast(server), published(method, server)

    @jax.jit
    def adapted(down, shard):
        return method.adapt(root, down, shard)

    @jax.jit
    def refreshed(down, state, shard):
        refresh = method.refresh
        return state if refresh is None else refresh(root, down, state, shard)

    @jax.jit
    def measured(down, state, shard, test):
        draw = method.posterior.client
        metrics = evaluate(method, root, down, state, test)
        return metrics, () if draw is None else draw(root, down, state, shard, _DRAWS)

    committed = jax.jit(method.commit)

    def walk(client: Client) -> Walk:
        own_rows, (server, down) = client.shard, begun()
        state, memory = first(down, own_rows)
        uploads, weights, shown = [], [], down
        for t in _ROUNDS:
            pending, memory, up, weight = asked(jnp.int32(t), down, state, memory, own_rows)
            state = committed(pending, up)
            server, down, shown = stepped(jnp.int32(t), server, up, weight)
            uploads.append(up)
            weights.append(weight)
            # The server hears nothing of this round, and the client does not commit it.
            asked(jnp.int32(t + 1), down, state, memory, own_rows)
        unseen = adapted(shown, own_rows)
        own = unseen if method.hooks.adapt_before_evaluation else refreshed(shown, state, own_rows)
        member_metrics, draws = measured(shown, own, own_rows, client.test)
        unseen_metrics, more = measured(shown, unseen, own_rows, client.test)
        before, after = uploads
        measures = (member_metrics, unseen_metrics)
        return Walk(before, after, weights, state, server, *measures, (draws, more))

    return walk


def _need_pure(method: Algorithm, root: Any, spec: Any, shapes: Shapes, shard: Shard) -> None:
    """Functions that are traced twice are the same program: nothing comes from outside of them."""

    def server(state, up):
        return method.server(root, state, Aggregate(up, up, jnp.ones(()), jnp.ones(())))

    shown = jax.eval_shape(partial(published, method), shapes.server)
    calls = {
        "init": (lambda key: method.init(key, spec), (root,)),
        "server": (server, (shapes.server, shapes.up)),
        "init_client": (partial(method.init_client, root), (shapes.down, shard)),
        "client": (
            lambda *given: tuple(method.client(root, *given)),
            (shapes.down, shapes.node.state, shard),
        ),
        "adapt": (partial(method.adapt, root), (shown, shard)),
    }
    for step, (function, given) in calls.items():
        # A new function each time, as JAX remembers the traces of one that it knows.
        once, again = (jax.make_jaxpr(lambda *x, f=function: f(*x))(*given) for _ in range(2))
        same = _text(once) == _text(again) and all(
            np.array_equal(_values(a), _values(b))
            for a, b in zip(once.consts, again.consts, strict=True)
        )
        assert same, (
            f"asked again, {step} is another computation: it must depend on its arguments alone, "
            "not on variables that a call changes, on time, or on random numbers without its key"
        )


@contextmanager
def _leaks_told() -> Iterator[None]:
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        made = re.search(r"leaked intermediate value was created on line (\S+ \(\w+\))", str(error))
        where = f", made in {made[1]}" if made else ""
        raise AssertionError(
            f"a function uses a value of another function's call{where}: pass such values "
            "through the state, the message or `pending`, not through variables outside"
        ) from error


def _text(program: Any) -> str:
    """A program in words, without addresses in memory."""
    return re.sub(r"0x[0-9a-f]+", "", str(program))


def _values(leaf: Any) -> Any:
    is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _prepared(method: Algorithm, data: FederatedData) -> Algorithm:
    """The method after its preparation."""
    if method.preparation is None:
        return method
    preparation = method.preparation
    found = preparation.find(data.spec, _asker(preparation.queries, data))
    ready = preparation.finish(found)
    try:
        need_method(ready)
    except ValueError as error:
        raise ValueError(f"{method.name}: preparation.finish: {error}") from error
    assert ready.preparation is None, "the method from preparation.finish has a preparation again"
    return ready


def _place(data: FederatedData, client: int) -> tuple[Any, Any]:
    """The start of a client's training rows, and their count."""
    return data.starts("train")[client], data.counts("train")[client]


def _asker(queries: Mapping[str, Query], data: FederatedData) -> Ask:
    """Sums over all clients."""
    rows, capacity = jax.tree.map(jnp.asarray, data.rows), int(data.counts("train").max())

    @partial(jax.jit, static_argnums=0)
    def term(name, key, sent, start, count):
        return queries[name](key, sent, Shard(rows, start, count, capacity))

    def ask(name: str, sent: PyTree) -> PyTree:
        assert name in queries, f"no query is called {name!r}; there are {', '.join(queries)}"
        terms = [
            term(name, root_key(client), sent, *map(jnp.int32, _place(data, client)))
            for client in range(data.clients)
        ]
        return jax.tree.map(lambda *leaves: sum(leaves), *terms)

    return ask


def _check_used(up: PyTree, used: Used) -> None:
    """Entries of the upload that its round does not use are zero."""
    paths = tree.paths(up)
    for part in used:
        assert any(tree.is_below(path, part) for path in paths), (
            f"the round uses some of {part!r}, and the upload has only {', '.join(paths)}"
        )
    for path, leaf in zip(paths, jax.tree.leaves(up), strict=True):
        assert leaf.ndim or not any(tree.is_below(path, part) for part in used), (
            f"{path} of the upload is one number, of which a round cannot use a part"
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
        _need_finite("posterior.shared: of the kept draws", draws)
    elif isinstance(shared, Approximation):
        law = shared.fit(published(method, server), data.spec, _asker(shared.queries, data))
        for path, leaf in jax.tree.leaves_with_path(shared.draw(root_key(0), law, _DRAWS)):
            assert leaf.shape[0] == _DRAWS, (
                f"posterior.shared: {_DRAWS} draws were asked for, {path_of(path)} has "
                f"{leaf.shape[0]}"
            )


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
            assert np.all(np.isfinite(np.asarray(leaf))), f"{what}, {path_of(path)} is not finite"


def _need_no_nan(what: str, server: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(server):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert not np.any(np.isnan(np.asarray(leaf))), (
                f"{what}, {path_of(path)} of the server is NaN: a sum or a weight may be zero"
            )


def _need_same(what: str, one: PyTree, other: PyTree) -> None:
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        assert np.allclose(a, b, _TOLERANCE, _TOLERANCE), (
            f"{what}, {path_of(path)} differs by up to {np.max(np.abs(np.asarray(a) - b)):.3g}"
        )
