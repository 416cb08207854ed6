"""FedMissEM: a low-rank matrix from the few cells that each of many observers has seen.

Dieuleveut, Fort, Moulines and Robin (2021), "Federated expectation maximization with heterogeneity
mitigation and variance reduction", section 4 and algorithm 7. Model and penalised likelihood are
those of `covey.models.matrix_completion`. EM completes
matrices: the statistic S has the observed value in an observed cell and its expectation mu(theta)
in any other, on average over c matrices that hold the observations,

    S = mu(U V') + R / c,    R_jl = sum over observations of cell (j, l) of y - mu(theta_jl),

and T(S) minimises sum_jl psi(theta_jl) - S_jl theta_jl + ridge / 2c (|U|^2 + |V|^2) over theta = U
V': for Gaussian cells the singular value decomposition of S, cut to rank r and its values lowered
by ridge / c. S and its decomposition are J x L.

Here T is taken one side at a time (Hastie, Mazumder, Lee and Zadeh 2015, "Matrix completion and
low-rank SVD via fast alternating least squares"), rows and columns in turn: at fixed V the minimum
over U, which for Gaussian cells is

    U = S V (V'V + ridge / c)^-1 = U + (c V'V + ridge)^-1 (R V - ridge U),

needs of the observations no more than R V, a J x r matrix that is a sum over observers; S is never
made, and no singular value decomposition either. That lowers T's objective at the same S, so the
penalised likelihood never decreases, as in EM, and the fixed points are the same (a test ties them
to the decomposition). For Bernoulli and Poisson cells T has no closed form and is computed
iteratively: here one Newton step a round, line by line, on the curvature of all cells, c sum_l
mu'(theta_jl) v_l v_l', which the server knows; mu'(theta) is the one J x L matrix there is. As
|mu''| <= mu' for both, a step shortened by the factor log(1 + d) / d, d = |step| max_l |v_l|, never
raises the objective (Sun and Tran-Dinh 2019, "Generalized self-concordant functions").

EM is slow where few cells are observed: their share is its pace. `curvature="observed"` of the
model takes the curvature of the observed cells instead, which observers send: for Gaussian cells
alternating least squares. It never raises the objective either, has no c, and makes no J x L matrix
anywhere.

With `memory_rate` alpha, what is sent is the difference to a memory, as in FedEM: Delta_i = sums_i
- M_i, with M_i = M_i + alpha C(Delta_i), and the server uses M + sum over A of w_i C(Delta_i), M =
sum of M_i. `step_size` shortens the server's steps, for minibatches and compression; the paper
averages S by it, which would need S. c must be no smaller than the number of observations of any
cell; the number of observers always is, if none saw a cell twice.

Example:
    method = covey.fedmissem(covey.models.matrix_completion(rows=60, columns=24, family="poisson"))
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from covey.algorithms.fedem import Info, checked_steps
from covey.core.algorithm import Algorithm, Empty, Local, no_state
from covey.core.shard import Batch, Shard, fold_batches, some_rows
from covey.models.matrix_completion import ROWS, Factors, MatrixModel, Side, Sums

# observations at once in a pass over all of them; bounds the memory and changes no value beyond
# rounding
_PASS = 256


class Sides(NamedTuple):
    """Memories: what was remembered of the sums for the rows, and of those for the columns."""

    rows: Sums
    columns: Sums


class State(NamedTuple):
    """U and V; the sum of all clients' memories; the number of steps so far; and two constants, c
    and the ridge.
    """

    factors: Factors
    memory: Sides | Empty
    step: Int[Array, ""]
    completions: Float[Array, ""]
    ridge: Float[Array, ""]


class Down(NamedTuple):
    """U and V, and which of them this round is about."""

    factors: Factors
    side: Int[Array, ""]


class Pending(NamedTuple):
    """A client's memory, and the side of it that moves once it is known what was sent."""

    memory: Sides | Empty
    side: Int[Array, ""]


class ServerInfo(NamedTuple):
    """The norm of the step, before `step_size`."""

    step_norm: Float[Array, ""]


class Found(NamedTuple):
    """The sums of some observations, and minus the sum of their log-likelihoods."""

    sums: Sums
    loss: Float[Array, ""]


def fedmissem(
    model: MatrixModel,
    *,
    completions: int | None = None,
    step_size: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 1.0,
    decay: float = 0.0,
    memory_rate: float = 0.5,
    batch_size: int | None = None,
) -> Algorithm:
    """FedMissEM with c = `completions` (default: the number of observers); steps, memories and
    minibatches as in `fedem`.

    `memory_rate=0` keeps nothing at the clients, which without compression and with everyone in
    every round is the same.
    """
    steps = checked_steps("fedmissem", step_size, decay, memory_rate, batch_size)
    if completions is not None and completions < 1:
        raise ValueError(f"fedmissem: completions must be at least 1, got {completions}")

    def init(key, spec):
        if spec.clients is None:
            raise ValueError(
                "fedmissem needs to know how many clients there are; engines say so in Spec.clients"
            )
        number = jnp.asarray(spec.clients if completions is None else completions, float)
        factors = model.init(key, spec)
        return State(
            factors, no_memory(factors), jnp.int32(0), number, jnp.asarray(model.ridge, float)
        )

    def no_memory(factors):
        return _no_memory(model, factors) if memory_rate else Empty()

    def client(key, down, memory, data):
        if batch_size is None:
            found, rows, scale = _over_all_rows(model, down, data), data.count, 1.0
        else:
            batch = some_rows(key, data, batch_size)
            found, rows = _over_batch(model, down, batch), jnp.sum(batch.mask)
            scale = data.count / jnp.maximum(rows, 1)
        delta = jax.tree.map(
            lambda s, m: scale * s - m, found.sums, _recalled(memory, down.side, found.sums)
        )
        return Local(delta, Pending(memory, down.side), Info(found.loss / jnp.maximum(rows, 1)))

    def server(key, state, aggregate):
        side = state.step % 2
        total = jax.tree.map(
            jnp.add, aggregate.weighted, _recalled(state.memory, side, aggregate.weighted)
        )
        target = model.step(state.factors, side, total, state.completions, state.ridge)
        move = jax.tree.map(jnp.subtract, target, state.factors)
        factors = jax.tree.map(
            lambda old, m: old + steps.gamma(state.step) * m, state.factors, move
        )
        memory = _remembered(state.memory, side, aggregate.plain, memory_rate)
        new = state._replace(factors=factors, memory=memory, step=state.step + 1)
        return new, ServerInfo(optax.tree.norm(move))

    return Algorithm(
        name="fedmissem",
        init=init,
        init_client=lambda key, down, data: no_memory(down.factors),
        broadcast=lambda state: Down(state.factors, state.step % 2),
        client=client,
        commit=lambda pending, sent: _remembered(pending.memory, pending.side, sent, memory_rate),
        server=server,
        predict=lambda key, down, memory, x: model.predictive(down.factors, x),
        adapt=no_state,
    )


def _over_batch(model: MatrixModel, down: Down, batch: Batch) -> Found:
    log_likelihood = model.predictive(down.factors, batch.rows.x).log_prob(batch.rows.y)
    return Found(
        model.sums(down.factors, down.side, batch),
        -jnp.sum(jnp.where(batch.mask, log_likelihood, 0.0)),
    )


def _over_all_rows(model: MatrixModel, down: Down, data: Shard) -> Found:
    nothing = Found(model.no_sums(), jnp.zeros(()))
    return fold_batches(
        data,
        _PASS,
        lambda total, batch: jax.tree.map(jnp.add, total, _over_batch(model, down, batch)),
        nothing,
    )


def _no_memory(model: MatrixModel, factors: Factors) -> Sides:
    return Sides(
        *(jax.tree.map(lambda leaf, own=own: leaf[: len(own)], model.no_sums()) for own in factors)
    )


def _recalled(memory: Sides | Empty, side: Side, like: Sums) -> Sums:
    """The memory of one side, with as many lines as the sums have."""
    if isinstance(memory, Empty):
        return jax.tree.map(jnp.zeros_like, like)

    def lines(rows, columns, one):
        padded = [
            jnp.pad(part, ((0, len(one) - len(part)), *((0, 0) for _ in one.shape[1:])))
            for part in (rows, columns)
        ]
        return jnp.where(side == ROWS, *padded)

    return jax.tree.map(lines, memory.rows, memory.columns, like)


def _remembered(memory: Sides | Empty, side: Side, sent: Sums, rate: float) -> Sides | Empty:
    """M_i + alpha C(Delta_i) for one side, the other as it was."""
    if isinstance(memory, Empty):
        return memory
    moved = [jax.tree.map(lambda m, c: m + rate * c[: len(m)], part, sent) for part in memory]
    return Sides(
        *(
            jax.tree.map(lambda new, old, n=n: jnp.where(side == n, new, old), moved[n], memory[n])
            for n in (0, 1)
        )
    )
