"""The content of a report: one plain record per section, each of tables, sentences and values."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pandas as pd

# The scale of a shown coefficient: as it is, or its exponential.
Scale: TypeAlias = Literal["coefficient", "odds ratio", "rate ratio"]
INTERVAL = ["mean", "sd", "q05", "q95"]


@dataclass(frozen=True)
class SharedEffects:
    """Coefficients that all sites share.

    Attributes:
        coefficients: One row per coefficient: term, mean, sd, q05, q95, and diagnostics such as
            `ess` and `r_hat` where there are any.
        variation: The other parameters in the same columns: intercepts, standard deviations and
            correlations of the effects, noise. May have no rows.
        scale: The scale of the forest plot. Default: the coefficients themselves.
        units: By term, the size of one unit of its column, e.g. "9.03 (1 SD)". Default: nothing
            known.
        sentences: Explanations of the plots.
        labels: By term, its name in plots and sentences, e.g. "sex: male". Default: the term.
    """

    coefficients: pd.DataFrame
    variation: pd.DataFrame
    scale: Scale = "coefficient"
    units: tuple[tuple[str, str], ...] = ()
    sentences: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, term: str) -> str:
        """The name of a term in plots and sentences.

        Args:
            term: The term.
        """
        return dict(self.labels).get(term, term)


@dataclass(frozen=True)
class SiteEffects:
    """The parameters of each site.

    Attributes:
        effects: One row per site and term: client, term, mean, sd, q05, q95.
        kind: Description of the values, e.g. "deviation from the shared coefficient".
        reference: By term, the shared value that sites are compared with.
        alone: Estimates of each site alone beside those together: client, term, alone, together,
            rows; `alone` is NaN where a site's rows do not determine it. None: not known.
        sentences: Explanations of the plots.
    """

    effects: pd.DataFrame
    kind: str
    reference: tuple[tuple[str, float], ...] = ()
    alone: pd.DataFrame | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewSite:
    """A site that took no part: its expected parameters, and its measures.

    Attributes:
        effects: The population that its parameters are drawn from: term, mean, sd, q05, q95. None:
            not known.
        measures: Sites that were held out: name, rows, and a column per measure. None: none were.
        sentences: Explanations of the tables.
    """

    effects: pd.DataFrame | None = None
    measures: pd.DataFrame | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Predictions against outcomes, in bins of many rows.

    Attributes:
        bins: One row per bin: predicted, observed, q05, q95 (an interval of `observed`), count.
            None: there are none.
        predicted: Name of the horizontal axis, e.g. "predicted probability".
        observed: Name of the vertical axis, e.g. "observed share".
        coverage: Share of outcomes inside the predictive intervals: client, rows, and a column per
            interval. None: not known.
        sentences: Explanations of the plots.
    """

    bins: pd.DataFrame | None
    predicted: str
    observed: str
    coverage: pd.DataFrame | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Errors:
    """Errors of predictions: a confusion table, or residuals.

    Attributes:
        confusion: Counts: one row per observed label, one column per predicted label. None: none.
        residuals: Residuals in bins of the prediction: predicted, mean, q05, q25, q75, q95 of the
            residuals, count. None: none.
        measures: One row per site, e.g. sensitivity and specificity. None: none.
        sentences: Explanations of the tables.
    """

    confusion: pd.DataFrame | None = None
    residuals: pd.DataFrame | None = None
    measures: pd.DataFrame | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draws:
    """Posterior draws and how far they can be trusted.

    Attributes:
        density: Kernel density estimates: parameter, value, density.
        trace: Some of the draws in their order: parameter, chain, draw, value.
        diagnostics: One row per parameter: parameter, and columns such as r_hat and ess.
        sentences: The diagnostics in words.
        poor: Whether one of them asks for caution.
    """

    density: pd.DataFrame
    trace: pd.DataFrame
    diagnostics: pd.DataFrame
    sentences: tuple[str, ...] = ()
    poor: bool = False


@dataclass(frozen=True)
class Traffic:
    """The messages that left each site.

    Attributes:
        parts: Parts of one upload: part, shape, values. None: not known.
        messages: One row per kind of message: message, times, clients, bytes_up, bytes_down.
        clients: One row per site, e.g. rows that were used and dropped. None: not known.
        sentences: The same in words.
    """

    parts: pd.DataFrame | None
    messages: pd.DataFrame
    clients: pd.DataFrame | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Privacy:
    """The privacy budget.

    Attributes:
        spent: One row per accountant: accountant, epsilon.
        by_round: Epsilon after each round: round, and a column per accountant.
        budget: Largest epsilon that may be spent; None: it is only counted.
        sentences: The same in words.
    """

    spent: pd.DataFrame
    by_round: pd.DataFrame
    budget: int | float | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fairness:
    """The quality of the predictions for each site.

    Attributes:
        clients: One row per site: name, rows, and a column per measure.
        measure: The column that sites are sorted by.
        split: The rows that were evaluated.
        sentences: The spread in words.
    """

    clients: pd.DataFrame
    measure: str
    split: str
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Convergence:
    """The measures of a run by round.

    Attributes:
        metrics: One row per round: round, and a column per measure; NaN where it was not measured.
        sentences: The end of the run in words.
    """

    metrics: pd.DataFrame
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The settings that are needed to reproduce the results.

    Attributes:
        values: Versions, seed, digest of the data and the like: setting, value.
        text: The configuration. Default: none.
    """

    values: pd.DataFrame
    text: str = ""


@dataclass(frozen=True)
class Content:
    """A report. Sections that are None are left out.

    Attributes:
        title: Title of the page.
        subtitle: One line below it.
        facts: Up to six short pairs of a label and a value, e.g. ("sites", "4").
        sentences: The summary.
        cautions: Limits of the results that a reader must know; shown first.
        live: State of the files of a run that is still going, which the page asks for again and
            again. Default: the page is finished.

    Example:
        >>> Content(title="Heart disease", sentences=("Four hospitals took part.",)).shared is None
        True
    """

    title: str
    subtitle: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    sentences: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    shared: SharedEffects | None = None
    sites: SiteEffects | None = None
    new_site: NewSite | None = None
    calibration: Calibration | None = None
    errors: Errors | None = None
    draws: Draws | None = None
    traffic: Traffic | None = None
    privacy: Privacy | None = None
    fairness: Fairness | None = None
    settings: Settings | None = None
    convergence: Convergence | None = None
    live: str = ""
