"""What a study would see of a site, in sentences for the site's owner."""

from collections import Counter
from collections.abc import Iterator

from covey.deploy.approval import Approvals, Entry
from covey.deploy.ledger import SiteLedger
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.site_table import open_table
from covey.fitting.tables import Table, column

_NAMED = 6  # levels that are listed


def sentences_of(site: SiteFile) -> Iterator[str]:
    """What a study would see of the site, what it would not, and which studies have come.

    Args:
        site: What the owner allows.

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
    yield f"{site.name} has {rows} rows in {site.data.table}{takes_part}."
    yield from _who(site)
    yield "A study would see, of the columns that its formula or configuration names:"
    for name in site.data.outcome:
        yield f"  outcome {name}: {_column(table, name, site.limits.min_count)}"
    for name in site.data.columns:
        yield f"  {name}: {_column(table, name, site.limits.min_count)}"
    yield from _limits(site)
    yield from _state(site)


def approval_sentences(site: SiteFile, name: str, entry: Entry) -> Iterator[str]:
    """What an owner agrees to by approving a study: what it is, what leaves, and how much.

    Args:
        site: What the owner allows.
        name: The study's name.
        entry: What has come of it.
    """
    yield f"Study {name}, {entry.state} since {entry.since}."
    yield from entry.words
    if entry.state == "approved":
        yield f"It was approved by the {entry.by} already."
        return
    yield "Compare the digest with the one that the study's coordinator has told you."
    yield "If you approve it, these leave the site:"
    yield "  a description of these columns: `covey site check` says what is in it;"
    yield "  the number of rows that the study uses, and sums over them in every round."
    yield from _limits(site)


def _who(site: SiteFile) -> Iterator[str]:
    studies = site.studies
    names = "any name" if studies.names == ("*",) else " or ".join(studies.names)
    yield f"Studies of {names} may use the methods {', '.join(studies.methods)}."
    if studies.formulas is None:
        yield "Any formula of these columns is allowed; each site sees it before it agrees."
    else:
        yield f"Formulas: {'; '.join(studies.formulas)}."
    if studies.approve == "ask":
        yield "A new study waits until you approve it: covey site approve STUDY."
    else:
        yield "A study that fits these rules starts WITHOUT asking you (studies.approve)."


def _column(table: Table, name: str, least: int) -> str:
    found = column(table, name)
    gaps = int(found.missing.sum())
    told = f"{gaps} missing" if gaps >= least else f"fewer than {least} missing" if gaps else ""
    more = f"; {told}" if told else ""
    if found.kind == "empty":
        return "no value at all"
    if found.kind == "number":
        return f"numbers: their count, mean and variance where a study scales them{more}"
    counts = Counter(value for value in found.values if value is not None)
    named = sorted(level for level, count in counts.items() if count >= least)
    shown = ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")
    hidden = len(counts) - len(named)
    rare = f"; {hidden} rarer level{'s' * (hidden > 1)} not named" if hidden else ""
    return f"words: the levels {shown or 'none'}{rare}{more}"


def _limits(site: SiteFile) -> Iterator[str]:
    limits, privacy = site.limits, site.privacy
    rare = {"use": "part of sums where another site names the level", "drop": "left out"}
    yield (
        f"Counts below {limits.min_count} are not told. Rows with a rarer level are "
        f"{rare[limits.rare_levels]}."
    )
    yield (
        "In every round it would see one upload of this site: sums over all rows, e.g. a gradient "
        f"or a likelihood with its derivatives; at most {limits.most_rounds} rounds and questions "
        f"per study, {limits.most_bytes / 1e6:g} MB per message."
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
        yield "How well a model predicts this site's rows is shown to nobody else."
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
        yield (
            f"Study {name} ({entry.digest[:16]}): {entry.state} since {entry.since}; {answers} "
            f"answer{'s' * (answers != 1)} so far."
        )
    if site.privacy.budget is None:
        yield f"Spent so far: epsilon {ledger.spent():.4g}."
