"""The rounds of one method as questions of another, before that one starts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from covey.core.algorithm import Aggregate, Algorithm, Ask, Empty, Message, Query, State
from covey.core.shard import Spec


class Answer(NamedTuple):
    """A client's upload, and 1 for the client; summed over clients."""

    up: Message
    clients: Float[Array, ""]


def round_query(method: Algorithm) -> Query:
    """A client's round of a method without client state, as an answer to the broadcast."""

    def answer(key, down, data):
        local = method.client(key, down, Empty(), data)
        if local.weight is not None:
            raise ValueError(f"{method.name} weighs its uploads; a plain sum is not its aggregate")
        return Answer(local.up, jnp.ones(()))

    return answer


def rounds_by_asking(
    method: Algorithm, key: Key[Array, ""], spec: Spec, ask: Ask, name: str
) -> State:
    """The server's state of a method at its end, each of its rounds a question.

    Args:
        method: A method without client state that can tell when it has settled.
        key: Random key of the method's server.
        spec: Shapes of the rows and the number of clients.
        ask: Asks all clients.
        name: The name under which `ask` knows `round_query(method)`.

    Returns:
        The state once the method has settled, or has given up (see `Hooks`): ask it which.

    Raises:
        ValueError: Some clients did not answer, and the method waits for them.
    """
    hooks = method.hooks
    if hooks.unsettled is None:
        raise ValueError(f"{method.name} cannot tell when it has settled")
    step, state, rounds = jax.jit(method.server), method.init(key, spec), 0
    clients = jnp.zeros(())
    while hooks.unsettled(state) is not None:
        if hooks.given_up is not None and hooks.given_up(state) is not None:
            break
        if hooks.waiting is not None and hooks.waiting(state) > 0:
            raise ValueError(
                f"{method.name} needs the answers of all {spec.clients} clients, and heard "
                f"{float(clients):.0f} of them"
            )
        up, clients = ask(name, method.broadcast(state))
        state, _ = step(jax.random.fold_in(key, rounds), state, Aggregate(up, up, clients, clients))
        rounds += 1
    return state
