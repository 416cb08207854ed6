"""The fields of federated data, and read access to them.

Rows lie flat, client after client; within a client the training rows come first, then validation,
then test. The rows of a client's split are therefore one range: nothing is padded, nothing is
copied, and the storage may be a memory-mapped file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int64, PyTree, Shaped

from covey.core.mapped import release
from covey.core.shard import Rows, Shard, Spec, whole
from covey.data import assembly
from covey.data.division import SPLITS, Split, split_index
from covey.data.roster import Roster, find_client
from covey.data.scaling import Scaling
from covey.data.shuffling import ranges


@dataclass(frozen=True, eq=False, repr=False)
class ClientRows:
    """The fields of `FederatedData`, where they are described, and read access to them."""

    rows: PyTree
    bounds: Int64[np.ndarray, "clients 4"]
    ids: Int64[np.ndarray, " clients"]
    names: Sequence[str] | Shaped[np.ndarray, " clients"] | None
    spec: Spec
    scaling: Scaling | None = None

    def __post_init__(self):
        examples = int(self.bounds[:, 1].sum() - self.bounds[:, 0].sum())
        release(self.bounds)
        scaled: tuple[int, ...] = ()
        if self.scaling is not None:
            kept = self.scaling.kept
            scaled = tuple(index for index in range(self.scaling.mean.size) if index not in kept)
        spec = self.spec._replace(  # in subsets too
            clients=len(self.ids), examples=examples, standardised=scaled
        )
        object.__setattr__(self, "spec", spec)

    def __repr__(self) -> str:
        counts = np.diff(self.bounds, axis=1).sum(axis=0).tolist()
        rows = [f"{count:,} {split}" for split, count in zip(SPLITS, counts, strict=True) if count]
        clients = "1 client" if self.clients == 1 else f"{self.clients:,} clients"
        parts = [clients, f"rows: {', '.join(rows) or 'none'}"]
        if isinstance(self.spec.rows, Rows):
            shape = " x ".join(map(str, self.spec.rows.x.shape)) or "1"
            parts.append("1 feature" if shape == "1" else f"{shape} features")
        if self.spec.classes is not None:
            parts.append(f"{self.spec.classes} classes")
        return f"{type(self).__name__}({'; '.join(parts)})"

    @property
    def features(self) -> tuple[str, ...] | None:
        """Names of the columns of x; None where they have none, as pixels."""
        return self.spec.features

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.ids)

    @property
    def roster(self) -> Roster:
        """The clients without their rows: names, ids, counts and shapes.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").roster.counts("train").tolist()
            [303, 294, 123, 200]
        """
        spec = self.spec._replace(first_row=self.first_row)
        return Roster(self.ids, self.names, np.diff(self.bounds, axis=1), spec, self.scaling)

    def starts(self, split: Split) -> Int64[np.ndarray, " clients"]:
        """Index of the first row of a split, for each client.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The indices in `rows`.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").starts("train").tolist()
            [0, 303, 597, 720]
        """
        return self.bounds[:, split_index(split)]

    def counts(self, split: Split) -> Int64[np.ndarray, " clients"]:
        """Number of rows of a split, for each client.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The counts of rows.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").counts("train").tolist()
            [303, 294, 123, 200]
        """
        found = self.bounds[:, split_index(split) + 1] - self.bounds[:, split_index(split)]
        release(self.bounds)
        return np.asarray(found)

    def name_of(self, position: int) -> str:
        """Name of a client.

        Args:
            position: Position of the client in these data, from 0.

        Returns:
            Its name, or its id as text where clients have no names.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").name_of(3)
            'va'
        """
        return str(self.ids[position] if self.names is None else self.names[position])

    def position_of(self, client: str | int | np.integer) -> int:
        """Position of a client.

        Args:
            client: Its name (text) or its id (an integer).

        Returns:
            Its position in these data, from 0.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").position_of("va")
            3
        """
        return find_client(client, self.ids, self.names)

    def rows_of(self, position: int, split: Split) -> PyTree:
        """Rows of a split of one client.

        Args:
            position: Position of the client in these data, from 0.
            split: "train", "validation" or "test".

        Returns:
            The rows, as a view of the storage.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").rows_of(3, "train").x.shape
            (200, 13)
        """
        start, end = self._range(position, split)
        return jax.tree.map(lambda leaf: leaf[start:end], self.rows)

    def _range(self, position: int, split: Split) -> tuple[int, int]:
        """The start and end of the rows of a split of one client, without reading the others."""
        first = split_index(split)
        return int(self.bounds[position, first]), int(self.bounds[position, first + 1])

    def first_row(self, condition: Callable[[PyTree], np.ndarray]) -> str | None:
        """The first row with some property, for errors.

        Args:
            condition: (rows) -> for each row of all clients, whether it has the property.

        Returns:
            The client and the row, in words, and how many rows there are; None where there are
            none.

        Example:
            >>> import covey
            >>> covey.load("eight_schools").first_row(lambda rows: rows.y < 0)
            "client 'C', row 0 (from 0), and 1 more"
        """
        found = np.flatnonzero(condition(self.rows))
        if not found.size:
            return None
        position = int(np.searchsorted(self.bounds[:, 3], found[0], side="right"))
        row = int(found[0] - self.bounds[position, 0])
        more = f", and {found.size - 1} more" if found.size > 1 else ""
        return f"client {self.name_of(position)!r}, row {row} (from 0){more}"

    def rows_in(self, split: Split) -> PyTree:
        """Rows of a split of all clients, client after client.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The rows, as a copy.

        Example:
            >>> import covey
            >>> covey.load("heart_disease").rows_in("train").y.shape
            (920,)
        """
        return assembly.take(self.rows, ranges(self.starts(split), self.counts(split)))

    def shard(self, position: int, split: Split) -> Shard:
        """Rows of a split of one client, as a site would hold them.

        Args:
            position: Position of the client in these data, from 0.
            split: "train", "validation" or "test".

        Returns:
            The rows as a `Shard` on the device; one blank row that does not count where the client
            has none.

        Example:
            >>> import covey
            >>> int(covey.load("heart_disease").shard(3, "train").count)
            200
        """
        start, end = self._range(position, split)
        if end > start:
            return whole(self.rows_of(position, split))
        # A row cannot be taken from an array without rows, not even one that a mask then hides.
        blank = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), self.rows)
        return replace(whole(blank), count=jnp.int32(0))
