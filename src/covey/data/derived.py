"""Columns made of other columns, client by client."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped

from covey.data.values import cells_text, float_type, is_infinite


def with_columns(
    x: Shaped[np.ndarray, "rows columns"],
    names: Sequence[str] | None,
    ranges: Sequence[Sequence[int]],
    columns: Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]],
    name_of: Callable[[int], str],
) -> tuple[Float[np.ndarray, "rows all"], tuple[str, ...]]:
    """Features with further columns; see `FederatedData.with_columns`.

    Args:
        x: Features of all rows.
        names: Names of the columns; an error where they have none.
        ranges: First row of each client, and the row after its last.
        columns: For each new column, a function of one client's columns.
        name_of: The name of the client at a position, for errors.

    Returns:
        The features with the new columns, and the names of all.

    Example:
        >>> x = np.array([[2.0], [3.0]])
        >>> double = {"twice": lambda row: 2 * row["a"]}
        >>> with_columns(x, ["a"], [(0, 1), (1, 2)], double, str)[0].tolist()
        [[2.0, 4.0], [3.0, 6.0]]
    """
    if names is None:
        raise ValueError("with_columns needs named columns; make the data with features=")
    every = (*names, *(name for name in columns if name not in names))
    out = np.empty((len(x), len(every)), float_type(x.dtype))
    for position, (start, end) in enumerate(ranges):
        values = {name: x[start:end, index].astype(np.float64) for index, name in enumerate(names)}
        for name, function in columns.items():
            values[name] = _made(name, function, values, end - start, name_of(position))
        out[start:end] = np.stack([values[name] for name in every], axis=1)
    return out, every


def _made(
    name: str,
    function: Callable[[Mapping[str, np.ndarray]], np.ndarray],
    values: Mapping[str, np.ndarray],
    count: int,
    client: str,
) -> np.ndarray:
    try:
        made = np.asarray(function(dict(values)), np.float64)
    except KeyError as error:
        raise ValueError(
            f"column {name!r} is made of {error}, but the columns are {', '.join(values)}"
        ) from error
    if made.shape not in ((), (count,)):
        raise ValueError(
            f"column {name!r} of client {client!r} has shape {made.shape}; return one value for "
            f"each of its {count} rows"
        )
    made = np.broadcast_to(made, (count,))
    known = np.all([~np.isnan(column) for column in values.values()], axis=0)
    wrong = is_infinite(made) | (np.isnan(made) & known)
    if wrong.any():
        cells = cells_text(wrong[:, None], [name], "row {} (from 0)".format)
        raise ValueError(f"client {client!r}: {wrong.sum()} values are not finite: {cells}")
    return made
