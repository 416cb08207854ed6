"""The sites of a fit: those that took part, any new one, and those that were held out."""

import warnings
from typing import Any

import numpy as np
import pandas as pd

from covey.report.alone import estimated_alone
from covey.report.content import NewSite, SiteEffects
from covey.report.from_run import SCALES
from covey.report.posterior_parts import of_population
from covey.report.predictions import measures_of_rows
from covey.report.words import listed

_ALONE = ("bernoulli", "gaussian", "poisson")  # families with a quick estimate of one site


def sites_of(fit: Any) -> SiteEffects | None:
    """The section on sites.

    Args:
        fit: A `covey.Fit`.

    Returns:
        Deviations of each site, and its estimates alone where these are quick to find; None for a
        model without random effects.
    """
    effects = fit.effects()
    if not len(effects):
        return None
    first = effects["term"].iloc[0]
    ordered = effects[effects["term"] == first].sort_values("mean")
    clear = ordered[(ordered["q05"] > 0) | (ordered["q95"] < 0)]["client"]
    who = f"; clearly different from the typical site: {listed(list(clear))}" if len(clear) else ""
    only = ordered.iloc[0]
    sentence = (
        f"{first} at {only['client']} differs from that of the typical site by {only['mean']:.3g} "
        f"(90 % interval {only['q05']:.3g} to {only['q95']:.3g})."
        if len(ordered) == 1
        else f"{_differing(fit, first)} lowest at {ordered['client'].iloc[0]} and highest at "
        f"{ordered['client'].iloc[-1]}{who}."
    )
    alone = _alone(fit, effects)
    notes = [
        sentence,
        "Values are deviations from the shared coefficients, on the scale of the "
        "predictor; intervals have probability 0.9.",
    ]
    if alone is not None:
        notes.append(
            "Alone: a site's deviation from its own rows without the other sites, the shared "
            "coefficients held fixed. Together, sites with few rows move most."
        )
        lost = list(pd.unique(alone.loc[alone["alone"].isna(), "client"]))
        if lost:
            notes.append(f"Not estimable alone: {listed(lost)}.")
    terms = dict.fromkeys(effects["term"], 0.0)
    kind = "deviation from the shared coefficient"
    return SiteEffects(effects, kind, tuple(terms.items()), alone, tuple(notes))


def _differing(fit: Any, term: str) -> str:
    """The beginning of a sentence on which sites are lowest and highest."""
    if term != "Intercept":
        return f"Sites differ: the effect of {term} is"
    what = {"odds ratio": "the odds are", "rate ratio": "the expected count is"}
    subject = what.get(SCALES.get(fit.family, "coefficient"), "the outcome is")
    return f"Sites differ beyond what the other terms say: all else equal, {subject}"


def _alone(fit: Any, effects: Any) -> pd.DataFrame | None:
    """Each site's deviations from its own rows alone, for families where they are quick to find."""
    design = fit.design
    if fit.tables is None or design.family not in _ALONE or design.group or design.weights:
        return None
    means = fit.summary()["mean"]
    together, rows = effects.set_index(["client", "term"])["mean"], []
    for site, table in fit.tables.items():
        made = design.rows_of(table)
        columns = dict(zip(design.features, np.asarray(made.x, float).T, strict=True))
        columns["Intercept"] = np.ones(len(made.y))
        offset = np.zeros(len(made.y))
        for name, column in columns.items():
            if name in means.index:
                offset = offset + means[name] * column
            elif name in design.special:  # the offset: other roles are left to the method
                offset = offset + column
        own = np.stack([columns[name] for name in design.effects], axis=1)
        found = estimated_alone(design.family, own, np.asarray(made.y, float), offset)
        rows += [
            {
                "client": site,
                "term": name,
                "alone": value,
                "together": together[site, name],
                "rows": len(made.y),
            }
            for name, value in zip(design.effects, found, strict=True)
        ]
    return pd.DataFrame(rows)


def new_site_of(fit: Any) -> NewSite | None:
    """The section on sites that took no part.

    Args:
        fit: A `covey.Fit`.

    Returns:
        The population of sites, and how well sites that were added without a refit are predicted;
        None for a model without random effects.
    """
    names = fit.design.effects
    if not names:
        return None
    drawn = fit.posterior.shared.draws()
    found = {name: of_population(np.zeros(1), drawn[f"sd({name})"].to_numpy()) for name in names}
    rows = [{"term": name} | one for name, one in found.items() if np.isfinite(one["sd"])]
    if not rows:
        return None
    table, low, high = pd.DataFrame(rows), rows[0]["q05"], rows[0]["q95"]
    scale, first = SCALES.get(fit.family), rows[0]["term"]
    how = f"in {first} by {low:.3g} to {high:.3g}"
    if scale is not None and first == "Intercept":
        what = "odds" if scale == "odds ratio" else "rate"
        how = f"by a factor of {np.exp(low):.3g} to {np.exp(high):.3g} in its {what}"
    sentences = [
        f"A new site, before it has any rows, differs from the typical site {how}, with "
        "probability 0.9."
    ]
    measures = _held_out(fit)
    if measures is not None:
        sentences.insert(0, _held_out_in_words(measures))
    if left := fit.stored.get("left_out"):
        sentences.append(
            "Predicting each site's rows from all other sites, the log predictive density is "
            f"{left['log_density']:.4g} in all (standard error {left['se']:.2g})."
        )
    return NewSite(table, measures, tuple(sentences))


def _held_out(fit: Any) -> pd.DataFrame | None:
    """Predictions for sites that were added without a refit: shared terms do not know their rows.

    Each has two rows: predicted as any new site, and with its own effects.
    """
    lines = []
    for site in fit.added:
        if fit.tables is None or site not in fit.tables:
            continue
        table = fit.tables[site]
        rows = fit.design.rows_of(table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rows without a prediction are left out below
            found = {
                "as a new site": fit.predict(table.frame),
                "with its own rows (in sample)": fit.predict(table.frame, client=site),
            }
        for how, predicted in found.items():
            judged = predicted.iloc[rows.kept].assign(observed=np.asarray(rows.y))
            judged = judged.dropna(subset=["mean", "observed"])
            measures = measures_of_rows(judged, fit.family)
            lines.append({"name": site, "predicted": how, "rows": len(judged)} | measures)
    return pd.DataFrame(lines) if lines else None


def _held_out_in_words(measures: Any) -> str:
    """The quality of predictions for the first of the sites that were held out."""
    measure = "accuracy" if "accuracy" in measures else "rmse"
    each = [
        f"{row['name']} {row['predicted']} ({measure} {row[measure]:.3g} on {row['rows']} rows)"
        for _, row in measures.iterrows()
    ]
    return f"Held out from the shared terms: {listed(each)}."
