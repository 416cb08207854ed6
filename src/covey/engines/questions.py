"""What a server asks all clients beyond the rounds: sums, for a preparation or a posterior.

Every client answers, whatever cohorts, channel and faults the rounds have. A program is compiled
once per query and shapes.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from covey.algorithms.federated_sum import sum_of_answers
from covey.core.algorithm import Algorithm, Ask, Message, Query
from covey.engines.engine import Engine
from covey.engines.record import Line

_FIRST = 2**30  # the first number that is folded into a client's key for a query
PREPARATION = 2**20  # questions of a preparation are counted from here


class _Sent(NamedTuple):
    """A question: which one it is, and what clients are sent with it."""

    index: Int[Array, ""]
    content: Message


class Questions:
    """Questions to all clients of a run.

    Attributes:
        records: Name, sizes and number of clients of each question so far.
    """

    def __init__(self, engine_of: Callable[[Algorithm], Engine]):
        """`engine_of`: (a method of one round) -> it on the clients of the run."""
        self._engine_of = engine_of
        self._engines: dict[Any, tuple[Engine, Any]] = {}  # with their state at the start
        self.records: list[dict[str, str | float | int]] = []

    def asker(self, queries: Mapping[str, Query], *, first: int = 0) -> Ask:
        """A function that asks.

        Args:
            queries: The queries by name.
            first: The number of the first question. Questions of different numbers draw different
                random numbers; the same one, asked again, has the same answer.
        """
        indices = count(first)

        def ask(name: str, sent: Message) -> PyTree:
            if name not in queries:
                raise KeyError(f"no query is called {name!r}; there are {', '.join(queries)}")
            return self._sum(queries[name], name, _Sent(jnp.int32(next(indices)), sent))

        return ask

    def _sum(self, query: Query, name: str, sent: _Sent) -> PyTree:
        sent = jax.tree.map(jnp.asarray, sent)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(sent))
        known = (query, jax.tree.structure(sent), shapes)
        if known not in self._engines:

            def answer(key, sent, data):
                return query(jax.random.fold_in(key, _FIRST + sent.index), sent.content, data)

            method = sum_of_answers(answer, sent, name=name, fixed_shapes=True)
            engine = self._engine_of(method)
            self._engines[known] = engine, engine.start()
        engine, start = self._engines[known]
        asked = start._replace(server=start.server._replace(sent=sent))
        state, lines = engine.advance(asked, 1)
        self._note(name, lines[0])
        if lines[0]["diverged"]:
            raise ValueError(
                f"{lines[0]['diverged']:.0f} of the clients answered {name!r} with values that are "
                f"not finite, e.g. the client with id {lines[0]['diverged_id']:.0f}: check its "
                "rows for extreme or missing values"
            )
        return state.server.sum

    def _note(self, name: str, line: Line) -> None:
        sizes = {key: value for key, value in line.items() if key.startswith(("bits", "bytes"))}
        self.records.append({"question": name, "clients": line["clients"], **sizes})


def no_questions(method: Algorithm) -> NoReturn:
    """An error: a sum over all clients needs somebody who adds it up."""
    raise ValueError(
        "peers without a server cannot sum over all clients, which this method needs; use "
        "engine='simulate'"
    )
