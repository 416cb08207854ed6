"""A site's table with the columns that its owner has opened, and its mistakes told twice: with the
line and the cell to the owner, without them to everybody else.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.fitting.tables import Table, column, read_table


def open_table(site: SiteFile) -> Table:
    """The site's table. Columns that are not opened are dropped before anything looks at them.

    Args:
        site: The site's file, with the permissions of its owner.

    Raises:
        ValueError: There is no such table.
    """
    whole = read_table(site.data.table, site.name)
    kept = [name for name in whole.frame.columns if name in site.columns]
    return whole._replace(frame=whole.frame[kept])


def table_for_studies(site: SiteFile) -> Table:
    """The site's table; see `open_table`.

    Args:
        site: The site's file, with the permissions of its owner.

    Raises:
        DeclinedError: It cannot be read.
    """
    try:
        return open_table(site)
    except ValueError as error:
        why = f"the table of {site.name!r} cannot be read; the audit log there says why"
        raise DeclinedError("table", why, str(error)) from None


def digest_of(table: Table) -> str:
    """A text that tells whether the table has changed.

    Args:
        table: The table.
    """
    return hashlib.sha256(table.frame.to_csv(index=False).encode()).hexdigest()


@contextmanager
def mistakes_kept(table: Table, columns: Sequence[str]) -> Iterator[None]:
    """Errors in the table become refusals: the server learns the column, the owner's log the cell.

    Args:
        table: The site's table.
        columns: Columns that are looked at.
    """
    try:
        yield
    except ValueError as error:
        bad = [name for name in columns if name in table.frame and _is_bad(table, name)]
        which = f"the column{'s' * (len(bad) > 1)} {', '.join(map(repr, bad))} of " if bad else ""
        raise DeclinedError(
            "table",
            f"{which}the table of {table.name!r} cannot be used for this study; the audit log "
            "there gives the reason",
            str(error),
        ) from None


def _is_bad(table: Table, name: str) -> bool:
    try:
        column(table, name)
    except ValueError:
        return True
    return False
