"""A site's no, in words: to the server that asked, and to the site's audit log."""

from typing import Literal, TypeAlias, get_args

Reason: TypeAlias = Literal[
    "approval",  # the study waits for the site's owner; asking again later may help
    "study",  # a name, digest or configuration that the site does not take part in
    "method",  # a method that is not listed
    "formula",  # a formula, or a column of one, that is not listed
    "table",  # the site's table does not fit the study
    "rows",  # too few rows
    "question",  # a question that the study does not ask, or asks with another content
    "rounds",  # more rounds than the owner allows
    "budget",  # the privacy budget is spent
    "metrics",  # the owner shows no metrics
    "version",  # the server has another version of Covey
    "server",  # another server conducts this study
    "store",  # the site's own state is older than the server's record of it
    "disk",  # the site cannot write its state
    "message",  # bytes that cannot be read, or are too many, or come out of order
]
REASONS: tuple[str, ...] = get_args(Reason)


class DeclinedError(Exception):
    """The reason why a site does not answer.

    Attributes:
        reason: The kind of reason, for a server that asks again or continues without the site.
        why: The reason in a sentence for the study's coordinator. It says nothing about rows.
        detail: The reason as the site's owner reads it in the audit log, e.g. with the line of the
            table that is meant. Default: `why`.
    """

    def __init__(self, reason: Reason, why: str, detail: str | None = None):
        super().__init__(why)
        self.reason: Reason = reason
        self.why, self.detail = why, why if detail is None else detail
