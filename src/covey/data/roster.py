"""The participants of a study: names, ids, counts and shapes, and no rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import Int64, Shaped

from covey.core.shard import Rows, Spec
from covey.core.wire import DTYPES
from covey.data.division import SPLITS, Split, split_index
from covey.data.scaling import Scaling

MOST_ROWS = 2**31 - 1  # of a site


@dataclass(frozen=True, eq=False)
class Roster:
    """The clients of a run, without their rows. `FederatedData` offers one.

    Attributes:
        ids: Stable integers of the clients, in [0, 2**31).
        names: Names of the clients in reports; None stands for the ids.
        rows: Counts of training, validation and test rows, one row per client.
        spec: Shapes of one row, names of its columns, counts of labels, clients and training rows.
        scaling: The scaling that all sites have applied; None for features on their original scale.
    """

    ids: Int64[np.ndarray, " clients"]
    names: Sequence[str] | Shaped[np.ndarray, " clients"] | None
    rows: Int64[np.ndarray, "clients 3"]
    spec: Spec
    scaling: Scaling | None = None

    def __post_init__(self):
        examples = int(self.rows[:, 0].sum())
        spec = self.spec._replace(clients=len(self.ids), examples=examples)
        object.__setattr__(self, "spec", spec)

    @property
    def roster(self) -> "Roster":
        """This roster, as `FederatedData.roster` is that of data."""
        return self

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.ids)

    @property
    def features(self) -> tuple[str, ...] | None:
        """Names of the columns of x; None where they have none."""
        return self.spec.features

    def counts(self, split: Split) -> Int64[np.ndarray, " clients"]:
        """Number of rows of a split, for each client."""
        return self.rows[:, split_index(split)]

    def name_of(self, position: int) -> str:
        """Name of a client, or its id as text where clients have no names."""
        return str(self.ids[position] if self.names is None else self.names[position])

    def position_of(self, client: str | int | np.integer) -> int:
        """Position of a client, by its name (text) or its id (an integer)."""
        return find_client(client, self.ids, self.names)

    def replaced_by(self, data: Any | None) -> "Roster":
        """This roster: other data cannot be evaluated where there are no rows.

        Raises:
            ValueError: There are other data.
        """
        if data is not None:
            _no_rows("other data cannot be evaluated here")
        return self

    def rows_from(self, table: Any, *, standardised: bool = False) -> NoReturn:
        """An error: new rows are predicted at the sites."""
        _no_rows("new rows cannot be predicted here")


def of_sites(entries: Mapping[str, Mapping[str, Any]]) -> Roster:
    """The roster of sites that each described itself by `entry`.

    Sites get the ids 0, 1, ... in the order of their names, so that a study has the same ids
    whoever answers first.

    Args:
        entries: The description of each site, by its name.

    Returns:
        The roster, in the order of the names.

    Raises:
        ValueError: Sites differ in their columns or shapes, or said something impossible; the
            error names the site.

    Example:
        >>> import covey
        >>> data = covey.load("heart_disease")
        >>> said = {data.name_of(at): entry(data.subset([at])) for at in range(4)}
        >>> of_sites(said).counts("train").tolist()
        [303, 294, 123, 200]
    """
    if not entries:
        raise ValueError("a study needs at least one site, and none has answered")
    names = sorted(entries)
    for name in names:
        if not isinstance(entries[name], Mapping):
            raise ValueError(f"site {name!r} says nothing of its rows")
    specs = {name: spec_from(entries[name].get("spec"), name) for name in names}
    first = specs[names[0]]
    for name, spec in specs.items():
        for field in ("features", "rows", "classes", "standardised"):
            ours, theirs = getattr(first, field), getattr(spec, field)
            if ours != theirs:
                raise ValueError(
                    f"site {name!r} has other {_SAYS[field]} than site {names[0]!r}: "
                    f"{theirs!r:.300} and {ours!r:.300}"
                )
    rows = np.array([_counts(entries[name].get("rows"), name) for name in names], np.int64)
    return Roster(np.arange(len(names)), names, rows, first)


def entry(data: Any) -> dict[str, Any]:
    """The description of a site with these data of one client: counts and shapes, as JSON.

    Args:
        data: A `FederatedData` or `Roster` of one client.
    """
    if data.clients != 1:
        raise ValueError(f"a site has the rows of one client, got those of {data.clients}")
    rows = {split: int(data.counts(split)[0]) for split in SPLITS}
    return {"rows": rows, "spec": spec_as_text(data.spec)}


def spec_as_text(spec: Spec) -> dict[str, Any]:
    """A specification as JSON, so that a site can make the shapes that the server makes.

    Raises:
        ValueError: Rows are not of the form (x, y).
    """
    if not isinstance(spec.rows, Rows):
        raise ValueError(f"sites need rows of type Rows(x, y), got {type(spec.rows).__name__}")
    rows = {
        name: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
        for name, leaf in spec.rows._asdict().items()
    }
    values = spec._replace(rows=rows, first_row=None)._asdict()
    return {name: value for name, value in values.items() if name != "first_row"}


def spec_from(value: Any, site: str) -> Spec:
    """The specification that `spec_as_text` made JSON of.

    Args:
        value: The JSON value.
        site: Name of the site, for errors.

    Raises:
        ValueError: It is not a specification.
    """
    try:
        rows = {
            name: jax.ShapeDtypeStruct(
                tuple(_whole(n) for n in leaf["shape"]), _dtype(leaf["dtype"])
            )
            for name, leaf in value["rows"].items()
        }
        features = value["features"]
        return Spec(
            Rows(rows["x"], rows["y"]),
            classes=_maybe(value["classes"]),
            clients=_maybe(value["clients"]),
            examples=_maybe(value["examples"]),
            features=None if features is None else tuple(map(str, features)),
            omega=None if value["omega"] is None else float(value["omega"]),
            standardised=tuple(_whole(n) for n in value["standardised"]),
            capacity=_whole(value["capacity"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{site!r} describes its rows in an unknown form: {error}") from error


_SAYS = {
    "features": "columns",
    "rows": "types or shapes of rows",
    "classes": "counts of labels",
    "standardised": "standardised columns",
}


def find_client(
    client: str | int | np.integer,
    ids: Int64[np.ndarray, " clients"],
    names: Sequence[str] | Shaped[np.ndarray, " clients"] | None,
) -> int:
    """Position of a client among ids and names, by its name (text) or its id (an integer)."""
    if isinstance(client, str) and names is not None:
        found = np.flatnonzero(np.asarray(names) == client)
    elif isinstance(client, str):
        found = np.flatnonzero(ids == (int(client) if client.isdecimal() else -1))
    else:
        found = np.flatnonzero(ids == client)
    if not found.size:
        some = ", ".join(str(one) for one in (ids if names is None else names)[:5])
        more = ", ..." if len(ids) > 5 else ""
        raise ValueError(f"there is no client {client!r} among the {len(ids)} clients {some}{more}")
    return int(found[0])


def _counts(value: Any, site: str) -> list[int]:
    try:
        found = [_whole(value[split]) for split in SPLITS]
        if sum(found) > MOST_ROWS:
            raise ValueError(f"there are more than {MOST_ROWS}")
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"site {site!r} gives no counts of rows: {error}") from error


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**48:
        raise ValueError(f"{value!r:.50} is not a count")
    return value


def _maybe(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _dtype(value: Any) -> np.dtype:
    if value not in DTYPES:
        raise ValueError(f"{value!r:.50} is not a type of arrays")
    return np.dtype(value)


def _no_rows(what: str) -> NoReturn:
    raise ValueError(f"{what}: the rows are at the sites, and only their owners see them")
