"""The front door: a formula, one table per site, and a mixed model fitted without pooling rows.

A site describes its table (`describe`), a server combines the descriptions to a design
(`combine`), and each site makes rows of it (`Design.rows`): nothing else leaves a site before the
rounds of the method.
"""

from covey.fitting.description import Description, describe
from covey.fitting.combination import combine
from covey.fitting.design import Design
from covey.fitting.fit import fit
from covey.fitting.formula import Formula, parse
from covey.fitting.result import Fit
from covey.fitting.store import load_fit

__all__ = [
    "Description",
    "Design",
    "Fit",
    "Formula",
    "combine",
    "describe",
    "fit",
    "load_fit",
    "parse",
]
