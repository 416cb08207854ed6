"""The permissions of a site's owner, applied to a study before any row is read."""

import math

from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.study import Study


def check_study(site: SiteFile, study: Study) -> None:
    """A refusal for a study that the site's owner does not allow.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study.

    Raises:
        DeclinedError: Its name, method, formula, columns or rounds are not allowed.

    Example:
        >>> from covey.deploy.site_file import Data, Owner, Privacy, Studies
        >>> from covey.deploy.study import of_formula
        >>> basel = SiteFile(
        ...     site=Owner(name="basel"),
        ...     data=Data(table="heart.csv", columns=("age",), outcome=("ill",)),
        ...     studies=Studies(methods=("marginal",)),
        ...     privacy=Privacy(budget="none"),
        ... )
        >>> check_study(basel, of_formula("heart", "ill ~ age + (1 | hospital)"))
        >>> check_study(basel, of_formula("heart", "ill ~ income + (1 | hospital)"))
        Traceback (most recent call last):
        covey.deploy.refusal.DeclinedError: the column 'income' is not open to studies at basel
    """
    if not site.allows_name(study.name):
        raise DeclinedError("study", f"{site.name} takes part in no study called {study.name!r}")
    if study.method not in site.studies.methods:
        raise DeclinedError(
            "method",
            f"the method {study.method!r} is not allowed at {site.name}; allowed are "
            f"{', '.join(site.studies.methods)}",
        )
    formula = study.formula
    if formula is not None and not site.allows_formula(formula.text):
        raise DeclinedError("formula", f"the formula {formula.text} is not allowed at {site.name}")
    if formula is None and site.studies.formulas is not None:
        raise DeclinedError(
            "formula", f"{site.name} allows listed formulas only, and the study has none"
        )
    _check_columns(site, study)
    _check_answers(site, study)


def most_answers(study: Study, *, with_metrics: bool) -> tuple[int | None, str]:
    """Answers that a study needs at most, as far as its text tells, and the same in words.

    Args:
        study: The study.
        with_metrics: Whether evaluations are answered.

    Returns:
        Their number, None where the method ends by itself; questions of a method that prepares
        itself are not among them.
    """
    if study.kind == "fit":
        if study.method != "marginal":
            return None, "rounds until it has settled"
        from covey.algorithms.marginal.rounds import MOST_ROUNDS
        from covey.kernels.pareto_smoothing import MOST_ASKED

        asked = MOST_ASKED if study.tables["fit"]["estimate"] == "posterior" else 0
        return MOST_ROUNDS + asked, f"up to {MOST_ROUNDS} rounds and {asked} questions"
    rounds, every = study.rounds, study.tables["run"].get("evaluate_every")
    if rounds is None:
        return None, "rounds until it has settled"
    if not (every and with_metrics):
        return rounds, _of(rounds, "round")
    evaluations = math.ceil(rounds / every)  # the last round is evaluated too
    return rounds + evaluations, f"{_of(rounds, 'round')} and {_of(evaluations, 'evaluation')}"


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _check_answers(site: SiteFile, study: Study) -> None:
    """A refusal of a study that the site would have to stop in the middle."""
    most = site.limits.most_rounds
    needed, words = most_answers(study, with_metrics=site.metrics.shown_to == "server")
    if needed is not None and needed > most:
        raise DeclinedError(
            "rounds",
            f"{words} were asked for, and {site.name} answers at most {most} messages of a study; "
            "ask for fewer, or its owner to raise limits.most_rounds",
        )


def _check_columns(site: SiteFile, study: Study) -> None:
    for name in study.outcome:
        if name not in site.data.outcome:
            raise DeclinedError("formula", f"{name!r} is not open as an outcome at {site.name}")
    for name in study.predictors:
        if name not in site.data.columns:
            raise DeclinedError(
                "formula", f"the column {name!r} is not open to studies at {site.name}"
            )


def check_rows(site: SiteFile, count: int, *, why: str = "") -> None:
    """A refusal for too few rows.

    Args:
        site: The site's file, with the permissions of its owner.
        count: Rows that the study could use.
        why: The reason why others are left out, for the owner.
    """
    least = site.limits.min_rows
    if count < least:
        raise DeclinedError(
            "rows",
            f"{site.name} has fewer than {least} usable rows and does not take part",
            f"{_of(count, 'row')} can be used, and limits.min_rows is {least}"
            + (f"; {why}" if why else ""),
        )
