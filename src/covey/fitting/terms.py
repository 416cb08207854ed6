"""Names of the parameters of a fit, as lme4 and brms users know them, and their values in order."""

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from covey.fitting.design import GROUPS, OFFSET, TOTALS, WEIGHTS, Design

_ROLES = {OFFSET: "offset", WEIGHTS: "weights", TOTALS: "totals", GROUPS: "groups"}


class Terms(NamedTuple):
    """Names of the parameters by kind.

    Attributes:
        intercept: Whether there is a fixed intercept.
        columns: Columns with a coefficient.
        effects: Random effects of a site.
        correlated: Whether these have correlations.
        group: The column of groups inside a site, if any.
        scale: "sigma", "shape" or nothing.
    """

    intercept: bool
    columns: tuple[str, ...]
    effects: tuple[str, ...]
    correlated: bool
    group: str | None
    scale: str | None

    @classmethod
    def of(cls, design: Design) -> "Terms":
        """The terms of a design.

        Args:
            design: The design.
        """
        scale = {"gaussian": "sigma", "negative_binomial": "shape"}.get(design.family)
        effects, group = design.effects, design.group
        correlated = design.correlated and len(effects) > 1
        return cls(design.intercept, design.columns, effects, correlated, group, scale)

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Names of the fixed effects."""
        return (("Intercept",) if self.intercept else ()) + self.columns

    @property
    def deviations(self) -> tuple[str, ...]:
        """Names of the standard deviations of the random effects."""
        return tuple(f"sd({name})" for name in self.effects)

    @property
    def correlations(self) -> tuple[str, ...]:
        """Names of the correlations, pair by pair."""
        pairs = combinations(self.effects, 2) if self.correlated else ()
        return tuple(f"cor({one},{other})" for one, other in pairs)

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the deviation of groups and of the family's scale."""
        groups = () if self.group is None else (f"sd({self.group}:Intercept)",)
        return groups + (() if self.scale is None else (self.scale,))

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return self.coefficients + self.deviations + self.correlations + self.others

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """For each part that a model describes, the names of its values."""
        found: dict[str, tuple[str, ...]] = {
            "intercept": ("Intercept",) if self.intercept else (),
            "weights": self.columns,
            "sd": self.deviations,
            "cor": self.correlations,
            "group_deviation": () if self.group is None else (f"sd({self.group}:Intercept)",),
            "noise": ("sigma",) if self.scale == "sigma" else (),
            "dispersion": ("shape",) if self.scale == "shape" else (),
        }
        return {name: labels for name, labels in found.items() if labels}

    def stacked(self, described: Mapping[str, np.ndarray]) -> np.ndarray:
        """Described values as one array with the parameters on the last axis, in the order of
        `names`; NaN for those that are not described.

        Args:
            described: For each part, values with draws on the leading axes.

        Example:
            >>> terms = Terms(True, ("age",), (), False, None, None)
            >>> terms.stacked({"intercept": np.zeros(2), "weights": np.ones((2, 1))}).tolist()
            [[0.0, 1.0], [0.0, 1.0]]
        """
        first = next(part for part in self.parts if part in described)
        shape = np.shape(described[first])
        shape = shape if first in ("intercept", "noise") else shape[:-1]
        pieces = []
        for part, labels in self.parts.items():
            given = described.get(part)
            if given is None:
                pieces.append(np.full((*shape, len(labels)), np.nan))
            else:
                pieces.append(np.asarray(given, float).reshape(*shape, len(labels)))
        return np.concatenate(pieces, axis=-1)


def special_roles(design: Design) -> tuple[tuple[str, str], ...]:
    """Roles of columns without a coefficient, and these columns.

    Args:
        design: The design.
    """
    return tuple((_ROLES[name], name) for name in design.special)
