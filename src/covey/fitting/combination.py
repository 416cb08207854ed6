"""The combination of the descriptions of all sites: one design, or an error that names the site and
the column that do not fit.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from covey.fitting.description import Description, Level, Moments
from covey.fitting.design import Design, names_in
from covey.fitting.expressions import is_name, names_of, needs_of
from covey.fitting.families import family_of
from covey.fitting.formula import Bar, Formula
from covey.fitting.uses import Missing, uses_of

_RESERVED = ("Intercept", "sigma", "shape")  # terms of a summary that are no columns
_MANY = 20  # levels that a factor may have whatever the number of rows
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})")


def combine(
    descriptions: Sequence[Description],
    formula: Formula,
    *,
    family: str | None = None,
    missing: Missing = "drop",
    weights: str | None = None,
    client: str | None = None,
) -> Design:
    """The design of a fit, from the sites' descriptions of their tables.

    Args:
        descriptions: One per site.
        formula: The formula.
        family: Family of the outcome. Default: "bernoulli" for two values, "binomial" for counts of
            successes and failures, "gaussian" for other numbers.
        missing: Treatment of missing values.
        weights: The column of prior weights, if any.
        client: The name of the sites' group in the formula, where it is known.

    Returns:
        The design: levels are the union over sites, means and standard deviations those of all
        rows.

    Raises:
        ValueError: Columns or levels do not fit together; the message names site and column.

    Example:
        >>> import pandas as pd
        >>> from covey.fitting.description import describe
        >>> from covey.fitting.formula import parse
        >>> from covey.fitting.tables import Table
        >>> formula = parse("weight ~ sex + scale(age) + (1 | site)")
        >>> tables = [
        ...     Table("a", pd.DataFrame({"weight": [60.5, 8], "age": [4, 5], "sex": ["f", "m"]})),
        ...     Table("b", pd.DataFrame({"weight": [58, 7.5], "age": [6, 3], "sex": ["f", "x"]})),
        ... ]
        >>> design = combine([describe(table, formula) for table in tables], formula)
        >>> design.columns, design.family
        (('sex[T.m]', 'sex[T.x]', 'scale(age)'), 'gaussian')
    """
    _check_columns(descriptions, weights)
    kinds = _kinds(descriptions)
    needs = needs_of(formula)
    for name in needs.columns:
        if name in _RESERVED:
            raise ValueError(
                f"the column {name!r} has the name of a parameter of the fit; rename it"
            )
    _check_outcome(descriptions, formula)
    _check_numbers(kinds, formula, weights)
    site_bars, group = _bars(descriptions, formula, client)
    chosen, levels = family_of(descriptions, formula, family)
    text = [name for name in needs.alone if kinds[name] == "text"]
    factors = {name: _levels(descriptions, name) for name in [*text, *needs.factors]}
    scaled = {}
    for name in needs.scaled:
        total = _total(descriptions, name)
        if not name.startswith("center") and not total.sd > 0:
            raise ValueError(f"{name}: its values do not vary over all sites; leave it out")
        scaled[name] = total.mean, None if name.startswith("center") else total.sd
    gaps = _gaps(descriptions)
    filled = [] if missing == "drop" else [name for name in needs.columns if name in kinds]
    coded = uses_of(formula, needs, weights=weights).factors  # numbers that name levels: C(cp)
    design = Design(
        text=formula.text,
        family=chosen,
        missing=missing,
        weights=weights,
        client=client or (site_bars[0].group if site_bars else None),
        group=group,
        kinds=kinds,
        factors=factors,
        scaled=scaled,
        fills={
            name: _fill(descriptions, name, "text" if name in coded else kinds[name])
            for name in filled
        },
        indicators=tuple(name for name in filled if missing == "indicator" and gaps[name]),
        outcome_levels=levels,
        intercept=True,
        columns=(),
        random_intercept=False,
        slopes=(),
        correlated=True,
        rows={one.site: one.rows for one in descriptions},
        dropped={one.site: one.rows - one.complete for one in descriptions},
        filled={one.site: sum(one.missing.get(name, 0) for name in filled) for one in descriptions},
    )
    return with_columns(design, site_bars)


def with_columns(design: Design, bars: list[Bar]) -> Design:
    """A design with the names of its columns and effects, which follow from all the rest.

    Args:
        design: The design, with kinds, levels and scales.
        bars: The bar terms whose groups are the sites.
    """
    fixed = names_in(design, design.formula.fixed)
    more = [f"missing({name})" for name in design.indicators]
    random: list[str] = []
    for bar in bars:
        found = names_in(design, bar.terms)
        twice = [name for name in found if name in random]
        if twice:
            raise ValueError(f"{twice[0]} varies in two bar terms of {design.text}; keep one")
        if len(bars) > 1 and len(found) > 1 and bar.correlated:
            raise ValueError(
                f"{design.text}: of several bar terms of one group, each may have one effect: "
                "write (a + b || group) for independent effects, or one term (a + b | group)"
            )
        random += found
    correlated = len(bars) == 1 and bars[0].correlated and len(random) > 1
    return replace(
        design,
        intercept="Intercept" in fixed,
        columns=tuple(name for name in [*fixed, *more] if name != "Intercept"),
        random_intercept="Intercept" in random,
        slopes=tuple(name for name in random if name != "Intercept"),
        correlated=correlated,
    )


def _check_columns(descriptions: Sequence[Description], weights: str | None) -> None:
    """An error for a column that a table lacks."""
    for one in descriptions:
        for name, hint in one.absent.items():
            lacking = [other.site for other in descriptions if name in other.absent]
            if len(lacking) == len(descriptions):
                by = "weights=" if name == weights else "the formula"
                raise ValueError(f"{by} names {name!r}, which no table has{hint}")
            raise ValueError(
                f"{one.place} lacks the column {name!r}, which other sites have{hint} (site "
                f"{one.site!r}). Add it, or leave the site or the term out"
            )


def _check_numbers(kinds: dict[str, str], formula: Formula, weights: str | None) -> None:
    """An error for words where numbers are needed."""
    for name in needs_of(formula).inside:
        if kinds.get(name) == "text":
            raise ValueError(
                f"{name!r} is text, and stands in an expression that needs numbers: "
                f"{formula.text}; as a term alone it is a factor"
            )
    if weights is not None and kinds.get(weights) == "text":
        raise ValueError(f"weights= names {weights!r}, which is text; weights are numbers above 0")
    if formula.outcome.kind == "plain" and is_name(formula.outcome.expressions[0]):
        return
    for name in (name for one in formula.outcome.expressions for name in names_of(one)):
        if kinds.get(name) == "text":
            left = formula.text.partition("~")[0].strip()
            raise ValueError(f"{name!r} is text, and the outcome {left} needs numbers")


def _check_outcome(descriptions: Sequence[Description], formula: Formula) -> None:
    """An error for an outcome that predicts itself, and for tables without a row to use."""
    outcome = [name for one in formula.outcome.expressions for name in names_of(one)]
    twice = [name for name in needs_of(formula).columns if name in outcome]
    if twice and formula.outcome.kind == "plain":
        raise ValueError(
            f"{formula.text}: {twice[0]!r} is the outcome and a predictor of it; take it out of "
            "the right-hand side"
        )
    if any(one.complete for one in descriptions):
        return
    gaps = _gaps(descriptions)
    rows = sum(one.rows for one in descriptions)
    most = ", ".join(
        f"{name!r} in {count} of {rows}" for name, count in gaps.most_common(3) if count
    )
    raise ValueError(
        "no site has a row in which all columns of the formula are known"
        + (f"; missing is {most}" if most else ": the tables have no rows")
    )


def _gaps(descriptions: Sequence[Description]) -> Counter[str]:
    """Missing cells of each column, over all sites."""
    found = Counter[str]()
    for one in descriptions:
        found.update(one.missing)
    return found


def _kinds(descriptions: Sequence[Description]) -> dict[str, str]:
    """Whether each column is numbers or words, the same for all sites."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for one in descriptions for name in one.kinds):
        of = {one.site: one.kinds.get(name, "empty") for one in descriptions}
        known = {kind for kind in of.values() if kind != "empty"}
        if len(known) > 1:
            numbers, words = (
                [site for site, kind in of.items() if kind == wanted]
                for wanted in ("number", "text")
            )
            example = next(one for one in descriptions if one.site == words[0])
            some = [str(level) for level, _ in example.levels.get(name, ())][:3]
            shown = f" ({', '.join(map(repr, some))})" if some else ""
            raise ValueError(
                f"column {name!r} has words at {', '.join(words)}{shown} and numbers at "
                f"{', '.join(numbers)}; code it in the same way everywhere"
            )
        found[name] = next(iter(known), "number")
    return found


def _levels(descriptions: Sequence[Description], name: str) -> list[Level]:
    """The union of the levels of all sites, in their order."""
    order = order_of(one.categories[name] for one in descriptions if name in one.categories)
    seen: dict[Any, str] = {}
    for one in descriptions:
        for level, _ in one.levels.get(name, ()):
            seen.setdefault(level, one.site)
    alike: dict[str, Any] = {}
    for level, site in seen.items():
        plain = " ".join(str(level).lower().split())
        if plain in alike:
            other = alike[plain]
            raise ValueError(
                f"{name!r} has the level {level!r} at {site} and {other!r} at {seen[other]}; write "
                "it in the same way everywhere"
            )
        alike[plain] = level
    _check_many(name, seen, sum(one.complete for one in descriptions))
    if len(seen) < 2:
        one = f"one level, {next(iter(seen))!r}," if seen else "no level"
        raise ValueError(f"the factor {name!r} has {one} in all tables together; leave it out")
    known: list[Level] = [level for level in order or () if level in seen]
    return known + sorted(level for level in seen if level not in known)


def order_of(orders: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The longest order of levels, which all others keep to; None where one does not.

    Args:
        orders: Levels in the order of each site that has one.

    Example:
        >>> order_of([("low", "high"), ("low", "middle", "high")])
        ('low', 'middle', 'high')
        >>> order_of([("low", "high"), ("high", "low")])
    """
    different = set(orders)
    longest = max(different, key=len, default=())
    kept = (tuple(level for level in longest if level in one) == one for one in different)
    return longest if all(kept) else None


def _check_many(name: str, levels: Iterable[Level], rows: int) -> None:
    """An error for dates, and for factors with a level for every other row, such as ids."""
    found = list(levels)
    if found and all(_DATE.fullmatch(str(level)) for level in found):
        raise ValueError(
            f"{name!r} is a date ({found[0]!r}, ...); make a number of it first, e.g. days since a "
            "date"
        )
    if len(found) > _MANY and len(found) > rows / 2:
        raise ValueError(
            f"the factor {name!r} has {len(found)} levels ({found[0]!r}, {found[1]!r}, ...) in "
            f"{rows} rows: it names rows, as an id does; leave it out"
        )


def _total(descriptions: Sequence[Description], name: str) -> Moments:
    total = Moments(0.0, 0.0, 0.0)
    for one in descriptions:
        if name in one.moments:
            total = total + Moments(*one.moments[name])
    return total


def _fill(descriptions: Sequence[Description], name: str, kind: str) -> float | str:
    """The value for missing cells: the mean over all sites, or the most frequent level."""
    if kind == "number":
        total = _total(descriptions, name)
        if not total.count:
            raise ValueError(f"{name!r} is missing in every row of every site")
        return total.mean
    counts = Counter[Any]()
    for one in descriptions:
        for factor, levels in one.levels.items():
            if factor == name or name in names_of_factor(factor):
                counts.update(dict(levels))
    if not counts:
        raise ValueError(f"{name!r} is missing in every row of every site")
    return max(sorted(counts), key=lambda level: counts[level])


def names_of_factor(factor: str) -> tuple[str, ...]:
    """The columns of a factor such as `C(cp, Sum)`.

    Args:
        factor: The factor.
    """
    return names_of(factor) if factor.startswith("C(") else (factor,)


def _bars(
    descriptions: Sequence[Description], formula: Formula, client: str | None
) -> tuple[list[Bar], str | None]:
    """Bar terms of the sites, and the column of the groups inside of them."""
    sites, inner = [], []
    label = client
    for bar in formula.bars:
        status = {one.site: one.groups[bar.group] for one in descriptions}
        if bar.within is None and (
            bar.group == client or not any(found == "varies" for found in status.values())
        ):
            if label is not None and bar.group != label:
                raise ValueError(
                    f"{bar.text}: {bar.group!r} is no column that varies inside a site, and the "
                    f"sites are called {label!r} already; correct one of the names"
                )
            _check_labels(descriptions, bar)
            label = bar.group
            sites.append(bar)
            continue
        lacking = [site for site, found in status.items() if found == "absent"]
        if lacking:
            raise ValueError(
                f"{bar.text}: the table of {lacking[0]!r} lacks the column {bar.group!r} of the "
                "groups"
            )
        inner.append(bar)
    if sites and len(descriptions) < 2:
        raise ValueError(
            f"{sites[0].text} needs at least two sites, and there is one, "
            f"{descriptions[0].site!r}; give more tables, or leave the bar term out"
        )
    if len(inner) > 1:
        raise ValueError(
            f"{formula.text}: one level of groups inside a site can be fitted, not two"
        )
    if inner and inner[0].terms.strip() != "1" and inner[0] in formula.bars:
        _check_inner(formula, inner[0])
    return sites, inner[0].group if inner else None


def _check_labels(descriptions: Sequence[Description], bar: Bar) -> None:
    """An error for groups that several sites belong to: effects are those of sites."""
    seen: dict[str, str] = {}
    for one in descriptions:
        label = one.labels.get(bar.group)
        if label is not None and seen.setdefault(label, one.site) != one.site:
            raise ValueError(
                f"{bar.text}: sites {seen[label]!r} and {one.site!r} belong to the same "
                f"{bar.group}, and the groups of a bar term are the sites, or lie inside of them; "
                f"write (1 | site), or give one table with a row's {bar.group} as its site"
            )


def _check_inner(formula: Formula, bar: Bar) -> None:
    if bar.terms.replace(" ", "") not in ("1", "1+0", "+1"):
        raise ValueError(
            f"{bar.text}: groups inside a site have a random intercept only; write (1 | "
            f"{bar.within or 'site'}:{bar.group}), and (x | {bar.within or 'site'}) for slopes"
        )
