"""Errors that only the sums of all sites can tell: data that a formula cannot be fitted to."""

from collections.abc import Sequence

from covey.fitting.design import TOTALS, Design
from covey.fitting.priors import Statistics
from covey.fitting.terms import Terms


def check_sums(
    design: Design, statistics: Statistics, sites: Sequence[str], *, estimate: str
) -> None:
    """An error for parameters without an estimate: slopes by site of columns that vary in no site,
    columns or outcomes of one value, more coefficients than rows.

    Args:
        design: The design.
        statistics: Sums over sites.
        sites: Their names, for the message.
        estimate: "posterior", "ml" or "reml".

    Raises:
        ValueError: The message names the column and says what to do.
    """
    _check_slopes(design, statistics, sites)
    _check_constants(design, statistics)
    _check_outcome(design, statistics)
    _check_rows(design, statistics, estimate)


def _check_slopes(design: Design, statistics: Statistics, sites: Sequence[str]) -> None:
    for name in design.slopes:
        if not statistics.varies[name]:
            raise ValueError(
                f"a random slope of {name!r} cannot be fitted: it has one value in all rows of "
                f"each of the {len(sites)} sites, so that its effect cannot be told from the "
                "intercept's; take it out of the bar term"
            )


def _check_constants(design: Design, statistics: Statistics) -> None:
    for name in design.columns if design.intercept else ():
        one = statistics.columns[name]
        if one.count > 1 and one.squares <= 1e-20 * one.count * one.mean**2:
            raise ValueError(
                f"{name!r} is {one.mean:g} in all rows of all sites, so that its effect cannot be "
                "told from the intercept; leave it out"
            )


def _check_outcome(design: Design, statistics: Statistics) -> None:
    """Whatever a site may tell of its outcome's values, their sums show that there is only one."""
    left = design.text.partition("~")[0].strip()
    outcome = statistics.outcome
    if design.family == "binomial":
        total = statistics.columns[TOTALS].mean
        if outcome.mean in (0.0, total):
            which = "no successes" if outcome.mean == 0 else "no failures"
            raise ValueError(
                f"the outcome {left} has {which} at any site: there is nothing to learn"
            )
    elif outcome.count > 1 and outcome.squares <= 1e-20 * outcome.count * outcome.mean**2:
        raise ValueError(
            f"the outcome {left!r} has one value in all rows of all sites: there is nothing to "
            "learn"
        )


def _check_rows(design: Design, statistics: Statistics, estimate: str) -> None:
    """With a coefficient per row, Gaussian noise is estimated as 0, and the density has no maximum;
    where outcomes have no noise parameter, priors give it one.
    """
    rows, needed = int(statistics.outcome.count), len(Terms.of(design).coefficients)
    gaussian = design.family == "gaussian"
    if rows < needed + gaussian and (gaussian or estimate != "posterior"):
        other = "" if gaussian else ", or use estimate='posterior'"
        raise ValueError(
            f"{design.text} has {needed} coefficient{'s' * (needed > 1)}, and all sites together "
            f"have {rows} complete row{'s' * (rows != 1)}: more rows than coefficients are needed; "
            f"leave terms out{other}"
        )
