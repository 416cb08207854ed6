"""Rows of many clients, and which client owns which."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Shaped

from covey.core.shard import Rows, Spec
from covey.data import assembly, checks, derived, division, storage
from covey.data.constructors import Constructors, Values
from covey.data.conversion import NewRows, features_of
from covey.data.division import SPLITS, Split
from covey.data.scaling import Scaling, check_same_scaling
from covey.data.scaling import fit as fit_scaling
from covey.data.shuffling import ranges
from covey.data.values import settled

__all__ = ["SPLITS", "FederatedData", "Split"]


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData(Constructors):
    """Rows of many clients. Make it with a constructor `from_...`, or `covey.load`.

    Every method gives new data and leaves these as they are. A client may have no rows, in one
    split or in all: it takes part in whatever needs none.

    Attributes:
        rows: Arrays with all rows on the leading axis, normally `Rows(x, y)`. Clients lie one after
            the other, without gaps.
        bounds: For each client, the indices where its training, validation and test rows start, and
            where it ends.
        ids: Stable integers in [0, 2**31). Keys and splits are made from them, so they stay with a
            client in every subset.
        names: Names of the clients in reports; None stands for the ids.
        spec: Shapes of one row, names of its columns, counts of labels, clients and training rows.
        scaling: The scaling that `standardised` applied, None for features on their original scale.
    """

    @classmethod
    def open(cls, directory: str | Path, *, memory_map: bool = True) -> "FederatedData":
        """Open data that `save` wrote.

        Args:
            directory: The directory.
            memory_map: Whether rows stay on disk until they are used. Rows that were saved as
                float64 are read and become float32, unless `jax_enable_x64` is on.

        Returns:
            The data, with their splits and their scaling.

        Example:
            >>> import covey, tempfile
            >>> folder = tempfile.mkdtemp() + "/schools"
            >>> covey.load("eight_schools").save(folder)
            >>> covey.FederatedData.open(folder).names.tolist()[:3]
            ['A', 'B', 'C']
        """
        stored = storage.read(Path(directory), memory_map=memory_map)
        if stored.features is not None:
            checks.check_columns(stored.features, stored.rows)
        rows = settled(stored.rows, stored.classes)
        spec = Spec(assembly.row_spec(rows), stored.classes, features=stored.features)
        return cls(rows, stored.bounds, stored.ids, stored.names, spec, stored.scaling)

    def save(self, directory: str | Path) -> None:
        """Write the data to a new directory, which appears only when it is complete.

        Args:
            directory: The directory, which must not exist.

        Example:
            >>> import covey, tempfile
            >>> folder = tempfile.mkdtemp() + "/heart"
            >>> covey.load("heart_disease").save(folder)
            >>> FederatedData.open(folder).clients
            4
        """
        rows = self._supervised("save")
        names = None if self.names is None else np.asarray(self.names, str)
        storage.write(
            Path(directory),
            storage.Stored(
                rows, self.bounds, self.ids, names, self.spec.classes, self.features, self.scaling
            ),
        )

    def split(
        self, validation: int | float = 0.2, test: int | float = 0.2, *, seed: int
    ) -> "FederatedData":
        """Divide each client's rows at random into training, validation and test rows.

        All rows are divided anew, whatever the splits were before. A row's ticket is a hash of the
        seed, the client's id and the index of the row within the client, and a client's rows are
        sorted by their tickets: a client's split does not depend on the other clients. The rows
        are copied: split before `save` what is too large for memory.

        Args:
            validation: Fraction of validation rows, rounded to whole rows of each client.
            test: Fraction of test rows, rounded likewise. The rest are training rows, at least
                one per client that has rows.
            seed: Seed of the random order.

        Returns:
            The data in new splits.

        Example:
            >>> import covey
            >>> data = covey.load("heart_disease").split(validation=0.1, test=0.2, seed=1)
            >>> data.counts("train").tolist(), data.counts("test").tolist()
            ([212, 206, 86, 140], [61, 59, 25, 40])
        """
        order, bounds = division.at_random(
            self.bounds, self.ids, validation=validation, test=test, seed=seed
        )
        return replace(self, rows=assembly.take(self.rows, order), bounds=bounds)

    def limited(
        self,
        *,
        train_rows: int | None = None,
        few_rows: int | None = None,
        few_share: int | float = 0.0,
        seed: int,
    ) -> "FederatedData":
        """Keep at most some training rows per client, and fewer for a share of the clients.

        Clients and rows are drawn at random; validation and test rows stay. With the same seed, a
        smaller limit keeps some of the rows of a larger one, and a smaller share has some of its
        clients.

        Args:
            train_rows: Most training rows per client; 0 leaves none, None (the default) all.
            few_rows: Most training rows of the clients drawn to have few. Default: none are.
            few_share: Share of the clients that are drawn to have few, in (0, 1].
            seed: Seed of the draw.

        Returns:
            The data with fewer training rows.

        Example:
            >>> import covey
            >>> data = covey.load("heart_disease")
            >>> data.limited(train_rows=50, few_rows=5, few_share=0.5, seed=1).counts("train")
            array([50,  5, 50,  5])
        """
        checks.check_limits(train_rows, few_rows, few_share)
        order, bounds = division.limited(
            self.bounds,
            self.ids,
            train_rows=train_rows,
            few_rows=few_rows,
            few_share=few_share,
            seed=seed,
        )
        return replace(self, rows=assembly.take(self.rows, order), bounds=bounds)

    def as_test(self) -> "FederatedData":
        """Make all rows of all clients test rows, so that there is nothing to train on.

        For clients that a model is only to be evaluated on, as they are: it cannot adapt to them.

        Returns:
            The data with test rows only.

        Example:
            >>> import covey
            >>> data = covey.load("heart_disease").as_test()
            >>> data.counts("train").tolist(), data.counts("test").tolist()
            ([0, 0, 0, 0], [303, 294, 123, 200])
        """
        return replace(self, bounds=self.bounds[:, [0, 0, 0, 3]])

    def subset(self, positions: Values) -> "FederatedData":
        """Some of the clients.

        Args:
            positions: Positions of the clients, in the order wanted. Neighbours in their old order
                are a view of the rows; others are copied.

        Returns:
            The data of these clients, with their ids and names.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").subset([3, 0]).names.tolist()
            ['va', 'cleveland']
        """
        chosen = np.asarray(positions)
        if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"positions must be a list of at least one whole number, got {chosen.dtype} of"
                f" shape {chosen.shape}"
            )
        if chosen.min() < 0 or chosen.max() >= self.clients or len(np.unique(chosen)) < len(chosen):
            raise ValueError(f"positions must be different integers in 0..{self.clients - 1}")
        bounds = self.bounds[chosen]
        starts, sizes = bounds[:, 0], bounds[:, 3] - bounds[:, 0]
        if np.all(np.diff(chosen) == 1):
            rows = jax.tree.map(lambda leaf: leaf[starts[0] : bounds[-1, 3]], self.rows)
        else:
            rows = assembly.take(self.rows, ranges(starts, sizes))
        moved = bounds + (np.cumsum(sizes) - sizes - starts)[:, None]
        names = None if self.names is None else np.asarray(self.names)[chosen]
        return replace(self, rows=rows, bounds=moved, ids=self.ids[chosen], names=names)

    def hold_out(self, clients: Sequence[str | int]) -> "tuple[FederatedData, FederatedData]":
        """Set clients aside.

        Args:
            clients: Names or ids of the clients.

        Returns:
            The data without these clients, and the data of these clients alone.

        Example:
            >>> import covey
            >>> hospitals, new = covey.load("heart_disease").hold_out(["va"])
            >>> hospitals.names.tolist(), new.names.tolist()
            (['cleveland', 'hungarian', 'switzerland'], ['va'])
        """
        out = np.asarray(sorted({self.position_of(client) for client in clients}), np.int64)
        if not 0 < len(out) < self.clients:
            raise ValueError(
                f"hold out at least one client and not all: {len(out)} of {self.clients} were named"
            )
        return self.subset(np.setdiff1d(np.arange(self.clients), out)), self.subset(out)

    def replaced_by(self, data: "FederatedData | None") -> "FederatedData":
        """Other data for a model of these: the same columns, on the same scale.

        Args:
            data: The other data; None stands for these.

        Returns:
            The other data, or these.

        Example:
            >>> import covey
            >>> hospitals, new = covey.load("heart_disease").standardised()[0].hold_out(["va"])
            >>> hospitals.replaced_by(new) is new
            True
        """
        if data is None:
            return self
        checks.check_same_columns(self.features, data.features)
        check_same_scaling(self.scaling, data.scaling)
        return data

    def pooled(self) -> "FederatedData":
        """All rows as those of one client, each in the split it was in.

        Returns:
            The data that a trusted centre would see.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").pooled().counts("train").tolist()
            [920]
        """
        sizes = np.asarray([0, *(self.counts(split).sum() for split in SPLITS)])
        rows = self.rows
        if sizes[1] < sizes.sum():
            every = [ranges(self.starts(split), self.counts(split)) for split in SPLITS]
            rows = assembly.take(rows, np.concatenate(every))
        return replace(
            self,
            rows=rows,
            bounds=np.cumsum(sizes)[None],
            ids=np.zeros(1, np.int64),
            names=("pooled",),
        )

    def standardised(
        self, *, scaling: Scaling | None = None, keep: Sequence[str | int] = ()
    ) -> "tuple[FederatedData, Scaling]":
        """Features as z-scores, from federated sums of the training rows.

        The data keep the scaling as `data.scaling`, so that `rows_from` can scale new rows.
        Missing values become the training mean.

        Args:
            scaling: Scaling to apply, for clients that a model of others is used on. Default: that
                of the training rows of these data.
            keep: Columns to leave as they are, by name or index: offsets, prior weights, binomial
                totals and groups, which models use as they are. A scaling that is given keeps its
                own. Default: none.

        Returns:
            The data as z-scores, and the scaling.

        Example:
            >>> import covey
            >>> hospitals, new = covey.load("heart_disease").hold_out(["va"])
            >>> hospitals, scaling = hospitals.standardised()
            >>> new, _ = new.standardised(scaling=scaling)
            >>> round(float(scaling.mean[0]), 1), new.scaling is hospitals.scaling
            (51.9, True)
            >>> patients, _ = covey.load("heart_disease").standardised(keep=["age"])
            >>> float(patients.rows.x[0, 0])
            63.0
        """
        x, y = self._supervised("standardised")
        if scaling is not None and self.scaling is not None:
            raise ValueError(
                "these data are standardised already (data.scaling); a scaling is for data on"
                " their original scale"
            )
        if scaling is not None and keep:
            raise ValueError("a given scaling keeps its own columns; leave keep= out")
        if scaling is None:
            trained = self.counts("train")
            each = np.stack([trained, self.bounds[:, 3] - self.bounds[:, 0] - trained], axis=1)
            is_train = np.repeat(np.tile([True, False], self.clients), each.reshape(-1))
            scaling = fit_scaling(x, is_train, self.features).keeping(keep)
        checks.check_same_columns(scaling.names, self.features)
        rows = Rows(scaling.apply(x), y)
        spec = self.spec._replace(rows=assembly.row_spec(rows))
        return replace(self, rows=rows, spec=spec, scaling=scaling.after(self.scaling)), scaling

    def with_columns(
        self, **columns: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    ) -> "FederatedData":
        """Columns made of others, each by a function that every client applies to its own rows.

        For squares, interactions and logarithms. A function sees one client at a time: a mean that
        it takes is that of the client, not of all. Make columns before the data are standardised,
        and make them in new rows to predict (`rows_from`) too.

        Args:
            **columns: For each new column's name, a function of the client's columns, a mapping
                from name to values by row, to the new values. A name that exists is replaced.

        Returns:
            The data with these columns, new ones after the others.

        Example:
            >>> clients = {"bern": ([[2.0, 1.0], [3.0, 0.0]], [0, 1])}
            >>> data = FederatedData.from_clients(clients, features=["age", "urban"])
            >>> more = data.with_columns(
            ...     age_squared=lambda row: row["age"] ** 2,
            ...     age_urban=lambda row: row["age"] * row["urban"],
            ... )
            >>> more.rows.x.tolist()
            [[2.0, 1.0, 4.0, 2.0], [3.0, 0.0, 9.0, 0.0]]
        """
        x, y = self._supervised("with_columns")
        if self.scaling is not None:
            raise ValueError("with_columns: these data are standardised; make columns before that")
        ranges_of = self.bounds[:, [0, 3]].tolist()
        rows, names = derived.with_columns(x, self.features, ranges_of, columns, self.name_of)
        full = Rows(rows, y)
        spec = self.spec._replace(rows=assembly.row_spec(full), features=names)
        return replace(self, rows=full, spec=spec)

    def rows_from(
        self, table: NewRows, *, standardised: bool = False
    ) -> Shaped[np.ndarray, " rows *features"]:
        """New rows as features of a model of these data: the same columns, on the same scale.

        Args:
            table: A data frame, the path of a CSV file or a mapping of columns, in which columns
                are found by name and others are ignored; or a list of rows or an array, with the
                columns in the order of `features`.
            standardised: Whether the new rows are on the scale of these data already, as rows of
                these data are. Default: they are on the original scale, and `scaling` is applied
                if there is one; it fills missing values.

        Returns:
            The features, one row per new row.

        Example:
            >>> clients = {"bern": ([[40.0, 1.0], [60.0, 3.0]], [0, 1])}
            >>> data = FederatedData.from_clients(clients, features=["age", "dose"])
            >>> data, _ = data.standardised()
            >>> data.rows_from({"dose": [2.0], "age": [70.0], "name": ["x"]}).tolist()
            [[2.0, 0.0]]
        """
        row = self.spec.rows if isinstance(self.rows, Rows) else self._supervised("rows_from")
        return features_of(
            table,
            shape=row.x.shape,
            dtype=np.dtype(row.x.dtype),
            names=self.features,
            scaling=None if standardised else self.scaling,
        )

    def _supervised(self, method: str) -> Rows:
        if not isinstance(self.rows, Rows):
            raise ValueError(
                f"{method} needs rows of type Rows(x, y), got {type(self.rows).__name__}"
            )
        return self.rows
