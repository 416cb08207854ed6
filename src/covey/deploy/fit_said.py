"""Answers of sites before a fit, checked by the server: a site with an impossible answer is named,
and nothing of it enters a sum.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from covey.data.roster import MOST_ROWS
from covey.deploy.plain_values import checked
from covey.deploy.plan import BadAnswerError
from covey.deploy.study import Study
from covey.fitting.description import Description, Level, Moments
from covey.fitting.design import Design
from covey.fitting.expressions import is_name, names_of, needs_of
from covey.fitting.priors import Statistics

_LARGEST = 1e100  # of a mean: its square times the rows is a number still
_MOST_VALUES = 100  # of an outcome
_KINDS = ("number", "text", "empty")
_GROUPS = ("absent", "constant", "varies")


def description_of(study: Study, site: str, content: Any) -> Description:
    """The description that a site has sent.

    Args:
        study: The study.
        site: The site's name.
        content: Plain values.

    Raises:
        BadAnswerError: They are no description, or not one of a table for this study.
    """
    try:
        found = checked(Description, content)
    except ValueError as error:
        raise BadAnswerError(
            site, f"describes its table in no way that is known: {error}"
        ) from None
    for wrong in _wrong(study, found):
        raise BadAnswerError(site, f"describes its table in a way that cannot be: {wrong}")
    return found._replace(site=site)


def statistics_of(design: Design, site: str, content: Any) -> Statistics:
    """The sums that a site has sent, which priors are scaled by.

    Args:
        design: The design that the site was sent.
        site: The site's name.
        content: The site's answer about its rows: `entry` and `statistics`.

    Raises:
        BadAnswerError: They are no such sums, or not of the site's rows.
    """
    match content:
        case {"entry": {"rows": {"train": int(rows)}, "spec": {"features": list(names)}}, **rest}:
            pass
        case _:
            raise BadAnswerError(site, "gives no count of its rows")
    try:
        found = checked(Statistics, rest.get("statistics"))
    except ValueError as error:
        raise BadAnswerError(site, f"gives no sums of its rows: {error}") from None
    each = (found.columns, found.binary, found.varies)
    if tuple(names) != design.features or any(set(one) != set(names) for one in each):
        raise BadAnswerError(site, "gives sums of other columns than those of the design")
    for name, one in {**found.columns, "the outcome": found.outcome}.items():
        if not _is_possible(one) or one.count != rows:
            raise BadAnswerError(
                site, f"gives sums of {name!r} that are impossible for its {rows} rows"
            )
    return found


def _wrong(study: Study, found: Description) -> Iterator[str]:
    """The mistakes of a description."""
    formula = study.formula
    assert formula is not None
    needs, groups = needs_of(formula), {bar.group for bar in formula.bars}
    needed = {*study.outcome, *study.predictors} - groups  # a group may be constant at a site
    if not needed <= {*found.kinds, *found.absent} or not set(found.kinds) <= needed | groups:
        yield "it has other columns than those of the formula"
    if not set(found.kinds.values()) <= set(_KINDS):
        yield f"columns are {' or '.join(_KINDS)}"
    counts = [found.rows, found.complete, *found.missing.values()]
    counts += [count for _, count in found.codes.values()]
    counts += [count for levels in found.levels.values() for _, count in levels]
    if not all(0 <= count <= MOST_ROWS for count in counts):
        yield f"a count is not from 0 to {MOST_ROWS}"
    if not set(found.levels) <= {*needs.alone, *needs.factors}:
        yield "it has levels of what is no factor"
    for factor, levels in found.levels.items():
        inner = needs.factors.get(factor, factor)
        text = is_name(inner) and found.kinds.get(names_of(inner)[0]) == "text"
        yield from _wrong_values(factor, [level for level, _ in levels], text=text)
    if not set(found.moments) <= {*needs.scaled, *found.kinds}:
        yield "it has means of other columns than those of the formula"
    if not all(map(_is_possible, found.moments.values())):
        yield "it has a count, mean or sum of squares that no values have"
    if set(found.groups) != groups or not set(found.groups.values()) <= set(_GROUPS):
        yield "its groups are not those of the formula"
    if found.complete and not found.absent:
        yield from _wrong_outcome(found.outcome)


def _wrong_outcome(said: Mapping[str, Any]) -> Iterator[str]:
    match said:
        case {"kind": "number" | "text" | "empty" | "counts" as kind, "whole": bool()}:
            values, order = said.get("values"), said.get("categories")
        case _:
            yield "it says nothing of the outcome"
            return
    if values is not None:
        if not isinstance(values, (list, tuple)) or len(values) > _MOST_VALUES:
            yield "the outcome has no list of values"
            return
        yield from _wrong_values("the outcome", list(values), text=kind == "text")
    if order is not None and (
        not isinstance(order, (list, tuple)) or not {*(values or ())} <= {*map(str, order)}
    ):
        yield "the outcome's categories are not those of its values"


def _wrong_values(name: str, values: list[Level], *, text: bool) -> Iterator[str]:
    if not all(isinstance(one, str) if text else isinstance(one, (int, float)) for one in values):
        yield f"{name!r} has values of another kind than its column"
    elif len(set(values)) < len(values):
        yield f"{name!r} has a value twice"


def _is_possible(one: Moments) -> bool:
    return (
        0 <= one.count <= MOST_ROWS
        and one.count == int(one.count)
        and abs(one.mean) <= _LARGEST
        and 0 <= one.squares <= _LARGEST**2
    )
