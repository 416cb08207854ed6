"""The report of a fit (`covey.fit`): its formula's terms, sites, predictions and messages."""

import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from covey.report import page
from covey.report.content import (
    Content,
    Draws,
    Settings,
    SharedEffects,
    Traffic,
)
from covey.report.draw_parts import draws_section
from covey.report.fit_sites import new_site_of, sites_of
from covey.report.from_run import SCALES, parts_of_upload, privacy_of
from covey.report.measures import convergence_of, messages_of
from covey.report.posterior_parts import effects_in_words, reading_of
from covey.report.predictions import (
    calibration_of,
    errors_of,
    fairness_of_predictions,
)
from covey.report.units import in_bytes
from covey.report.words import listed

_CHAINS = 4  # that independent draws are shown as
_PARTS = re.compile(r":(?![^\[]*\])")  # between the columns of an interaction
_LEVEL = re.compile(r"(?P<factor>C\((?P<inner>[^()]*)\)|[^\[\]:]+)\[T\.(?P<level>[^\[\]]*)\]")
_LABELLED = re.compile(
    r"(?:C\((?P<inner>[^(),]*)[^()]*\)|(?P<factor>[^\[\]]+))\[(?:T\.)?(?P<level>[^\[\]]*)\]"
)
_REGRESSIONS = {
    "bernoulli": "logistic",
    "gaussian": "linear",
    "binomial": "binomial",
    "poisson": "Poisson",
    "negative_binomial": "negative binomial",
}
_PACKAGES = ("covey", "jax", "numpy", "formulaic")


def write(fit: Any, path: Path) -> Path:
    """Write the report of a fit as one HTML file.

    Args:
        fit: A `covey.Fit`.
        path: The file; its folder is made where it does not exist.

    Returns:
        The path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    page.write(content_of_fit(fit), path)
    return path


def content_of_fit(fit: Any) -> Content:
    """The content of the report of a fit.

    Args:
        fit: A `covey.Fit`; one that was loaded without tables has no section on predictions, and
            one without random effects none on sites.

    Returns:
        The content. Predictions enter in bins of many rows only.
    """
    summary = fit.summary()
    shared = _shared(fit, summary)
    sites, new_site = sites_of(fit), new_site_of(fit)
    predictions = None if fit.tables is None else fit.fitted()
    if predictions is not None:
        predictions = predictions[~predictions["client"].isin(list(fit.added))]
    calibration = errors = fairness = None
    if predictions is not None:
        calibration = calibration_of(predictions, fit.family)
        errors = errors_of(predictions, fit.family, _event(fit))
        fairness = fairness_of_predictions(predictions, fit.family)
    draws = _draws(fit, summary) if fit.estimate == "posterior" else None
    said, cautions = _said(summary, draws)
    trained, rows = _trained(fit)
    sentences = (
        f"{len(trained)} sites with {rows} rows took part: {listed(trained)}.",
        *said[1:2],
        effects_in_words(shared),
        *(() if sites is None else sites.sentences[:1]),
        *(() if new_site is None else new_site.sentences[:2]),
        *said[2:],
    )
    run = fit.run
    record = record_of(fit) or {}
    return Content(
        title=_title(fit),
        subtitle=_subtitle(fit),
        facts=_facts(fit),
        sentences=tuple(filter(None, sentences)),
        cautions=cautions,
        shared=shared,
        sites=sites,
        new_site=new_site,
        calibration=calibration,
        errors=errors,
        draws=draws,
        traffic=_traffic(fit),
        privacy=None if run is None else privacy_of(run),
        fairness=fairness,
        convergence=None if "metrics" not in record else convergence_of(record["metrics"]),
        settings=_settings(fit),
    )


def _said(summary: Any, draws: Draws | None) -> tuple[list[str], tuple[str, ...]]:
    """The sentences of the fit, and those of them that ask for caution."""
    sentences = list(summary.attrs.get("sentences", ()))
    alarming = [one for one in sentences if re.search(r"\bNOT\b", one)]
    cautions = [*alarming, *(draws.sentences[:1] if draws is not None and draws.poor else ())]
    return [one for one in sentences if one not in alarming], tuple(cautions)


def record_of(fit: Any) -> dict[str, pd.DataFrame] | None:
    """Tables about the run of a fit, from the run or, for a loaded fit, from its folder.

    Args:
        fit: A `covey.Fit`.

    Returns:
        Tables: "metrics" by round, "messages" by kind, "parts" of an upload; None where nothing is
        known of the run.
    """
    run = fit.run
    if run is None:
        stored = fit.stored.get("record")
        return stored and {name: pd.DataFrame(rows) for name, rows in stored.items()}
    messages = messages_of(run.metrics, run.questions)
    if messages is not None and "described" in fit.stored:
        size, sites = fit.stored["described"], run.data.clients
        first = {
            "message": "descriptions of the tables",
            "times": 1,
            "clients": float(sites),
            "bytes_up": size * sites,
            "bytes_down": 0.0,
            "bytes_up_per_site": size,
        }
        messages = pd.concat([pd.DataFrame([first]), messages], ignore_index=True)
    found = {"metrics": run.metrics, "messages": messages, "parts": parts_of_upload(run)}
    return {name: table for name, table in found.items() if table is not None}


def _title(fit: Any) -> str:
    """The outcome, and how many sites there were."""
    outcome, count = fit.design.formula.outcome.expressions[0], len(_trained(fit)[0])
    return f"{outcome} in {count} {fit.design.client or 'site'}{'s' * (count > 1)}"


def _subtitle(fit: Any) -> str:
    how = {"posterior": "posterior", "ml": "maximum likelihood", "reml": "REML"}[fit.estimate]
    return f"{_REGRESSIONS[fit.family]} regression, {how}: {fit.formula}"


def _trained(fit: Any) -> tuple[list[str], int]:
    """The sites that took part, without those that were added later, and their rows."""
    names = [name for name in fit.clients if name not in fit.added]
    design = fit.design
    return names, sum(design.rows[name] - design.dropped.get(name, 0) for name in names)


def _facts(fit: Any) -> tuple[tuple[str, str], ...]:
    traffic, (trained, rows) = fit.traffic, _trained(fit)
    facts = [
        ("sites", str(len(trained))),
        ("rows used", str(rows)),
        ("rows dropped", str(sum(fit.design.dropped.get(name, 0) for name in trained))),
    ]
    if traffic:
        facts += [
            ("rounds", str(traffic["rounds"])),
            ("sent per site", in_bytes(traffic["bytes_up"])),
        ]
    return tuple(facts)


def _shared(fit: Any, summary: Any) -> SharedEffects:
    table: Any = pd.DataFrame(summary)[["mean", "sd", "q05", "q95"]].reset_index()
    own = table["term"].isin(list(fit.design.columns))
    scale = SCALES.get(fit.family, "coefficient")
    units = tuple((term, unit) for term in fit.design.columns if (unit := _unit(fit.design, term)))
    notes = [reading_of(scale, units=bool(units))]
    if fit.estimate != "posterior":
        notes.append(
            "Means and SDs are estimates and their standard errors; intervals are Wald's, of 90 %."
        )
    return SharedEffects(
        table[own].reset_index(drop=True),
        table[~own].reset_index(drop=True),
        scale,
        units,
        tuple(notes),
        tuple((term, _label(fit.design, term)) for term in fit.design.columns),
    )


def _event(fit: Any) -> tuple[str, str] | None:
    """The two outcomes in words, the event last."""
    levels = fit.design.outcome_levels
    if levels is None:
        return None
    name = fit.design.formula.outcome.expressions[0]
    words = [int(one) if isinstance(one, float) and one.is_integer() else one for one in levels]
    return f"{name} = {words[0]}", f"{name} = {words[1]}"


def _label(design: Any, term: str) -> str:
    """A term as one reads it: "sex: male" for a level, "age, per 9.19" for scale(age)."""
    return " and ".join(_label_of_part(design, part) for part in _PARTS.split(term))


def _label_of_part(design: Any, part: str) -> str:
    found = _LABELLED.fullmatch(part)
    if found is not None:
        return f"{found['inner'] or found['factor']}: {found['level']}"
    _, sd = design.scaled.get(part, (None, None))
    return design.needs.scaled.get(part, part) + ("" if sd is None else f", per {sd:.3g}")


def _unit(design: Any, term: str) -> str:
    """The change that a coefficient refers to: a standard deviation, or a level of a factor."""
    _, sd = design.scaled.get(term, (None, None))
    if sd is not None:
        return f"{sd:.3g} (1 SD)"
    level = _LEVEL.fullmatch(term)
    if level is None:
        return ""
    levels = design.factors.get(level["factor"]) or design.factors.get(level["inner"] or "")
    return f"{level['level']} against {levels[0]}" if levels else ""


def _draws(fit: Any, summary: Any) -> Draws | None:
    """Draws of the shared terms; independent ones are shown as four chains."""
    table = fit.posterior.shared.draws().dropna(axis="columns")
    count = len(table) // _CHAINS * _CHAINS
    if not count or not len(table.columns):
        return None
    drawn = {
        str(name): table[name].to_numpy()[:count].reshape(_CHAINS, -1) for name in table.columns
    }
    diagnostics: Any = pd.DataFrame(summary).reset_index().rename(columns={"term": "parameter"})
    kept = [name for name in diagnostics.columns if name not in ("mean", "sd", "q05", "q95")]
    return draws_section(drawn, diagnostics[kept], fit.found.diagnostics.get("k_hat"))


def _traffic(fit: Any) -> Traffic | None:
    said, design, record = fit.traffic, fit.design, record_of(fit) or {}
    if not said or "messages" not in record:
        return None
    rows = pd.DataFrame({"client": fit.clients})
    rows["rows"] = [design.rows[name] for name in fit.clients]
    for name, counts in (("dropped", design.dropped), ("cells_filled_in", design.filled)):
        rows[name] = [counts.get(site, 0) for site in fit.clients]
    if digests := fit.stored.get("digests"):
        rows["digest"] = [digests.get(name, "") for name in fit.clients]
    sentence = (
        f"Each site sent {in_bytes(said['bytes_up'])} in {said['rounds']} rounds: sums over its "
        "rows, never a row."
    )
    more = (
        "Sums over the rows of a small site can still tell something about single rows; a privacy "
        "budget (covey.run with privacy=) bounds how much."
    )
    return Traffic(record.get("parts"), record["messages"], rows, (sentence, more))


def _settings(fit: Any) -> Settings:
    rows = [
        ("formula", fit.formula),
        ("family", fit.family),
        ("estimate", fit.estimate),
        ("method", fit.method),
        ("seed", str(fit.seed)),
        ("missing values", fit.design.missing),
        *((f"prior of {term}", text) for term, text in fit.priors.items()),
        ("python", platform.python_version()),
        *((name, version(name)) for name in _PACKAGES),
    ]
    return Settings(pd.DataFrame(rows, columns=["setting", "value"]))
