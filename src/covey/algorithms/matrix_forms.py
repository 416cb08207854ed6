"""The two forms of FedMissEM: rows and columns in turn, and the paper's decomposition of completed
matrices.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms.memory import remembered
from covey.core.algorithm import Empty
from covey.core.shard import Batch
from covey.models.matrix_completion import MatrixModel
from covey.models.matrix_steps import COLUMNS, ROWS, Factors, LineBlock, Sums, lines_of

Form = Literal["alternating", "svd"]


class Sides(NamedTuple):
    """The sums for the rows, and for the columns."""

    rows: Sums
    columns: Sums


class Moved(NamedTuple):
    """The server's factors and, in the form "svd", S after a step."""

    factors: Factors
    statistics: Float[Array, "rows columns"] | Empty


class MatrixForm(NamedTuple):
    """The operations in which the forms of FedMissEM differ.

    Attributes:
        nothing: () -> the sums of no observation.
        sums: (factors, part, batch) -> the sums that travel.
        part: (step) -> the lines that a round is about.
        no_memory: () -> the memory of nothing.
        recalled: (memory, part) -> what the memory has of these sums.
        remembered: (memory, part, sent, rate) -> the memory moved towards what was sent.
        used: (part) -> how many of the lines that an upload has room for this part has; None where
            all uploads are full.
        moved: (factors and S, part, sums over all observations, c, ridge, gamma) -> the same after
            a step.
    """

    nothing: Callable[[], PyTree]
    sums: Callable[[Factors, LineBlock, Batch], PyTree]
    part: Callable[[Int[Array, ""]], LineBlock]
    no_memory: Callable[[], PyTree]
    recalled: Callable[[Any, LineBlock], PyTree]
    remembered: Callable[[Any, LineBlock, PyTree, Float[Array, ""]], PyTree]
    used: Callable[[LineBlock], Int[Array, ""]] | None
    moved: Callable[
        [Moved, LineBlock, Any, Float[Array, ""], Float[Array, ""], Float[Array, ""]], Moved
    ]


def matrix_form(model: MatrixModel, form: Form, lines_per_upload: int | None) -> MatrixForm:
    """The form of a name, or a ValueError for options that do not go together."""
    longest = max(model.shape)
    if form == "alternating":
        lines = longest if lines_per_upload is None else lines_per_upload
        if not 1 <= lines <= longest:
            raise ValueError(
                f"fedmissem: lines_per_upload must be from 1 to {longest} for a matrix of "
                f"{model.shape[0]} x {model.shape[1]}, got {lines}"
            )
        return _alternating(model, lines)
    if form != "svd":
        raise ValueError(f'fedmissem: form must be "alternating" or "svd", got {form!r}')
    if lines_per_upload is not None:
        raise ValueError(
            'fedmissem: lines_per_upload is for form="alternating"; leave it out with form="svd"'
        )
    if model.curvature == "observed":
        raise ValueError(
            'fedmissem: form="svd" completes all cells; use a model with curvature="completed"'
        )
    return _svd(model)


def _alternating(model: MatrixModel, lines: int) -> MatrixForm:
    """Sums for some lines of one side, which move."""
    blocks = [-(-side // lines) for side in model.shape]

    def part(step: Int[Array, ""]) -> LineBlock:
        index = step % sum(blocks)
        on_rows = index < blocks[0]
        return LineBlock(
            jnp.where(on_rows, jnp.int32(ROWS), jnp.int32(COLUMNS)),
            lines * jnp.where(on_rows, index, index - blocks[0]),
        )

    def used(part: LineBlock) -> Int[Array, ""]:
        whole = jnp.where(jnp.asarray(part.side) == ROWS, *model.shape)
        return jnp.minimum(whole - part.first, lines)

    def recalled(memory: Sides, part: LineBlock) -> Sums:
        def of(leaf: Array) -> Array:
            return lines_of(part, lines, leaf)[1] if leaf.shape[0] else leaf

        rows, columns = (jax.tree.map(of, side) for side in memory)
        return jax.tree.map(
            lambda one, other: jnp.where(part.side == ROWS, one, other), rows, columns
        )

    def moved_memory(memory: Sides, part: LineBlock, sent: Sums, rate: Float[Array, ""]) -> Sides:
        def add(leaf: Array, more: Array, side: int) -> Array:
            if not leaf.shape[0]:
                return leaf
            index, _ = lines_of(part, lines, leaf)
            index = jnp.where(part.side == side, index, len(leaf))
            return leaf.at[index].add(rate * more, mode="drop")

        return Sides(
            *(
                jax.tree.map(
                    lambda leaf, more, side=side: add(leaf, more, side), memory[side], sent
                )
                for side in (ROWS, COLUMNS)
            )
        )

    def moved(before: Moved, part: LineBlock, total: Sums, completions, ridge, gamma) -> Moved:
        target = model.step(before.factors, part, total, completions, ridge)
        factors = jax.tree.map(lambda old, new: old + gamma * (new - old), before.factors, target)
        return before._replace(factors=factors)

    return MatrixForm(
        nothing=lambda: model.no_sums(lines),
        sums=lambda factors, part, batch: model.sums(factors, part, lines, batch),
        part=part,
        no_memory=lambda: Sides(*(model.no_sums(side) for side in model.shape)),
        recalled=recalled,
        remembered=moved_memory,
        used=used,
        moved=moved,
    )


def _svd(model: MatrixModel) -> MatrixForm:
    """The residuals of all cells, from which the server completes S."""

    def moved(before: Moved, part: LineBlock, total: Array, completions, ridge, gamma) -> Moved:
        completed = model.mean(before.factors, jnp.arange(model.shape[0])) + total / completions
        statistics = before.statistics + gamma * (completed - before.statistics)
        return Moved(model.maximise(statistics, before.factors, completions, ridge), statistics)

    return MatrixForm(
        nothing=lambda: jnp.zeros(model.shape),
        sums=lambda factors, part, batch: model.residuals(factors, batch),
        part=lambda step: LineBlock(jnp.int32(ROWS), jnp.int32(0)),
        no_memory=lambda: jnp.zeros(model.shape),
        recalled=lambda memory, part: memory,
        remembered=lambda memory, part, sent, rate: remembered(memory, sent, rate),
        used=None,
        moved=moved,
    )
