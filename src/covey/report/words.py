"""Diagnostics and sizes in sentences, for readers who do not know their thresholds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

HIGHEST_R_HAT = 1.05  # as in `covey.inference.trace`, which takes seconds to import
FEWEST_EFFECTIVE = 100
_EFFECTIVE = ("ess", "ess_bulk", "ess_tail")
_GOOD_K_HAT, _HIGHEST_K_HAT = 0.5, 0.7  # Vehtari et al. (2024), Pareto smoothed importance sampling


class Judgement(NamedTuple):
    """A sentence, and whether it asks for caution."""

    sentence: str
    poor: bool


def judge_chains(diagnostics: pd.DataFrame) -> list[Judgement]:
    """R-hat and effective draws in words.

    Args:
        diagnostics: One row per parameter: parameter, and of r_hat, ess_bulk, ess_tail and ess
            those that are known.

    Returns:
        One judgement for each that is known; parameters that never change are not judged.

    Example:
        >>> table = pd.DataFrame({"parameter": ["age"], "r_hat": [1.2]})
        >>> judge_chains(table.assign(ess_bulk=12.0, ess_tail=40.0))[0].sentence
        'The chains disagree: R-hat is 1.2 for age (good is below 1.05). Draw more.'
    """
    table: Any = diagnostics.set_index("parameter")
    r_hat = table["r_hat"].dropna() if "r_hat" in table else table.index[:0]
    sizes = [name for name in _EFFECTIVE if name in table]
    effective = table[sizes].min(axis="columns").dropna() if sizes else table.index[:0]
    found = []
    if len(r_hat) and r_hat.max() > HIGHEST_R_HAT:
        at = f"R-hat is {r_hat.max():.3g} for {r_hat.idxmax()}"
        found.append(
            Judgement(
                f"The chains disagree: {at} (good is below {HIGHEST_R_HAT}). Draw more.", True
            )
        )
    elif len(r_hat):
        found.append(
            Judgement(f"The chains agree: R-hat is at most {r_hat.max():.4g} (1 is best).", False)
        )
    if len(effective) and effective.min() < FEWEST_EFFECTIVE:
        found.append(
            Judgement(
                f"There are few independent draws: {effective.idxmin()} has "
                f"{effective.min():.0f} (good is above {FEWEST_EFFECTIVE}), so that the ends of "
                "its interval are guesses.",
                True,
            )
        )
    elif len(effective):
        found.append(
            Judgement(
                "Every parameter has at least "
                f"{effective.min():.0f} effective draws (good is above {FEWEST_EFFECTIVE}).",
                False,
            )
        )
    return found


def judge_k_hat(k_hat: float) -> Judgement:
    """The reliability of importance weights in words.

    Args:
        k_hat: Shape of the Pareto distribution fitted to the largest weights.

    Returns:
        A judgement: good up to 0.5, acceptable up to 0.7, unreliable above.

    Example:
        >>> judge_k_hat(0.9).poor
        True
    """
    if not k_hat <= _HIGHEST_K_HAT:
        return Judgement(
            f"k-hat is {k_hat:.2f}: above {_HIGHEST_K_HAT} the approximation of the posterior is "
            "not reliable. Use a sampler, or a simpler model.",
            True,
        )
    how = "good" if k_hat <= _GOOD_K_HAT else "acceptable"
    return Judgement(
        f"k-hat is {k_hat:.2f}, which is {how}: the approximation of the posterior is reliable up "
        f"to {_HIGHEST_K_HAT}.",
        False,
    )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence; the first few where there are many.

    Example:
        >>> listed(["age", "sex", "cp"]), listed(["a", "b", "c"], most=2)
        ('age, sex and cp', 'a, b and 1 other')
    """
    names = list(map(str, names))
    if len(names) > most:
        left = len(names) - most
        return f"{', '.join(names[:most])} and {left} other{'s' if left > 1 else ''}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1] if names else ""]))


def spread_in_words(values: pd.Series, names: pd.Series, measure: str) -> str:
    """The worst and the best site by a measure.

    Args:
        values: The measure of each site; NaN for sites without rows.
        names: Their names.
        measure: Name of the measure; a high accuracy is good, other measures are losses.

    Example:
        >>> spread_in_words(pd.Series([0.9, 0.7]), pd.Series(["a", "b"]), "accuracy")
        'accuracy is between 0.7 (b, served worst) and 0.9 (a, served best); the mean is 0.8.'
    """
    known = values.dropna()
    low, high = (names[at] for at in (known.idxmin(), known.idxmax()))
    high_is_good = measure in ("accuracy", "r2")
    at_low, at_high = ("worst", "best") if high_is_good else ("best", "worst")
    return (
        f"{measure} is between {known.min():.3g} ({low}, served {at_low}) "
        f"and {known.max():.3g} ({high}, served {at_high}); the mean is {np.mean(known):.3g}."
    )
