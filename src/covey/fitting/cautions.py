"""What a user should know about tables that can be fitted: each is a sentence and a warning.

They are found from what sites say about their tables, and from sums that priors need anyway.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from covey.fitting.description import Description, Moments
from covey.fitting.design import Design
from covey.fitting.formula import Formula
from covey.fitting.priors import Statistics

_SCALE = 5.0  # times larger or smaller spread than elsewhere: other units
_FEW = 5  # values from which on a spread says something


def warn_of(descriptions: Sequence[Description], formula: Formula) -> list[str]:
    """What the descriptions of sites tell: sites without rows, outcomes that do not vary, levels of
    one site, numbers that look like codes of missing values.

    Args:
        descriptions: One per site.
        formula: The formula.

    Returns:
        Sentences; each is also a warning.
    """
    said = []
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
    return _warned([*said, *_levels_of_one_site(descriptions)])


def _levels_of_one_site(descriptions: Sequence[Description]) -> Iterator[str]:
    with_rows = [one for one in descriptions if one.complete]
    for name in dict.fromkeys(name for one in with_rows for name in one.levels):
        seen: dict[object, list[str]] = {}
        for one in with_rows:
            for level, _ in one.levels.get(name, ()):
                seen.setdefault(level, []).append(one.site)
        for level, sites in seen.items():
            if len(sites) == 1 and len(with_rows) > 2:
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
    """What the sums of sites tell: a column in other units at one site, the same rows twice.

    Args:
        design: The design.
        descriptions: One per site.
        each: For each site, its sums.
        digests: For each site, a text that tells its rows apart.

    Returns:
        Sentences; each is also a warning.
    """
    said = []
    scaled = {one.site: one.moments for one in descriptions}
    for name in design.columns:
        if name in design.scaled:
            moments = {site: Moments(*scaled[site][name]) for site in each if name in scaled[site]}
        elif all(one.binary[name] for one in each.values()):
            continue
        else:
            moments = {site: one.columns[name] for site, one in each.items()}
        said += _other_units(design.needs.scaled.get(name, name), moments)
    first: dict[str, str] = {}
    for site, digest in digests.items():
        if each[site].outcome.count and first.setdefault(digest, site) != site:
            said.append(f"sites {first[digest]!r} and {site!r} have exactly the same rows")
    return _warned(said)


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
