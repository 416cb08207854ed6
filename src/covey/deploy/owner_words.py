"""The view of a study on a site, in sentences for the site's owner."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from covey.deploy.approval import Approvals, Entry
from covey.deploy.ledger import SiteLedger
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.site_table import open_table
from covey.fitting.small_counts import FEW_VALUES
from covey.fitting.tables import Table, column

_NAMED = 6  # levels that are listed


def sentences_of(site: SiteFile) -> Iterator[str]:
    """The information that a study would get and would not get, and the studies that have come.

    Args:
        site: The site's file, with the permissions of its owner.

    Raises:
        ValueError: The table cannot be read, or lacks a column.
    """
    table = open_table(site)
    lacking = [name for name in site.columns if name not in table.frame]
    if lacking:
        raise ValueError(
            f"{site.data.table} lacks the column{'s' * (len(lacking) > 1)} "
            f"{', '.join(map(repr, lacking))} of data.columns and data.outcome"
        )
    rows, least = len(table.frame), site.limits.min_rows
    takes_part = "" if rows >= least else f": fewer than {least}, so it takes part in no study"
    yield f"{site.name} has {rows} row{'s' * (rows != 1)} in {site.data.table}{takes_part}."
    yield from _who(site)
    yield "A study would see how many rows it uses and, of the columns that it names:"
    for name in site.data.outcome:
        yield f"  outcome {name}: {_column(table, name, site, is_outcome=True)}"
    for name in site.data.columns:
        yield f"  {name}: {_column(table, name, site, is_outcome=False)}"
    yield from _limits(site)
    yield from _state(site)


def approval_sentences(site: SiteFile, name: str, entry: Entry) -> Iterator[str]:
    """The consequences of approving a study: its description, and the content and size of answers.

    Args:
        site: The site's file, with the permissions of its owner.
        name: The study's name.
        entry: The record of the study at the site.
    """
    yield f"Study {name}: {_standing(entry)} since {entry.since}."
    for sentence in entry.words:  # they came in a message: no signs that a terminal obeys
        yield "".join(sign if sign.isprintable() else "?" for sign in sentence)
    if entry.state == "approved":
        return
    yield "Compare the digest with the one that the study's coordinator gave you."
    yield "If you approve it, these leave the site:"
    yield "  a description of these columns: `covey site check` says what is in it;"
    yield "  the number of rows that the study uses, and sums over them in every round."
    yield from _limits(site)


def _who(site: SiteFile) -> Iterator[str]:
    studies = site.studies
    names = "any name" if studies.names == ("*",) else f"the name {' or '.join(studies.names)}"
    yield f"Studies of {names} may use the methods {', '.join(studies.methods)}."
    if studies.formulas is None:
        yield "Any formula of the columns below is allowed."
    else:
        yield f"Formulas: {'; '.join(studies.formulas)}."
    if studies.approve == "ask":
        yield "A new study waits until you approve it: covey site approve STUDY."
    else:
        yield "A study that fits these rules starts WITHOUT asking you (studies.approve)."


def _column(table: Table, name: str, site: SiteFile, *, is_outcome: bool) -> str:
    """The information that a study would get of a column, and the treatment of rare values."""
    found = column(table, name)
    known = [value for value, gap in zip(found.values, found.missing, strict=True) if not gap]
    if not known:
        return "no value at all"
    counts = Counter(known)
    if found.kind == "text" or len(counts) <= FEW_VALUES:
        kind = "words" if found.kind == "text" else "numbers"
        said = f"{kind}: {_levels(counts, site, is_outcome=is_outcome)}"
    else:
        said = "numbers: their count, mean and variance"
    gaps, limits = len(found.values) - len(known), site.limits
    if gaps:
        said += f"; {gaps} missing"
        if gaps < limits.min_count and limits.rare_levels == "drop" and not is_outcome:
            said += ", and a study that fills gaps leaves these rows out"
    return said


def _levels(counts: Counter[Any], site: SiteFile, *, is_outcome: bool) -> str:
    least, rule = site.limits.min_count, site.limits.rare_levels
    rare = sorted((value for value in counts if counts[value] < least), key=str)
    named = sorted((value for value in counts if rule == "use" or counts[value] >= least), key=str)
    said = "no value" if is_outcome else "no level"
    if named:
        what = "the values " if is_outcome else "the levels "
        said = what + _listed([_plain(one) for one in named]) + ", and how many rows have each"
    if not rare:
        return said
    rows = sum(counts[value] for value in rare)
    few = _listed([f"{_plain(value)} ({counts[value]})" for value in rare])
    these = f"these {rows} rows" if rows != 1 else "this row"
    if rule == "use":
        return f"{said}, also the few that have {few}"
    if is_outcome:
        return f"{said}; few have {few}, so that you take no part where a formula has this outcome"
    return f"{said}; few have {few}, and a formula leaves {these} out"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


def _standing(entry: Entry) -> str:
    if entry.state == "waiting":
        return "waits for your approval"
    by = {"owner": "you", "rule": "your rule studies.approve"}
    return f"{entry.state} by {by.get(entry.by, entry.by)}"


def _limits(site: SiteFile) -> Iterator[str]:
    limits, privacy = site.limits, site.privacy
    if limits.rare_levels == "drop":
        yield (
            f"A study of a formula learns no count below {limits.min_count}: rows of which there "
            "are fewer are left out (limits.rare_levels is 'drop'), also where few rows have a "
            "combination of levels that the formula names, such as sex * ward. Only rows that the "
            "study uses count: more can be rare there than above. Your audit log says how many "
            "are left out, and the study learns for which columns. A method of a configuration "
            "uses all rows."
        )
    else:
        yield (
            "Rows of which there are few are used (limits.rare_levels is 'use'): names of their "
            "levels leave, and whoever has your sums can compute their counts, from means as from "
            "the gradient and the information matrix of any upload, and the other values of single "
            "rows with a gap."
        )
    yield (
        "In every round it would see one upload of this site: sums over all rows, e.g. a gradient "
        f"or a likelihood with its derivatives. The server sees it by itself, not only in the sum "
        f"over sites. Your site answers at most {limits.most_rounds} rounds, questions and "
        f"evaluations per study, {limits.most_bytes / 1e6:g} MB per message."
    )
    if privacy.budget == "none":
        yield "No privacy budget is kept: sums leave without noise."
    else:
        yield (
            f"Privacy budget over all studies: epsilon {privacy.epsilon:g} at delta "
            f"{privacy.delta:g}; only methods that account for what they reveal are run."
        )
    if privacy.randomness == "study":
        yield "Random numbers come from the study's seed, which its server knows."
    if site.metrics.shown_to == "nobody":
        yield "The accuracy of models on this site's rows is shown to nobody else."
    else:
        yield "How well a model predicts this site's rows is shown to the study's server."


def _state(site: SiteFile) -> Iterator[str]:
    folder = site.site.state
    if not folder.is_dir():
        yield f"No study has come yet; {folder} will hold approvals, ledger, audit log, results."
        return
    ledger = SiteLedger(folder, site.privacy)
    try:
        charges = ledger.charges()
    except DeclinedError as error:
        raise ValueError(error.detail) from None
    for name, entry in Approvals(folder).entries().items():
        answers = sum(one.rounds for one in charges if one.study == name)
        had = f"{answers} answer{'s' * (answers != 1)} so far"
        yield f"Study {name} ({entry.digest[:16]}): {_standing(entry)} since {entry.since}; {had}."
    if site.privacy.budget is None:
        yield f"Spent so far: epsilon {ledger.spent():.4g}."
