"""Low-rank models of a matrix of which observers see some cells each: counts by site and month,
ratings, presence.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, Real

from covey.core.shard import Batch, Spec
from covey.models.cell_families import Family, FamilyName, family_of
from covey.models.latent import given_or
from covey.models.matrix_steps import (
    Curvature,
    Factors,
    LineBlock,
    Matrix,
    Sums,
    maximise,
    no_sums,
    penalty,
    residuals,
    step,
    sums,
    theta_of_cells,
    theta_of_lines,
)
from covey.models.model import need_classes, need_number
from covey.models.predictive import Predictive

Start = list[list[float]] | np.ndarray | Array


class MatrixModel(NamedTuple):
    """A low-rank matrix as pure functions.

    Attributes:
        name: The model's name in reports.
        shape: Rows and columns of the matrix.
        family: The distribution of an observation.
        ridge: The penalty of the fit, unless another is handed to `step` and `penalty`.
        curvature: "completed" or "observed": whose curvature a step uses.
        init: (key, spec) -> Factors, the start of the fit. Data that do not fit raise a ValueError.
        sums: (factors, part, lines, batch) -> Sums of a batch of observations.
        no_sums: (lines) -> Sums of no observation.
        step: (factors, part, sums over all observations, completions, ridge) -> Factors, with the
            lines of the part moved.
        residuals: (factors, batch) -> the sum of y - mu(theta) over observations, by cell.
        maximise: (statistics, factors, completions, ridge) -> Factors, T(S).
        mean: (factors, row indices) -> the expectations of all cells of these rows.
        predictive: (factors, x) -> the distribution of observations of the cells x.
        penalty: (factors, ridge) -> ridge/2 (|U|^2 + |V|^2), and that of the effects.
    """

    name: str
    shape: tuple[int, int]
    family: Family
    ridge: float
    curvature: Curvature
    init: Callable[[Key[Array, ""], Spec], Factors]
    sums: Callable[[Factors, LineBlock, int, Batch], Sums]
    no_sums: Callable[[int], Sums]
    step: Callable[[Factors, LineBlock, Sums, Float[Array, ""], Float[Array, ""]], Factors]
    residuals: Callable[[Factors, Batch], Float[Array, "rows columns"]]
    maximise: Callable[
        [Float[Array, "rows columns"], Factors, Float[Array, ""], Float[Array, ""]], Factors
    ]
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
    dispersion: float = 3.0,
    row_factors: Start | None = None,
    column_factors: Start | None = None,
    spread: float = 0.5,
) -> MatrixModel:
    """Low-rank matrix of which observers have seen some cells, for `fedmissem`.

    Cell (j, l) has the parameter theta_jl = offset + a_j + b_l + u_j'v_l, with U of rows x rank,
    V of columns x rank and, where `effect_ridge` is given, effects a_j of rows and b_l of columns.
    The fit minimises

        minus the log-likelihood of all observations  +  ridge/2 (|U|^2 + |V|^2)
                                                      +  effect_ridge/2 (|a|^2 + |b|^2).

    An observation is a row of data: x = (row, column), counted from 0, and its value the outcome.
    Observers send sums for lines of one side, the rows U or the columns V, while the other side is
    held fixed. No rows x columns matrix is made of an observer's cells.

    Args:
        rows: Rows of the matrix, e.g. sites (J).
        columns: Columns of the matrix, e.g. months (L).
        rank: Rank of U V' (r). Default 2; 0 leaves only the effects.
        family: Distribution of an observation: "gaussian" with variance 1, "bernoulli", "poisson"
            or "negative_binomial". Default "gaussian".
        ridge: Penalty on U and V (lambda). Default 1. It draws theta towards the offset and the
            effects.
        effect_ridge: Penalty on the effects of rows and columns. Default: no effects. Give it
            where an unvisited row should be predicted by its columns rather than by zero.
        offset: Constant of theta in all cells, e.g. the log of the mean count. Default 0.
        curvature: "completed" uses the curvature of all cells, which the server knows: EM.
            "observed" uses that of the observed cells, which observers send: faster where few
            cells are observed, and uploads are rank + 1 times as long.
        dispersion: k of the negative binomial, with variance mu + mu^2 / k. Default 3.
        row_factors: Start of U, effects first. Default: drawn from N(0, spread^2), effects zero.
        column_factors: Start of V, effects first. Default: as for U.
        spread: Standard deviation of the drawn start. Default 0.5.

    Returns:
        A model for `covey.fedmissem`.

    Example:
        >>> import numpy as np, covey
        >>> x = np.array([[0, 0], [0, 1], [1, 0], [2, 1]])
        >>> data = covey.FederatedData.from_arrays(x, np.array([3, 5, 2, 8]), [0, 0, 1, 1])
        >>> model = covey.models.matrix_completion(
        ...     rows=3, columns=2, rank=1, family="poisson", curvature="observed")
        >>> run = covey.run(covey.fedmissem(model), data, rounds=20, seed=0)
        >>> model.mean(run.state.factors, np.arange(3)).shape
        (3, 2)

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction, section 4; the offset and the effects are as
    in Robin, Klopp, Josse, Moulines and Tibshirani (2020), Main effects and interactions in mixed
    and incomplete data frames.
    """
    name = "matrix_completion"
    effects = 0 if effect_ridge is None else 1
    law = family_of(family, dispersion)
    _check_rank(name, rank, effects, (rows, columns))
    _check_penalties(name, curvature, ridge, effect_ridge)
    if curvature == "completed" and not law.canonical:
        raise ValueError(
            f'{name}: {family} cells have no completion by their mean; give curvature="observed"'
        )
    matrix = Matrix(
        (rows, columns), rank, law, curvature, effects, effect_ridge or 0.0, float(offset)
    )

    def init(key: Key[Array, ""], spec: Spec) -> Factors:
        _check_data(name, family, spec)

        def drawn(key, lines):
            start = spread * jax.random.normal(key, (lines, matrix.width))
            return start.at[:, :effects].set(0.0)

        first, second = jax.random.split(key)
        shapes = (rows, matrix.width), (columns, matrix.width)
        return Factors(
            given_or(name, "row_factors", row_factors, shapes[0], lambda: drawn(first, rows)),
            given_or(
                name, "column_factors", column_factors, shapes[1], lambda: drawn(second, columns)
            ),
        )

    return MatrixModel(
        name,
        (rows, columns),
        law,
        ridge,
        curvature,
        init,
        partial(sums, matrix),
        partial(no_sums, matrix),
        partial(step, matrix),
        partial(residuals, matrix),
        partial(maximise, matrix),
        lambda factors, some: law.mean(theta_of_lines(matrix, factors.rows[some], factors.columns)),
        lambda factors, x: law.predictive(theta_of_cells(matrix, factors, x)),
        partial(penalty, matrix),
    )


def _check_rank(name: str, rank: int, effects: int, shape: tuple[int, int]) -> None:
    if not 1 - effects <= rank <= min(shape):
        hint = "" if effects or rank else "; 0 goes with effect_ridge, the ridge of effects"
        raise ValueError(
            f"{name}: rank must be from {1 - effects} to {min(shape)} for a matrix of "
            f"{shape[0]} x {shape[1]}, got {rank}{hint}"
        )


def _check_penalties(
    name: str, curvature: Curvature, ridge: float, effect_ridge: float | None
) -> None:
    if curvature not in ("completed", "observed"):
        raise ValueError(f'{name}: curvature must be "completed" or "observed", got {curvature!r}')
    given = {"ridge": ridge, "effect_ridge": ridge if effect_ridge is None else effect_ridge}
    for what, value in given.items():
        if not value >= 0 or (curvature == "observed" and value == 0):
            raise ValueError(
                f"{name}: {what} must be at least 0, and above 0 with "
                f'curvature="observed"; got {value:g}'
            )


def _check_data(name: str, family: FamilyName, spec: Spec) -> None:
    if spec.rows.x.shape != (2,):
        raise ValueError(
            f"{name}: a row of data is an observation of a cell, its features two whole numbers, "
            f"the cell's row and column; these are of shape {spec.rows.x.shape}"
        )
    (need_classes if family == "bernoulli" else need_number)(name, spec)
