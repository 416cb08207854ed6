"""The design of a fit: the values by which all sites make the same columns of their rows."""

import hashlib
import warnings
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from covey.fitting.description import Level, level_values, numbers_of, outcome_column
from covey.fitting.encoding import encoded
from covey.fitting.expressions import Needs, is_name, names_of, needs_of, spline_middles
from covey.fitting.formula import Formula, parse
from covey.fitting.tables import Column, Table, labels_in
from covey.fitting.uses import Missing, Uses, columns_of, usable, uses_of

OFFSET, WEIGHTS, TOTALS, GROUPS = "(offset)", "(weights)", "(totals)", "(groups)"


class Rows(NamedTuple):
    """A site's rows, as the design has them.

    Attributes:
        x: Columns `Design.features`, one row per row that is used.
        y: The outcome; 0 and 1 where it has two levels. NaN where it is not known.
        kept: Indices of these rows in the table.
        labels: The group of each row inside the site, "" where it is not known; None where the
            design has no groups, or the table does not name them.
    """

    x: np.ndarray
    y: np.ndarray
    kept: np.ndarray
    labels: np.ndarray | None = None

    @property
    def digest(self) -> str:
        """A short text that tells these values apart from others."""
        content = [np.ascontiguousarray(part, float).tobytes() for part in (self.x, self.y)]
        return hashlib.sha256(b"".join(content)).hexdigest()[:16]

    @property
    def outcome_digest(self) -> str:
        """A short text that tells these outcomes apart from others."""
        return hashlib.sha256(np.ascontiguousarray(self.y, float).tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Design:
    """The values by which all sites make the same columns of their rows; JSON by `to_json`.

    Attributes:
        text: The formula.
        family: The family of the outcome.
        missing: What happens to missing values: "drop", "impute" or "indicator".
        weights: The column of prior weights, if any.
        client: Name of the sites in the formula.
        group: The column of groups inside a site, if any.
        kinds: For each column in use, "number" or "text".
        factors: For each factor, its levels over all sites in their order; the first is the
            reference.
        scaled: For each `scale(...)` and `center(...)`, the mean and, for `scale`, the standard
            deviation over all sites.
        fills: For each column that is filled in, the value: the mean over all sites, or the most
            frequent level.
        indicators: Columns with an indicator of missing values.
        outcome_levels: The two levels of an outcome, the event last; None for numbers.
        intercept: Whether there is a fixed intercept.
        columns: Names of the columns with a coefficient, without the intercept.
        random_intercept: Whether sites have a random intercept.
        slopes: Names of the columns with a random slope.
        correlated: Whether effects of a site may be correlated.
        rows: For each site, rows of its table.
        dropped: For each site, rows that are not used because of missing values.
        filled: For each site, cells that were filled in.
    """

    text: str
    family: str
    missing: Missing
    weights: str | None
    client: str | None
    group: str | None
    kinds: dict[str, str]
    factors: dict[str, list[Level]]
    scaled: dict[str, tuple[float, float | None]]
    fills: dict[str, float | str]
    indicators: tuple[str, ...]
    outcome_levels: tuple[Level, Level] | None
    intercept: bool
    columns: tuple[str, ...]
    random_intercept: bool
    slopes: tuple[str, ...]
    correlated: bool
    rows: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)

    @cached_property
    def formula(self) -> Formula:
        """The formula in its parts."""
        return parse(self.text)

    @cached_property
    def needs(self) -> Needs:
        """The needs of the formula from a table."""
        return needs_of(self.formula)

    @cached_property
    def uses(self) -> Uses:
        """The columns in use, by their use."""
        groups = () if self.group is None else (self.group,)
        return uses_of(self.formula, self.needs, weights=self.weights, groups=groups)

    @property
    def random_only(self) -> tuple[str, ...]:
        """Columns with a random slope and no coefficient."""
        return tuple(name for name in self.slopes if name not in self.columns)

    @property
    def special(self) -> tuple[str, ...]:
        """Columns that are used otherwise than with a coefficient."""
        given = {
            OFFSET: bool(self.formula.offsets),
            WEIGHTS: self.weights is not None,
            TOTALS: self.formula.outcome.kind != "plain",
            GROUPS: self.group is not None,
        }
        return tuple(name for name, there in given.items() if there)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of `Rows.x`."""
        return (*self.columns, *self.random_only, *self.special)

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of a site's random effects."""
        return (("Intercept",) if self.random_intercept else ()) + self.slopes

    def to_json(self) -> dict[str, Any]:
        """The design as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Design":
        """The design that `to_json` gave.

        Args:
            values: Its values.
        """
        given = dict(values)
        for name in ("indicators", "columns", "slopes", "outcome_levels"):
            given[name] = None if given[name] is None else tuple(given[name])
        given["scaled"] = {name: tuple(pair) for name, pair in given["scaled"].items()}
        return cls(**given)

    def rows_of(
        self, table: Table, *, with_outcome: bool = True, new_levels: str = "error"
    ) -> Rows:
        """The rows of a site's table.

        Args:
            table: The table.
            with_outcome: Whether the outcome is needed. Without it, and without prior weights, rows
                are for predictions.
            new_levels: "error" names a level that no site had; "reference" takes the first level in
                its place.

        Returns:
            The rows that are used.
        """
        uses = self.uses if with_outcome else self._for_prediction()
        absent = [name for name in uses.every if name not in table.frame]
        if absent:
            raise ValueError(
                f"{table.title} lacks the column{'s' * (len(absent) > 1)} "
                f"{', '.join(map(repr, absent))}; the formula is {self.text}"
            )
        columns = self._as_known(table, columns_of(table, uses))
        used = usable(columns, uses, self.missing)
        size = len(table.frame)
        marks = {name: columns[name].missing[used].astype(float) for name in self.indicators}
        kept = {name: self._filled(name, one, used) for name, one in columns.items()}
        self._check_levels(table, kept, new_levels, predicting=not with_outcome)
        x = self._matrix(kept, int(used.sum()), marks, table)
        rest = [self._special(name, kept, with_outcome, int(used.sum())) for name in self.special]
        x = np.column_stack([x, *rest]) if rest else x
        y = self._outcome(kept) if with_outcome else np.full(len(x), np.nan)
        self._check_finite(table, x, y, np.flatnonzero(used), with_outcome=with_outcome)
        return Rows(x, y, np.arange(size)[used], self._labels(table, used))

    def _labels(self, table: Table, used: np.ndarray) -> np.ndarray | None:
        if self.group is None or self.group not in table.frame:
            return None
        return np.array(labels_in(table, self.group), str)[used]

    def _for_prediction(self) -> Uses:
        outcome = {name for one in self.formula.outcome.expressions for name in names_of(one)}
        offsets = {name for one in self.formula.offsets for name in names_of(one)}
        totals = set()
        if self.formula.outcome.kind == "p":
            totals = set(names_of(self.formula.outcome.expressions[1]))
        if self.formula.outcome.kind == "cbind":
            totals = outcome
        needed = tuple(name for name in self.uses.needed if name in offsets | totals)
        return self.uses._replace(needed=needed)

    def _as_known(self, table: Table, columns: dict[str, Column]) -> dict[str, Column]:
        """Columns of the kind that all sites have."""
        found = {}
        for name, one in columns.items():
            kind = self.kinds.get(name, one.kind)
            if one.kind == "empty" and kind == "text":
                one = Column("text", np.full(len(one.values), None, object))
            elif one.kind == "number" and kind == "text":
                words = level_values(name if is_name(name) else f"`{name}`", {name: one})
                values = np.array([None if w is None else str(w) for w in words], object)
                one = Column("text", values)
            elif one.kind == "text" and kind == "number":
                at = int(np.argmax(~one.missing))
                raise ValueError(
                    f"{table.row(at)}: {name!r} is a number in the other tables, and here it is "
                    f"{one.values[at]!r}"
                )
            found[name] = one
        return found

    def _filled(self, name: str, one: Column, used: np.ndarray) -> Column:
        values = one.values[used]
        if name in self.fills:
            gaps = pd.isna(values)
            values = values.copy()
            values[gaps] = self.fills[name]
        return one._replace(values=values)

    def _check_levels(
        self, table: Table, columns: dict[str, Column], new_levels: str, *, predicting: bool
    ) -> None:
        for expression, levels in self.factors.items():
            inner = self.needs.factors.get(expression, expression)
            found = level_values(inner, columns)
            odd = [value for value in found if value is not None and value not in levels]
            if not odd:
                continue
            if new_levels == "reference" and is_name(inner):
                name = names_of(inner)[0]
                values = columns[name].values.copy()
                values[[value not in levels for value in found]] = levels[0]
                columns[name] = columns[name]._replace(values=values)
                continue
            rule = f"new_levels='reference' predicts it as {levels[0]!r}"
            remedy = rule if predicting else "Write it as elsewhere, or fit again with this site"
            raise ValueError(
                f"{table.title}: {inner!r} has the level {odd[0]!r}, which no site had; known are "
                f"{', '.join(map(repr, levels))}. {remedy}"
            )

    def _matrix(
        self, columns: dict[str, Column], size: int, marks: dict[str, np.ndarray], table: Table
    ) -> np.ndarray:
        """The columns with a coefficient, then those with a random slope alone."""
        frame = self.frame_of(columns, size)
        known = self.encoded(frame, self.formula.fixed)
        known |= {f"missing({name})": values for name, values in marks.items()}
        if self.random_only:
            for bar in self.formula.bars:
                known = self.encoded(frame, bar.terms) | known
        wanted = (*self.columns, *self.random_only)
        if not wanted:
            return np.zeros((size, 0))
        return np.column_stack([np.asarray(known[name], float) for name in wanted])

    def frame_of(self, columns: dict[str, Column], size: int) -> pd.DataFrame:
        """Columns as formulaic takes them: words as categories.

        Args:
            columns: The columns.
            size: Number of rows.
        """
        values: dict[str, Any] = {}
        for name in self.uses.predictors:
            one = columns[name]
            if one.kind == "text":
                here = sorted({value for value in one.values if value is not None})
                values[name] = pd.Categorical(one.values, categories=self.factors.get(name) or here)
            else:
                values[name] = one.values
        return pd.DataFrame(values, index=range(size))

    def encoded(self, frame: pd.DataFrame, part: str) -> dict[str, np.ndarray]:
        """The columns of a part of the formula, with the levels and scales of all sites.

        Args:
            frame: The rows.
            part: The fixed part, or the inside of a bar term.
        """
        return encoded(frame, part, scaled=self.scaled, factors=self.factors)

    def _special(
        self, name: str, columns: dict[str, Column], with_outcome: bool, size: int
    ) -> np.ndarray:
        if name == OFFSET:
            return np.sum([numbers_of(one, columns) for one in self.formula.offsets], axis=0)
        if name == WEIGHTS:
            return columns[self.weights].values if with_outcome and self.weights else np.ones(size)
        if name == TOTALS:
            first, second = self.formula.outcome.expressions
            total = numbers_of(second, columns)
            return total if self.formula.outcome.kind == "p" else numbers_of(first, columns) + total
        if not with_outcome or self.group is None:
            return np.zeros(size)
        values = columns[self.group].values
        return np.unique(values.astype(str), return_inverse=True)[1].astype(float)

    def _outcome(self, columns: dict[str, Column]) -> np.ndarray:
        if self.formula.outcome.kind != "plain":
            return numbers_of(self.formula.outcome.expressions[0], columns)
        values = outcome_column(self.formula, columns).values
        if self.outcome_levels is None:
            return np.asarray(values, float)
        known = set(self.outcome_levels)
        odd = [value for value in values if value not in known]
        if odd:
            raise ValueError(
                f"the outcome {self.formula.outcome.expressions[0]!r} is {odd[0]!r} in a row; "
                f"known are {self.outcome_levels[0]!r} and {self.outcome_levels[1]!r}"
            )
        return np.array([value == self.outcome_levels[1] for value in values], float)

    def _check_finite(
        self, table: Table, x: np.ndarray, y: np.ndarray, kept: np.ndarray, *, with_outcome: bool
    ) -> None:
        named = list(zip(self.features, x.T, strict=True))
        named += [(f"the outcome of {self.text}", y)] if with_outcome else []
        for name, values in named:
            if not np.isfinite(values).all():
                at = int(kept[np.argmax(~np.isfinite(values))])
                raise ValueError(
                    f"{table.row(at)}: {name} is not finite, e.g. the logarithm of 0; correct the "
                    "value, leave it empty, or change the term"
                )
        if with_outcome:
            self._check_roles(table, dict(named), y, kept)

    def _check_roles(
        self, table: Table, columns: dict[str, np.ndarray], y: np.ndarray, kept: np.ndarray
    ) -> None:
        """An error for weights and counts that cannot be."""
        wrong = {}
        if WEIGHTS in columns:
            why = f"the weight {self.weights!r} must be above 0"
            wrong[why] = columns[WEIGHTS] <= 0
        if TOTALS in columns:
            total, text = columns[TOTALS], self.formula.outcome.kind
            wrong[f"{text}(...) takes counts, 0, 1, 2, ..., with no more successes than trials"] = (
                (y < 0) | (y > total) | (y != np.floor(y)) | (total != np.floor(total))
            )
        for why, odd in wrong.items():
            if odd.any():
                raise ValueError(f"{table.row(int(kept[np.argmax(odd)]))}: {why}")


def names_in(design: Design, part: str) -> list[str]:
    """Names of the columns of a part of the formula, found on one made-up row.

    Args:
        design: The design, with kinds, levels and scales.
        part: The fixed part, or the inside of a bar term.
    """
    known: dict[str, Any] = spline_middles(design.formula)
    for expression, levels in design.factors.items():
        inner = design.needs.factors.get(expression, expression)
        if is_name(inner) or expression not in design.needs.factors:
            known[names_of(inner)[0] if is_name(inner) else inner] = levels[0]
    row = {}
    for name in design.uses.predictors:
        text = design.kinds.get(name) == "text"
        value = known.get(name, "" if text else 1.0)
        row[name] = (
            Column("text", np.array([value], object))
            if text
            else Column("number", np.array([float(value)]))
        )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the made-up row may have a level of an expression that is none
        return list(design.encoded(design.frame_of(row, 1), part))
