"""FedEM: EM in the space of sufficient statistics, with compressed uploads and partial
participation.

Dieuleveut, Fort, Moulines and Robin (2021), "Federated expectation maximization with heterogeneity
mitigation and variance reduction", algorithm 1 and, with partial participation, algorithm 4. T is
the maximisation, Shat the server's statistics, h_i(s) the mean over client i's rows of E[s | row;
T(s)], minus s; EM's fixed points are the roots of h, the mean of h_i. In round k

    client in A:  S_i = estimate of its mean statistics at T(Shat), from all its rows, a minibatch, or the next rows of a stream
                  Delta_i = c_i (S_i - Shat) - V_i;    send C(Delta_i);    V_i = V_i + alpha C(Delta_i)
    server:       H = V + (1/n) sum over A of w_i C(Delta_i);    Shat = Shat + gamma_k H / c
                  V = V + (alpha/n) sum over A of C(Delta_i)

with w_i the inverse participation probability. c_i is the number of rows of client i and c the mean
of c_i, so that EM is that of all rows pooled; `weighting="equal"` has c_i = c = 1, the paper's. The
memories V_i learn h_i: what is compressed, and what is lost when a client does not take part, then
vanishes as EM converges however unlike the clients are. Compression with bound omega asks for alpha
<= 1 / (1 + omega); `Channel.omega` gives it.

V = mean of V_i holds at all times: V_i moves by what the server is known to have got. The paper
starts at V_i = h_i(Shat_0), which takes a pass over the rows of every client, there or not, and an
upload that is not compressed. Here V_i = 0 = V, which satisfies the same invariant, and a client
that comes late needs nothing more; the memories are learnt in the first rounds.

gamma = 1, all rows, all clients and no compression is classical EM, step for step.

Example:
    method = covey.fedem(covey.models.gaussian_mixture(components=3), step_size=0.1, batch_size=20,
    memory_rate=0.5)
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import Weighting, client_weight
from covey.core.algorithm import Aggregate, Algorithm, Local, no_state
from covey.core.metrics import Mean, Metric
from covey.core.shard import Batch, Shard, Spec, fold_batches, some_rows
from covey.models.latent import LatentModel

Oracle = Literal["sample", "stream"]
# rows at once in a pass over all rows; bounds the memory and changes no value beyond rounding
_PASS = 256


class State(NamedTuple):
    """Shat, T(Shat), V, the number of steps so far; and two constants, n and c."""

    statistics: PyTree
    theta: PyTree
    memory: PyTree
    step: Int[Array, ""]
    clients: Float[Array, ""]
    mean_weight: Float[Array, ""]


class Down(NamedTuple):
    """Shat and T(Shat): the maximisation is the server's."""

    statistics: PyTree
    theta: PyTree


class Memory(NamedTuple):
    """V_i, and where the client's stream of rows stands."""

    memory: PyTree
    position: Int[Array, "*clients"]


class Info(NamedTuple):
    """Minus the mean log-likelihood of the rows that were used."""

    train_loss: Float[Array, ""]


class ServerInfo(NamedTuple):
    """The norm of H / c, which estimates that of h; components that were empty, and covariances
    that were lifted.
    """

    field_norm: Float[Array, ""]
    empty_components: Float[Array, ""]
    singular_covariances: Float[Array, ""]


class Found(NamedTuple):
    """Mean statistics of some rows, and minus their mean log-likelihood."""

    statistics: PyTree
    loss: Float[Array, ""]


class Steps(NamedTuple):
    """gamma_k as a function of k = 0, 1, ..., and alpha."""

    gamma: Callable[[Int[Array, ""]], Float[Array, ""]]
    alpha: float


def fedem(
    model: LatentModel,
    *,
    step_size: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 1.0,
    decay: float = 0.0,
    memory_rate: float = 0.5,
    batch_size: int | None = None,
    oracle: Oracle = "sample",
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedEM with step sizes `step_size / k^decay`, or any function of k = 0, 1, ..., and alpha =
    `memory_rate`.

    A client uses all its rows in a round, or `batch_size` of them: drawn anew each round, or the
    next ones of its stream, which starts again after the last row. `memory_rate=0` is compressed EM
    without memories.
    """
    steps = checked_steps("fedem", step_size, decay, memory_rate, batch_size)
    if oracle not in ("sample", "stream"):
        raise ValueError(f"fedem: oracle must be 'sample' or 'stream', got {oracle!r}")
    if oracle == "stream" and batch_size is None:
        raise ValueError(
            "fedem: a stream needs batch_size, the number of rows that a client sees in a round"
        )

    def init_client(key, down, data):
        return Memory(jax.tree.map(jnp.zeros_like, down.statistics), jnp.int32(0))

    def client(key, down, state, data):
        if batch_size is None:
            found = over_all_rows(model, down.theta, data)
        else:
            batch = (
                next_rows(data, state.position, batch_size)
                if oracle == "stream"
                else some_rows(key, data, batch_size)
            )
            found = over_batch(model, down.theta, batch)
        position = (state.position + (batch_size or 0)) % jnp.maximum(data.count, 1)
        delta = innovation(found.statistics, down.statistics, state.memory, data, weighting)
        return Local(delta, Memory(state.memory, position), Info(found.loss))

    return Algorithm(
        name="fedem",
        init=lambda key, spec: first_state("fedem", model, key, spec, weighting),
        init_client=init_client,
        broadcast=lambda state: Down(state.statistics, state.theta),
        client=client,
        commit=lambda pending, sent: Memory(
            remembered(pending.memory, sent, memory_rate), pending.position
        ),
        server=lambda key, state, aggregate: server_step(model, steps, state, aggregate),
        evaluate=lambda key, down, state, data: evaluate(model, down.theta, data),
        predict=lambda key, down, state, x: model.predictive(down.theta, x),
        adapt=no_state,
    )


def first_state(
    name: str, model: LatentModel, key: Key[Array, ""], spec: Spec, weighting: Weighting
) -> State:
    """Where the server starts: at the model's start, with statistics whose maximum it is, and V =
    0.
    """
    if spec.clients is None or spec.examples is None:
        raise ValueError(
            f"{name} needs to know how many clients and rows there are; engines say so in Spec.clients and .examples"
        )
    theta = model.init(key, spec)
    statistics = model.expected(theta)
    mean_weight = spec.examples / spec.clients if weighting == "rows" else 1.0
    return State(
        statistics,
        theta,
        jax.tree.map(jnp.zeros_like, statistics),
        jnp.int32(0),
        jnp.asarray(spec.clients, float),
        jnp.asarray(mean_weight, float),
    )


def innovation(
    found: PyTree, statistics: PyTree, memory: PyTree, data: Shard, weighting: Weighting
) -> PyTree:
    """Delta_i = c_i (S_i - Shat) - V_i. A client without rows has no opinion: c_i = 0."""
    weight = jnp.where(data.count > 0, client_weight(data, weighting), 0.0)
    return jax.tree.map(lambda s, shat, v: weight * (s - shat) - v, found, statistics, memory)


def remembered(memory: PyTree, sent: PyTree, rate: float | Float[Array, ""]) -> PyTree:
    """V_i + alpha C(Delta_i)."""
    return jax.tree.map(lambda v, c: v + rate * c, memory, sent)


def server_step(
    model: LatentModel, steps: Steps, state: State, aggregate: Aggregate
) -> tuple[State, ServerInfo]:
    """H, Shat, T(Shat), V."""
    field = jax.tree.map(
        lambda v, s: (v + s / state.clients) / state.mean_weight, state.memory, aggregate.weighted
    )
    statistics = jax.tree.map(
        lambda shat, h: shat + steps.gamma(state.step) * h, state.statistics, field
    )
    memory = remembered(state.memory, aggregate.plain, steps.alpha / state.clients)
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


def next_rows(data: Shard, position: Int[Array, ""], number: int) -> Batch:
    """The `number` rows from `position` on, the first ones again after the last; all rows, once,
    where there are fewer.
    """
    place = jnp.arange(number)
    return Batch(data.take((position + place) % jnp.maximum(data.count, 1)), place < data.count)


def evaluate(model: LatentModel, theta: PyTree, data: Shard) -> dict[str, Metric]:
    """nll: minus the log-likelihood of a row, on average."""
    found = over_all_rows(model, theta, data)
    count = data.count.astype(float)
    return {"nll": Mean(found.loss * count, count)}


def checked_steps(
    name: str,
    step_size: float | Callable[[Int[Array, ""]], Float[Array, ""]],
    decay: float,
    memory_rate: float,
    batch_size: int | None,
) -> Steps:
    """The step sizes, or a ValueError for options out of range."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"{name}: batch_size must be at least 1, got {batch_size}")
    if not 0 <= memory_rate <= 1:
        raise ValueError(
            f"{name}: memory_rate must be from 0 to 1, at most 1 / (1 + omega); got {memory_rate:g}"
        )
    if callable(step_size):
        if decay:
            raise ValueError(
                f"{name}: step_size is a function, which has its own decay; leave out decay={decay:g}"
            )
        return Steps(step_size, memory_rate)
    if not 0 < step_size <= 1 or decay < 0:
        raise ValueError(
            f"{name}: step_size must be in (0, 1] and decay at least 0, got {step_size:g} and {decay:g}"
        )
    return Steps(lambda step: step_size * (step + 1.0) ** -decay, memory_rate)


def _summed(model: LatentModel, theta: PyTree, batch: Batch) -> Found:
    log_likelihood = jnp.where(batch.mask, model.log_likelihood(theta, batch.rows), 0.0)
    return Found(model.statistics(theta, batch), -jnp.sum(log_likelihood))


def _per_row(total: Found, rows: Int[Array, ""]) -> Found:
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(rows, 1), total)
