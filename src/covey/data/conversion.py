"""From new rows, in whatever form they come, to the features that a model was trained on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np
from jaxtyping import Shaped

from covey.data import frames
from covey.data.scaling import Scaling
from covey.data.values import cells_text, is_infinite

if TYPE_CHECKING:
    import pandas

NewRows: TypeAlias = frames.Table | Mapping[str, object] | np.ndarray | jax.Array | Sequence[object]
_SOURCE = frames.Source("the table of new rows")


def features_of(
    table: NewRows,
    *,
    shape: tuple[int, ...],
    dtype: np.dtype,
    names: Sequence[str] | None,
    scaling: Scaling | None,
) -> Shaped[np.ndarray, " rows *features"]:
    """New rows as features; see `FederatedData.rows_from`.

    Args:
        table: A data frame, the path of a CSV file, a mapping of columns, a list of rows or an
            array.
        shape: Shape of one row.
        dtype: Type of the features.
        names: Names of the columns, where they have names.
        scaling: Scaling to apply, if any; it fills missing values.

    Returns:
        The features, rows on the leading axis.

    Example:
        >>> features_of(
        ...     {"b": [1, 2], "a": [3, 4]},
        ...     shape=(2,),
        ...     dtype=np.dtype(np.float32),
        ...     names=["a", "b"],
        ...     scaling=None,
        ... ).tolist()
        [[3.0, 1.0], [4.0, 2.0]]
    """
    x = _array(table, shape, names)
    if scaling is None:
        _refuse(np.isnan(x), names, "missing (NaN)", "fill or remove them")
    else:
        x = scaling.apply(x)
    _refuse(is_infinite(x), names, "infinite", "correct or remove them")
    out = x.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(out, x):
        raise ValueError(f"the new rows must be whole numbers that fit in {dtype}, as the data are")
    return out


def _array(table: NewRows, shape: tuple[int, ...], names: Sequence[str] | None) -> np.ndarray:
    import pandas

    if isinstance(table, Mapping):
        single = not any(np.ndim(column) for column in table.values())  # type: ignore[arg-type]
        try:
            table = pandas.DataFrame(dict(table), index=[0] if single else None)
        except ValueError as error:
            raise ValueError(f"the columns of the new rows do not fit together: {error}") from error
    if isinstance(table, pandas.DataFrame | frames.PathLike):
        if names is None:
            raise ValueError(
                "the data have no column names, so the columns of a table cannot be matched to"
                f" them; pass an array with rows of shape {shape}"
            )
        frame, source = frames.read(table, _SOURCE.name)
        return _columns(frame, source, names)
    try:
        values = np.asarray(table)
    except ValueError as error:
        raise ValueError(f"the new rows differ in length; {_expected(shape, names)}") from error
    if values.shape == (0,):
        return np.zeros((0, *shape))
    if values.shape[1:] != shape or not values.ndim:
        hint = "; pass a single row as a list of one row, [[...]]" if values.shape == shape else ""
        raise ValueError(f"the new rows have shape {values.shape}; {_expected(shape, names)}{hint}")
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.ndim != 2:
        raise ValueError(f"the new rows must be numbers, got an array of {values.dtype}")
    columns = [str(index) for index in range(values.shape[1])] if names is None else names
    return _columns(pandas.DataFrame(values, columns=list(columns)), _SOURCE, columns)


def _columns(frame: "pandas.DataFrame", source: frames.Source, names: Sequence[str]) -> np.ndarray:
    frames.check_columns(frame, names, source)
    return np.stack([frames.numbers(frame, name, source) for name in names], axis=1)


def _expected(shape: tuple[int, ...], names: Sequence[str] | None) -> str:
    if names is not None:
        return f"a row needs {len(names)} values: {', '.join(names)}"
    return f"a row needs {shape[0]} values" if len(shape) == 1 else f"a row has the shape {shape}"


def _refuse(wrong: np.ndarray, names: Sequence[str] | None, what: str, remedy: str) -> None:
    if wrong.any():
        cells = cells_text(wrong, names, "row {} (from 0)".format)
        raise ValueError(f"the new rows have {wrong.sum()} {what} cells: {cells}; {remedy}")
