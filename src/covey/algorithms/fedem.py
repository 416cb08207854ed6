"""FedEM: EM in the space of sufficient statistics, with compressed uploads and partial
participation (Dieuleveut, Fort, Moulines and Robin 2021, algorithms 1 and 4).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from covey.algorithms.averaging import Weighting, client_weight
from covey.algorithms.memory import (
    MemoryInit,
    check_memory,
    memory_rate_for,
    need_memory_rate,
    remembered,
    warm_up_rounds,
    why_diverged,
)
from covey.core import tree
from covey.core.algorithm import Aggregate, Algorithm, Hooks, Local, no_state
from covey.core.metrics import Mean, Metric
from covey.core.shard import Batch, Shard, Spec, fold_batches, some_rows
from covey.models.latent import LatentModel

Oracle = Literal["sample", "stream"]
StepSize = Callable[[Int[Array, ""]], Float[Array, ""]]
# rows at once in a pass over all rows; bounds the memory and changes no value beyond rounding
_PASS = 256


class State(NamedTuple):
    """Shat, T(Shat), V and the count of steps so far; and the constants n, c, alpha and the rounds
    of the warm-up.
    """

    statistics: PyTree
    theta: PyTree
    memory: PyTree
    step: Int[Array, ""]
    clients: Float[Array, ""]
    mean_weight: Float[Array, ""]
    memory_rate: Float[Array, ""]
    warm_up: Int[Array, ""]


class Down(NamedTuple):
    """Shat, T(Shat) (the maximisation is the server's), alpha, and whether this round is part of
    the warm-up.
    """

    statistics: PyTree
    theta: PyTree
    memory_rate: Float[Array, ""]
    warming_up: Bool[Array, ""]


class Memory(NamedTuple):
    """V_i, and the client's position in its stream of rows."""

    memory: PyTree
    position: Int[Array, "*clients"]


class Pending(NamedTuple):
    """The client's state before the upload, and alpha."""

    state: Memory
    memory_rate: Float[Array, "*clients"]


class Info(NamedTuple):
    """Minus the mean log-likelihood of the rows that were used."""

    train_loss: Float[Array, ""]


class ServerInfo(NamedTuple):
    """The norm of H / c, which estimates that of h; the counts of empty components and of lifted
    covariances.
    """

    field_norm: Float[Array, ""]
    empty_components: Float[Array, ""]
    singular_covariances: Float[Array, ""]


class Found(NamedTuple):
    """Mean statistics of some rows, and minus their mean log-likelihood."""

    statistics: PyTree
    loss: Float[Array, ""]


def fedem(
    model: LatentModel,
    *,
    step_size: float | StepSize = 1.0,
    decay: float = 0.0,
    memory_rate: float | None = None,
    memory_init: MemoryInit = "zero",
    batch_size: int | None = None,
    oracle: Oracle = "sample",
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedEM: EM on sufficient statistics, with client memories that make lossy uploads converge.

    T is the maximisation, Shat the server's statistics, h_i(s) the mean over client i's rows of
    E[s | row; T(s)], minus s. The fixed points of EM are the roots of h, the mean of h_i. In round
    k, with the cohort A:

        client in A:  S_i = estimate of its mean statistics at T(Shat)
                      Delta_i = c_i (S_i - Shat) - V_i
                      send C(Delta_i);  V_i = V_i + alpha C(Delta_i)
        server:       H = V + (1/n) sum over A of w_i C(Delta_i)
                      Shat = Shat + gamma_k H / c
                      V = V + (alpha/n) sum over A of C(Delta_i)

    with w_i the inverse participation probability, c_i the rows of client i and c the mean of c_i.
    The memories V_i learn h_i, so that what is compressed, and what is lost when a client is
    absent, vanishes as EM converges, however different the clients are. V = mean of V_i holds at
    all times. With gamma = 1, all rows, all clients and no compression this is classical EM, step
    for step.

    Args:
        model: Latent-variable model to fit, e.g. `covey.models.gaussian_mixture`.
        step_size: Step of the server's statistics (gamma): a value in (0, 1], or a function of the
            step k = 0, 1, .... Default 1, for all rows of all clients without compression; use 0.1
            or less with minibatches, partial participation or a lossy channel.
        decay: Steps fall like step_size / (k + 1)^decay. Default 0, constant steps; values above
            0.5 average out the noise of minibatches.
        memory_rate: Rate at which the memories learn (alpha). Default: 1 / (1 + omega) of the
            channel, the largest that theory allows (1 without compression). 0 keeps no memories,
            which is `em`.
        memory_init: Start of the memories. "zero" starts at V_i = 0. "first" starts at the paper's
            V_i = h_i(S_0): the server stays at S_0 for some rounds with all rows while memories
            learn it through the channel, one round without compression, and otherwise as many as
            leave 1 % of |h_i(S_0) - V_i|^2. Each costs one upload.
        batch_size: Rows per client and round. Default: all rows.
        oracle: Choice of a minibatch: "sample" draws rows anew in each round, "stream" takes
            the next rows in storage order and starts again after the last.
        weighting: "rows" counts every row equally, so that EM is that of the pooled rows; "equal"
            counts every client equally (c_i = c = 1), as in the paper.

    Returns:
        A method for `covey.run`.

    Example:
        >>> import numpy as np, covey
        >>> x = np.random.default_rng(0).normal([[-2.0], [2.0]], 1.0, (2, 50))
        >>> clients = {"a": (x[0][:, None], np.zeros(50)), "b": (x[1][:, None], np.zeros(50))}
        >>> data = covey.FederatedData.from_clients(clients)
        >>> model = covey.models.gaussian_mixture(components=2, means=[[-1.0], [1.0]])
        >>> run = covey.run(covey.fedem(model), data, rounds=30, seed=0)
        >>> run.state.theta.means.ravel().round(0).tolist()
        [-2.0, 2.0]

    Departures from the paper: rows count equally by default; memories start at zero by default,
    which keeps the same invariant, needs no pass over the rows of absent clients and lets clients
    join late. A channel cannot carry the paper's uncompressed first exchange of V_i, which would
    cost 32 bits for each value and client; the warm-up of memory_init="first" takes its place.

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction, algorithm 1, and algorithm 4 for partial
    participation.
    """
    gamma = checked_steps("fedem", step_size, decay, batch_size)
    check_memory("fedem", memory_rate, memory_init)
    if oracle not in ("sample", "stream"):
        raise ValueError(f"fedem: oracle must be 'sample' or 'stream', got {oracle!r}")
    if oracle == "stream" and batch_size is None:
        raise ValueError("fedem: a stream needs batch_size, the rows that a client sees per round")

    def estimate(key, down, position, data):
        """S_i: from all rows, also during a warm-up, from a minibatch, or from the next rows."""
        if batch_size is None:
            return over_all_rows(model, down.theta, data)
        batch = (
            next_rows(data, position, batch_size)
            if oracle == "stream"
            else some_rows(key, data, batch_size)
        )
        found = over_batch(model, down.theta, batch)
        if memory_init == "zero":
            return found
        whole = over_all_rows_if(down.warming_up, model, down.theta, data)
        return tree.where(down.warming_up, whole, found)

    def client(key, down, state, data):
        found = estimate(key, down, state.position, data)
        position = (state.position + (batch_size or 0)) % jnp.maximum(data.count, 1)
        delta = innovation(found.statistics, down.statistics, state.memory, data, weighting)
        pending = Pending(Memory(state.memory, position), down.memory_rate)
        return Local(delta, pending, Info(found.loss))

    return Algorithm(
        name="fedem",
        init=lambda key, spec: first_state(
            "fedem", model, key, spec, weighting, memory_rate, memory_init
        ),
        init_client=lambda key, down, data: Memory(
            jax.tree.map(jnp.zeros_like, down.statistics), jnp.int32(0)
        ),
        broadcast=lambda state: Down(
            state.statistics, state.theta, state.memory_rate, state.step < state.warm_up
        ),
        client=client,
        commit=lambda pending, sent: pending.state._replace(
            memory=remembered(pending.state.memory, sent, pending.memory_rate)
        ),
        server=lambda key, state, aggregate: server_step(model, gamma, state, aggregate),
        evaluate=lambda key, down, state, data: evaluate(model, down.theta, data),
        predict=lambda key, down, state, x: model.predictive(down.theta, x),
        adapt=no_state,
        hooks=Hooks(
            validate=lambda plan: need_memory_rate("fedem", memory_rate, plan.omega),
            diagnose=lambda down, data: why_diverged("fedem", down.memory_rate),
        ),
    )


def first_state(
    name: str,
    model: LatentModel,
    key: Key[Array, ""],
    spec: Spec,
    weighting: Weighting,
    memory_rate: float | None,
    memory_init: MemoryInit,
) -> State:
    """The server's first state: the model's start, statistics that have it as their maximum, and
    V = 0.
    """
    if spec.clients is None or spec.examples is None:
        raise ValueError(
            f"{name} needs the counts of clients and of rows; engines give them in Spec.clients "
            "and Spec.examples"
        )
    theta = model.init(key, spec)
    statistics = model.expected(theta)
    mean_weight = spec.examples / spec.clients if weighting == "rows" else 1.0
    rate = memory_rate_for(memory_rate, spec.omega)
    return State(
        statistics,
        theta,
        jax.tree.map(jnp.zeros_like, statistics),
        jnp.int32(0),
        jnp.asarray(spec.clients, float),
        jnp.asarray(mean_weight, float),
        jnp.asarray(rate, float),
        jnp.int32(warm_up_rounds(memory_init, rate)),
    )


def innovation(
    found: PyTree, statistics: PyTree, memory: PyTree, data: Shard, weighting: Weighting
) -> PyTree:
    """Delta_i = c_i (S_i - Shat) - V_i. A client without rows has c_i = 0."""
    weight = jnp.where(data.count > 0, client_weight(data, weighting), 0.0)
    return jax.tree.map(lambda s, shat, v: weight * (s - shat) - v, found, statistics, memory)


def server_step(
    model: LatentModel, gamma: StepSize, state: State, aggregate: Aggregate
) -> tuple[State, ServerInfo]:
    """H, Shat, T(Shat), V; during the warm-up Shat stays where it is."""
    field = jax.tree.map(
        lambda v, s: (v + s / state.clients) / state.mean_weight, state.memory, aggregate.weighted
    )
    step = state.step - state.warm_up
    length = jnp.where(step < 0, 0.0, gamma(jnp.maximum(step, 0)))
    statistics = jax.tree.map(lambda shat, h: shat + length * h, state.statistics, field)
    memory = remembered(state.memory, aggregate.plain, state.memory_rate / state.clients)
    theta, repairs = model.maximise(statistics, state.theta)
    new = state._replace(statistics=statistics, theta=theta, memory=memory, step=state.step + 1)
    return new, ServerInfo(optax.tree.norm(field), *repairs)


def over_all_rows(model: LatentModel, theta: PyTree, data: Shard) -> Found:
    """The mean over all rows of a client, in one pass."""

    def step(total: Found, batch: Batch) -> Found:
        return jax.tree.map(jnp.add, total, _summed(model, theta, batch))

    nothing = jax.tree.map(jnp.zeros_like, Found(model.expected(theta), jnp.zeros(())))
    return _per_row(fold_batches(data, _PASS, step, nothing), data.count)


def over_batch(model: LatentModel, theta: PyTree, batch: Batch) -> Found:
    """The mean over the rows of a batch."""
    return _per_row(_summed(model, theta, batch), jnp.sum(batch.mask))


def over_all_rows_if(
    needed: Bool[Array, ""], model: LatentModel, theta: PyTree, data: Shard
) -> Found:
    """`over_all_rows` where it is needed, and otherwise a pass over no rows, which takes no
    time.
    """
    return over_all_rows(model, theta, replace(data, count=jnp.where(needed, data.count, 0)))


def next_rows(data: Shard, position: Int[Array, ""], count: int) -> Batch:
    """The `count` rows from `position` on, starting again after the last; all rows, once, where
    there are fewer.
    """
    index = jnp.arange(count)
    return Batch(data.take((position + index) % jnp.maximum(data.count, 1)), index < data.count)


def evaluate(model: LatentModel, theta: PyTree, data: Shard) -> dict[str, Metric]:
    """nll: minus the mean log-likelihood of a row."""
    found = over_all_rows(model, theta, data)
    count = data.count.astype(float)
    return {"nll": Mean(found.loss * count, count)}


def checked_steps(
    name: str, step_size: float | StepSize, decay: float, batch_size: int | None
) -> StepSize:
    """The step sizes as a function of k = 0, 1, ..., or a ValueError for options out of range."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"{name}: batch_size must be at least 1, got {batch_size}")
    if callable(step_size):
        if decay:
            raise ValueError(
                f"{name}: step_size is a function, which has its own decay; leave out "
                f"decay={decay:g}"
            )
        return step_size
    if not 0 < step_size <= 1 or decay < 0:
        raise ValueError(
            f"{name}: step_size must be in (0, 1] and decay at least 0, got {step_size:g} and "
            f"{decay:g}"
        )
    return lambda step: step_size * (step + 1.0) ** -decay


def _summed(model: LatentModel, theta: PyTree, batch: Batch) -> Found:
    log_likelihood = jnp.where(batch.mask, model.log_likelihood(theta, batch.rows), 0.0)
    return Found(model.statistics(theta, batch), -jnp.sum(log_likelihood))


def _per_row(total: Found, rows: Int[Array, ""]) -> Found:
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(rows, 1), total)
