"""What rows must be before anyone trains on them, checked when data come from outside.

Rows are read in blocks, so that a memory-mapped file larger than memory can be checked too. Every
error names the client, what was found, and what to do.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Int, PyTree, Shaped

from covey.core.shard import Rows

_BLOCK_BYTES = 1 << 24
LARGEST_ID = 2**31 - 1


def blocks(leaf: Shaped[np.ndarray, " rows *rest"]) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of an array, a few megabytes at a time: (number of the first row, the rows)."""
    row_bytes = max(1, leaf[:1].nbytes)
    step = max(1, _BLOCK_BYTES // row_bytes)
    for begin in range(0, len(leaf), step):
        yield begin, leaf[begin : begin + step]


def check_identities(
    ids: Int[np.ndarray, " clients"], names: Shaped[np.ndarray, " named"] | None
) -> None:
    """Ids are unique and fit in 31 bits; names, where given, are one for each client and unique."""
    wrong = ids[(ids < 0) | (ids > LARGEST_ID)]
    if wrong.size:
        raise ValueError(f"client ids must be in 0..{LARGEST_ID}, got {wrong[0]}")
    _check_unique("id", ids)
    if names is None:
        return
    if len(names) != len(ids):
        raise ValueError(f"{len(names)} names were given for {len(ids)} clients; give one for each")
    _check_unique("name", names)


def check_lengths(rows: PyTree, counts: Int[np.ndarray, " clients"]) -> None:
    """The arrays have as many rows as the clients together, at least one."""
    if counts.ndim != 1 or np.any(counts < 0):
        raise ValueError("counts must be a list of numbers of rows, one for each client")
    lengths = {leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(rows)}
    if lengths != {int(counts.sum())}:
        raise ValueError(
            f"the arrays have {sorted(lengths)} rows (-1: none) and the clients {counts.sum()}; they must agree"
        )
    if not counts.sum():
        raise ValueError("there are no rows at all")


def check_columns(names: Sequence[str], rows: PyTree) -> None:
    """Names of columns are different words, one for each column of x."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"features must be a list of names, got {names!r}")
    if not isinstance(rows, Rows) or not isinstance(rows.x, np.ndarray) or rows.x.ndim != 2:
        raise ValueError(
            "features names the columns of x, but a row of these data is no list of numbers; leave it out"
        )
    if len(names) != rows.x.shape[1]:
        raise ValueError(
            f"{len(names)} names were given for {rows.x.shape[1]} columns of x; give one for each"
        )
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ValueError(f"two columns have the name {twice[0]!r}; every column needs its own")


def check_same_columns(known: Sequence[str] | None, given: Sequence[str] | None) -> None:
    """Other data have the columns that a model has learned of, in this order; where either has no
    names nobody can tell.
    """
    if known is None or given is None or tuple(known) == tuple(given):
        return
    if sorted(known) == sorted(given):
        raise ValueError(
            f"the columns of these data are in another order: {', '.join(given)}, and not {', '.join(known)}"
        )
    missing, strange = (
        [name for name in one if name not in other]
        for one, other in ((known, given), (given, known))
    )
    raise ValueError(
        f"the columns of these data are not those of the run: {', '.join(missing) or 'none'} missing, "
        f"{', '.join(strange) or 'none'} not known; make the data with features=[{', '.join(map(repr, known))}]"
    )


def check_rows(
    rows: PyTree,
    ends: Int[np.ndarray, " clients"],
    name_of: Callable[[int], str],
    *,
    classes: int | None,
    allow_missing: bool,
) -> None:
    """Features and outcomes are numbers that a model can use. `ends` are the row numbers where
    clients end.
    """
    features = rows.x if isinstance(rows, Rows) else rows
    for leaf in jax.tree.leaves(features):
        _check_features(leaf, ends, name_of, allow_missing)
    if isinstance(rows, Rows):
        _check_outcomes(rows.y, ends, name_of, classes)


def check_limits(train_rows: int | None, few_rows: int | None, few_share: int | float) -> None:
    """What `FederatedData.limited` is asked for makes sense."""
    if (few_rows is None) != (few_share == 0) or not 0 <= few_share <= 1:
        raise ValueError(
            f"limited: few_rows goes with a few_share in (0, 1], got {few_rows=}, {few_share=}"
        )
    if train_rows is None and few_rows is None:
        raise ValueError("limited: give train_rows, or few_rows and few_share, or all three")
    for name, rows in (("train_rows", train_rows), ("few_rows", few_rows)):
        if rows is not None and rows < 1:
            raise ValueError(f"limited: {name} must be at least 1, got {rows}")
    if train_rows is not None and few_rows is not None and few_rows > train_rows:
        raise ValueError(
            f"limited: few_rows={few_rows} is more than train_rows={train_rows}, which is for the other clients"
        )


def settled(rows: PyTree, classes: int | None) -> PyTree:
    """The rows in the types that engines use: float32, uint8 for images, int32 for codes and (with
    `classes`) for labels.
    """
    if not isinstance(rows, Rows):
        return jax.tree.map(_settled_features, rows)
    label_type = np.float32 if classes is None else np.int32
    return Rows(jax.tree.map(_settled_features, rows.x), rows.y.astype(label_type, copy=False))


def _settled_features(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype == np.uint8:
        return leaf
    return leaf.astype(np.int32 if leaf.dtype.kind in "iu" else np.float32, copy=False)


def _check_features(
    leaf: np.ndarray, ends: np.ndarray, name_of: Callable[[int], str], allow_missing: bool
) -> None:
    kind = leaf.dtype.kind
    if kind not in "fiub":
        raise ValueError(
            f"features must be numbers, got an array of {leaf.dtype}; encode text as numbers first"
        )
    if kind in "iu" and leaf.dtype.itemsize >= 4:
        limit = np.iinfo(np.int32)
        _refuse(
            _cells(leaf, ends, lambda block: (block < limit.min) | (block > limit.max)),
            name_of,
            "feature cells outside the range of int32; give them as floats",
        )
    if kind != "f":
        return
    if not allow_missing:
        _refuse(
            _cells(leaf, ends, np.isnan),
            name_of,
            "missing (NaN) feature cells; fill or remove them, or pass allow_missing=True and fill them with standardised()",
        )
    _refuse(
        _cells(leaf, ends, _is_infinite),
        name_of,
        "infinite feature cells (as float32); remove them or mark them as missing",
    )


def _check_outcomes(
    y: np.ndarray, ends: np.ndarray, name_of: Callable[[int], str], classes: int | None
) -> None:
    if y.dtype.kind not in "fiub":
        raise ValueError(
            f"outcomes must be numbers, got an array of {y.dtype}; code labels as 0, 1, 2, ..."
        )
    if y.dtype.kind == "f":
        _refuse(
            _cells(y, ends, lambda block: np.isnan(block) | _is_infinite(block)),
            name_of,
            "outcomes that are not finite; remove those rows, an outcome cannot be filled in",
        )
    if classes is None:
        return
    if classes < 2:
        raise ValueError(
            f"classes={classes}: a classification needs at least 2; leave it out for an outcome that is a number"
        )
    for begin, block in blocks(y):
        wrong = np.flatnonzero(
            ((block < 0) | (block >= classes) | (block != np.floor(block)))
            .reshape(len(block), -1)
            .any(1)
        )
        if wrong.size:
            client = int(np.searchsorted(ends, begin + wrong[0], side="right"))
            raise ValueError(
                f"client {name_of(client)!r} has the label {block[wrong[0]]}; with classes={classes} labels must be whole numbers"
                f" in 0..{classes - 1}: code them so, or correct `classes`"
            )


def _is_infinite(block: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.isinf(block.astype(np.float32))


def _cells(
    leaf: np.ndarray, ends: np.ndarray, is_wrong: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The number of wrong cells of each client."""
    found = np.zeros(len(ends), np.int64)
    for begin, block in blocks(leaf):
        wrong = is_wrong(block).reshape(len(block), -1).sum(1)
        at = np.flatnonzero(wrong)
        if at.size:
            np.add.at(found, np.searchsorted(ends, begin + at, side="right"), wrong[at])
    return found


def _refuse(found: np.ndarray, name_of: Callable[[int], str], what: str) -> None:
    clients = np.flatnonzero(found)
    if clients.size:
        others = f" ({clients.size - 1} other clients have some too)" if clients.size > 1 else ""
        raise ValueError(
            f"client {name_of(int(clients[0]))!r} has {found[clients[0]]} {what}{others}"
        )


def _check_unique(what: str, values: np.ndarray) -> None:
    distinct, times = np.unique(values, return_counts=True)
    if len(distinct) < len(values):
        raise ValueError(
            f"two clients have the {what} {distinct[times > 1][0]!s}; every client needs its own"
        )
