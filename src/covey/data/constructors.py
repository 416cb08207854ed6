"""The constructors of federated data, which check what they are given."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core.shard import Rows, Spec
from covey.data import assembly, checks, division, frames, values
from covey.data.client_rows import ClientRows

Values: TypeAlias = np.ndarray | jax.Array | Sequence[object]
Data = TypeVar("Data", bound="Constructors")


class Constructors(ClientRows):
    """The constructors of `FederatedData`: from arrays and from tables."""

    @classmethod
    def from_rows(
        cls: type[Data],
        rows: PyTree,
        counts: Values,
        *,
        ids: Values | None = None,
        names: Values | None = None,
        splits: Values | None = None,
        features: Sequence[str] | None = None,
        outcome: str | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
        drop_empty: bool = False,
    ) -> Data:
        """Data from rows that already lie client after client.

        Arrays of the right type are not copied.

        Args:
            rows: Arrays with all rows on the leading axis, normally `covey.core.shard.Rows(x, y)`.
            counts: Rows per client; 0 is a client without rows.
            ids: Integers in [0, 2**31) that identify the clients. Default: 0, 1, ...
            names: Names of the clients in reports. Default: the ids.
            splits: "train", "validation" or "test" for each row. Default: all are training rows.
            features: Names of the columns of x, for models and summaries. Default: no names.
            outcome: Name of the outcome, for warnings. Default: no name.
            classes: Number of labels 0, 1, ..., or None for a numeric outcome.
            allow_missing: Whether features may be NaN; `standardised` fills them.
            drop_empty: Whether to leave out clients without rows.

        Returns:
            The data.

        Example:
            >>> import covey
            >>> from covey.core.shard import Rows
            >>> rows = Rows(np.array([[1.0], [2.0], [3.0]]), np.array([0, 1, 1]))
            >>> covey.FederatedData.from_rows(rows, [2, 0, 1]).counts("train").tolist()
            [2, 0, 1]
        """
        rows = jax.tree.map(np.asanyarray, rows)
        counts = np.asarray(counts, np.int64)
        client_ids = np.arange(len(counts)) if ids is None else np.asarray(ids, np.int64)
        labels = None if names is None else np.asarray(names, str)
        if len(client_ids) != len(counts):
            raise ValueError(f"{len(client_ids)} ids were given for {len(counts)} clients")
        checks.check_identities(client_ids, labels)
        checks.check_lengths(rows, counts)
        if features is not None:
            checks.check_columns(features, rows)
        if drop_empty:
            kept = counts > 0
            client_ids, counts = client_ids[kept], counts[kept]
            labels = None if labels is None else labels[kept]
            if not len(counts):
                raise ValueError("no client has rows, and drop_empty=True leaves them all out")

        def name_of(position: int) -> str:
            return str(client_ids[position] if labels is None else labels[position])

        ends = np.cumsum(counts)
        values.check_rows(
            rows, ends, name_of, classes=classes, allow_missing=allow_missing, columns=features
        )
        rows = values.settled(rows, classes)
        if isinstance(rows, Rows) and rows.y.ndim == 1 and not isinstance(rows.y, np.memmap):
            values.warn_if_constant(rows.y, counts, outcome=outcome, classes=classes)
        bounds = np.stack([ends - counts, ends, ends, ends], axis=1)
        if splits is not None:
            codes = assembly.codes_of(np.asarray(splits), ends, name_of)
            order, bounds = division.given(counts, codes)
            rows = assembly.take(rows, order)
        names_of_columns = None if features is None else tuple(features)
        spec = Spec(assembly.row_spec(rows), classes, features=names_of_columns)
        return cls(rows, bounds, client_ids, labels, spec)

    @classmethod
    def from_arrays(
        cls: type[Data],
        x: Values,
        y: Values,
        client: Values,
        *,
        clients: Values | None = None,
        splits: Values | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        outcome: str | None = None,
        allow_missing: bool = False,
    ) -> Data:
        """Data from all rows together and, for each, the client that owns it.

        Integers in [0, 2**31) become the clients' ids. Other labels become their names, with the
        ids 0, 1, ...

        Args:
            x: Features, rows on the leading axis.
            y: Outcome of each row.
            client: Label of each row's client.
            clients: Labels of all clients, in the order wanted; one without rows is a client with
                0 rows. Default: the labels of `client`, sorted.
            splits: "train", "validation" or "test" for each row. Default: all are training rows.
            classes: Number of labels 0, 1, ..., or None for a numeric outcome.
            names: Names of the clients in reports, in the order of `clients`. Default: their
                labels.
            features: Names of the columns of x. Default: no names.
            outcome: Name of the outcome, for warnings. Default: no name.
            allow_missing: Whether features may be NaN; `standardised` fills them.

        Returns:
            The data.

        Example:
            >>> import covey
            >>> owner = ["zug", "bern", "zug"]
            >>> data = covey.FederatedData.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], owner)
            >>> [data.name_of(position) for position in range(data.clients)]
            ['bern', 'zug']
        """
        rows, owner = Rows(np.asanyarray(x), np.asanyarray(y)), np.asarray(client)
        if owner.shape != rows.y.shape[:1]:
            raise ValueError(
                f"`client` must have one label for each of the {len(rows.y)} rows, got shape"
                f" {owner.shape}"
            )
        if owner.dtype.kind in "fO" and any(
            label is None or label != label for label in owner.tolist()
        ):
            raise ValueError("`client` has missing labels; every row needs a client")
        labels, code, counts = np.unique(owner, return_inverse=True, return_counts=True)
        if clients is not None:
            labels, code, counts = assembly.listed(np.asarray(clients), labels, code)
        if not len(labels):
            raise ValueError("there are no rows at all; name their clients with `clients`")
        given = None if splits is None else np.asarray(splits)
        if np.any(code[1:] < code[:-1]):
            order = np.argsort(code, kind="stable")
            rows = Rows(rows.x[order], rows.y[order])
            given = None if given is None else given[order]
        is_id = labels.dtype.kind in "iu" and bool(
            np.all((labels >= 0) & (labels <= checks.LARGEST_ID))
        )
        return cls.from_rows(
            rows,
            counts,
            ids=labels if is_id else None,
            names=names if names is not None or is_id else labels.astype(str),
            splits=given,
            features=features,
            outcome=outcome,
            classes=classes,
            allow_missing=allow_missing,
        )

    @classmethod
    def from_clients(
        cls: type[Data],
        clients: Mapping[str, tuple[Values, Values]],
        *,
        splits: Mapping[str, Values] | None = None,
        features: Sequence[str] | None = None,
        outcome: str | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
        drop_empty: bool = False,
    ) -> Data:
        """Data from the features and outcomes of each client.

        Args:
            clients: For each client's name, its features and its outcomes, which may be empty.
                Clients keep this order and have the ids 0, 1, ...
            splits: For each client's name, "train", "validation" or "test" for each of its rows.
                Default: all are training rows.
            features: Names of the columns of x. Default: no names.
            outcome: Name of the outcome, for warnings. Default: no name.
            classes: Number of labels 0, 1, ..., or None for a numeric outcome.
            allow_missing: Whether features may be NaN; `standardised` fills them.
            drop_empty: Whether to leave out clients without rows.

        Returns:
            The data.

        Example:
            >>> import covey
            >>> clients = {"bern": ([[1.0], [2.0]], [0, 1]), "new": ([], [])}
            >>> covey.FederatedData.from_clients(clients, classes=2).counts("train").tolist()
            [2, 0]
        """
        if not clients:
            raise ValueError("no clients were given")
        checks.check_pairs(clients)
        tables = {name: Rows(np.asarray(x), np.asarray(y)) for name, (x, y) in clients.items()}
        tables = assembly.of_one_shape(tables, features)
        filled = [table for table in tables.values() if len(table.y)]  # they decide the types
        if splits is not None and set(splits) != set(tables):
            odd = sorted(set(splits) ^ set(tables))[0]
            raise ValueError(f"splits must have the same clients as the data; see {odd!r}")
        return cls.from_rows(
            Rows(*(np.concatenate(leaves) for leaves in zip(*filled, strict=True)))
            if filled
            else next(iter(tables.values())),
            [len(table.y) for table in tables.values()],
            names=list(tables),
            splits=None
            if splits is None
            else np.concatenate([np.asarray(splits[name], str) for name in tables]),
            features=features,
            outcome=outcome,
            classes=classes,
            allow_missing=allow_missing,
            drop_empty=drop_empty,
        )

    @classmethod
    def from_tables(
        cls: type[Data],
        tables: Mapping[str, frames.Table],
        *,
        outcome: str,
        features: Sequence[str] | None = None,
        split_column: str | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
        drop_empty: bool = False,
    ) -> Data:
        """Data from one table per client.

        Args:
            tables: For each client's name, a data frame or the path of a CSV file. A table with a
                header and no rows is a client with 0 rows.
            outcome: Name of the outcome's column.
            features: Names of the feature columns. Default: all other columns, which must then be
                the same in all tables.
            split_column: Name of the column that says which rows are "train", "validation" and
                "test" rows. Default: all are training rows.
            classes: Number of labels 0, 1, ..., or None for a numeric outcome.
            allow_missing: Whether features may be missing; `standardised` fills them.
            drop_empty: Whether to leave out clients without rows.

        Returns:
            The data.

        Example:
            >>> import covey, pandas
            >>> bern = pandas.DataFrame({"age": [41, 67], "ill": [0, 1], "use": ["train", "test"]})
            >>> data = covey.FederatedData.from_tables(
            ...     {"bern": bern, "new": bern[:0]}, outcome="ill", split_column="use", classes=2
            ... )
            >>> data.features, data.counts("train").tolist(), data.counts("test").tolist()
            (('age',), [1, 0], [1, 0])
        """
        columns, found = frames.many(
            tables,
            outcome=outcome,
            features=features,
            split_column=split_column,
            allow_missing=allow_missing,
            warn_if_empty=not drop_empty,
        )
        checks.warn_of_equal_columns(columns, [table.x for table in found.values()])
        return cls.from_clients(
            {name: (table.x, table.y) for name, table in found.items()},
            splits=None
            if split_column is None
            else {name: table.splits for name, table in found.items() if table.splits is not None},
            features=columns,
            outcome=outcome,
            classes=classes,
            allow_missing=allow_missing,
            drop_empty=drop_empty,
        )

    @classmethod
    def from_table(
        cls: type[Data],
        table: frames.Table,
        *,
        outcome: str,
        client: str,
        clients: Values | None = None,
        features: Sequence[str] | None = None,
        split_column: str | None = None,
        classes: int | None = None,
        allow_missing: bool = False,
    ) -> Data:
        """Data from one table with the rows of all clients.

        Args:
            table: A data frame, or the path of a CSV file.
            outcome: Name of the outcome's column.
            client: Name of the column that says which client owns a row. Whole numbers become the
                clients' ids, everything else their names.
            clients: Labels of all clients, in the order wanted; one without rows is a client with
                0 rows. Default: the labels in the table, sorted.
            features: Names of the feature columns. Default: all other columns.
            split_column: Name of the column that says which rows are "train", "validation" and
                "test" rows. Default: all are training rows.
            classes: Number of labels 0, 1, ..., or None for a numeric outcome.
            allow_missing: Whether features may be missing; `standardised` fills them.

        Returns:
            The data.

        Example:
            >>> import covey, pandas
            >>> table = pandas.DataFrame({"site": ["b", "a"], "age": [41, 67], "ill": [0, 1]})
            >>> data = covey.FederatedData.from_table(
            ...     table, outcome="ill", client="site", clients=["a", "b", "new"]
            ... )
            >>> data.counts("train").tolist()
            [1, 1, 0]
        """
        as_text = [client] if split_column is None else [client, split_column]
        frame, source = frames.read(table, "the table", as_text=as_text)
        if clients is None and not len(frame):
            raise ValueError(f"{source.name} has a header and no rows; is it the right table?")
        owner = frames.owners(frame, client, source)
        if source.path is not None:
            owner = frames.as_numbers(owner.astype(str))
        columns = features or frames.feature_columns(
            frame, source, without=(outcome, client, split_column)
        )
        x, y, splits, _ = frames.arrays(
            frame, source, outcome=outcome, features=columns, split_column=split_column
        )
        if not allow_missing:
            frames.refuse_missing(x, columns, owner, source)
        checks.warn_of_equal_columns(columns, [x])
        return cls.from_arrays(
            x,
            y,
            owner,
            clients=clients,
            splits=splits,
            features=columns,
            outcome=outcome,
            classes=classes,
            allow_missing=allow_missing,
        )
