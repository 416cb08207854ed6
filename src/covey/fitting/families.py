"""Families of outcomes: which one a formula has, its model, and its predictions in NumPy."""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from covey.fitting.description import Description, Level
from covey.fitting.formula import Formula

if TYPE_CHECKING:
    from covey.models.mixed import MixedModel

FAMILIES = ("gaussian", "bernoulli", "binomial", "poisson", "negative_binomial")
_CALLED = {  # by other names, in lower case
    "logistic": "bernoulli",
    "logit": "bernoulli",
    "binary": "bernoulli",
    "normal": "gaussian",
    "linear": "gaussian",
    "count": "poisson",
    "nb": "negative_binomial",
    "nbinom2": "negative_binomial",
    "negbinomial": "negative_binomial",
}
LINKS = {"gaussian": "identity", "bernoulli": "logit", "binomial": "logit"}  # others: log


def family_of(
    descriptions: Sequence[Description], formula: Formula, family: str | None
) -> tuple[str, tuple[Level, Level] | None]:
    """The family of the outcome, and its two levels where it has two, the event last.

    Args:
        descriptions: One per site.
        formula: The formula.
        family: The family that was asked for; None chooses it by the outcome.
    """
    if family is not None and family not in FAMILIES:
        lower = str(family).lower()
        near = [_CALLED[lower]] if lower in _CALLED else get_close_matches(lower, FAMILIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}{hint}")
    if formula.outcome.kind != "plain":
        if family not in (None, "binomial"):
            raise ValueError(
                f"{formula.outcome.kind}(...) is an outcome of the binomial family, not {family!r}"
            )
        return "binomial", None
    name = formula.outcome.expressions[0]
    if family == "binomial":
        raise ValueError(
            f"the binomial family has two columns as its outcome: cbind({name}, failures) or "
            f"p({name}, totals); for 0 and 1 use family='bernoulli'"
        )
    values, text = _values(descriptions)
    if values is not None and len(values) < 2:
        shown = f"{values[0]!r} in all rows" if values else "missing in all rows"
        raise ValueError(f"the outcome {name!r} is {shown} of all sites: there is nothing to learn")
    if text and values is not None and len({str(one).lower() for one in values}) < len(values):
        raise ValueError(
            f"the outcome {name!r} is {', '.join(map(repr, values[:5]))}: write it in the same way "
            "everywhere"
        )
    two = values is not None and len(values) == 2
    if family is None and values is None:
        _check_codes(descriptions, name)
    chosen = family or ("bernoulli" if two else "gaussian")
    if chosen == "bernoulli":
        if values is None or not two:
            some = "" if values is None else ": " + ", ".join(map(repr, values[:5]))
            raise ValueError(
                f"family='bernoulli' needs an outcome with two values, and {name!r} has more{some}"
            )
        return chosen, (values[0], values[1])
    if text:
        some = ", ".join(map(repr, (values or [])[:5]))
        raise ValueError(
            f"the outcome {name!r} is text ({some}); text with two values is family='bernoulli', "
            "and other families need numbers"
        )
    counts = all(one.outcome.get("whole", True) for one in descriptions if one.complete)
    if chosen in ("poisson", "negative_binomial") and not counts:
        raise ValueError(f"family={chosen!r} needs counts, 0, 1, 2, ..., and {name!r} has others")
    return chosen, None


def _check_codes(descriptions: Sequence[Description], name: str) -> None:
    """An error where every site has two values of the outcome, but not the same two."""
    each = {one.site: one.outcome.get("values") for one in descriptions if one.complete > 2}
    pairs = {site: tuple(found) for site, found in each.items() if found and len(found) == 2}
    if len(set(pairs.values())) < 2 or any(found is None for found in each.values()):
        return
    (one, first), (other, second) = next(
        (a, b) for a in pairs.items() for b in pairs.items() if a[1] != b[1]
    )
    raise ValueError(
        f"the outcome {name!r} has the values {first[0]:g} and {first[1]:g} at {one} and "
        f"{second[0]:g} and {second[1]:g} at {other}; code it in the same way everywhere, or give "
        "family='gaussian' where these are amounts"
    )


def _values(descriptions: Sequence[Description]) -> tuple[list[Any] | None, bool]:
    """The distinct values of the outcome, None where there are many; and whether it is text."""
    found: set[Any] = set()
    kinds = {one.outcome.get("kind") for one in descriptions if one.complete}
    text = "text" in kinds
    orders = {
        tuple(one.outcome["categories"])
        for one in descriptions
        if one.complete and one.outcome.get("categories") is not None
    }
    for one in descriptions:
        given = one.outcome.get("values")
        if given is None and one.complete:
            return None, text
        found |= set(given or ())
    if len(orders) == 1:
        order = list(orders.pop())
        return sorted(found, key=order.index), text
    return (sorted(found) if len(found) <= 2 or text else None), text


@lru_cache(maxsize=64)
def model_of(
    family: str,
    slopes: tuple[str, ...],
    special: tuple[tuple[str, str], ...],
    intercept: bool,
    random_intercept: bool,
    random_only: tuple[str, ...],
) -> "MixedModel":
    """The mixed model of a family; the same object for the same arguments, so that it is traced
    once.

    Args:
        family: The family.
        slopes: Columns with a random slope.
        special: Roles and columns: offset, weights, totals, groups.
        intercept: Whether there is a fixed intercept.
        random_intercept: Whether there is a random one.
        random_only: Columns with a random slope alone.
    """
    from covey import models

    factories = {
        "gaussian": models.mixed_linear,
        "bernoulli": models.mixed_logistic,
        "binomial": models.mixed_binomial,
        "poisson": models.mixed_poisson,
        "negative_binomial": models.mixed_negative_binomial,
    }
    options: dict[str, Any] = dict(special)
    model = factories[family](
        slopes=slopes,
        intercept=intercept,
        random_intercept=random_intercept,
        random_only=random_only,
        **options,
    )
    coefficients = model.coefficients
    assert coefficients is not None

    def describe(phi, z):
        """All shared parameters, and the effects, in pairs."""
        return coefficients(phi, 0 * z) | {"effects": z}

    return model._replace(describe=describe)
