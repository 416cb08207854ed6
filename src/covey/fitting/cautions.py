"""Cautions about tables that can be fitted: each is a sentence and a warning.

They are found from the sites' descriptions of their tables, and from sums that priors need anyway.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from statistics import median

import numpy as np

from covey.fitting.combination import order_of
from covey.fitting.description import Description, Moments
from covey.fitting.design import Design
from covey.fitting.expressions import names_of
from covey.fitting.formula import Formula
from covey.fitting.priors import LogPrior, Statistics, decided_by_priors
from covey.fitting.terms import Terms

_SCALE = 5.0  # times larger or smaller spread than elsewhere: other units
_FAR = 10.0  # standard deviations from 0: there is nothing to be said of 0
_FEW = 5  # values from which on a spread says something


# What a method says to its user in Python, and the same for somebody with a formula.
_WORDS = (
    (
        "Give prior= a standard deviation of the weights, e.g. prior=2.5 for columns of standard "
        "deviation 1",
        "Use estimate='posterior', whose priors keep them finite, or leave a column out",
    ),
    (
        "or give prior= a standard deviation of the weights; until then",
        "or use estimate='posterior'; until then",
    ),
    (
        "centre them, e.g. by data.standardised()",
        "write center(column) for such a column, or I(outcome - 1000) for such an outcome",
    ),
    (
        "Standardise the columns (data.standardised()), choose covariance='diagonal' or fewer "
        "slopes, or give a prior= of the parameters; where the likelihood has no maximum, "
        "estimate='posterior' with a prior still has one",
        "Write scale(column), a double bar, (a || site), or fewer slopes; where the likelihood has "
        "no maximum, estimate='posterior' still has one",
    ),
    ("centre and scale them, e.g. by data.standardised()", "write scale(column)"),
    ("Raise draws=, give a more informative prior=, or sample", "Give more informative priors, or"),
    ("it with fald (a model without effects) or fedpop", "use method='fedpop'"),
    ("run more, e.g. run.advance(10), and look at run.metrics", "do not use these numbers"),
    ("covariance='diagonal' (a double bar in a formula)", "a double bar, (a || site)"),
)
_SINGLE = ("intercept", "noise", "dispersion", "group_deviation")  # parts of one value
_NAMED = re.compile(r"\b(weights|sd)\[([^\]]*)\]")


def in_words_of_the_formula(text: str, parts: Mapping[str, Sequence[str]] | None = None) -> str:
    """A method's warning, in the words of the formula.

    Args:
        text: The warning.
        parts: For each part that a model describes, the names of its values; see `Terms.parts`.

    Example:
        >>> in_words_of_the_formula("marginal: weights[age] and sd[intercept] run away")
        'age and sd(Intercept) run away'
        >>> in_words_of_the_formula("noise: 0", {"noise": ("sigma",)})
        'sigma: 0'
    """
    for before, after in _WORDS:
        text = text.replace(before, after)

    def named(found: re.Match[str]) -> str:
        inner = "Intercept" if found[2] == "intercept" else found[2]
        return inner if found[1] == "weights" else f"sd({inner})"

    text = _NAMED.sub(named, text.removeprefix("marginal: "))
    for part in _SINGLE:
        if parts and part in parts:
            text = re.sub(rf"\b{part}\b(?=,|:| is | run away)", parts[part][0], text)
    return text[:1].upper() + text[1:] if text[:4] == "the " else text


@contextmanager
def collected(notes: list[str], parts: Mapping[str, Sequence[str]] | None = None) -> Iterator[None]:
    """Warnings of a method, in the words of the formula, as notes and as warnings.

    Args:
        notes: Where to add them.
        parts: For each part that the model describes, the names of its values.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:  # also those of a fit that fails
        _say_again(caught, notes, parts)


def _say_again(
    caught: Sequence[warnings.WarningMessage],
    notes: list[str],
    parts: Mapping[str, Sequence[str]] | None,
) -> None:
    for one in caught:
        if not issubclass(one.category, UserWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
            continue
        text = in_words_of_the_formula(str(one.message), parts)
        if text not in notes:
            notes.append(text)
            warnings.warn(text, stacklevel=5)


def warn_of(
    descriptions: Sequence[Description], formula: Formula, family: str | None = None
) -> list[str]:
    """What the descriptions of sites tell: sites without rows, outcomes that do not vary, levels of
    one site, numbers that look like codes of missing values.

    Args:
        descriptions: One per site.
        formula: The formula.
        family: The family that was asked for; None where the outcome has chosen it.

    Returns:
        Sentences; each is also a warning.
    """
    said = [] if family is not None else list(_counts(descriptions, formula))
    for one in descriptions:
        if one.complete == 0:
            why = "has no rows" if not one.rows else f"has {one.rows} rows, all with missing values"
            said.append(f"site {one.site!r} {why}: it takes part without any")
        values = one.outcome.get("values")
        if values is not None and len(values) == 1 and one.complete > 1:
            said.append(
                f"the outcome {formula.outcome.expressions[0]!r} is {values[0]!r} in all "
                f"{one.complete} rows of site {one.site!r}"
            )
        for name, (value, count) in one.codes.items():
            said.append(
                f"{name!r} is {value:g} in {count} row{'s' * (count > 1)} of site {one.site!r}, "
                "far from all other values: leave it empty where it stands for a missing value"
            )
    said += [
        *_levels_of_one_site(descriptions),
        *_levels_apart(descriptions),
        *_orders_apart(descriptions),
    ]
    return [*_warned(said), *_read_as_nested(descriptions, formula)]


def _counts(descriptions: Sequence[Description], formula: Formula) -> Iterator[str]:
    """Whole numbers from 0 on, more than two of them, which nobody has called amounts."""
    known = [one.outcome for one in descriptions if one.complete]
    several = any(one["values"] is None for one in known)
    if formula.outcome.kind == "plain" and several and all(one.get("whole") for one in known):
        name = formula.outcome.expressions[0]
        if any(one.get("zeros") for one in known):
            yield (
                f"the outcome {name!r} is 0, 1, 2, ..., and is fitted as gaussian: for counts give "
                "family='poisson' or 'negative_binomial', for amounts family='gaussian'"
            )


def _read_as_nested(descriptions: Sequence[Description], formula: Formula) -> Iterator[str]:
    """Notes on the reading of groups inside of sites, where the formula leaves it open."""
    for bar in formula.bars:
        if bar.within is None and any(one.groups[bar.group] == "varies" for one in descriptions):
            yield (
                f"{bar.text} is read as groups inside of sites: the same {bar.group} at two sites "
                "are two groups."
            )


def _levels_apart(descriptions: Sequence[Description]) -> Iterator[str]:
    """Factors of which two sites have no level in common, and each has several."""
    with_rows = [one for one in descriptions if one.complete]
    for name in dict.fromkeys(name for one in with_rows for name in one.levels):
        of = {one.site: [level for level, _ in one.levels.get(name, ())] for one in with_rows}
        several = {site: levels for site, levels in of.items() if len(levels) > 1}
        for site, levels in several.items():
            other = next((one for one in several if not set(levels) & set(several[one])), None)
            if other is not None:
                yield (
                    f"{name!r} has the levels {_some(levels)} at site {site!r} and "
                    f"{_some(several[other])} at site {other!r}, none in common: are they coded in "
                    "the same way?"
                )
                break


def _orders_apart(descriptions: Sequence[Description]) -> Iterator[str]:
    """Categoricals whose orders contradict each other: the first level is the reference."""
    for name in dict.fromkeys(name for one in descriptions for name in one.categories):
        orders: dict[tuple[str, ...], str] = {}
        for one in descriptions:
            if name in one.categories:
                orders.setdefault(one.categories[name], one.site)
        if order_of(orders) is None:
            (first, site), (second, other) = list(orders.items())[:2]
            yield (
                f"{name!r} has the order {_some(first)} at site {site!r} and {_some(second)} at "
                f"site {other!r}: its levels are taken in the order of the alphabet, and the first "
                "of them is the reference"
            )


def _some(levels: Sequence[object]) -> str:
    return ", ".join(map(repr, levels[:3])) + (", ..." if len(levels) > 3 else "")


def _levels_of_one_site(descriptions: Sequence[Description]) -> Iterator[str]:
    with_rows = [one for one in descriptions if one.complete]
    for name in dict.fromkeys(name for one in with_rows for name in one.levels):
        seen: dict[object, list[str]] = {}
        for one in with_rows:
            for level, _ in one.levels.get(name, ()):
                seen.setdefault(level, []).append(one.site)
        shared = {site for sites in seen.values() if len(sites) > 1 for site in sites}
        for level, sites in seen.items():
            # A site that has no level in common with others is another case; see below.
            if len(sites) == 1 and len(with_rows) > 2 and sites[0] in shared:
                yield (
                    f"only site {sites[0]!r} has the level {level!r} of {name!r}: is it coded as "
                    "everywhere else?"
                )


def warn_of_rows(
    design: Design,
    descriptions: Sequence[Description],
    each: Mapping[str, Statistics],
    digests: Mapping[str, str],
) -> list[str]:
    """What the sums of sites tell: a column in other units at one site, columns far from 0 that
    have a slope by site or a product, the same rows twice.

    Args:
        design: The design.
        descriptions: One per site.
        each: For each site, its sums.
        digests: For each site, a text that tells its rows apart, where it is known.

    Returns:
        Sentences; each is also a warning.
    """
    said = []
    scaled = {one.site: one.moments for one in descriptions}
    for name in design.columns:
        said += _other_codes(name, each)
        if name in design.scaled:
            moments = {site: Moments(*scaled[site][name]) for site in each if name in scaled[site]}
        elif all(one.binary[name] for one in each.values()):
            continue
        else:
            moments = {site: one.columns[name] for site, one in each.items()}
        said += _other_units(design.needs.scaled.get(name, name), moments)
    said += _far_from_zero(design, reduce(add, each.values()))
    first: dict[str, str] = {}
    for site, digest in digests.items():
        if each[site].outcome.count and first.setdefault(digest, site) != site:
            said.append(f"sites {first[digest]!r} and {site!r} have exactly the same rows")
    return _warned(said)


def warn_of_priors(prior: LogPrior, design: Design, draws: np.ndarray) -> list[str]:
    """Collinear columns on which the priors decide.

    Args:
        prior: The log prior.
        design: The design.
        draws: Draws of the posterior, in the order of the terms.

    Returns:
        At most one sentence, which is also a warning.
    """
    names = decided_by_priors(prior, Terms.of(design), draws)
    if len(names) < 2:
        return []
    return _warned(
        [
            f"{', '.join(names)} are collinear, or nearly so: the data determine a combination of "
            "them, and the priors decide on each alone. Leave one out, or give priors that you "
            "believe"
        ]
    )


def warn_of_a_new_site(
    design: Design, name: str, own: Statistics, means: Mapping[str, float], twin: str | None
) -> list[str]:
    """Cautions from the rows of a site that joins later.

    Args:
        design: The design.
        name: The site.
        own: Its sums.
        means: Means of the columns over the other sites.
        twin: A site of the fit that has exactly the same rows, if any.

    Returns:
        Sentences; each is also a warning.
    """
    said = [] if twin is None else [f"sites {twin!r} and {name!r} have exactly the same rows"]
    for column in design.columns:
        here, elsewhere = own.columns[column], means.get(column, 0.0)
        before, sd = design.scaled.get(column, (None, None))
        if before is not None and sd is not None:  # in its own units again
            here = Moments(here.count, before + sd * here.mean, sd**2 * here.squares)
            elsewhere = before
        if own.binary[column] or here.count < _FEW or not here.mean > here.sd > 0:
            continue
        times = here.mean / elsewhere if elsewhere > 0 else 1.0
        if not 1 / _SCALE < times < _SCALE:
            said.append(
                f"{design.needs.scaled.get(column, column)!r} is about {times:.2g} times as large "
                f"at site {name!r} (mean {here.mean:.3g}) as elsewhere (mean {elsewhere:.3g}): are "
                "its units the same?"
            )
    return _warned(said)


def _other_codes(name: str, each: Mapping[str, Statistics]) -> Iterator[str]:
    """A column that is 0 or 1 at some sites, and 1 or 2 at another."""
    plain = [site for site, one in each.items() if one.binary[name] and one.varies[name]]
    for site, one in each.items():
        count, mean, squares = one.columns[name]
        # Of numbers that are 1 or 2, and of no others, the mean tells the sum of squares.
        if plain and 1 < mean < 2 and abs(squares - count * (mean - 1) * (2 - mean)) < 1e-6 * count:
            yield (
                f"{name!r} is 0 or 1 at site {plain[0]!r} and 1 or 2 at site {site!r}: is it coded "
                "in the same way?"
            )


def _far_from_zero(design: Design, total: Statistics) -> Iterator[str]:
    """Columns such as years: what their priors say of 0 decides on slopes by site and curves."""
    for name, one in total.columns.items():
        if name in design.special or not 0 < one.sd * _FAR < abs(one.mean):
            continue
        products = [other for other in design.columns if _has_factor(other, name)]
        if name in design.slopes:
            what = "its slope differs between sites"
        elif products:
            what = f"it is a part of {products[0]!r}"
        else:
            continue
        yield (
            f"{name!r} is far from 0 (mean {one.mean:.4g}, sd {one.sd:.2g}), and {what}: the other "
            f"coefficients are then those at {name} = 0, and priors and numerical errors there "
            f"decide on the result. Write center({name}) for it"
        )


def _has_factor(column: str, name: str) -> bool:
    """Whether a column is a product with, or a power of, another."""
    parts = column.split(":")
    return column != name and (
        name in parts or any(part.startswith("I(") and name in names_of(part) for part in parts)
    )


def _other_units(name: str, moments: Mapping[str, Moments]) -> Iterator[str]:
    """Sites whose mean and spread are the same multiple of those elsewhere, as units would be.

    Only for amounts, whose means are larger than their spread; elsewhere is the middle site.
    """
    known = {site: one for site, one in moments.items() if one.count >= _FEW and one.sd > 0}
    for site, own in known.items():
        others = [one for other, one in known.items() if other != site]
        if not others:
            return
        spread, mean = (median([getattr(one, part) for one in others]) for part in ("sd", "mean"))
        if not (mean > spread and own.mean > own.sd):
            continue
        ratio, times = own.sd / spread, own.mean / mean
        if not 1 / _SCALE < ratio < _SCALE and 0.5 < times / ratio < 2:
            yield (
                f"{name!r} is about {times:.2g} times as large at site {site!r} (mean "
                f"{own.mean:.3g}) as elsewhere (mean {mean:.3g}): are its units the same?"
            )


def _warned(sentences: Sequence[str]) -> list[str]:
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=4)
    return list(sentences)
