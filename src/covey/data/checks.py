"""Checks of arguments: clients' names, counts of rows, columns, limits. Errors say what to do."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Float64, Int, PyTree, Shaped

from covey.core.shard import Rows

_SHOWN_PAIRS = 3  # of equal columns

LARGEST_ID = 2**31 - 1


def check_identities(
    ids: Int[np.ndarray, " clients"], names: Shaped[np.ndarray, " named"] | None
) -> None:
    """Check that ids are unique and fit in 31 bits, and that names are unique, one per client.

    Names that differ only in white space are refused; names that differ only in case give a
    warning: both are mostly one client, typed twice.

    Args:
        ids: The clients' ids.
        names: The clients' names, if they have names.

    Example:
        >>> check_identities(np.array([0, 1]), np.array(["bern", "bern "]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: the client names 'bern' and 'bern ' differ only in white space; ...
    """
    wrong = ids[(ids < 0) | (ids > LARGEST_ID)]
    if wrong.size:
        raise ValueError(f"client ids must be in 0..{LARGEST_ID}, got {wrong[0]}")
    _check_unique("id", ids)
    if names is None:
        return
    if len(names) != len(ids):
        raise ValueError(f"{len(names)} names were given for {len(ids)} clients; give one for each")
    _check_unique("name", names)
    spaced = [" ".join(str(name).split()) for name in names]
    alike = _alike(names, spaced)
    if alike:
        raise ValueError(
            f"the client names {alike} differ only in white space; correct the names where the"
            " data come from"
        )
    alike = _alike(names, [name.casefold() for name in spaced])
    if alike:
        warnings.warn(
            f"the client names {alike} differ only in upper and lower case and are different"
            " clients here; correct the names where they are the same client",
            stacklevel=2,
        )


def check_pairs(clients: Mapping[str, object]) -> None:
    """Check that every client has a pair of features and outcomes.

    Args:
        clients: The value given for each client's name.

    Example:
        >>> check_pairs({"bern": np.zeros((3, 2))})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: client 'bern' needs a pair (x, y) of features and outcomes, got an array ...
    """
    for name, given in clients.items():
        if isinstance(given, tuple | list) and len(given) == 2:
            continue
        shape = getattr(given, "shape", None)
        what = f"an array of shape {shape}" if shape is not None else type(given).__name__
        if isinstance(given, tuple | list):
            what = f"{len(given)} values"
        raise ValueError(
            f"client {name!r} needs a pair (x, y) of features and outcomes, got {what}"
        )


def check_lengths(rows: PyTree, counts: Int[np.ndarray, " clients"]) -> None:
    """Check that the arrays have as many rows as the clients have together.

    Args:
        rows: Arrays with all rows on the leading axis.
        counts: Rows per client; 0 is a client without rows.

    Example:
        >>> check_lengths(np.zeros((4, 1)), np.array([2, 3]))
        Traceback (most recent call last):
            ...
        ValueError: the arrays have [4] rows (-1: none) and the clients 5; they must agree
    """
    if counts.ndim != 1 or np.any(counts < 0):
        raise ValueError("counts must be a list with the number of rows of each client")
    if not len(counts):
        raise ValueError("no clients were given")
    lengths = {leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(rows)}
    if lengths != {int(counts.sum())}:
        raise ValueError(
            f"the arrays have {sorted(lengths)} rows (-1: none) and the clients {counts.sum()};"
            " they must agree"
        )


def check_columns(names: Sequence[str], rows: PyTree) -> None:
    """Check that names of columns are different words, one per column of x.

    Args:
        names: The names.
        rows: The rows, `Rows(x, y)` with x of shape (rows, columns).

    Example:
        >>> check_columns(["age"], Rows(np.zeros((4, 2)), np.zeros(4)))
        Traceback (most recent call last):
            ...
        ValueError: 1 names were given for 2 columns of x; give one for each
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"features must be a list of names, got {names!r}")
    if not isinstance(rows, Rows) or not isinstance(rows.x, np.ndarray) or rows.x.ndim != 2:
        raise ValueError(
            "features names the columns of x, but a row of these data is not a list of numbers;"
            " leave it out"
        )
    if len(names) != rows.x.shape[1]:
        raise ValueError(
            f"{len(names)} names were given for {rows.x.shape[1]} columns of x; give one for each"
        )
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ValueError(f"two columns have the name {twice[0]!r}; every column needs its own")


def check_same_columns(known: Sequence[str] | None, given: Sequence[str] | None) -> None:
    """Check that other data have the columns that a model was trained on, in the same order.

    Args:
        known: Columns of the model; None where they have no names, which fits everything.
        given: Columns of the other data, or None.

    Example:
        >>> check_same_columns(["age", "dose"], ["dose", "age"])
        Traceback (most recent call last):
            ...
        ValueError: the columns of these data are in another order: dose, age, and not age, dose
    """
    if known is None or given is None or tuple(known) == tuple(given):
        return
    if sorted(known) == sorted(given):
        raise ValueError(
            f"the columns of these data are in another order: {', '.join(given)}, and not"
            f" {', '.join(known)}"
        )
    missing, extra = (
        [name for name in one if name not in other]
        for one, other in ((known, given), (given, known))
    )
    raise ValueError(
        f"the columns of these data are not those of the run: {', '.join(missing) or 'none'}"
        f" missing, {', '.join(extra) or 'none'} not known; make the data with"
        f" features=[{', '.join(map(repr, known))}]"
    )


def check_limits(train_rows: int | None, few_rows: int | None, few_share: int | float) -> None:
    """Check the arguments of `FederatedData.limited`.

    Args:
        train_rows: Most training rows per client.
        few_rows: Most training rows of a client that is drawn to have few.
        few_share: Share of the clients that are drawn to have few.

    Example:
        >>> check_limits(None, None, 0)
        Traceback (most recent call last):
            ...
        ValueError: limited: give train_rows, or few_rows and few_share, or all three
    """
    if (few_rows is None) != (few_share == 0) or not 0 <= few_share <= 1:
        raise ValueError(
            f"limited: few_rows goes with a few_share in (0, 1], got {few_rows=}, {few_share=}"
        )
    if train_rows is None and few_rows is None:
        raise ValueError("limited: give train_rows, or few_rows and few_share, or all three")
    for name, rows in (("train_rows", train_rows), ("few_rows", few_rows)):
        if rows is not None and rows < 0:
            raise ValueError(f"limited: {name} must be at least 0, got {rows}")
    if train_rows is not None and few_rows is not None and few_rows > train_rows:
        raise ValueError(
            f"limited: few_rows={few_rows} is more than train_rows={train_rows}, which is for the"
            " other clients"
        )


def _check_unique(what: str, values: np.ndarray) -> None:
    distinct, times = np.unique(values, return_counts=True)
    if len(distinct) < len(values):
        raise ValueError(
            f"two clients have the {what} {distinct[times > 1][0]!s}; every client needs its own"
        )


def _alike(names: np.ndarray, keys: Sequence[str]) -> str:
    """Names that have the same key, as text; empty where there are none."""
    if len(set(keys)) == len(keys):
        return ""
    twice = next(key for key, times in Counter(keys).items() if times > 1)
    alike = [str(name) for name, key in zip(names, keys, strict=True) if key == twice]
    return " and ".join(map(repr, alike))


def warn_of_equal_columns(
    columns: Sequence[str], tables: Sequence[Float64[np.ndarray, "_ features"]]
) -> None:
    """Warn of feature columns with the same values in every row of all tables.

    Constant columns are left out: tables of images have many pixels that are always 0.

    Args:
        columns: Names of the feature columns.
        tables: The features of each table.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_of_equal_columns(["dose", "dose2"], [np.array([[1.0, 1.0], [2.0, 2.0]])])
        >>> str(caught[0].message)[:55]
        "columns 'dose' and 'dose2' have the same values in all "
    """
    seen: dict[bytes, str] = {}
    pairs: list[str] = []
    for index, column in enumerate(columns):
        parts = [x[:, index] + 0.0 for x in tables if len(x)]  # -0.0 and 0.0 are one value
        if not parts or all(np.all(part == parts[0][0]) for part in parts):
            continue
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part.tobytes())
        first = seen.setdefault(digest.digest(), column)
        if first != column:
            pairs.append(f"{first!r} and {column!r}")
    if pairs:
        shown = "; ".join(pairs[:_SHOWN_PAIRS]) + ("; ..." if len(pairs) > _SHOWN_PAIRS else "")
        warnings.warn(
            f"columns {shown} have the same values in all {sum(map(len, tables))} rows: their"
            " coefficients cannot be told apart; leave one of them out with `features`",
            stacklevel=2,
        )
