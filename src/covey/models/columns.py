"""Columns of x that a regression uses otherwise than with a weight: offsets, prior weights, totals,
groups, and those with a random slope.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from covey.core.shard import Spec
from covey.models.model import flat, flat_size

Column: TypeAlias = int | str
Slopes: TypeAlias = tuple[int | str, ...] | Literal["all"]
SPECIAL = ("offset", "weights", "totals", "groups")  # roles that take a column out of the design


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Columns:
    """Indices of columns by their role, in a tree of parameters: a static part, without leaves.

    Attributes:
        width: Columns of a row.
        design: Columns with a weight, in the order of the weights.
        slopes: Which columns have a random slope, as indices into `design` and `random` together.
        offset: The column that is added to the predictor; None where there is none.
        weights: The column of prior weights.
        totals: The column of binomial totals.
        groups: The column with the groups inside a client.
        random: Columns with a random slope and no weight.
        intercept: Whether there is an intercept.
        random_intercept: Whether the first effect of a client is added to the intercept.
    """

    width: int = field(metadata={"static": True})
    design: tuple[int, ...] = field(metadata={"static": True})
    slopes: tuple[int, ...] = field(default=(), metadata={"static": True})
    offset: int | None = field(default=None, metadata={"static": True})
    weights: int | None = field(default=None, metadata={"static": True})
    totals: int | None = field(default=None, metadata={"static": True})
    groups: int | None = field(default=None, metadata={"static": True})
    random: tuple[int, ...] = field(default=(), metadata={"static": True})
    intercept: bool = field(default=True, metadata={"static": True})
    random_intercept: bool = field(default=True, metadata={"static": True})

    @property
    def effects(self) -> int:
        """Random effects of a client."""
        return self.random_intercept + len(self.slopes)

    def predictor(
        self, weight: Float[Array, " weights"], x: Shaped[Array, " rows *features"]
    ) -> Float[Array, " rows"]:
        """The weighted sum of the design's columns, plus the offset.

        Args:
            weight: Weight of each column of the design; those of `random` columns may follow.
            x: Rows with all columns.

        Returns:
            One value per row.

        Example:
            >>> import jax.numpy as jnp
            >>> columns = Columns(3, design=(0, 2), offset=1)
            >>> columns.predictor(jnp.array([1.0, 10.0]), jnp.array([[1.0, 2.0, 3.0]])).tolist()
            [33.0]
        """
        if len(self.design) < self.width:  # weights of all columns: rows are not copied
            every = jnp.zeros(self.width, weight.dtype)
            index = (self.design + self.random)[: len(weight)]
            weight = every.at[jnp.asarray(index, int)].set(weight)
            weight = weight if self.offset is None else weight.at[self.offset].set(1.0)
        return flat(x) @ weight

    def values(
        self, role: Literal["weights", "totals", "groups"], x: Shaped[Array, " rows *features"]
    ) -> Float[Array, " rows"] | None:
        """The column of a role; None where no column has it.

        Args:
            role: "weights", "totals" or "groups".
            x: Rows with all columns.

        Returns:
            One value per row.

        Example:
            >>> import jax.numpy as jnp
            >>> Columns(2, design=(0,), totals=1).values("totals", jnp.array([[1.0, 8.0]])).tolist()
            [8.0]
        """
        index = getattr(self, role)
        return None if index is None else flat(x)[:, index].astype(float)


class Roles(NamedTuple):
    """Columns by their role as a user names them, by name or index; see `Columns`.

    `random_only` are those of the slopes that have no weight.
    """

    slopes: Slopes = ()
    offset: Column | None = None
    weights: Column | None = None
    totals: Column | None = None
    groups: Column | None = None
    intercept: bool = True
    random_intercept: bool = True
    random_only: tuple[Column, ...] = ()

    @property
    def special(self) -> bool:
        """Whether some column has no weight."""
        return bool(self.random_only) or any(getattr(self, role) is not None for role in SPECIAL)

    @property
    def kept_in_parameters(self) -> bool:
        """Whether the indices of columns, found when the data are known, go with the parameters."""
        by_name = self.slopes != "all" and any(isinstance(one, str) for one in self.slopes)
        return by_name or self.special or not (self.intercept and self.random_intercept)

    def check(self, name: str) -> None:
        """Raise a ValueError where a column is named twice.

        Args:
            name: Name of the model, for the message.

        Example:
            >>> Roles(slopes=("dose",), offset="dose").check("mixed_poisson")
            Traceback (most recent call last):
            ...
            ValueError: mixed_poisson: 'dose' is both slopes and offset; a column has one role
        """
        taken: dict[Column, str] = {}
        for role, column in self._named():
            if taken.get(column) == "slopes" == role:
                raise ValueError(f"{name}: slopes names a column twice: {self.slopes}")
            if column in taken:
                raise ValueError(
                    f"{name}: {column!r} is both {taken[column]} and {role}; a column has one role"
                )
            taken[column] = role
        without = [column for column in self.random_only if taken.get(column) != "slopes"]
        if without and self.slopes != "all":
            raise ValueError(
                f"{name}: random_only has {without[0]!r}, which is not one of the slopes "
                f"{self.slopes}; name it there too"
            )

    def find(self, name: str, spec: Spec) -> Columns:
        """The columns of some data.

        Args:
            name: Name of the model, for messages.
            spec: Shapes of the rows, `data.spec`.

        Returns:
            Their indices. A column that is missing, that has two roles, or that was standardised
            although its values are used as they are, raises a ValueError.

        Example:
            >>> import jax, numpy as np
            >>> from covey.core.shard import Rows
            >>> row = Rows(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2,), ())))
            >>> Roles(totals="size").find("binomial", Spec(row, features=("size", "age"))).design
            (1,)
        """
        width = flat_size(spec)
        found = {column: _index(name, role, column, spec) for role, column in self._named()}
        alone = sorted(_index(name, "random_only", column, spec) for column in self.random_only)
        resolved = self._replace(
            **{
                role: found[column]
                for role in SPECIAL
                if (column := getattr(self, role)) is not None
            },
            slopes=self.slopes if self.slopes == "all" else tuple(map(found.get, self.slopes)),
            random_only=tuple(alone),
        )
        resolved.check(name)
        special = {role: getattr(resolved, role) for role in SPECIAL}
        for role, index in special.items():
            if index is not None and index in spec.standardised:
                column = getattr(self, role)
                raise ValueError(
                    f"{name}: {role}={column!r} was standardised, but its values are used as they "
                    f"are; use data.standardised(keep=[{column!r}]), in a file data.keep"
                )
        usual = [index for index in range(width) if index not in special.values()]
        design = tuple(index for index in usual if index not in alone)
        weighted = design + tuple(alone)
        slopes = usual if resolved.slopes == "all" else resolved.slopes
        return Columns(
            width,
            design,
            tuple(weighted.index(index) for index in slopes),
            **special,
            random=tuple(alone),
            intercept=self.intercept,
            random_intercept=self.random_intercept,
        )

    def _named(self) -> Sequence[tuple[str, Column]]:
        slopes = () if self.slopes == "all" else self.slopes
        special = [(role, getattr(self, role)) for role in SPECIAL]
        return [*(("slopes", column) for column in slopes)] + [
            (role, column) for role, column in special if column is not None
        ]


NO_ROLES = Roles()


def _index(name: str, role: str, column: Column, spec: Spec) -> int:
    if not isinstance(column, str):
        if not 0 <= column < flat_size(spec):
            raise ValueError(
                f"{name}: {role} are columns 0 to {flat_size(spec) - 1} of these rows, got {column}"
            )
        return column
    if spec.features is None:
        raise ValueError(
            f"{name}: {role} has the name {column!r}, but the columns of these data have no names; "
            "give its index, or make the data with features="
        )
    if column not in spec.features:
        near = get_close_matches(column, spec.features, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{name}: {role} has {column!r}, but the columns of these data are "
            f"{', '.join(spec.features)}{hint}"
        )
    return spec.features.index(column)
