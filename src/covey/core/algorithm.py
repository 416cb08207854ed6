"""The seam: what a federated method is.

An `Algorithm` is a NamedTuple of pure functions. It knows no engine, no cohort, no codec and no
transport.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.cohort import Sampler
from covey.core.metrics import Metric
from covey.core.shard import Axis, Shard, Spec

State: TypeAlias = PyTree  # of a server or of a client; carried from round to round
Message: TypeAlias = PyTree  # broadcast or upload; arrays only
Info: TypeAlias = Any  # a NamedTuple of scalars of a round, reported and dropped


class Empty(NamedTuple):
    """The state of a stateless client, and the info of one that has nothing to report."""


class Local(NamedTuple):
    """What a client's round gives.

    up: what it would send, before compression.
    pending: what `commit` needs to make the client's next state once it is known what was sent.
    info: scalars to report.
    """

    up: Message
    pending: PyTree
    info: Info


class Aggregate(NamedTuple):
    """All that the server sees of a round: sums over the uploads that arrived.

    weighted: sum of w_i sent_i, w_i the inverse participation probability; estimates the sum over
        all clients.
    plain: sum of sent_i.
    weight: sum of w_i; estimates the number of clients.
    count: the number of uploads.
    """

    weighted: Message
    plain: Message
    weight: Float[Array, ""]
    count: Float[Array, ""]


class Kept(NamedTuple):
    """Draws that a server keeps in a ring, (places, chains, ...): the newest lies at place (number
    - 1) modulo the places.

    number: how many there have been since the first round.
    """

    draws: PyTree
    number: Int[Array, ""]


class Chains(NamedTuple):
    """A posterior of what all clients share, which the server's state walks through round by round.

    kept: (server state) -> its newest draws.
    describe: (one draw) -> the same as users know it.
    predictive: (one draw, x) -> the predictive distribution of the outcomes of the rows x.
    """

    kept: Callable[[State], Kept]
    describe: Callable[[PyTree], PyTree]
    predictive: Callable[[PyTree, PyTree], PyTree]


class Algorithm(NamedTuple):
    """A federated method.

    name: what reports call it.
    init: (key, spec) -> server state; `spec` also counts the clients and their training rows.
    init_client: (key, down, data) -> client state, at the client's first round.
    broadcast: (server state) -> down.
    client: (key, down, client state, data) -> Local(up, pending, info).
    commit: (pending, sent) -> client state; `sent` is what the server decodes, after compression.
    server: (key, server state, aggregate) -> (server state, info). What it makes of an empty
        aggregate is dropped.
    evaluate: (key, down, client state, data) -> mergeable metrics by name.
    predict: (key, down, client state, x) -> a predictive distribution.
    adapt: (key, down, data) -> client state of a client that never took part; nothing is uploaded.
    personalise_at_evaluation: make every client's state by `adapt` from the newest broadcast before
        it is evaluated.
    draws: (key, down, client state, data, number) -> posterior draws of a client's own; None for a
        method that has none.
    chains: the posterior of what all clients share, for a method whose server samples it.
    axes: (spec) -> {name: Axis}: labels of the numbers of a draw, of a client's or of a chain's, by
        its path in the draw.
    publish: (server state) -> what clients evaluate, predict and adapt with, where it is more than
        the broadcast of a round.
    check: (rows of each client, sampler of cohorts) raises or warns where these do not fit the
        method.
    diagnose: (down, data) -> a line on why this client's numbers may have stopped being finite, and
        what would help.
    mechanism: (rows of each client, sampler of cohorts) -> what a round reveals of one row, as a
        privacy ledger accounts for it (`privacy.Mechanism`); None for a method that protects no
        row.
    burn_in: rounds that are another method's, before this one begins; a run has to be longer.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], State]
    init_client: Callable[[Key[Array, ""], Message, Shard], State]
    broadcast: Callable[[State], Message]
    client: Callable[[Key[Array, ""], Message, State, Shard], Local]
    commit: Callable[[PyTree, Message], State]
    server: Callable[[Key[Array, ""], State, Aggregate], tuple[State, Info]]
    evaluate: Callable[[Key[Array, ""], Message, State, Shard], dict[str, Metric]]
    predict: Callable[[Key[Array, ""], Message, State, PyTree], PyTree]
    adapt: Callable[[Key[Array, ""], Message, Shard], State]
    personalise_at_evaluation: bool = False
    draws: Callable[[Key[Array, ""], Message, State, Shard, int], PyTree] | None = None
    chains: Chains | None = None
    axes: Callable[[Spec], dict[str, Axis]] | None = None
    publish: Callable[[State], Message] | None = None
    check: Callable[[np.ndarray, Sampler], None] | None = None
    diagnose: Callable[[Message, Shard], str] | None = None
    mechanism: Callable[[np.ndarray, Sampler], Any] | None = None
    burn_in: int = 0


def published(algorithm: Algorithm, state: State) -> Message:
    """What clients evaluate and predict with."""
    return (algorithm.publish or algorithm.broadcast)(state)


def no_draws(algorithm: Algorithm) -> str:
    """Why there are no posterior draws of clients."""
    if algorithm.chains is not None:
        return f"{algorithm.name} samples what all clients share and nothing of a client's own: see the run's chains"
    return f"{algorithm.name} has no posterior draws: it finds one estimate; see the run's state and predictions"


def no_state(*_: object) -> Empty:
    """`init_client`, `commit` and `adapt` of a method whose clients remember nothing."""
    return Empty()
