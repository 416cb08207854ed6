"""Low-rank models of a matrix of which observers see some cells each: counts by site and month,
ratings, presence.

Cell (j, l) has the natural parameter theta_jl = u_j'v_l, U of J x r and V of L x r, and an
observation y of it has the density exp(y theta - psi(theta)) of its family: Gaussian with variance
1 (theta is the mean), Bernoulli (log-odds) or Poisson (log-rate). With mu = psi', the penalised fit
minimises

    sum over observations of psi(theta_jl) - y theta_jl  +  ridge/2 (|U|^2 + |V|^2).

A ridge draws theta to zero: a rate to one, odds to even. Where that is no sensible guess for a site
that nobody visited, give an `offset` and effects of rows and columns, theta_jl = offset + a_j + b_l
+ u_j'v_l, with a penalty of their own on |a|^2 + |b|^2. Lines of U and V then have a number more,
the first, the effect; rank 0 has nothing but effects.

An observation is a row of data: x = (j, l), counted from 0, and its value as the outcome. What an
observer says of a matrix is said of one side, the rows U or the columns V, while the other is held:
sums over its cells that have one line for each line of that side. No J x L matrix is made of an
observer's cells. With v_l for (1, v_l) where there are effects,

    gradient_j  = sum over its cells (j, l) of (y - mu(theta_jl)) v_l
    curvature_j = sum over its cells (j, l) of mu'(theta_jl) v_l v_l'        (only where it is asked for)

What is no observation (a cell outside of the matrix, a negative count) makes these sums NaN, so
that engines leave its observer out and name it; `is_cell` and `Family.is_value` are for who has
data at hand and can say more.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Real, Shaped

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
    """U and V; a line's effect first, where there are effects."""

    rows: Float[Array, "*clients rows numbers"]
    columns: Float[Array, "*clients columns numbers"]


class Sums(NamedTuple):
    """What observations say of one side, a line for each line of the longer side; curvature has
    none where nobody needs it.
    """

    gradient: Float[Array, "*clients lines numbers"]
    curvature: Float[Array, "*clients lines_or_0 numbers numbers"]


class Family(NamedTuple):
    """mu and mu' as functions of theta; the distribution of an observation; what values it can
    have; |mu''| <= bend mu'.
    """

    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    predictive: Callable[[Float[Array, " rows"]], Predictive]
    is_value: Callable[[np.ndarray | Array], np.ndarray | Array]
    bend: float


FAMILIES: dict[FamilyName, Family] = {
    "gaussian": Family(
        lambda t: t, jnp.ones_like, lambda t: Normal(t, jnp.ones_like(t)), lambda y: y == y, 0.0
    ),
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
    ridge: of the fit, unless another is handed to `step` and `penalty`.
    init: (key, spec) -> Factors, where the fit starts. Data that do not fit raise a ValueError.
    sums: (factors, side, batch) -> Sums of a batch of observations.
    no_sums: () -> Sums of no observation.
    step: (factors, side, sums over all observations, completions, ridge) -> Factors, the lines of
        that side moved.
    mean: (factors, row numbers) -> the expectations of all cells of these rows.
    predictive: (factors, x) -> the distribution of observations of the cells x.
    penalty: (factors, ridge) -> ridge/2 (|U|^2 + |V|^2), and that of the effects.
    """

    name: str
    shape: tuple[int, int]
    family: Family
    ridge: float
    init: Callable[[Key[Array, ""], Spec], Factors]
    sums: Callable[[Factors, Side, Batch], Sums]
    no_sums: Callable[[], Sums]
    step: Callable[[Factors, Side, Sums, Float[Array, ""], Float[Array, ""]], Factors]
    mean: Callable[[Factors, Int[Array, " some"]], Float[Array, "some columns"]]
    predictive: Callable[[Factors, Real[Array, "rows 2"]], Predictive]
    penalty: Callable[[Factors, Float[Array, ""]], Float[Array, ""]]


def matrix_completion(
    *,
    rows: int,
    columns: int,
    rank: int = 2,
    family: FamilyName = "gaussian",
    ridge: float = 1.0,
    effect_ridge: float | None = None,
    offset: float = 0.0,
    curvature: Curvature = "completed",
    row_factors: Numbers | None = None,
    column_factors: Numbers | None = None,
    spread: float = 0.5,
) -> MatrixModel:
    """A matrix of low rank, of which observers have seen Gaussian, Bernoulli or Poisson cells.

    effect_ridge: the ridge of effects of rows and columns, which are left out where there is none.
    offset: of theta, the same in all cells; e.g. the logarithm of the mean count.
    curvature: that of all cells, which the server knows, or of those observed, which observers
    send. The fit starts at `row_factors` and `column_factors`; by default effects are zero and the
    others drawn from N(0, spread^2).
    """
    name = "matrix_completion"
    effects = 0 if effect_ridge is None else 1
    if family not in FAMILIES:
        raise ValueError(f"{name}: family must be one of {', '.join(FAMILIES)}, got {family!r}")
    if not 1 - effects <= rank <= min(rows, columns):
        raise ValueError(
            f"{name}: rank must be from {1 - effects} to {min(rows, columns)} for a matrix of {rows} x {columns}, got {rank}"
            + (
                ""
                if effects or rank
                else "; 0 goes with effect_ridge, the ridge of effects of rows and columns"
            )
        )
    if curvature not in ("completed", "observed"):
        raise ValueError(f'{name}: curvature must be "completed" or "observed", got {curvature!r}')
    for what, value in (
        ("ridge", ridge),
        ("effect_ridge", ridge if effect_ridge is None else effect_ridge),
    ):
        if not value >= 0 or (curvature == "observed" and value == 0):
            raise ValueError(
                f'{name}: {what} must be at least 0, and above 0 with curvature="observed"; got {value:g}'
            )
    law, longest, numbers = FAMILIES[family], max(rows, columns), effects + rank

    def init(key: Key[Array, ""], spec: Spec) -> Factors:
        if spec.rows.x.shape != (2,):
            raise ValueError(
                f"{name}: a row of data is an observation of a cell, its features two whole numbers, the cell's row and column; "
                f"these are of shape {spec.rows.x.shape}"
            )
        if family == "bernoulli":
            need_classes(name, spec)
        else:
            need_number(name, spec)

        def drawn(key, lines):
            return (spread * jax.random.normal(key, (lines, numbers))).at[:, :effects].set(0.0)

        first, second = jax.random.split(key)
        return Factors(
            given_or(name, "row_factors", row_factors, (rows, numbers), lambda: drawn(first, rows)),
            given_or(
                name,
                "column_factors",
                column_factors,
                (columns, numbers),
                lambda: drawn(second, columns),
            ),
        )

    def design(other: Float[Array, "lines numbers"]) -> Float[Array, "lines numbers"]:
        """v_l, or (1, v_l) in the place of (b_l, v_l): what the numbers of the other side's line
        are multiplied by.
        """
        return other.at[:, :effects].set(1.0)

    def parameters(
        own: Float[Array, "some numbers"], other: Float[Array, "others numbers"]
    ) -> Float[Array, "some others"]:
        return offset + own @ design(other).T + jnp.sum(other[:, :effects], axis=1)

    def parameter(factors: Factors, x: Real[Array, "rows 2"]) -> Float[Array, " rows"]:
        """Of single cells; NaN for those outside."""
        j, k = x[:, 0].astype(int), x[:, 1].astype(int)
        u, v = factors.rows[j], factors.columns[k]
        theta = offset + jnp.sum(u * design(v), axis=-1) + jnp.sum(v[:, :effects], axis=1)
        return jnp.where(is_cell((rows, columns), x), theta, jnp.nan)

    def sums(factors: Factors, side: Side, batch: Batch) -> Sums:
        x, y = batch.rows.x, batch.rows.y.astype(float)
        theta = parameter(factors, x)
        # Whatever is wrong has to show, also where its line would fall outside of the matrix: it is
        # put into line 0.
        wrong = jnp.isnan(theta) | ~law.is_value(y)
        j, k = x[:, 0].astype(int), x[:, 1].astype(int)
        line = jnp.where(wrong, 0, jnp.where(side == ROWS, j, k))
        other = design(jnp.where(side == ROWS, factors.columns[k], factors.rows[j]))
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
        return Sums(jnp.zeros((longest, numbers)), jnp.zeros((lines, numbers, numbers)))

    def step(
        factors: Factors,
        side: Side,
        total: Sums,
        completions: Float[Array, ""],
        ridge: Float[Array, ""],
    ) -> Factors:
        def moved(
            own: Float[Array, "lines numbers"], other: Float[Array, "others numbers"]
        ) -> Float[Array, "lines numbers"]:
            slope = total.gradient[: len(own)] - penalties(ridge) * own
            bowl = _curvature(own, other) + jnp.diag(penalties(ridge))
            flat = (
                jnp.trace(bowl, axis1=1, axis2=2) == 0
            )  # nothing known and nothing penalised: there is no slope either
            move = jnp.linalg.solve(
                bowl + flat[:, None, None] * jnp.eye(numbers), slope[..., None]
            )[..., 0]
            if law.bend:
                reach = law.bend * jnp.max(jnp.linalg.norm(design(other), axis=-1))
                far = reach * jnp.linalg.norm(move, axis=-1, keepdims=True)
                move = move * jnp.where(far > 0, jnp.log1p(far) / jnp.where(far > 0, far, 1.0), 1.0)
            return own + move

        def _curvature(own, other):
            if curvature == "observed":
                seen = total.curvature[: len(own)]
                return lifted(seen, jnp.abs(jnp.trace(seen, axis1=1, axis2=2)), 0.0)[0]
            known = design(other)
            if family == "gaussian":
                return completions * (known.T @ known)[None]
            outer = (known[:, :, None] * known[:, None, :]).reshape(len(known), numbers * numbers)
            return completions * (law.slope(parameters(own, other)) @ outer).reshape(
                len(own), numbers, numbers
            )

        u, v = factors
        return jax.lax.cond(
            side == ROWS, lambda: Factors(moved(u, v), v), lambda: Factors(u, moved(v, u))
        )

    def mean(factors: Factors, some: Int[Array, " some"]) -> Float[Array, "some columns"]:
        return law.mean(parameters(factors.rows[some], factors.columns))

    def predictive(factors: Factors, x: Real[Array, "rows 2"]) -> Predictive:
        return law.predictive(parameter(factors, x))

    def penalties(ridge: Float[Array, ""]) -> Float[Array, " numbers"]:
        return jnp.full(numbers, ridge).at[:effects].set(effect_ridge or 0.0)

    def penalty(factors: Factors, ridge: Float[Array, ""]) -> Float[Array, ""]:
        u, v = (jnp.sum(penalties(ridge) * leaf**2) for leaf in factors)
        return 0.5 * (u + v)

    return MatrixModel(
        name, (rows, columns), law, ridge, init, sums, no_sums, step, mean, predictive, penalty
    )


def is_cell(
    shape: tuple[int, int], x: Shaped[Array | np.ndarray, "rows 2"]
) -> Bool[Array | np.ndarray, " rows"]:
    """Which of the pairs are cells of a matrix of this shape."""
    inside = (x[:, 0] >= 0) & (x[:, 0] < shape[0]) & (x[:, 1] >= 0) & (x[:, 1] < shape[1])
    return inside & (x[:, 0] == x[:, 0] // 1) & (x[:, 1] == x[:, 1] // 1)
