"""The sections of a page, in the order of reading: headings, sentences, figures and tables."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from covey.report import effect_figures, figures
from covey.report.content import (
    Calibration,
    Content,
    Convergence,
    Draws,
    Errors,
    Fairness,
    NewSite,
    Privacy,
    Settings,
    SharedEffects,
    SiteEffects,
    Traffic,
)

_PLOTTED_TERMS = 4  # of the sites' parameters; all are in the table
_LONG = 25  # rows; longer tables are folded


@dataclass(frozen=True)
class Table:
    """A table, and the name of its CSV file."""

    name: str
    caption: str
    frame: pd.DataFrame

    @property
    def folded(self) -> bool:
        """Whether it is too long to be shown unasked."""
        return len(self.frame) > _LONG


@dataclass(frozen=True)
class Plot:
    """A figure, its heading, and what it shows in words, for those who cannot see it."""

    heading: str
    figure: go.Figure
    alt: str


@dataclass(frozen=True)
class Section:
    """A section of the page: sentences, then plots and tables in their order."""

    key: str
    title: str
    sentences: tuple[str, ...] = ()
    blocks: tuple[Plot | Table, ...] = ()
    text: str = ""
    caution: bool = False
    plots: tuple[Plot, ...] = field(init=False)
    tables: tuple[Table, ...] = field(init=False)

    def __post_init__(self) -> None:
        plots = tuple(block for block in self.blocks if isinstance(block, Plot))
        tables = tuple(block for block in self.blocks if isinstance(block, Table))
        object.__setattr__(self, "plots", plots)
        object.__setattr__(self, "tables", tables)


def sections_of(content: Content) -> list[Section]:
    """The sections that a report has content for.

    Args:
        content: The report.

    Returns:
        Sections in the order of reading: results first, training curves and settings last.

    Example:
        >>> versions = pd.DataFrame({"setting": ["seed"], "value": ["0"]})
        >>> [part.key for part in sections_of(Content("A report", settings=Settings(versions)))]
        ['settings']
    """
    made = (
        content.shared and _shared(content.shared),
        content.sites and _sites(content.sites, content.new_site),
        content.new_site and _new_site(content.new_site),
        content.calibration and _calibration(content.calibration),
        content.errors and _errors(content.errors),
        content.draws and _draws(content.draws),
        content.traffic and _traffic(content.traffic),
        content.privacy and _privacy(content.privacy),
        content.fairness and _fairness(content.fairness),
        content.convergence and _convergence(content.convergence),
        content.settings and _settings(content.settings),
    )
    return [section for section in made if section is not None]


def _shared(shared: SharedEffects) -> Section:
    ratio, table = shared.scale != "coefficient", shared.coefficients
    blocks: list[Plot | Table] = []
    if len(table):
        axis = f"{shared.scale} with 90 % interval"
        neutral = 1 if ratio else 0
        labels = [shared.label(term) for term in table["term"]]
        clear = [
            label
            for label, low, high in zip(labels, table["q05"], table["q95"], strict=True)
            if low > 0 or high < 0
        ]
        alt = (
            f"Forest plot of {len(table)} {shared.scale}s with 90 % intervals. "
            f"{_listed(clear, f'The interval excludes {neutral} for', 'No interval excludes it')}. "
            "All values are in the table below."
        )
        figure = effect_figures.forest(table.assign(term=labels), ratio=ratio, axis=axis)
        blocks.append(Plot(_upper(f"{shared.scale}s"), figure, alt))
        blocks.append(Table("shared", "Coefficients of all sites", _with_ratio(table, shared)))
    if len(shared.variation):
        caption = "Intercept, variation between sites and noise"
        blocks.append(Table("variation", caption, shared.variation))
    return Section("shared", "Shared effects", shared.sentences, tuple(blocks))


def _with_ratio(table: pd.DataFrame, shared: SharedEffects) -> pd.DataFrame:
    """The table with the unit of each term, and ratios before coefficients."""
    columns: dict[str, object] = {"term": table["term"]}
    if shared.units:
        units = dict(shared.units)
        columns["unit"] = [units.get(term, "1") for term in table["term"]]
    if shared.scale != "coefficient":
        for name, column in (("", "mean"), (" 5 %", "q05"), (" 95 %", "q95")):
            columns[f"{shared.scale}{name}"] = np.exp(table[column])
    return pd.DataFrame(columns | {name: table[name] for name in table.columns[1:]})


def _sites(sites: SiteEffects, new: NewSite | None) -> Section:
    reference, effects, alone = dict(sites.reference), _any(sites.effects), _any(sites.alone)
    blocks: list[Plot | Table] = []
    terms = list(dict.fromkeys(effects["term"]))
    population = None if new is None else new.effects
    for term in terms[:_PLOTTED_TERMS]:
        of_term = effects[effects["term"] == term].assign(new=False)
        if population is not None and (population["term"] == term).any():
            row = population[population["term"] == term].assign(client="a new site", new=True)
            of_term = _any(pd.concat([of_term, row], ignore_index=True))
        ordered = of_term[~of_term["new"]].sort_values("mean")
        alt = (
            f"Sites sorted by {term}, with 90 % intervals: lowest {ordered['client'].iloc[0]} "
            f"({ordered['mean'].iloc[0]:.3g}), highest {ordered['client'].iloc[-1]} "
            f"({ordered['mean'].iloc[-1]:.3g}). All values are in the table below."
        )
        figure = effect_figures.caterpillar(
            of_term, reference=reference.get(term), axis=f"{term}: {sites.kind}"
        )
        blocks.append(Plot(f"Sites by {term}", figure, alt))
    blocks.append(Table("sites", f"Parameters of each site: {sites.kind}", sites.effects))
    if alone is not None:
        for term in [term for term in terms if (alone["term"] == term).any()][:2]:
            of_term = alone[alone["term"] == term]
            move = (of_term["together"] - of_term["alone"]).abs().mean()
            alt = (
                f"{term} of each site estimated alone and together: estimates move by {move:.3g} "
                "on average. All values are in the table below."
            )
            figure = effect_figures.shrinkage(
                of_term, reference=reference.get(term), axis=f"{term}: {sites.kind}"
            )
            blocks.append(Plot(f"From alone to together: {term}", figure, alt))
        blocks.append(Table("alone", "Estimates of each site alone and together", alone))
    return Section("sites", "Sites", sites.sentences, tuple(blocks))


def _new_site(new: NewSite) -> Section:
    blocks = []
    if new.effects is not None:
        blocks.append(Table("new-site", "Parameters of a site that took no part", new.effects))
    if new.measures is not None:
        blocks.append(Table("held-out", "Sites that were held out", new.measures))
    return Section("new-site", "A new site", new.sentences, tuple(blocks))


def _calibration(found: Calibration) -> Section:
    blocks: list[Plot | Table] = []
    if found.bins is not None:
        filled = _any(found.bins)[found.bins["count"] > 0]
        gap = (filled["predicted"] - filled["observed"]).abs() * filled["count"]
        alt = (
            f"{found.observed} against {found.predicted} in {len(filled)} bins: they differ by "
            f"{gap.sum() / filled['count'].sum():.3g} on average over rows. All values are in the "
            "table below."
        )
        figure = figures.calibration(found.bins, predicted=found.predicted, observed=found.observed)
        blocks.append(Plot("Predicted and observed", figure, _upper(alt)))
        blocks.append(Table("calibration", "Predictions and outcomes by bin", filled))
    if found.coverage is not None:
        caption = "Share of outcomes inside the predictive intervals"
        blocks.append(Table("coverage", caption, found.coverage))
    return Section("calibration", "Predictive calibration", found.sentences, tuple(blocks))


def _errors(errors: Errors) -> Section:
    blocks: list[Plot | Table] = []
    if errors.residuals is not None:
        worst = errors.residuals["mean"].abs().max()
        alt = (
            f"Residuals in {len(errors.residuals)} bins of the prediction: the mean residual of a "
            f"bin is at most {worst:.3g} from 0. All values are in the table below."
        )
        blocks.append(Plot("Residuals", figures.residuals(errors.residuals), alt))
        caption = "Residuals by bins of the prediction"
        blocks.append(Table("residuals", caption, errors.residuals))
    if errors.confusion is not None:
        blocks.append(Table("confusion", "Observed and predicted labels", errors.confusion))
    if errors.measures is not None:
        blocks.append(Table("errors-by-site", "By site", errors.measures))
    title = "Residuals" if errors.residuals is not None else "Right and wrong predictions"
    return Section("errors", title, errors.sentences, tuple(blocks))


def _draws(draws: Draws) -> Section:
    names = list(dict.fromkeys(draws.density["parameter"]))
    alt = (
        f"Posterior densities and draws of {len(names)} parameters: {', '.join(names)}. How far "
        "they can be trusted is in the sentences above and in the table below."
    )
    plot = Plot("Densities and draws", figures.posteriors(draws.density, draws.trace), alt)
    table = Table("diagnostics", "Diagnostics of the draws", draws.diagnostics)
    blocks = (plot, table)
    return Section("posterior", "Posterior draws", draws.sentences, blocks, caution=draws.poor)


def _traffic(traffic: Traffic) -> Section:
    blocks = [Table("messages", "Messages of all sites together", traffic.messages)]
    if traffic.parts is not None:
        blocks.append(Table("upload", "Upload of one site in one round", traffic.parts))
    if traffic.clients is not None:
        blocks.append(Table("site-rows", "Rows of each site", traffic.clients))
    return Section("traffic", "Messages of the sites", traffic.sentences, tuple(blocks))


def _privacy(privacy: Privacy) -> Section:
    blocks: list[Plot | Table] = [Table("privacy", "Epsilon by accountant", privacy.spent)]
    if len(privacy.by_round) > 1:
        figure = figures.epsilons(privacy.by_round, privacy.budget)
        alt = "Epsilon spent after each round. The values after the last one are in the table."
        blocks.append(Plot("Epsilon by round", figure, alt))
    return Section("privacy", "Privacy budget", privacy.sentences, tuple(blocks))


def _fairness(fairness: Fairness) -> Section:
    measure = fairness.measure
    known = fairness.clients.dropna(subset=[measure])
    alt = (
        f"{measure} of {len(known)} sites on their {fairness.split} rows, sorted, from "
        f"{known[measure].min():.3g} to {known[measure].max():.3g}. All values are in the table "
        "below."
    )
    blocks = (
        Plot(_upper(f"{measure} of each site"), figures.spread(known, measure), _upper(alt)),
        Table("clients", f"Measures of each site, {fairness.split} rows", fairness.clients),
    )
    return Section("fairness", "Fairness across sites", fairness.sentences, blocks)


def _convergence(convergence: Convergence) -> Section:
    metrics = convergence.metrics
    names = [name.replace("_", " ") for name in figures.measures_of(metrics)]
    alt = f"{', '.join(names)} by round. All values are in the table below."
    blocks = (
        Plot("Curves", figures.curves(metrics), _upper(alt)),
        Table("metrics", "Measures by round", _any(metrics)[_reading_order(metrics)]),
    )
    return Section("convergence", "Convergence over rounds", convergence.sentences, blocks)


def _settings(settings: Settings) -> Section:
    table = Table("settings", "Versions, seed and digests", settings.values)
    return Section("settings", "Settings", blocks=(table,), text=settings.text)


def _listed(names: Iterable[str], before: str, otherwise: str) -> str:
    found = list(names)
    return f"{before} {', '.join(found)}" if found else otherwise


def _reading_order(metrics: pd.DataFrame) -> list[str]:
    """Columns of the metrics: the round, measures, then what only counts."""
    first = ["round", *figures.measures_of(metrics)]
    return [*first, *(name for name in metrics.columns if name not in first)]


def _any(frame: pd.DataFrame | None) -> Any:
    """A frame whose selections are frames: pandas' types say that they may be columns."""
    return frame


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
