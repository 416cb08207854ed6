"""A formula, one table per site, and a mixed model fitted without pooling rows; see `covey.fit`.

A site describes its table (`describe`), a server combines the descriptions to a design
(`combine`), and each site makes rows of it (`Design.rows_of`): nothing else leaves a site before
the rounds of the method.
"""

from covey.fitting.combination import combine
from covey.fitting.description import Description, describe
from covey.fitting.design import Design
from covey.fitting.formula import Formula, parse

__all__ = ["Description", "Design", "Formula", "combine", "describe", "parse"]
