"""Sums over the observed cells of a low-rank matrix, the steps that they allow, and the
maximisation of completed matrices.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Real, Shaped

from covey.core.shard import Batch, Shard, all_rows
from covey.models.cell_families import Family
from covey.models.latent import lifted

Curvature = Literal["completed", "observed"]
ROWS, COLUMNS = 0, 1
Side = int | Int[Array, ""]
SWEEPS = 10  # of rows and columns, where the maximisation has no closed form


class Factors(NamedTuple):
    """U and V; where there are effects, the first value of a line is its effect."""

    rows: Float[Array, "*clients rows width"]
    columns: Float[Array, "*clients columns width"]


class LineBlock(NamedTuple):
    """Lines of one side of the matrix, from the index `first` on; how many is the length of the
    sums.
    """

    side: Side
    first: Side


class Sums(NamedTuple):
    """Sums over observations for the lines of a part; curvature has no lines unless observers send
    it.
    """

    gradient: Float[Array, "*clients lines width"]
    curvature: Float[Array, "*clients lines_or_0 width width"]


class Matrix(NamedTuple):
    """The options of a low-rank matrix that its functions need.

    Attributes:
        shape: Rows and columns.
        rank: Of U V'.
        family: The distribution of an observation.
        curvature: Cells whose curvature a step uses, all or those observed.
        effects: 1 where lines have effects, else 0.
        effect_ridge: The penalty on the effects.
        offset: The constant of theta.
    """

    shape: tuple[int, int]
    rank: int
    family: Family
    curvature: Curvature
    effects: int
    effect_ridge: float
    offset: float

    @property
    def width(self) -> int:
        """Values per line: its effect and its factors."""
        return self.effects + self.rank


def is_cell(
    shape: tuple[int, int], x: Shaped[Array | np.ndarray, "rows 2"]
) -> Bool[Array | np.ndarray, " rows"]:
    """Which pairs (row, column) are cells of a matrix of this shape."""
    inside = (x[:, 0] >= 0) & (x[:, 0] < shape[0]) & (x[:, 1] >= 0) & (x[:, 1] < shape[1])
    return inside & (x[:, 0] == x[:, 0] // 1) & (x[:, 1] == x[:, 1] // 1)


def largest_multiplicity(data: Shard) -> Float[Array, ""]:
    """The count of a client's observations of the cell that it has observed most often."""
    batch = all_rows(data)
    j, k = (batch.rows.x[:, axis].astype(int) for axis in (0, 1))
    order = jnp.lexsort((k, j, ~batch.mask))
    j, k, there = j[order], k[order], batch.mask[order]
    index = jnp.arange(len(j))
    new = jnp.concatenate([jnp.ones(1, bool), (j[1:] != j[:-1]) | (k[1:] != k[:-1])])
    run = index - jax.lax.cummax(jnp.where(new, index, 0)) + 1
    return jnp.max(jnp.where(there, run, 0)).astype(float)


def lines_of(part: LineBlock, lines: int, values: Array) -> tuple[Int[Array, " lines"], Array]:
    """The indices of a part's lines in an array of lines, out of range past the last, and its
    values there, zero past the last.
    """
    index = part.first + jnp.arange(lines)
    there = index < len(values)
    own = values[jnp.minimum(index, len(values) - 1)]
    own = jnp.where(there.reshape(lines, *(1,) * (values.ndim - 1)), own, 0.0)
    return jnp.where(there, index, len(values)), own


def _design(m: Matrix, other: Float[Array, "lines width"]) -> Float[Array, "lines width"]:
    """v_l, or (1, v_l) for (b_l, v_l): what the values of the other side's line multiply."""
    return other.at[:, : m.effects].set(1.0)


def theta_of_lines(
    m: Matrix, own: Float[Array, "some width"], other: Float[Array, "others width"]
) -> Float[Array, "some others"]:
    """Theta of the cells where some lines of one side cross all lines of the other."""
    return m.offset + own @ _design(m, other).T + jnp.sum(other[:, : m.effects], axis=1)


def theta_of_cells(m: Matrix, factors: Factors, x: Real[Array, "rows 2"]) -> Float[Array, " rows"]:
    """Of single cells; NaN for those outside the matrix."""
    j, k = x[:, 0].astype(int), x[:, 1].astype(int)
    u, v = factors.rows[j], factors.columns[k]
    theta = m.offset + jnp.sum(u * _design(m, v), axis=-1) + jnp.sum(v[:, : m.effects], axis=1)
    return jnp.where(is_cell(m.shape, x), theta, jnp.nan)


class _Seen(NamedTuple):
    """Of each observation in a batch: its cell, whether it is impossible, theta and the value."""

    row: Int[Array, " rows"]
    column: Int[Array, " rows"]
    wrong: Bool[Array, " rows"]
    theta: Float[Array, " rows"]
    y: Float[Array, " rows"]


def _seen(m: Matrix, factors: Factors, batch: Batch) -> _Seen:
    x, y = batch.rows.x, batch.rows.y.astype(float)
    theta = theta_of_cells(m, factors, x)
    wrong = jnp.isnan(theta) | ~m.family.is_value(y)
    return _Seen(x[:, 0].astype(int), x[:, 1].astype(int), wrong, theta, y)


def _masked(batch: Batch, seen: _Seen, values: Float[Array, " rows"]) -> Float[Array, " rows"]:
    """Zero where there is no row, and NaN where a row is no observation, so that engines leave its
    observer out and name it.
    """
    return jnp.where(batch.mask, jnp.where(seen.wrong, jnp.nan, values), 0.0)


def sums(m: Matrix, factors: Factors, part: LineBlock, lines: int, batch: Batch) -> Sums:
    """gradient_j = sum of score v_l and curvature_j = sum of curvature v_l v_l', over the cells
    (j, l) of the part's lines.
    """
    seen = _seen(m, factors, batch)
    line = jnp.where(part.side == ROWS, seen.row, seen.column) - part.first
    line = jnp.where((line >= 0) & (line < lines), line, lines)
    # A wrong observation has to show, also where its line is outside: it is put into line 0.
    line = jnp.where(seen.wrong, 0, line)
    other = _design(
        m, jnp.where(part.side == ROWS, factors.columns[seen.column], factors.rows[seen.row])
    )
    score = _masked(batch, seen, m.family.score(seen.theta, seen.y))
    nothing = no_sums(m, lines)
    gradient = nothing.gradient.at[line].add(score[:, None] * other, mode="drop")
    if m.curvature == "completed":
        return Sums(gradient, nothing.curvature)
    weight = _masked(batch, seen, m.family.curvature(seen.theta, seen.y))
    outer = weight[:, None, None] * other[:, :, None] * other[:, None, :]
    return Sums(gradient, nothing.curvature.at[line].add(outer, mode="drop"))


def no_sums(m: Matrix, lines: int) -> Sums:
    """The sums of no observation."""
    curved = lines if m.curvature == "observed" else 0
    return Sums(jnp.zeros((lines, m.width)), jnp.zeros((curved, m.width, m.width)))


def residuals(m: Matrix, factors: Factors, batch: Batch) -> Float[Array, "rows columns"]:
    """The sum over observations of y - mu(theta), by cell."""
    seen = _seen(m, factors, batch)
    j, k = jnp.where(seen.wrong, 0, seen.row), jnp.where(seen.wrong, 0, seen.column)
    return jnp.zeros(m.shape).at[j, k].add(_masked(batch, seen, m.family.score(seen.theta, seen.y)))


def step(
    m: Matrix,
    factors: Factors,
    part: LineBlock,
    total: Sums,
    completions: Float[Array, ""],
    ridge: Float[Array, ""],
) -> Factors:
    """A Newton step of each line, shortened where the curvature changes along it."""

    def moved(
        own: Float[Array, "lines width"], other: Float[Array, "others width"]
    ) -> Float[Array, "lines width"]:
        index, block = lines_of(part, len(total.gradient), own)
        gradient = total.gradient - _penalties(m, ridge) * block
        bowl = _known_curvature(m, block, other, total, completions)
        bowl = bowl + jnp.diag(_penalties(m, ridge))
        # nothing known and nothing penalised: the gradient is zero too
        flat = jnp.trace(bowl, axis1=1, axis2=2) == 0
        bowl = bowl + flat[:, None, None] * jnp.eye(m.width)
        move = jnp.linalg.solve(bowl, gradient[..., None])[..., 0]
        if m.family.bend:
            reach = m.family.bend * jnp.max(jnp.linalg.norm(_design(m, other), axis=-1))
            far = reach * jnp.linalg.norm(move, axis=-1, keepdims=True)
            move = move * jnp.where(far > 0, jnp.log1p(far) / jnp.where(far > 0, far, 1.0), 1.0)
        return own.at[index].set(block + move, mode="drop")

    u, v = factors
    return jax.lax.cond(
        part.side == ROWS, lambda: Factors(moved(u, v), v), lambda: Factors(u, moved(v, u))
    )


def _known_curvature(
    m: Matrix,
    own: Float[Array, "lines width"],
    other: Float[Array, "others width"],
    total: Sums,
    completions: Float[Array, ""],
) -> Float[Array, "lines_or_1 width width"]:
    """Of the observed cells, as observers sent it; or of all cells, c times over."""
    if m.curvature == "observed":
        scale = jnp.abs(jnp.trace(total.curvature, axis1=1, axis2=2))
        return lifted(total.curvature, scale, 0.0)[0]
    known = _design(m, other)
    if m.family.name == "gaussian":
        return completions * (known.T @ known)[None]
    outer = (known[:, :, None] * known[:, None, :]).reshape(len(known), m.width**2)
    theta = theta_of_lines(m, own, other)
    weight = m.family.curvature(theta, m.family.mean(theta))
    return completions * (weight @ outer).reshape(len(own), m.width, m.width)


def maximise(
    m: Matrix,
    statistics: Float[Array, "rows columns"],
    factors: Factors,
    completions: Float[Array, ""],
    ridge: Float[Array, ""],
) -> Factors:
    """T(S) = argmin of sum of psi(theta) - S theta + ridge / 2c (|U|^2 + |V|^2): for Gaussian
    cells without effects the singular values of S, cut to the rank and lowered by ridge / c;
    otherwise `SWEEPS` of Newton steps on rows and columns in turn.
    """
    if m.family.name == "gaussian" and not m.effects:
        left, values, right = jnp.linalg.svd(statistics - m.offset, full_matrices=False)
        root = jnp.sqrt(jnp.maximum(values[: m.rank] - ridge / completions, 0.0))
        return Factors(left[:, : m.rank] * root, right[: m.rank].T * root)

    def side(factors: Factors, which: int) -> Factors:
        theta = theta_of_lines(m, *factors)
        gap = completions * (statistics - m.family.mean(theta))
        gap, other = (gap, factors.columns) if which == ROWS else (gap.T, factors.rows)
        total = no_sums(m, len(gap))._replace(gradient=gap @ _design(m, other))
        return step(m, factors, LineBlock(which, 0), total, completions, ridge)

    return jax.lax.fori_loop(0, SWEEPS, lambda _, both: side(side(both, ROWS), COLUMNS), factors)


def _penalties(m: Matrix, ridge: Float[Array, ""]) -> Float[Array, " width"]:
    return jnp.full(m.width, ridge).at[: m.effects].set(m.effect_ridge)


def penalty(m: Matrix, factors: Factors, ridge: Float[Array, ""]) -> Float[Array, ""]:
    """ridge/2 (|U|^2 + |V|^2), and the same of the effects with their own ridge."""
    u, v = (jnp.sum(_penalties(m, ridge) * leaf**2) for leaf in factors)
    return 0.5 * (u + v)
