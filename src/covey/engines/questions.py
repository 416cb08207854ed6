"""Questions to all clients beyond the rounds: sums, for a preparation or a posterior.

Every client answers, whatever cohorts, channel and faults the rounds have. A program is compiled
once per query and shapes.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from covey.core.algorithm import Algorithm, Ask, Message, Query
from covey.engines.engine import Engine
from covey.engines.record import Line
from covey.engines.site_programs import Asked, query_method

# (query, name, what is sent) -> the sum of all clients' answers, and a row of metrics
Inquire: TypeAlias = Callable[[Query, str, Asked], tuple[PyTree, Line]]
PREPARATION = 2**20  # questions of a preparation are counted from here


class Questions:
    """Questions to all clients of a run.

    Attributes:
        records: Name, sizes and count of clients of each question so far.
    """

    def __init__(self, ask_once: Inquire):
        """`ask_once`: asks one question of all clients of the run."""
        self._ask_once = ask_once
        self.records: list[dict[str, str | float | int]] = []

    def asker(self, queries: Mapping[str, Query], *, first: int = 0) -> Ask:
        """A function that asks.

        Args:
            queries: The queries by name.
            first: Index of the first question. Questions of different indices draw different random
                values; the same one, asked again, has the same answer.
        """
        indices = count(first)

        def ask(name: str, sent: Message) -> PyTree:
            if name not in queries:
                raise KeyError(f"no query is called {name!r}; there are {', '.join(queries)}")
            asked = Asked(jnp.int32(next(indices)), sent)
            return self._sum(queries[name], name, jax.tree.map(jnp.asarray, asked))

        return ask

    def _sum(self, query: Query, name: str, asked: Asked) -> PyTree:
        total, line = self._ask_once(query, name, asked)
        self._note(name, line)
        if line["diverged"]:
            raise ValueError(
                f"{line['diverged']:.0f} of the clients answered {name!r} with values that are "
                f"not finite, e.g. the client with id {line['diverged_id']:.0f}: check its "
                "rows for extreme or missing values"
            )
        return total

    def _note(self, name: str, line: Line) -> None:
        sizes = {key: value for key, value in line.items() if key.startswith(("bits", "bytes"))}
        self.records.append({"question": name, "clients": line["clients"], **sizes})


class ByRounds:
    """Questions as rounds of an engine that has all clients.

    Args:
        engine_of: (a method of one round) -> it on the clients of the run.
    """

    def __init__(self, engine_of: Callable[[Algorithm], Engine]):
        self._engine_of = engine_of
        self._engines: dict[Any, tuple[Engine, Any]] = {}  # with their first state, as arrays

    def __call__(self, query: Query, name: str, asked: Asked) -> tuple[PyTree, Line]:
        """The sum of all clients' answers to a question, and a row of metrics about it."""
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(asked))
        known = (query, jax.tree.structure(asked), shapes)
        if known not in self._engines:
            engine = self._engine_of(query_method(query, asked, name))
            self._engines[known] = engine, engine.snapshot(engine.start())
        engine, first = self._engines[known]
        start = engine.restore(first)  # sites that have answered would repeat their answer
        sent = start._replace(server=start.server._replace(sent=asked))
        state, lines = engine.advance(sent, 1)
        return state.server.sum, lines[0]


def no_questions(*_: object) -> NoReturn:
    """An error: a sum over all clients needs somebody who adds it up."""
    raise ValueError(
        "peers without a server cannot sum over all clients, which this method needs; use "
        "engine='simulate'"
    )
