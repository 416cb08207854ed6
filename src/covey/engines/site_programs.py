"""The programs of a site: the compiled functions of a method. Sites of one process share them."""

from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from covey.algorithms.federated_sum import sum_of_answers
from covey.channel.identity import identity
from covey.core import outline, tree
from covey.core.algorithm import Algorithm, Empty, Message, Query, averaged_over, evaluate
from covey.core.channel import Channel
from covey.core.keys import Integer, root_key
from covey.core.node import Node, first_node, node_round
from covey.core.shard import Shard, Spec
from covey.engines.messages import Answer, used_by
from covey.engines.round import received
from covey.engines.setup import Agreement, Setup, Shapes, agreement_of

FIRST_QUESTION = 2**30  # the first number that is folded into a client's key for a query


class Asked(NamedTuple):
    """A question: its index, and the arrays sent with it."""

    index: Int[Array, ""]
    content: Message


def query_method(query: Query, sent: Message, name: str) -> Algorithm:
    """A question as a method of one round; `sent` is an `Asked`, or its shapes."""
    return sum_of_answers(_answer_of(query), sent, name=name, fixed_shapes=True)


@lru_cache(maxsize=64)  # the same function for the same query, so that programs are shared
def _answer_of(query: Query):
    def answer(key, sent, data):
        return query(jax.random.fold_in(key, FIRST_QUESTION + sent.index), sent.content, data)

    return answer


class Programs:
    """The compiled functions of a method that is ready to run.

    Attributes:
        algorithm: The method.
        root: The key of the run.
        shapes: Shapes of states and messages.
        known: Nodes that trees in messages may have beyond tuples and dictionaries.
    """

    def __init__(self, agreed: Agreement | Setup):
        self.algorithm: Algorithm = agreed.algorithm
        self.root: Key[Array, ""] = agreed.root
        self.shapes: Shapes = agreed.shapes
        self.known = known_nodes(agreed.shapes)
        self.queries = Queries(queries_of(agreed.algorithm), self.root)
        algorithm, channel = agreed.algorithm, agreed.channel
        self.used = partial(used_by, algorithm, channel)
        self.first_node = jax.jit(partial(first_node, algorithm, channel))
        self.node_round = jax.jit(partial(_answer, algorithm, channel))
        draws = algorithm.posterior.client
        self.draws = None if draws is None else jax.jit(draws, static_argnums=4)
        self._predict_by(algorithm)

    def _predict_by(self, algorithm: Algorithm) -> None:
        self.adapt = jax.jit(algorithm.adapt)
        self.refresh = None if algorithm.refresh is None else jax.jit(algorithm.refresh)
        self.evaluate = jax.jit(partial(evaluate, algorithm))
        self.predict = jax.jit(algorithm.predict)
        self._over: dict[int, Programs] = {}

    def over(self, draws: int | None) -> "Programs":
        """The programs whose predictions average over `draws` draws; None: as many as usual."""
        if draws is None:
            return self
        averaged = averaged_over(self.algorithm, draws)
        if draws not in self._over:
            other = copy(self)
            other._predict_by(averaged)
            self._over[draws] = other
        return self._over[draws]


class Queries:
    """The compiled queries of a method, by name."""

    def __init__(self, queries: Mapping[str, Query], root: Key[Array, ""]):
        self.queries, self.root = dict(queries), root
        self._compiled: dict[str, Callable[..., Any]] = {}

    def answer(
        self, name: str, root: Key[Array, ""], client_id: Integer, asked: Asked, data: Shard
    ) -> tuple[Answer, Bool[Array, ""]]:
        """A client's term of the sum, and whether it is finite.

        It is computed in the precision of the question: a server that needs the sum in double
        precision sends values in double precision.
        """
        if name not in self._compiled:
            method = query_method(self.queries[name], Empty(), name)
            self._compiled[name] = jax.jit(partial(_answer, method, identity()))
        run_is_double = bool(jax.config.read("jax_enable_x64"))
        with jax.enable_x64(run_is_double or _is_double(asked)):
            asked = jax.tree.map(jnp.asarray, asked)
            nothing = Node(Empty(), identity().init(Empty()))
            answer, _, finite = self._compiled[name](root, 0, client_id, asked, nothing, data)
            return jax.device_get(answer), finite


def _is_double(asked: Asked) -> bool:
    """Whether a question has values in double precision."""
    return any(np.asarray(leaf).dtype == np.float64 for leaf in jax.tree.leaves(asked))


class Workshop:
    """Makes the programs of a method at a site, once the result of its preparation is known.

    Args:
        method: The method, prepared or not.
        spec: Shapes and counts of the rows, as the server has them (`setup.spec_of`).
        seed: Seed of the run.
        channel: Codec of the uploads; None without one.
        own: Capacity of the site's rows in its shards.
    """

    def __init__(
        self,
        method: Algorithm,
        spec: Spec,
        *,
        seed: int,
        channel: Channel | None = None,
        own: int | None = None,
    ):
        self.method, self._spec = method, spec
        self._agreement = partial(agreement_of, seed=seed, channel=channel, own=own)
        self._seed = seed
        self._made: tuple[bytes, Programs] | None = None

    @property
    def needs_preparation(self) -> bool:
        """Whether the method has a preparation before its first round."""
        return self.method.preparation is not None

    @cached_property
    def preparation(self) -> Queries:
        """The questions before the first round."""
        found = self.method.preparation
        return Queries({} if found is None else found.queries, root_key(self._seed))

    def programs(self, prepared: bytes) -> Programs:
        """The programs; `prepared` is the result of the preparation, with its outline.

        Raises:
            WireError: `prepared` cannot be read.
        """
        if self._made is None or self._made[0] != prepared:
            method = self.method
            if method.preparation is not None:
                found = outline.unpack(prepared)
                method = method.preparation.finish(jax.tree.map(jnp.asarray, found))
            self._made = prepared, Programs(self._agreement(method, self._spec))
        return self._made[1]


class Ready:
    """A workshop of programs that are made already, for sites of one process that share them."""

    needs_preparation = False

    def __init__(self, programs: Any):
        self._programs = programs

    @property
    def preparation(self) -> Queries:
        """Nothing: the method is prepared."""
        return Queries({}, self._programs.root)

    def programs(self, prepared: bytes) -> Any:
        """The programs."""
        return self._programs


def queries_of(algorithm: Algorithm) -> Mapping[str, Query]:
    """The questions of a method to clients during and after its rounds."""
    shared = algorithm.posterior.shared
    return {} if shared is None else shared.queries


def known_nodes(shapes: Shapes) -> list[Any]:
    """Nodes of a method's states that are neither tuples nor dictionaries, e.g. networks."""
    return outline.custom_nodes(shapes.server, shapes.down)


def padded(data: Shard, capacity: int) -> Shard:
    """A site's rows in a buffer of few possible lengths, so that sites can share compiled
    programs.
    """

    def pad(leaf):
        leaf = np.asarray(leaf)
        return jax.device_put(
            np.pad(leaf, [(0, capacity - len(leaf)), *[(0, 0)] * (leaf.ndim - 1)])
        )

    return Shard(jax.tree.map(pad, data.rows), data.start, data.count, capacity)


def _answer(
    algorithm, channel, root, t, client_id, down, node, data
) -> tuple[Answer, Node, Bool[Array, ""]]:
    sent, node, info = node_round(algorithm, channel, root, t, client_id, down, node, data)
    return Answer(sent, info), node, tree.is_finite((*received(channel, sent), node))
