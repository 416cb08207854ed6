"""The interface of a federated method.

An `Algorithm` is a NamedTuple of pure functions. It knows no engine, no cohort, no codec and no
transport.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.channel import Channel
from covey.core.cohort import Sampler
from covey.core.measure import measure
from covey.core.metrics import Metric
from covey.core.shard import Axis, Shard, Spec
from covey.core.trimming import Used

State: TypeAlias = PyTree  # of a server or of a client; carried from round to round
Message: TypeAlias = PyTree  # broadcast or upload; arrays only
Info: TypeAlias = Any  # a NamedTuple of scalars of a round, reported and dropped
# (key, sent, data) -> a client's term of a sum, in answer to what the server has sent
Query: TypeAlias = Callable[[Key[Array, ""], Message, Shard], PyTree]
# (name of a query, what is sent) -> the sum of the answers of all clients; takes one round
Ask: TypeAlias = Callable[[str, Message], PyTree]


class Empty(NamedTuple):
    """The state of a stateless client, and the info of one that has nothing to report."""


class Local(NamedTuple):
    """The result of a client's round.

    Attributes:
        up: The upload, before compression.
        pending: Values from which `commit` makes the client's next state, once the sent upload is
            known.
        info: Scalars to report.
        weight: Weight of the upload in the weighted sum, e.g. the client's count of rows. It
            is sent exactly, whatever the channel does to the upload. None counts as one and is not
            sent.
    """

    up: Message
    pending: PyTree
    info: Info
    weight: Float[Array, ""] | None = None


class Aggregate(NamedTuple):
    """All that the server sees of a round: sums over the uploads that arrived.

    w_i is the inverse participation probability of client i and m_i the weight of its upload
    (`Local.weight`). Where messages are lost, w_i also corrects for the share that was.

    Attributes:
        weighted: Sum of w_i m_i sent_i; estimates the weighted sum over all clients.
        plain: Sum of sent_i.
        weight: Sum of w_i m_i; estimates the sum of all weights (the number of clients without).
        count: The number of uploads.
    """

    weighted: Message
    plain: Message
    weight: Float[Array, ""]
    count: Float[Array, ""]


class Plan(NamedTuple):
    """The plan of a run, which a method checks before the first round.

    Attributes:
        counts: Training rows of each client.
        sampler: Sampler of the cohorts.
        channel: Channel of the uploads; None where nothing changes them.
        upload: The shapes of an upload.
        rounds: Rounds asked for; None where the method ends the run.
    """

    counts: np.ndarray
    sampler: Sampler
    channel: Channel | None = None
    upload: Message = None
    rounds: int | None = None

    @property
    def omega(self) -> float | None:
        """The variance bound of the channel for this upload; None for a biased channel."""
        if self.channel is None:
            return 0.0
        return None if self.channel.omega is None else float(self.channel.omega(self.upload))


class Kept(NamedTuple):
    """Draws that a server keeps in a ring buffer, (size, chains, ...).

    Attributes:
        draws: The buffer; the newest draw is at index (count - 1) modulo its size.
        count: Draws since the first round.
    """

    draws: PyTree
    count: Int[Array, ""]


class Chains(NamedTuple):
    """A posterior of the shared parameters that the server's state walks through round by round.

    Attributes:
        kept: (server state) -> its newest draws.
        describe: (one draw) -> the draw in the terms of the model.
        predictive: (one draw, x) -> the predictive distribution of the rows x.
        check: (server state, spec, ask) warns where the chains' law is off; see
            `Approximation.fit` for `ask`. None where nothing is to be asked.
        queries: The questions of `check` to clients; see `Approximation.queries`.
    """

    kept: Callable[[State], Kept]
    describe: Callable[[PyTree], PyTree]
    predictive: Callable[[PyTree, PyTree], PyTree]
    check: "Callable[[State, Spec, Ask], None] | None" = None
    queries: Mapping[str, Query] = MappingProxyType({})


class Approximation(NamedTuple):
    """A posterior of the shared parameters as a law, e.g. a Gaussian at the mode.

    Attributes:
        fit: (published state, spec, ask) -> the law. `ask(name, sent)` sends some arrays to all
            clients and is the sum of their answers, for laws that need more than the server's
            state.
        draw: (key, law, count) -> draws in the terms of the model, on the leading axis.
        predictive: (key, law, x, count) -> the predictive distribution of the rows x, averaged over
            `count` draws; None where draws predict nothing.
        queries: The questions of `fit` to clients, by name: (key, sent, data) -> a client's term of
            the sum, float arrays.
        publish: (published state, law) -> what clients predict and draw with once the law is known;
            None where they do not need it.
        caution: What the law is, where its intervals are no credible intervals; who looks at the
            posterior is told.
    """

    fit: Callable[[Message, Spec, Ask], Any]
    draw: Callable[[Key[Array, ""], Any, int], PyTree]
    predictive: Callable[[Key[Array, ""], Any, PyTree, int], PyTree] | None = None
    queries: Mapping[str, Query] = MappingProxyType({})
    publish: Callable[[Message, Any], Message] | None = None
    caution: str = ""


class Posterior(NamedTuple):
    """The posteriors of a method: of the shared parameters, of a client's own, or both.

    Attributes:
        shared: Chains of the shared parameters, or an approximation of their law.
        client: (key, down, client state, data, count) -> draws of the client's own parameters, on
            the leading axis.
        axes: (spec) -> {name: Axis}: labels along the arrays of a draw, by their path in it.
        averaged_over: (count) -> the method with predictions that average over `count` draws. None
            where their count is fixed.
    """

    shared: Chains | Approximation | None = None
    client: Callable[[Key[Array, ""], Message, State, Shard, int], PyTree] | None = None
    axes: Callable[[Spec], dict[str, Axis]] | None = None
    averaged_over: "Callable[[int], Algorithm] | None" = None


class Preparation(NamedTuple):
    """The preparation of a method: values found from the data before its first round.

    Attributes:
        find: (spec, ask) -> arrays, from what clients answer, e.g. scales and step sizes that suit
            the data; see `Approximation.fit` for `ask`.
        finish: (the result of `find`) -> the method itself. Server and clients make the same one.
        queries: The questions of `find` to clients; see `Approximation.queries`.
    """

    find: Callable[[Spec, Ask], PyTree]
    finish: Callable[[PyTree], "Algorithm"]
    queries: Mapping[str, Query]


class Hooks(NamedTuple):
    """Optional functions of a method for certain moments of a run.

    Attributes:
        validate: (plan) raises or warns where the plan does not fit the method.
        diagnose: (down, data) -> why this client's values may have stopped being finite, and what
            would help.
        adapt_before_evaluation: Make every client's state by `adapt` from the newest broadcast
            before it is evaluated, instead of remembering one.
        unsettled: (server state) -> what has not converged yet, with its values, and what to do;
            None once more rounds would change nothing of interest. A run without `rounds=` ends
            then, and one that ends before warns.
        given_up: (server state) -> why more rounds would not help, and what to do; None while they
            may. A run without `rounds=` ends then, with this warning.
        waiting: (server state) -> rounds in a row that changed nothing, because clients were
            missing. A run without `rounds=` ends after a few of them, and names the clients.
        cautions: (server state, spec) -> what is wrong with the estimates, and what to do; they
            are warnings at the end of a run.
        fixed_shapes: Shapes of a client's state and upload are known not to depend on its rows: an
            engine need not trace the method again to find out.
        needs_server: Why the method cannot run between peers, and what to use instead; empty where
            that is for the engine to find out.
    """

    validate: Callable[[Plan], None] | None = None
    diagnose: Callable[[Message, Shard], str] | None = None
    adapt_before_evaluation: bool = False
    unsettled: Callable[[State], str | None] | None = None
    given_up: Callable[[State], str | None] | None = None
    waiting: Callable[[State], int] | None = None
    cautions: Callable[[State, Spec], Sequence[str]] | None = None
    needs_server: str = ""
    fixed_shapes: bool = False


class Algorithm(NamedTuple):
    """A federated method: nine functions, and optional ones.

    Attributes:
        name: The method's name in reports.
        init: (key, spec) -> server state; `spec` also counts the clients and their training rows.
        broadcast: (server state) -> down.
        server: (key, server state, aggregate) -> (server state, info). What it makes of an empty
            aggregate is dropped.
        init_client: (key, down, data) -> client state, at the client's first round.
        client: (key, down, client state, data) -> Local(up, pending, info, weight).
        commit: (pending, sent) -> client state; `sent` is what the server decodes.
        predict: (key, down, client state, x) -> a predictive distribution.
        adapt: (key, down, data) -> state of an unseen client; nothing is uploaded.
        evaluate: (key, down, client state, data) -> mergeable metrics by name. Default: the
            measures of `predict`.
        refresh: (key, down, client state, data) -> the client state brought up to date with the
            newest broadcast, before the client is evaluated, predicts or draws from its posterior;
            nothing is uploaded and the client does not keep it. Default: the state as it is.
        publish: (server state) -> what clients evaluate, predict and adapt with, where it is more
            than the broadcast of a round. Default: `broadcast`.
        posterior: Posteriors of the shared parameters and of a client's own.
        privacy: (plan) -> what a round reveals of one row, for a privacy ledger; None for a method
            that protects no row.
        exact: Names of the parts of an upload that no lossy channel may touch, e.g. counts.
        used: (down) -> {part of the upload: leading entries of its arrays that this round uses}.
            The others are zero, and travel only where a channel compresses the upload. Default:
            all entries of all parts.
        hooks: Checks and explanations.
        preparation: How the method finds values from the data before it can start; None for one
            that is ready.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], State]
    broadcast: Callable[[State], Message]
    server: Callable[[Key[Array, ""], State, Aggregate], tuple[State, Info]]
    init_client: Callable[[Key[Array, ""], Message, Shard], State]
    client: Callable[[Key[Array, ""], Message, State, Shard], Local]
    commit: Callable[[PyTree, Message], State]
    predict: Callable[[Key[Array, ""], Message, State, PyTree], PyTree]
    adapt: Callable[[Key[Array, ""], Message, Shard], State]
    evaluate: Callable[[Key[Array, ""], Message, State, Shard], dict[str, Metric]] | None = None
    refresh: Callable[[Key[Array, ""], Message, State, Shard], State] | None = None
    publish: Callable[[State], Message] | None = None
    posterior: Posterior = Posterior()
    privacy: Callable[[Plan], Any] | None = None
    exact: tuple[str, ...] = ()
    used: Callable[[Message], Used] | None = None
    hooks: Hooks = Hooks()
    preparation: Preparation | None = None

    def __repr__(self) -> str:
        has = [
            *(["posterior.shared"] if self.posterior.shared is not None else []),
            *(["posterior.client"] if self.posterior.client is not None else []),
            *(["privacy"] if self.privacy is not None else []),
        ]
        return f"Algorithm({self.name}{' with ' + ', '.join(has) if has else ''})"


FUNCTIONS = tuple(  # the nine that every method has
    field for field in Algorithm._fields[1:] if field not in Algorithm._field_defaults
)


def published(algorithm: Algorithm, state: State) -> Message:
    """The state that clients evaluate and predict with."""
    return (algorithm.publish or algorithm.broadcast)(state)


def evaluate(
    algorithm: Algorithm, key: Key[Array, ""], down: Message, state: State, data: Shard
) -> dict[str, Metric]:
    """The method's own metrics of a client's rows; by default the measures of its predictions."""
    if algorithm.evaluate is not None:
        return algorithm.evaluate(key, down, state, data)
    return measure(lambda x: algorithm.predict(key, down, state, x), data)


def averaged_over(algorithm: Algorithm, draws: int) -> Algorithm:
    """The method with predictions that average over `draws` draws.

    Raises:
        ValueError: The method has no such count, or it is not a positive integer.
    """
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"draws={draws!r}: a positive integer is needed")
    found = algorithm.posterior.averaged_over
    if found is None:
        chains = isinstance(algorithm.posterior.shared, Chains)
        how = "average over all draws that it keeps" if chains else "do not average over draws"
        raise ValueError(f"predictions of {algorithm.name} {how}: leave draws= out")
    return found(int(draws))


def no_posterior(algorithm: Algorithm, of: Literal["shared", "client"]) -> str:
    """Why there is no posterior of the shared or of a client's own parameters, and what there is
    instead.
    """
    shared = of == "shared"
    parameters = "the shared parameters" if shared else "a client's own parameters"
    if (algorithm.posterior.client if shared else algorithm.posterior.shared) is None:
        instead = "it finds one estimate: see run.state and run.predict, or the report of the run"
    elif shared:
        instead = "it samples each client's own: see run.posterior.client(name) (--client NAME)"
    else:
        instead = "it samples the shared parameters: see run.posterior.shared (--shared)"
    return f"{algorithm.name} has no posterior of {parameters}; {instead}"


def no_state(*_: object) -> Empty:
    """`init_client`, `commit` and `adapt` of a method whose clients have no state."""
    return Empty()


def keep(pending: State, sent: Message) -> State:
    """`commit` of a method whose clients take their pending state, whatever was sent."""
    return pending
