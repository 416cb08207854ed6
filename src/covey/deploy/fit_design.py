"""The design of a formula that a server has sent, checked at the site before a row is touched.

A design says which rows a site uses and what it makes of them. So everything that the formula and
the site's own description settle must be there as they have it, and what only all sites together
can know (levels, means, scales) must be possible: no known level left out, no column more than the
formula has, nothing that is not finite, and no more columns than memory holds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from covey.deploy.plain_values import checked
from covey.deploy.refusal import DeclinedError
from covey.deploy.study import Study
from covey.fitting.combination import names_of_factor, with_columns
from covey.fitting.description import Description
from covey.fitting.design import Design
from covey.fitting.families import FAMILIES
from covey.fitting.formula import Bar
from covey.fitting.uses import uses_of

MOST_COLUMNS = 2000  # of a design; its matrix of second derivatives has their square


def design_of(study: Study, content: Any, own: Description) -> Design:
    """The design that a server has sent, checked against the study and the site's description.

    Args:
        study: The study.
        content: The design as plain values.
        own: The site's description of its table.

    Raises:
        DeclinedError: It is no design, that of another formula, or not one that sites with this
            description could have.
    """
    try:
        design = checked(Design, content)
    except ValueError as error:
        raise DeclinedError("message", f"the design cannot be read: {error}") from None
    fit = study.tables["fit"]
    wanted = (fit["formula"], fit["missing"], fit.get("weights"))
    if (design.text, design.missing, design.weights) != wanted:
        raise DeclinedError("study", "the design is not that of the study's formula")
    for wrong in _wrong(study, design, own):
        raise DeclinedError("study", f"the design cannot be used: {wrong}")
    try:
        made = with_columns(replace(design, columns=(), slopes=()), _site_bars(design))
    except ValueError as error:
        raise DeclinedError("study", f"the design cannot be used: {error}") from None
    if made != design:
        raise DeclinedError(
            "study", "the design cannot be used: its columns are not those of the study's formula"
        )
    return design


def _wrong(study: Study, design: Design, own: Description) -> Iterator[str]:
    """The mistakes of a design, in the order in which later checks rely on earlier ones."""
    groups = {bar.group for bar in design.formula.bars}
    if design.group is not None and design.group not in groups:
        yield f"the formula has no group {design.group!r:.100}"
    inner = {bar.group for bar in design.formula.bars if bar.within is not None}
    inner |= {name for name, found in own.groups.items() if found == "varies"}
    if not inner <= {design.group}:
        yield f"{', '.join(sorted(inner))} has groups inside of this site"
    bars = _site_bars(design)
    if design.client != (bars[0].group if bars else None):
        yield f"the formula does not call the sites {design.client!r:.100}"
    named = {*study.outcome, *study.predictors, design.group}
    if not named >= set(design.kinds) or not set(design.kinds) >= set(own.kinds):
        yield "it uses other columns than the study names"
    for name, kind in own.kinds.items():
        if kind not in ("empty", design.kinds[name]):
            yield f"the column {name!r} has a {kind} in each row here, not a {design.kinds[name]}"
    if design.rows or design.dropped or design.filled:
        yield "it has counts of sites"
    yield from _wrong_levels(design, own)
    yield from _wrong_outcome(study, design, own)
    yield from _wrong_numbers(design)
    if _column_count(design) > MOST_COLUMNS:
        yield f"it has more than {MOST_COLUMNS} columns"


def _wrong_levels(design: Design, own: Description) -> Iterator[str]:
    needs = design.needs
    text = [name for name in needs.alone if design.kinds.get(name) == "text"]
    if set(design.factors) != {*text, *needs.factors}:
        yield "its factors are not those of the formula"
    for name, levels in design.factors.items():
        if len(levels) < 2 or len(set(levels)) < len(levels):
            yield f"the levels of {name!r} are not two or more different ones"
        # Without a level that this site has named, the rows with it would be left out.
        if not {level for level, _ in own.levels.get(name, ())} <= set(levels):
            yield f"the levels of {name!r} lack one that this site has named"


def _wrong_outcome(study: Study, design: Design, own: Description) -> Iterator[str]:
    asked, levels = study.tables["fit"].get("family"), design.outcome_levels
    plain = design.formula.outcome.kind == "plain"
    chosen = (asked,) if asked else ("bernoulli", "gaussian") if plain else ("binomial",)
    if design.family not in chosen or design.family not in FAMILIES:
        yield f"the study's family is not {design.family!r:.50}"
    if (levels is None) == (design.family == "bernoulli"):
        yield "a Bernoulli outcome has two levels, and no other has"
    if levels is None:
        return
    values = own.outcome.get("values")
    if len(set(levels)) < len(levels) or values is None or not set(values) <= set(levels):
        yield "the levels of the outcome are not those that this site has named"


def _wrong_numbers(design: Design) -> Iterator[str]:
    """Scales and fills that no sites have."""
    if set(design.scaled) != set(design.needs.scaled):
        yield "it scales other terms than the formula"
    for name, (_, deviation) in design.scaled.items():
        if (deviation is None) != name.startswith("center"):
            yield f"the scale of {name!r} is none"
        if deviation is not None and not deviation > 0:
            yield f"the scale of {name!r} is none"
    filled = [] if design.missing == "drop" else design.needs.columns
    if set(design.fills) != {name for name in filled if name in design.kinds}:
        yield "it fills other columns than the study"
    coded = uses_of(design.formula, design.needs, weights=design.weights).factors
    for name, value in design.fills.items():
        levels = [
            level
            for factor, known in design.factors.items()
            if factor == name or name in names_of_factor(factor)
            for level in known
        ]
        is_level = name in coded or design.kinds[name] == "text"
        if (is_level and value not in levels) or (not is_level and isinstance(value, str)):
            yield f"missing values of {name!r} cannot become {value!r:.50}"
    marked = set(design.indicators)
    allowed = set(design.fills) if design.missing == "indicator" else set()
    if not marked <= allowed or len(marked) < len(design.indicators):
        yield "it marks missing values that the study does not mark"


def _site_bars(design: Design) -> list[Bar]:
    """The bar terms whose groups are the sites."""
    return [bar for bar in design.formula.bars if bar.within is None and bar.group != design.group]


def _column_count(design: Design) -> int:
    """Columns that the formula has with these levels, at most, without making them."""
    parts = [design.formula.fixed, *(bar.terms for bar in design.formula.bars)]
    return sum(_columns_of(part, design.factors) for part in parts)


def _columns_of(part: str, factors: Mapping[str, Sequence[Any]]) -> int:
    import formulaic

    made: Any = formulaic  # its types do not know that a formula is made by calling the class
    return sum(
        math.prod(len(factors.get(factor.expr, (None,))) for factor in term.factors)
        for term in made.Formula(part)
    )
