"""Formulaic, with the levels and scales of all sites in place of those that it would find in one
table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from covey.fitting.expressions import context


def encoded(
    frame: pd.DataFrame,
    part: str,
    *,
    scaled: Mapping[str, tuple[float, float | None]],
    factors: Mapping[str, Sequence[Any]],
) -> dict[str, np.ndarray]:
    """The columns of a part of a formula.

    Args:
        frame: The rows: numbers, and words as categories.
        part: The fixed part of the formula, or the inside of a bar term.
        scaled: For each `scale(...)` and `center(...)`, mean and standard deviation.
        factors: For each factor, its levels.

    Returns:
        Values by the names of the columns, `Intercept` among them.

    Example:
        >>> rows = pd.DataFrame({"age": [40.0], "sex": ["m"]})
        >>> known = {"sex": ["f", "m", "x"]}
        >>> scaled = {"scale(age)": (50.0, 5.0)}
        >>> list(encoded(rows, "scale(age) + sex", scaled=scaled, factors=known))
        ['Intercept', 'scale(age)', 'sex[T.m]', 'sex[T.x]']
    """
    import formulaic
    from formulaic.parser.types import Factor

    state = {
        name: {"ddof": 1, "center": mean, "scale": deviation}
        for name, (mean, deviation) in scaled.items()
    }
    levels = {
        name: (Factor.Kind.CATEGORICAL, {"categories": list(known)})
        for name, known in factors.items()
    }
    made: Any = formulaic  # its types do not know that a formula is made by calling the class
    spec = made.ModelSpec(
        formula=made.Formula(part), na_action="ignore", transform_state=state, encoder_state=levels
    )
    with np.errstate(all="ignore"):
        matrix = spec.get_model_matrix(frame, context=context())
    return {str(name): np.asarray(matrix[name], float) for name in matrix.columns}
