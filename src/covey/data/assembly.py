"""The arrays of several clients, put together."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import Int, PyTree, Shaped

from covey.core.shard import Rows
from covey.data.division import split_codes
from covey.data.frames import as_numbers


def take(rows: PyTree, order: Int[np.ndarray, " rows"]) -> PyTree:
    """Rows by their indices, as a copy.

    Args:
        rows: Arrays with all rows on the leading axis.
        order: Indices of the rows wanted.

    Returns:
        The rows in this order.

    Example:
        >>> take({"x": np.array([5, 6, 7])}, np.array([2, 0]))["x"].tolist()
        [7, 5]
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf[order]), rows)


def row_spec(rows: PyTree) -> PyTree:
    """The shapes and types of one row.

    Args:
        rows: Arrays with all rows on the leading axis.

    Returns:
        The same structure with `jax.ShapeDtypeStruct` leaves, without the leading axis.

    Example:
        >>> row_spec({"x": np.zeros((3, 2))})["x"].shape
        (2,)
    """
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)


def of_one_shape(tables: dict[str, Rows], features: Sequence[str] | None) -> dict[str, Rows]:
    """Tables of clients whose rows have one shape.

    Args:
        tables: For each client's name, its features and outcomes; `[]` is a table without rows,
            of any shape.
        features: Names of the columns of x, if they have names.

    Returns:
        The tables, those without rows in the shape of the others.

    Example:
        >>> tables = {"a": Rows(np.ones((2, 3)), np.ones(2)), "b": Rows(np.array([]), np.array([]))}
        >>> of_one_shape(tables, None)["b"].x.shape
        (0, 3)
    """
    known = [(name, table.x.shape[1:]) for name, table in tables.items() if table.x.ndim > 1]
    bare = () if features is None else (len(features),)
    first, shape = known[0] if known else ("", bare)
    shaped = {}
    for name, table in tables.items():
        if len(table.x) != len(table.y):
            raise ValueError(
                f"client {name!r} has {len(table.x)} rows of features and {len(table.y)} outcomes"
            )
        x = table.x.reshape(0, *shape) if table.x.shape == (0,) else table.x
        if known and x.shape[1:] != shape:
            raise ValueError(
                f"clients differ in their features: {first!r} has shape {shape} per row,"
                f" {name!r} has {x.shape[1:]}"
            )
        shaped[name] = Rows(x, table.y)
    return shaped


def listed(
    clients: Shaped[np.ndarray, " clients"],
    labels: Shaped[np.ndarray, " labels"],
    code: Int[np.ndarray, " rows"],
) -> tuple[Shaped[np.ndarray, " clients"], Int[np.ndarray, " rows"], Int[np.ndarray, " clients"]]:
    """Rows by a list of clients, some of which may have none.

    Args:
        clients: Labels of all clients.
        labels: Distinct labels of the clients that have rows.
        code: For each row, the index of its client among `labels`.

    Returns:
        The labels of all clients; for each row, the index of its client among them; and the
        number of rows per client.

    Example:
        >>> labels, code, counts = listed(np.array(["b", "a"]), np.array(["a"]), np.array([0, 0]))
        >>> code.tolist(), counts.tolist()
        ([1, 1], [0, 2])
    """
    if clients.dtype.kind not in "iu" and labels.dtype.kind in "iu":
        clients = as_numbers(clients.astype(str))
    index = {str(label): position for position, label in enumerate(clients)}
    unknown = [str(label) for label in labels if str(label) not in index]
    if unknown:
        raise ValueError(
            f"the rows have a client {unknown[0]!r} that is not in `clients`; add it, or leave its"
            " rows out"
        )
    positions = np.asarray([index[str(label)] for label in labels], np.int64)
    code = positions[code] if len(labels) else code
    return clients, code, np.bincount(code, minlength=len(clients))


def codes_of(
    splits: Shaped[np.ndarray, "*rows"],
    ends: Int[np.ndarray, " clients"],
    name_of: Callable[[int], str],
) -> Int[np.ndarray, " rows"]:
    """The splits of rows as codes; an error names the client and its row.

    Args:
        splits: "train", "validation" or "test" for each row.
        ends: For each client, the index of the row after its last one.
        name_of: The name of the client at a position.

    Returns:
        The index of each row's split among `division.SPLITS`.

    Example:
        >>> codes_of(np.array(["test", "train"]), np.array([1, 2]), str).tolist()
        [2, 0]
    """
    if splits.shape != (ends[-1],):
        raise ValueError(
            f"splits must have one label for each of the {ends[-1]} rows, got shape {splits.shape}"
        )

    def row_text(row: int) -> str:
        client = int(np.searchsorted(ends, row, side="right"))
        start = int(ends[client - 1]) if client else 0
        return f"client {name_of(client)!r}, row {row - start} (from 0)"

    return split_codes(splits, row_text)
