"""The values of rows: their checks and their types. Errors name the client and the cells.

Rows are read in blocks, so that a memory-mapped file larger than memory can be checked too.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Int, PyTree, Shaped

from covey.core.shard import Rows

_BLOCK_BYTES = 1 << 24
_SHOWN_COLUMNS = 5


def blocks(leaf: Shaped[np.ndarray, " rows *rest"]) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of an array, a few megabytes at a time.

    Args:
        leaf: Array with the rows on its leading axis; may be memory-mapped.

    Returns:
        Pairs of the index of the first row of a block, and the rows of the block.

    Example:
        >>> [(begin, len(block)) for begin, block in blocks(np.zeros((3, 2)))]
        [(0, 3)]
    """
    row_bytes = max(1, leaf[:1].nbytes)
    step = max(1, _BLOCK_BYTES // row_bytes)
    for begin in range(0, len(leaf), step):
        yield begin, leaf[begin : begin + step]


def check_rows(
    rows: PyTree,
    ends: Int[np.ndarray, " clients"],
    name_of: Callable[[int], str],
    *,
    classes: int | None,
    allow_missing: bool,
    columns: Sequence[str] | None = None,
) -> None:
    """Check that features and outcomes are numbers that a model can use.

    Args:
        rows: Arrays with all rows on the leading axis, client after client.
        ends: For each client, the index of the row after its last one.
        name_of: The name of the client at a position, for errors.
        classes: Number of labels, or None for a numeric outcome.
        allow_missing: Whether features may be NaN.
        columns: Names of the columns of x, for errors.

    Example:
        >>> rows = Rows(np.array([[1.0], [np.nan]]), np.zeros(2))
        >>> options = {"classes": None, "allow_missing": False}
        >>> check_rows(rows, np.array([1, 2]), str, **options)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: client '1' has 1 missing (NaN) feature cells: 1 in column 0 ...
    """
    features = rows.x if isinstance(rows, Rows) else rows
    for leaf in jax.tree.leaves(features):
        _check_features(leaf, _Owners(ends, name_of, columns), allow_missing)
    if isinstance(rows, Rows):
        _check_outcomes(rows.y, _Owners(ends, name_of, None), classes)


def warn_if_constant(
    y: Shaped[np.ndarray, " rows"],
    counts: Int[np.ndarray, " clients"],
    *,
    outcome: str | None = None,
    classes: int | None = None,
) -> None:
    """Warn where an outcome has one value in all rows or, if it has a name, within each client.

    One client with a constant outcome is no reason: in a small hospital every patient may be ill.
    Clients with a single row do not count. Zeros without a name and without classes stand for data
    without an outcome, as models of x alone have them.

    Args:
        y: Outcome of each row, client after client.
        counts: Rows of each client.
        outcome: Name of the outcome's column, None if it has none.
        classes: Number of labels, or None for a numeric outcome.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_if_constant(np.ones(3), np.array([2, 1]), outcome="ill")
        >>> str(caught[0].message)[:38]
        "the outcome 'ill' is 1 in all 3 rows: "
    """
    if len(y) < 2:
        return
    if np.all(y == y[0]):
        absent = outcome is None and classes is None and y[0] == 0
        if not absent and (outcome is not None or np.count_nonzero(counts) > 1):
            name = "" if outcome is None else f" {outcome!r}"
            warnings.warn(
                f"the outcome{name} is {y[0]:g} in all {len(y)} rows: there is nothing to learn;"
                " is it the right column?",
                stacklevel=2,
            )
        return
    if outcome is None:
        return
    filled = counts[counts > 0]
    starts = np.cumsum(filled) - filled
    several = filled > 1
    varies = np.minimum.reduceat(y, starts) != np.maximum.reduceat(y, starts)
    if several.sum() > 1 and not np.any(varies[several]):
        warnings.warn(
            f"the outcome {outcome!r} does not vary within any client: every client has one value"
            " in all its rows; is it a property of the client and not of the row?",
            stacklevel=2,
        )


def float_type(given: np.dtype) -> np.dtype:
    """The floating-point type of rows: float64 where JAX has it switched on, float32 otherwise.

    Args:
        given: Type of the array that was given. float32 and half precision become float32.

    Returns:
        float32; or float64 for float64, whole numbers and booleans under `jax_enable_x64`.

    Example:
        >>> float_type(np.dtype(np.float64))
        dtype('float32')
        >>> with jax.enable_x64(True):
        ...     float_type(np.dtype(np.float64))
        dtype('float64')
    """
    wide = given.kind != "f" or given.itemsize > 4
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64) if wide else np.float32)


def settled(rows: PyTree, classes: int | None) -> PyTree:
    """Rows in the types that engines use; arrays of the right type are not copied.

    Args:
        rows: Arrays with all rows on the leading axis.
        classes: Number of labels, or None for a numeric outcome.

    Returns:
        The rows with features as floats (see `float_type`), as uint8 for images or as int32 for
        codes, and outcomes as floats or, with `classes`, as int32.

    Example:
        >>> settled(Rows(np.zeros((2, 1)), np.array([0, 1])), classes=2).y.dtype
        dtype('int32')
    """
    if not isinstance(rows, Rows):
        return jax.tree.map(_settled_features, rows)
    label_type = float_type(rows.y.dtype) if classes is None else np.int32
    return Rows(jax.tree.map(_settled_features, rows.x), rows.y.astype(label_type, copy=False))


def cells_text(
    wrong: Bool[np.ndarray, " rows *cells"],
    columns: Sequence[str] | None,
    row_text: Callable[[int], str],
) -> str:
    """Which cells of one client are wrong: by column, how many, and the first row.

    Args:
        wrong: True where a cell is wrong.
        columns: Names of the columns; None shows their indices.
        row_text: (index) -> the name of a row, such as "line 7".

    Returns:
        Text for an error.

    Example:
        >>> wrong = np.array([[False, True], [False, True]])
        >>> cells_text(wrong, ["age", "dose"], "row {}".format)
        "2 in column 'dose' (the first in row 0)"
    """
    flat = wrong.reshape(len(wrong), -1)
    found = np.flatnonzero(flat.any(0))
    parts = []
    for column in found[:_SHOWN_COLUMNS]:
        index = tuple(map(int, np.unravel_index(column, wrong.shape[1:])))
        name = index[0] if len(index) == 1 else index
        label = "" if not index else f" in column {name if columns is None else columns[column]!r}"
        first = row_text(int(np.argmax(flat[:, column])))
        parts.append(f"{flat[:, column].sum()}{label} (the first in {first})")
    more = f", and {len(found) - _SHOWN_COLUMNS} columns more" if len(found) > len(parts) else ""
    return ", ".join(parts) + more


def is_infinite(
    block: Shaped[np.ndarray, " rows *cells"],
) -> Bool[np.ndarray, " rows *cells"]:
    """Which cells are infinite, or become so in the type that rows have.

    Args:
        block: Numbers.

    Returns:
        True where a cell is infinite.

    Example:
        >>> is_infinite(np.array([1.0, 1e300, -np.inf])).tolist()
        [False, True, True]
    """
    with np.errstate(over="ignore"):
        return np.isinf(block.astype(float_type(block.dtype)))


class _Owners:
    """Which client owns which rows, and what errors call clients and columns."""

    def __init__(
        self, ends: np.ndarray, name_of: Callable[[int], str], columns: Sequence[str] | None
    ):
        self.ends, self.name_of, self.columns = ends, name_of, columns

    def refuse(
        self, leaf: np.ndarray, is_wrong: Callable[[np.ndarray], np.ndarray], what: str, remedy: str
    ) -> None:
        """Raise an error for the first client that has wrong cells."""
        found = np.zeros(len(self.ends), np.int64)
        for begin, block in blocks(leaf):
            wrong = is_wrong(block).reshape(len(block), -1).sum(1)
            at = np.flatnonzero(wrong)
            if at.size:
                np.add.at(found, np.searchsorted(self.ends, begin + at, side="right"), wrong[at])
        clients = np.flatnonzero(found)
        if not clients.size:
            return
        first = int(clients[0])
        start, end = int(self.ends[first - 1]) if first else 0, int(self.ends[first])
        cells = np.zeros((end - start, *leaf.shape[1:]), bool)
        for begin, block in blocks(leaf):
            low, high = max(begin, start), min(begin + len(block), end)
            if low < high:
                cells[low - start : high - start] = is_wrong(block)[low - begin : high - begin]
        others = f" ({clients.size - 1} other clients have some too)" if clients.size > 1 else ""
        raise ValueError(
            f"client {self.name_of(first)!r} has {found[first]} {what}:"
            f" {cells_text(cells, self.columns, 'row {}'.format)}, rows counted from 0; {remedy}"
            f"{others}"
        )


def _settled_features(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype == np.uint8:
        return leaf
    whole = leaf.dtype.kind in "iu"
    return leaf.astype(np.int32 if whole else float_type(leaf.dtype), copy=False)


def _check_features(leaf: np.ndarray, owners: _Owners, allow_missing: bool) -> None:
    kind = leaf.dtype.kind
    if kind not in "fiub":
        raise ValueError(
            f"features must be numbers, got an array of {leaf.dtype}; encode text as numbers first"
        )
    if kind in "iu" and leaf.dtype.itemsize >= 4:
        limit = np.iinfo(np.int32)
        owners.refuse(
            leaf,
            lambda block: (block < limit.min) | (block > limit.max),
            "feature cells outside the range of int32",
            "give them as floats",
        )
    if kind != "f":
        return
    if not allow_missing:
        owners.refuse(
            leaf,
            np.isnan,
            "missing (NaN) feature cells",
            "fill or remove them, or pass allow_missing=True and fill them with standardised() "
            "([data] allow_missing = true and standardise = true in a configuration)",
        )
    owners.refuse(
        leaf,
        is_infinite,
        f"infinite feature cells (as {float_type(leaf.dtype)})",
        "remove them or mark them as missing",
    )


def _check_outcomes(y: np.ndarray, owners: _Owners, classes: int | None) -> None:
    if y.dtype.kind not in "fiub":
        raise ValueError(
            f"outcomes must be numbers, got an array of {y.dtype}; code labels as 0, 1, 2, ..."
        )
    if y.dtype.kind == "f":
        owners.refuse(
            y,
            lambda block: np.isnan(block) | is_infinite(block),
            "outcomes that are not finite",
            "remove those rows, an outcome cannot be filled in",
        )
    if classes is None:
        return
    if classes < 2:
        raise ValueError(
            f"classes={classes}: a classification needs at least 2; leave it out for a"
            " numeric outcome"
        )
    for begin, block in blocks(y):
        bad = (block < 0) | (block >= classes) | (block != np.floor(block))
        wrong = np.flatnonzero(bad.reshape(len(block), -1).any(1))
        if wrong.size:
            client = int(np.searchsorted(owners.ends, begin + wrong[0], side="right"))
            raise ValueError(
                f"client {owners.name_of(client)!r} has the label {block[wrong[0]]}; with"
                f" classes={classes} labels must be whole numbers in 0..{classes - 1}: code them"
                " so, or correct `classes`"
            )
