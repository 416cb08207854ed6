"""FedMissEM: a low-rank matrix from the few cells that each of many observers has seen
(Dieuleveut, Fort, Moulines and Robin 2021, section 4 and algorithm 7).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms.fedem import Info, StepSize, checked_steps
from covey.algorithms.matrix_forms import Form, MatrixForm, Moved, matrix_form
from covey.algorithms.memory import check_memory, memory_rate_for, need_memory_rate, why_diverged
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, no_state
from covey.core.shard import Batch, Shard, all_rows, fold_batches, some_rows
from covey.models.matrix_completion import MatrixModel
from covey.models.matrix_steps import Factors, LineBlock, is_cell, largest_multiplicity

# observations at once in a pass over all of them; bounds the memory and changes no value beyond
# rounding
_PASS = 256
_ROUNDING = 1e-5  # the objective may rise by this share of itself


class Tally(NamedTuple):
    """Minus the log-likelihood of a client's observations, and how often it has observed the cell
    that it has observed most often. No lossy channel may touch these.
    """

    loss: Float[Array, "*clients"]
    multiplicity: Float[Array, "*clients"]


class Up(NamedTuple):
    """The sums of a part, or of all cells; the tally is empty where curvature is observed."""

    sums: PyTree
    tally: Tally | Empty


class State(NamedTuple):
    """U and V; S of the form "svd"; the sum of the clients' memories; the count of steps so far; c;
    the objective that a rise is measured from; and two constants, the ridge and alpha.
    """

    factors: Factors
    statistics: Float[Array, "rows columns"] | Empty
    memory: PyTree
    step: Int[Array, ""]
    completions: Float[Array, ""]
    objective: Float[Array, ""]
    ridge: Float[Array, ""]
    memory_rate: Float[Array, ""]


class Down(NamedTuple):
    """U and V, the lines that this round updates, and alpha."""

    factors: Factors
    part: LineBlock
    memory_rate: Float[Array, ""]


class Observer(NamedTuple):
    """A client's memory M_i, and the largest count of its observations of one cell."""

    memory: PyTree
    multiplicity: Float[Array, "*clients"] | Empty


class Pending(NamedTuple):
    """The client's state before the upload, the lines in the upload, and alpha."""

    observer: Observer
    part: LineBlock
    memory_rate: Float[Array, "*clients"]


class ServerInfo(NamedTuple):
    """The norm of the change of U and V; and c."""

    step_norm: Float[Array, ""]
    completions: Float[Array, ""]


class _Found(NamedTuple):
    """The sums of some observations, and minus the sum of their log-likelihoods."""

    sums: PyTree
    loss: Float[Array, ""]


def fedmissem(
    model: MatrixModel,
    *,
    form: Form = "alternating",
    completions: int | None = None,
    lines_per_upload: int | None = None,
    step_size: float | StepSize = 1.0,
    decay: float = 0.0,
    memory_rate: float | None = None,
    batch_size: int | None = None,
) -> Algorithm:
    """FedMissEM: completes a low-rank matrix from cells that stay with their observers.

    EM completes matrices. The statistic S has the observed value in an observed cell and its
    expectation mu(theta) in any other, on average over c matrices that hold the observations:

        S = mu(U V') + R / c,    R_jl = sum over observations of cell (j, l) of y - mu(theta_jl)

    and T(S) minimises the sum of psi(theta_jl) - S_jl theta_jl, plus ridge / 2c (|U|^2 + |V|^2),
    over theta = U V'. The form "svd" is the paper's: observers send R, the server averages S by
    `step_size` and takes T(S), for Gaussian cells the singular value decomposition of S, cut to
    the rank and its values lowered by ridge / c. Uploads are rows x columns.

    The form "alternating" takes T one side at a time, rows and columns in turn; at fixed V

        U = S V (V'V + ridge / c)^-1 = U + (c V'V + ridge)^-1 (R V - ridge U)

    needs only R V, a sum over observers with rank values per row: neither S nor a decomposition is
    made. The penalised likelihood never decreases, as in EM, and the fixed points are the same.
    Bernoulli and Poisson cells take one Newton step per round, line by line, shortened so that it
    never raises the objective. With `curvature="observed"` of the model, observers send the
    curvature of their cells too (alternating least squares for Gaussian cells), and c is not used.

    Args:
        model: The matrix, from `covey.models.matrix_completion`.
        form: "alternating" (default) or the paper's "svd", which is for small matrices.
        completions: Completed matrices that S averages over (c), at least the largest count of
            observations of one cell. Default: the sum over observers of their own largest count
            of one cell, which is always enough. A smaller value converges faster; it is doubled,
            up to that sum, whenever the objective rises.
        lines_per_upload: Largest number of rows or columns of the matrix in one upload, in the form
            "alternating". Default: all of the longer side, so that two rounds are one pass over
            both. With fewer, each round updates the next lines: uploads are smaller and a pass
            takes more rounds. Only a lossy channel sends more than a round's own lines.
        step_size: Share of each step that is made (gamma); "svd" averages S by it. Default 1; use
            less with minibatches, partial participation or a lossy channel.
        decay: Steps fall like step_size / (k + 1)^decay. Default 0, constant steps.
        memory_rate: Rate at which the clients' memories of their sums learn (alpha), as in
            `fedem`. Default: 1 / (1 + omega) of the channel. 0 keeps no memories, which is the
            same where nothing is compressed and everyone takes part.
        batch_size: Observations per client and round. Default: all.

    Returns:
        A method for `covey.run`.

    Example:
        >>> import numpy as np, covey
        >>> x = np.array([[0, 0], [0, 1], [1, 0], [2, 1]])
        >>> data = covey.FederatedData.from_arrays(x, np.array([1.0, 2.0, 1.5, 4.0]), [0, 0, 1, 1])
        >>> model = covey.models.matrix_completion(rows=3, columns=2, rank=1, ridge=0.1)
        >>> run = covey.run(covey.fedmissem(model), data, rounds=100, seed=0)
        >>> bool(abs(model.mean(run.state.factors, np.array([2]))[0, 1] - 4) < 0.2)
        True

    Departures from the paper: the form "alternating"; memories are of R_i, as the rest of
    S_i - Shat is known to the server; the ridge. Steps of lines are those of Hastie, Mazumder, Lee
    and Zadeh (2015), Matrix completion and low-rank SVD via fast alternating least squares, and
    their lengths those of Sun and Tran-Dinh (2019), Generalized self-concordant functions.

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction, section 4 and algorithm 7.
    """
    gamma = checked_steps("fedmissem", step_size, decay, batch_size)
    check_memory("fedmissem", memory_rate)
    if completions is not None and completions < 1:
        raise ValueError(f"fedmissem: completions must be at least 1, got {completions}")
    way = matrix_form(model, form, lines_per_upload)
    counted = model.curvature == "completed"
    keeps, used = memory_rate != 0, way.used

    def init(key, spec):
        factors = model.init(key, spec)
        everyone = jnp.arange(model.shape[0])
        return State(
            factors,
            model.mean(factors, everyone) if form == "svd" else Empty(),
            way.no_memory() if keeps else Empty(),
            jnp.int32(0),
            jnp.asarray(1.0 if completions is None else completions, float),
            jnp.asarray(jnp.inf, float),
            jnp.asarray(model.ridge, float),
            jnp.asarray(memory_rate_for(memory_rate, spec.omega), float),
        )

    def init_client(key, down, data):
        return Observer(
            way.no_memory() if keeps else Empty(),
            largest_multiplicity(data) if counted else Empty(),
        )

    def client(key, down, observer, data):
        found, rows, scale = _found(model, way, key, down, data, batch_size)
        sums = jax.tree.map(lambda leaf: scale * leaf, found.sums)
        if keeps:
            sums = jax.tree.map(jnp.subtract, sums, way.recalled(observer.memory, down.part))
        tally = Tally(scale * found.loss, observer.multiplicity) if counted else Empty()
        pending = Pending(observer, down.part, down.memory_rate)
        return Local(Up(sums, tally), pending, Info(found.loss / jnp.maximum(rows, 1)))

    def commit(pending, sent):
        observer, part, rate = pending
        if not keeps:
            return observer
        return observer._replace(memory=way.remembered(observer.memory, part, sent.sums, rate))

    def server(key, state, aggregate):
        part, total, memory = way.part(state.step), aggregate.weighted.sums, state.memory
        if keeps:
            total = jax.tree.map(jnp.add, total, way.recalled(memory, part))
            memory = way.remembered(memory, part, aggregate.plain.sums, state.memory_rate)
        if counted:
            state = _with_completions(
                model, state, aggregate.weighted.tally, completions, batch_size is not None
            )
        before = Moved(state.factors, state.statistics)
        after = way.moved(before, part, total, state.completions, state.ridge, gamma(state.step))
        move = jax.tree.map(jnp.subtract, after.factors, state.factors)
        info = ServerInfo(optax.tree.norm(move), state.completions)
        new = state._replace(
            factors=after.factors,
            statistics=after.statistics,
            memory=memory,
            step=state.step + 1,
        )
        return new, info

    return Algorithm(
        name="fedmissem",
        init=init,
        init_client=init_client,
        broadcast=lambda state: Down(state.factors, way.part(state.step), state.memory_rate),
        client=client,
        commit=commit,
        server=server,
        predict=lambda key, down, observer, x: model.predictive(down.factors, x),
        adapt=no_state,
        exact=("tally",) if counted else (),
        used=None if used is None else lambda down: {"sums": used(down.part)},
        hooks=Hooks(
            validate=lambda plan: need_memory_rate("fedmissem", memory_rate, plan.omega),
            diagnose=lambda down, data: _why_diverged(model, down, data),
        ),
    )


def _found(
    model: MatrixModel,
    way: MatrixForm,
    key: Array,
    down: Down,
    data: Shard,
    batch_size: int | None,
) -> tuple[_Found, Int[Array, ""], float | Float[Array, ""]]:
    """Sums and loss of all observations of a client, or of a minibatch; how many these are, and
    what scales them to all.
    """

    def of_batch(batch: Batch) -> _Found:
        log_likelihood = model.predictive(down.factors, batch.rows.x).log_prob(batch.rows.y)
        return _Found(
            way.sums(down.factors, down.part, batch),
            -jnp.sum(jnp.where(batch.mask, log_likelihood, 0.0)),
        )

    if batch_size is not None:
        batch = some_rows(key, data, batch_size)
        rows = jnp.sum(batch.mask)
        return of_batch(batch), rows, data.count / jnp.maximum(rows, 1)

    def add(total: _Found, batch: Batch) -> _Found:
        return jax.tree.map(jnp.add, total, of_batch(batch))

    return fold_batches(data, _PASS, add, _Found(way.nothing(), jnp.zeros(()))), data.count, 1.0


def _with_completions(
    model: MatrixModel, state: State, tally: Tally, given: int | None, noisy: bool
) -> State:
    """The count c for this round: the sum of the observers' multiplicities; or the one that was
    given, doubled up to that sum when the objective rises.

    With c large enough the objective never rises from one round to the next. Minibatches let it
    vary, so that it is compared with its start.
    """
    if given is None:
        return state._replace(completions=jnp.maximum(state.completions, tally.multiplicity))
    objective = tally.loss + model.penalty(state.factors, state.ridge)
    limit = state.objective + _ROUNDING * jnp.abs(state.objective)
    most = jnp.maximum(tally.multiplicity, state.completions)
    raised = jnp.where(
        objective <= limit, state.completions, jnp.minimum(2 * state.completions, most)
    )
    before = jnp.where(noisy & jnp.isfinite(state.objective), state.objective, objective)
    return state._replace(completions=raised, objective=before)


def _why_diverged(model: MatrixModel, down: Down, data: Shard) -> str:
    """Rows that are not observations, where there are any."""
    batch = all_rows(data)
    good = is_cell(model.shape, batch.rows.x) & model.family.is_value(batch.rows.y)
    wrong = int(jnp.sum(batch.mask & ~good))
    if not wrong:
        return why_diverged("fedmissem", down.memory_rate)
    return (
        f"{wrong} of its rows are not observations of a {model.shape[0]} x {model.shape[1]} "
        f"matrix: x must be (row, column), counted from 0, and a {model.family.name} value is "
        f"{model.family.values}"
    )
