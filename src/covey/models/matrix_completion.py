"""Low-rank models of a matrix of which observers see some cells each: counts by site and month, ratings, presence.

Cell (j, l) has the natural parameter theta_jl = u_j'v_l, U of J x r and V of L x r, and an observation y of it has the density
exp(y theta - psi(theta)) of its family: Gaussian with variance 1 (theta is the mean), Bernoulli (log-odds) or Poisson (log-rate).
With mu = psi', the penalised fit minimises

    sum over observations of psi(theta_jl) - y theta_jl  +  ridge/2 (|U|^2 + |V|^2).

An observation is a row of data: x = (j, l), counted from 0, and its value as the outcome. What an observer says of a matrix is
said of one side, the rows U or the columns V, while the other is held: sums over its cells that have one line for each line of
that side. No J x L matrix is made of an observer's cells.

    gradient_j  = sum over its cells (j, l) of (y - mu(theta_jl)) v_l
    curvature_j = sum over its cells (j, l) of mu'(theta_jl) v_l v_l'        (only where it is asked for)

What is no observation (a cell outside of the matrix, a negative count) makes these sums NaN.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from covey.core.shard import Batch, Spec
from covey.models.latent import given_or, lifted
from covey.models.model import need_classes, need_number
from covey.models.predictive import Categorical, Normal, Poisson, Predictive

FamilyName = Literal["gaussian", "bernoulli", "poisson"]
Curvature = Literal["completed", "observed"]
ROWS, COLUMNS = 0, 1
Side = int | Int[Array, ""]
Numbers = list[list[float]] | np.ndarray | Array


class Factors(NamedTuple):
    """U and V."""

    rows: Float[Array, "*clients rows rank"]
    columns: Float[Array, "*clients columns rank"]


class Sums(NamedTuple):
    """What observations say of one side, a line for each line of the longer side; curvature has none where nobody needs it."""

    gradient: Float[Array, "*clients lines rank"]
    curvature: Float[Array, "*clients lines_or_0 rank rank"]


class Family(NamedTuple):
    """mu and mu' as functions of theta; the distribution of an observation; what values it can have; |mu''| <= bend mu'."""

    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    predictive: Callable[[Float[Array, " rows"]], Predictive]
    is_value: Callable[[np.ndarray | Array], np.ndarray | Array]
    bend: float


FAMILIES: dict[FamilyName, Family] = {
    "gaussian": Family(lambda t: t, jnp.ones_like, lambda t: Normal(t, jnp.ones_like(t)), lambda y: y == y, 0.0),
    "bernoulli": Family(
        jax.nn.sigmoid,
        lambda t: jax.nn.sigmoid(t) * jax.nn.sigmoid(-t),
        Categorical.of_logit,
        lambda y: (y == 0) | (y == 1),
        1.0,
    ),
    "poisson": Family(jnp.exp, jnp.exp, Poisson, lambda y: (y >= 0) & (y == y // 1), 1.0),
}


class MatrixModel(NamedTuple):
    """A matrix of low rank as pure functions.

    name: what reports call it.
    shape: of the matrix.
    family: of an observation.
    curvature: whether the curvature is that of all cells, which the server knows, or of those observed, which observers send.
    init: (key, spec) -> Factors, where the fit starts. Data that do not fit raise a ValueError.
    sums: (factors, side, batch) -> Sums of a batch of observations.
    no_sums: () -> Sums of no observation.
    step: (factors, side, sums over all observations, completions) -> the new lines of that side as Factors, the other as it was.
    predictive: (factors, x) -> the distribution of observations of the cells x.
    penalty: (factors) -> ridge/2 (|U|^2 + |V|^2).
    """

    name: str
    shape: tuple[int, int]
    family: Family
    curvature: Curvature
    init: Callable[[Key[Array, ""], Spec], Factors]
    sums: Callable[[Factors, Side, Batch], Sums]
    no_sums: Callable[[], Sums]
    step: Callable[[Factors, Side, Sums, Float[Array, ""]], Factors]
    predictive: Callable[[Factors, Shaped[Array, "rows 2"]], Predictive]
    penalty: Callable[[Factors], Float[Array, ""]]


def matrix_completion(
    *,
    rows: int,
    columns: int,
    rank: int = 2,
    family: FamilyName = "gaussian",
    ridge: float = 1.0,
    curvature: Curvature = "completed",
    row_factors: Numbers | None = None,
    column_factors: Numbers | None = None,
    spread: float = 0.5,
) -> MatrixModel:
    """A matrix of low rank, of which observers have seen Gaussian, Bernoulli or Poisson cells.

    The fit starts at `row_factors` and `column_factors` (default: drawn from N(0, spread^2)).
    """
    name = "matrix_completion"
    if family not in FAMILIES:
        raise ValueError(f"{name}: family must be one of {', '.join(FAMILIES)}, got {family!r}")
    if not 1 <= rank <= min(rows, columns):
        raise ValueError(f"{name}: rank must be from 1 to {min(rows, columns)} for a matrix of {rows} x {columns}, got {rank}")
    if curvature not in ("completed", "observed"):
        raise ValueError(f'{name}: curvature must be "completed" or "observed", got {curvature!r}')
    if not ridge >= 0 or (curvature == "observed" and ridge == 0):
        raise ValueError(f'{name}: ridge must be at least 0, and above 0 with curvature="observed"; got {ridge:g}')
    law, longest = FAMILIES[family], max(rows, columns)

    def init(key: Key[Array, ""], spec: Spec) -> Factors:
        if spec.rows.x.shape != (2,) or not jnp.issubdtype(spec.rows.x.dtype, jnp.integer):
            raise ValueError(
                f"{name}: a row of data is an observation of a cell, its features two integers, the cell's row and column; "
                f"these are {spec.rows.x.dtype} of shape {spec.rows.x.shape}"
            )
        if family == "bernoulli":
            need_classes(name, spec)
        else:
            need_number(name, spec)
        first, second = jax.random.split(key)
        return Factors(
            given_or(name, "row_factors", row_factors, (rows, rank), lambda: spread * jax.random.normal(first, (rows, rank))),
            given_or(
                name,
                "column_factors",
                column_factors,
                (columns, rank),
                lambda: spread * jax.random.normal(second, (columns, rank)),
            ),
        )

    def parameter(factors: Factors, x: Shaped[Array, "rows 2"]) -> Float[Array, " rows"]:
        """The natural parameters of cells; NaN for those outside."""
        inside = is_cell((rows, columns), x)
        return jnp.where(inside, jnp.sum(factors.rows[x[:, 0]] * factors.columns[x[:, 1]], axis=-1), jnp.nan)

    def sums(factors: Factors, side: Side, batch: Batch) -> Sums:
        x, y = batch.rows.x, batch.rows.y.astype(float)
        theta = parameter(factors, x)
        # Whatever is wrong has to show, also where its line would fall outside of the matrix: it is put into line 0.
        wrong = jnp.isnan(theta) | ~law.is_value(y)
        line = jnp.where(wrong, 0, jnp.where(side == ROWS, x[:, 0], x[:, 1]))
        other = jnp.where(side == ROWS, factors.columns[x[:, 1]], factors.rows[x[:, 0]])
        residual = jnp.where(batch.mask, jnp.where(wrong, jnp.nan, y - law.mean(theta)), 0.0)
        nothing = no_sums()
        gradient = nothing.gradient.at[line].add(residual[:, None] * other)
        if curvature == "completed":
            return Sums(gradient, nothing.curvature)
        weight = jnp.where(batch.mask, jnp.where(wrong, jnp.nan, law.slope(theta)), 0.0)
        outer = other[:, :, None] * other[:, None, :]
        return Sums(gradient, nothing.curvature.at[line].add(weight[:, None, None] * outer))

    def no_sums() -> Sums:
        lines = longest if curvature == "observed" else 0
        return Sums(jnp.zeros((longest, rank)), jnp.zeros((lines, rank, rank)))

    def step(factors: Factors, side: Side, total: Sums, completions: Float[Array, ""]) -> Factors:
        def moved(own: Float[Array, "lines r"], other: Float[Array, "others r"], theta: Callable[[], Array]) -> Array:
            if curvature == "observed":
                seen = total.curvature[: len(own)]
                bowl, _ = lifted(seen, jnp.abs(jnp.trace(seen, axis1=1, axis2=2)), 0.0)
            elif family == "gaussian":
                bowl = completions * (other.T @ other)[None]
            else:
                outer = (other[:, :, None] * other[:, None, :]).reshape(len(other), rank * rank)
                bowl = completions * (law.slope(theta()) @ outer).reshape(len(own), rank, rank)
            slope = total.gradient[: len(own)] - ridge * own
            bowl = bowl + ridge * jnp.eye(rank)
            flat = jnp.trace(bowl, axis1=1, axis2=2) == 0  # nothing known and nothing penalised: there is no slope either
            move = jnp.linalg.solve(bowl + flat[:, None, None] * jnp.eye(rank), slope[..., None])[..., 0]
            if law.bend:
                far = law.bend * jnp.max(jnp.linalg.norm(other, axis=-1)) * jnp.linalg.norm(move, axis=-1, keepdims=True)
                move = move * jnp.where(far > 0, jnp.log1p(far) / jnp.where(far > 0, far, 1.0), 1.0)
            return own + move

        u, v = factors
        return jax.lax.cond(
            side == ROWS,
            lambda: Factors(moved(u, v, lambda: u @ v.T), v),
            lambda: Factors(u, moved(v, u, lambda: v @ u.T)),
        )

    def predictive(factors: Factors, x: Shaped[Array, "rows 2"]) -> Predictive:
        return law.predictive(parameter(factors, x))

    def penalty(factors: Factors) -> Float[Array, ""]:
        return 0.5 * ridge * (jnp.sum(factors.rows**2) + jnp.sum(factors.columns**2))

    return MatrixModel(name, (rows, columns), law, curvature, init, sums, no_sums, step, predictive, penalty)


def is_cell(shape: tuple[int, int], x: Shaped[Array | np.ndarray, "rows 2"]) -> Bool[Array | np.ndarray, " rows"]:
    """Which of the pairs are cells of a matrix of this shape."""
    return (x[:, 0] >= 0) & (x[:, 0] < shape[0]) & (x[:, 1] >= 0) & (x[:, 1] < shape[1])
