"""Rows of many clients, and which are whose.

Rows lie flat, client after client; within a client the training rows come first, then validation,
then test. A client's split is therefore one range of row numbers: nothing is padded, nothing is
copied, and the storage may be a memory-mapped file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Int64, PyTree, Shaped

from covey.core.shard import Rows, Shard, Spec, whole
from covey.data import checks, frames, storage
from covey.data.scaling import Scaling
from covey.data.scaling import fit as fit_scaling
from covey.data.shuffling import hashed, ranges, shuffled, words_of

Values: TypeAlias = np.ndarray | jax.Array | Sequence[object]
Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Make it with one of the constructors `from_...`, which check what they are given.

    rows: arrays with all rows on the leading axis, normally `Rows(x, y)`. Clients lie one after the
        other, without gaps.
    bounds: for each client, the row numbers where its training, validation and test rows start, and
        where it ends.
    ids: stable integers in [0, 2**31). Keys and splits are made from them, so they stay with a
        client in every subset.
    names: what reports call the clients; None stands for the ids.
    spec: the shapes of one row, the names of its columns, the number of labels, of clients and of
        their training rows.
    """

    rows: PyTree
    bounds: Int64[np.ndarray, "clients 4"]
    ids: Int64[np.ndarray, " clients"]
    names: Sequence[str] | Shaped[np.ndarray, " clients"] | None
    spec: Spec

    def __post_init__(self):
        examples = int(self.counts("train").sum())
        object.__setattr__(
            self, "spec", self.spec._replace(clients=self.clients, examples=examples)
        )  # in subsets too

    @classmethod
    def from_rows(
        cls,
        rows: PyTree,
        counts: Values,
        *,
        ids: Values | None = None,
        names: Values | None = None,
        features: Sequence[str] | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
        drop_empty: bool = False,
    ) -> "FederatedData":
        """Rows that already lie client after client, `counts[i]` of them for client i. Arrays of
        the right type are not copied.

        features: the names of the columns of x, by which models and summaries then call them.
        classes: the number of labels 0, 1, ..., or None for an outcome that is a number.
        allow_missing: accept NaN features; `standardised` fills them.
        drop_empty: leave out clients without rows, which are an error otherwise.
        """
        rows = jax.tree.map(np.asanyarray, rows)
        counts = np.asarray(counts, np.int64)
        numbers = np.arange(len(counts)) if ids is None else np.asarray(ids, np.int64)
        labels = None if names is None else np.asarray(names, str)
        if len(numbers) != len(counts):
            raise ValueError(f"{len(numbers)} ids were given for {len(counts)} clients")
        checks.check_identities(numbers, labels)
        checks.check_lengths(rows, counts)
        if features is not None:
            checks.check_columns(features, rows)

        def name_of(position: int) -> str:
            return str(numbers[position] if labels is None else labels[position])

        empty = np.flatnonzero(counts == 0)
        if empty.size and not drop_empty:
            raise ValueError(
                f"{empty.size} of {len(counts)} clients have no rows, the first is {name_of(int(empty[0]))!r};"
                " pass drop_empty=True to leave them out"
            )
        kept = counts > 0
        numbers, labels, counts = (
            numbers[kept],
            None if labels is None else labels[kept],
            counts[kept],
        )
        ends = np.cumsum(counts)
        checks.check_rows(rows, ends, name_of, classes=classes, allow_missing=allow_missing)
        rows = checks.settled(rows, classes)
        bounds = np.stack([ends - counts, ends, ends, ends], axis=1)
        spec = Spec(
            _row_spec(rows), classes, features=None if features is None else tuple(features)
        )
        return cls(rows, bounds, numbers, labels, spec)

    @classmethod
    def from_arrays(
        cls,
        x: Values,
        y: Values,
        client: Values,
        *,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        allow_missing: bool = False,
    ) -> "FederatedData":
        """All rows together, and a label for each that says whose it is. Clients come in the order
        of their labels.

        Integers in [0, 2**31) become the clients' ids. Other labels become their names, numbered
        from 0 in sorted order.
        names: of the distinct labels, in sorted order.
        features: the names of the columns of x.
        """
        rows, owner = Rows(np.asanyarray(x), np.asanyarray(y)), np.asarray(client)
        if owner.shape != rows.y.shape[:1]:
            raise ValueError(
                f"`client` must have one label for each of the {len(rows.y)} rows, got shape {owner.shape}"
            )
        if owner.dtype.kind in "fO" and any(
            label is None or label != label for label in owner.tolist()
        ):
            raise ValueError("`client` has missing labels; every row needs a client")
        labels, code, counts = np.unique(owner, return_inverse=True, return_counts=True)
        if np.any(code[1:] < code[:-1]):
            order = np.argsort(code, kind="stable")
            rows = Rows(rows.x[order], rows.y[order])
        are_ids = (
            labels.dtype.kind in "iu"
            and len(labels) > 0
            and labels[0] >= 0
            and labels[-1] <= checks.LARGEST_ID
        )
        return cls.from_rows(
            rows,
            counts,
            ids=labels if are_ids else None,
            names=names if names is not None or are_ids else labels.astype(str),
            features=features,
            classes=classes,
            allow_missing=allow_missing,
        )

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[str, tuple[Values, Values]],
        *,
        features: Sequence[str] | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
        drop_empty: bool = False,
    ) -> "FederatedData":
        """Features and outcomes of each client, by name. Clients keep the order given and are
        numbered from 0.

        features: the names of the columns of x.
        """
        if not clients:
            raise ValueError("no clients were given")
        tables = {name: Rows(np.asarray(x), np.asarray(y)) for name, (x, y) in clients.items()}
        first = next(iter(tables))
        for name, table in tables.items():
            if len(table.x) != len(table.y):
                raise ValueError(
                    f"client {name!r} has {len(table.x)} rows of features and {len(table.y)} outcomes"
                )
            if table.x.shape[1:] != tables[first].x.shape[1:]:
                raise ValueError(
                    f"clients differ in their features: {first!r} has shape {tables[first].x.shape[1:]} a row,"
                    f" {name!r} has {table.x.shape[1:]}"
                )
        return cls.from_rows(
            Rows(*(np.concatenate(leaves) for leaves in zip(*tables.values(), strict=True))),
            [len(table.y) for table in tables.values()],
            names=list(tables),
            features=features,
            classes=classes,
            allow_missing=allow_missing,
            drop_empty=drop_empty,
        )

    @classmethod
    def from_tables(
        cls,
        tables: Mapping[str, frames.Table],
        *,
        outcome: str,
        features: Sequence[str] | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
        drop_empty: bool = False,
    ) -> "FederatedData":
        """One table, or path of a CSV file, for each client. `features` defaults to all columns but
        the outcome.
        """
        columns, clients = frames.many(tables, outcome=outcome, features=features)
        return cls.from_clients(
            clients,
            features=columns,
            classes=classes,
            allow_missing=allow_missing,
            drop_empty=drop_empty,
        )

    @classmethod
    def from_table(
        cls,
        table: frames.Table,
        *,
        outcome: str,
        client: str,
        features: Sequence[str] | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
    ) -> "FederatedData":
        """One table, or path of a CSV file, with all clients; the column `client` says whose a row
        is.
        """
        frame, label = frames.read(table, "the table")
        owner = frames.owners(frame, client, label)
        columns = features or [
            str(column) for column in frame.columns if column not in (outcome, client)
        ]
        x, y = frames.arrays(frame, label, outcome=outcome, features=columns)
        return cls.from_arrays(
            x, y, owner, features=columns, classes=classes, allow_missing=allow_missing
        )

    @classmethod
    def open(cls, directory: str | Path, *, memory_map: bool = True) -> "FederatedData":
        """Data that `save` wrote. Memory-mapped, rows are read from disk when they are used."""
        stored = storage.read(Path(directory), memory_map=memory_map)
        if stored.features is not None:
            checks.check_columns(stored.features, stored.rows)
        spec = Spec(_row_spec(stored.rows), stored.classes, features=stored.features)
        return cls(stored.rows, stored.bounds, stored.ids, stored.names, spec)

    def save(self, directory: str | Path) -> None:
        """Write to a new directory, which appears only when it is complete."""
        rows, names = (
            self._supervised("save"),
            None if self.names is None else np.asarray(self.names, str),
        )
        storage.write(
            Path(directory),
            storage.Stored(rows, self.bounds, self.ids, names, self.spec.classes, self.features),
        )

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the columns of x; None where they have none, as pixels."""
        return self.spec.features

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.ids)

    def starts(self, split: Split) -> Int64[np.ndarray, " clients"]:
        """Where each client's rows of a split start."""
        return self.bounds[:, _place(split)]

    def counts(self, split: Split) -> Int64[np.ndarray, " clients"]:
        """How many rows of a split each client has."""
        return self.bounds[:, _place(split) + 1] - self.bounds[:, _place(split)]

    def name_of(self, position: int) -> str:
        """The name of the client at a position."""
        return str(self.ids[position] if self.names is None else self.names[position])

    def position_of(self, client: str | int | np.integer) -> int:
        """The position of a client, by its name (text) or its id (a number)."""
        if isinstance(client, str) and self.names is not None:
            found = np.flatnonzero(np.asarray(self.names) == client)
        elif isinstance(client, str):
            found = (
                np.flatnonzero(self.ids == int(client))
                if client.isdecimal()
                else np.empty(0, np.int64)
            )
        else:
            found = np.flatnonzero(self.ids == client)
        if not found.size:
            some = ", ".join(self.name_of(place) for place in range(min(5, self.clients)))
            raise ValueError(
                f"there is no client {client!r} among the {self.clients} clients {some}, ..."
            )
        return int(found[0])

    def rows_of(self, position: int, split: Split) -> PyTree:
        """One client's own rows of a split, a view of the storage."""
        start, count = int(self.starts(split)[position]), int(self.counts(split)[position])
        return jax.tree.map(lambda leaf: leaf[start : start + count], self.rows)

    def rows_in(self, split: Split) -> PyTree:
        """The rows of one split of all clients, client after client."""
        return _take(self.rows, ranges(self.starts(split), self.counts(split)))

    def shard(self, position: int, split: Split) -> Shard:
        """One client's own rows of a split, as a site would hold them."""
        if self.counts(split)[position]:
            return whole(self.rows_of(position, split))
        # A row cannot be taken from an array without rows, not even one that a mask then hides.
        blank = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), self.rows)
        return replace(whole(blank), count=jnp.int32(0))

    def split(
        self, validation: int | float = 0.2, test: int | float = 0.2, *, seed: int
    ) -> "FederatedData":
        """Divide each client's rows at random. All rows are divided anew, whatever the splits were
        before.

        A row's ticket is a hash of (seed, client id, number of the row within the client); a
        client's rows are sorted by their tickets. A client's split therefore does not depend on the
        other clients. Fractions are rounded to whole rows, and each client keeps at least one
        training row. The rows are copied: split before `save` what is too large for memory.
        """
        if min(validation, test) < 0 or validation + test >= 1:
            raise ValueError(
                f"fractions must be at least 0 and add up to less than 1, got {validation=}, {test=}"
            )
        starts, sizes = self.bounds[:, 0], self.bounds[:, 3] - self.bounds[:, 0]
        order = shuffled(words_of(seed, self.ids), sizes)
        spare = np.maximum(sizes - 1, 0)
        to_test = np.minimum(np.floor(sizes * test + 0.5).astype(np.int64), spare)
        to_validation = np.minimum(
            np.floor(sizes * validation + 0.5).astype(np.int64), spare - to_test
        )
        ends = self.bounds[:, 3]
        bounds = np.stack([starts, ends - to_test - to_validation, ends - to_test, ends], axis=1)
        return replace(self, rows=_take(self.rows, order), bounds=bounds)

    def limited(
        self,
        *,
        train_rows: int | None = None,
        few_rows: int | None = None,
        few_share: int | float = 0.0,
        seed: int,
    ) -> "FederatedData":
        """At most `train_rows` training rows a client, and at most `few_rows` for a share
        `few_share` of the clients.

        Clients and rows are drawn at random from the seed; the other training rows are dropped,
        validation and test rows stay. With the same seed, a smaller limit keeps some of the rows of
        a larger one, and a smaller share has some of its clients.
        """
        checks.check_limits(train_rows, few_rows, few_share)
        trained = self.counts("train")
        # Hashed once more than for a split: of the same seed, both would otherwise order the rows
        # by the same tickets.
        own = hashed(words_of(seed, self.ids))
        most = np.full(self.clients, np.iinfo(np.int64).max if train_rows is None else train_rows)
        if few_rows is not None:
            most[
                np.argsort(own, kind="stable")[: int(np.floor(few_share * self.clients + 0.5))]
            ] = few_rows
        kept = np.minimum(trained, most)
        first = shuffled(own, trained)[ranges(np.cumsum(trained) - trained, kept)]
        others = ranges(self.bounds[:, 1], self.bounds[:, 3] - self.bounds[:, 1])
        order = np.sort(np.concatenate([ranges(self.starts("train"), trained)[first], others]))
        bounds = self.bounds - np.cumsum(trained - kept)[:, None]
        bounds[:, 0] += trained - kept
        return replace(self, rows=_take(self.rows, order), bounds=bounds)

    def subset(self, positions: Values) -> "FederatedData":
        """The clients at these positions, in this order. Neighbours in their old order are a view;
        others are copied.
        """
        chosen = np.asarray(positions)
        if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"positions must be a list of at least one whole number, got {chosen.dtype} of shape {chosen.shape}"
            )
        if chosen.min() < 0 or chosen.max() >= self.clients or len(np.unique(chosen)) < len(chosen):
            raise ValueError(f"positions must be different numbers in 0..{self.clients - 1}")
        bounds = self.bounds[chosen]
        starts, sizes = bounds[:, 0], bounds[:, 3] - bounds[:, 0]
        if np.all(np.diff(chosen) == 1):
            rows = jax.tree.map(lambda leaf: leaf[starts[0] : bounds[-1, 3]], self.rows)
        else:
            rows = _take(self.rows, ranges(starts, sizes))
        moved = bounds + (np.cumsum(sizes) - sizes - starts)[:, None]
        names = None if self.names is None else np.asarray(self.names)[chosen]
        return FederatedData(rows, moved, self.ids[chosen], names, self.spec)

    def hold_out(self, clients: Sequence[str | int]) -> "tuple[FederatedData, FederatedData]":
        """The data without these clients (names or ids), and these clients alone."""
        out = np.asarray(sorted({self.position_of(client) for client in clients}), np.int64)
        if not 0 < len(out) < self.clients:
            raise ValueError(
                f"hold out at least one client and not all: {len(out)} of {self.clients} were named"
            )
        return self.subset(np.setdiff1d(np.arange(self.clients), out)), self.subset(out)

    def replaced_by(self, data: "FederatedData | None") -> "FederatedData":
        """Other data that have the same columns; these, where none are given."""
        if data is None:
            return self
        checks.check_same_columns(self.features, data.features)
        return data

    def pooled(self) -> "FederatedData":
        """All rows as one client, each in the split it was in: what a trusted centre would see."""
        sizes = np.asarray([0, *(self.counts(split).sum() for split in SPLITS)])
        rows = self.rows
        if sizes[1] < sizes.sum():
            rows = _take(
                rows,
                np.concatenate(
                    [ranges(self.starts(split), self.counts(split)) for split in SPLITS]
                ),
            )
        return FederatedData(
            rows, np.cumsum(sizes)[None], np.zeros(1, np.int64), ("pooled",), self.spec
        )

    def standardised(self, *, scaling: Scaling | None = None) -> "tuple[FederatedData, Scaling]":
        """Features as z-scores, by the sums of the training rows or by a scaling made before (for a
        held-out client).
        """
        x, y = self._supervised("standardised")
        if scaling is None:
            trained = self.counts("train")
            each = np.stack([trained, self.bounds[:, 3] - self.bounds[:, 0] - trained], axis=1)
            scaling = fit_scaling(
                x, np.repeat(np.tile([True, False], self.clients), each.reshape(-1)), self.features
            )
        rows = Rows(scaling.apply(x), y)
        return replace(self, rows=rows, spec=self.spec._replace(rows=_row_spec(rows))), scaling

    def _supervised(self, method: str) -> Rows:
        if not isinstance(self.rows, Rows):
            raise ValueError(
                f"{method} needs rows of type Rows(x, y), got {type(self.rows).__name__}"
            )
        return self.rows


def _place(split: str) -> int:
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
    return SPLITS.index(split)


def _take(rows: PyTree, order: Int[np.ndarray, " rows"]) -> PyTree:
    return jax.tree.map(lambda leaf: np.asarray(leaf[order]), rows)


def _row_spec(rows: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
