"""The sections that a run's posterior gives: shared effects, sites, a new site, draws."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtr

from covey.report.alone import estimated_alone
from covey.report.content import INTERVAL, Draws, NewSite, Scale, SharedEffects, SiteEffects
from covey.report.draw_parts import DIAGNOSTICS, draws_section, flat_draws
from covey.report.words import listed

_LARGEST_UPLOAD = 50_000  # values; the posterior of a larger model is not for a table
_LARGEST_OF_CLIENTS = 5_000  # values of an upload; above, clients' own parameters are not drawn
_MOST_PARAMETERS, _MOST_SITES = 300, 300
_CLIENT_DRAWS = 500
_FAMILIES = {"odds ratio": "bernoulli", "rate ratio": "poisson"}
_COLUMN = re.compile(r"(?:weights?|slopes)\[(.+)\]")
_OF_EFFECTS = re.compile(r"(sd|cor|deviation|correlation)\[(.+)\]")


@dataclass(frozen=True)
class PosteriorParts:
    """Sections from a posterior, sentences for the summary, and cautions."""

    shared: SharedEffects | None = None
    sites: SiteEffects | None = None
    new_site: NewSite | None = None
    draws: Draws | None = None
    sentences: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def posterior_parts(run: Any, scale: Scale) -> PosteriorParts:
    """The sections that the posterior of a run gives; none for a method without one.

    Args:
        run: A `covey.Run`.
        scale: Scale of the shown coefficients.

    Returns:
        The sections. Where the posterior cannot be drawn, e.g. because there are too few draws, a
        caution says why.
    """
    has = run.method.posterior
    if has.shared is None and has.client is None:
        return PosteriorParts()
    values = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(run.upload))
    if values > _LARGEST_UPLOAD:
        sentence = f"The model has too many parameters for a table ({values} values per upload)."
        return PosteriorParts(sentences=(sentence,))
    parts = PosteriorParts()
    drawn: dict[str, np.ndarray] = {}
    if has.shared is not None:
        parts, drawn = _attempt(lambda: _shared_part(run, scale), (parts, drawn))
    if has.client is not None and values <= _LARGEST_OF_CLIENTS:
        if run.data.clients > _MOST_SITES:
            sentence = f"Parameters of each site are not shown for more than {_MOST_SITES} sites."
            return replace(parts, sentences=(*parts.sentences, sentence))
        parts, _ = _attempt(lambda: (_sites_part(run, parts, drawn, scale), drawn), (parts, drawn))
    return parts


def _attempt(
    make: Callable[[], tuple[PosteriorParts, dict[str, np.ndarray]]],
    otherwise: tuple[PosteriorParts, dict[str, np.ndarray]],
) -> tuple[PosteriorParts, dict[str, np.ndarray]]:
    """Parts with their warnings as cautions; the reason is a caution where there are none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            parts, drawn = make()
        except ValueError as error:
            parts, drawn = otherwise
            return replace(parts, cautions=(*parts.cautions, _sentence(str(error)))), drawn
    said = dict.fromkeys(_sentence(str(warning.message)) for warning in caught)
    return replace(parts, cautions=tuple(dict.fromkeys((*parts.cautions, *said)))), drawn


def _shared_part(run: Any, scale: Scale) -> tuple[PosteriorParts, dict[str, np.ndarray]]:
    from covey.inference.trace import FEWEST_DRAWS, summarise  # ArviZ takes seconds to import

    posterior = run.posterior.shared
    trace = posterior.trace()
    if (kept := trace["posterior"].sizes["draw"]) < FEWEST_DRAWS:
        raise ValueError(f"the run has kept {kept} draws per chain, too few for a table of effects")
    drawn = flat_draws(trace)
    if len(drawn) > _MOST_PARAMETERS:
        sentence = f"The posterior has {len(drawn)} parameters, too many for a table."
        return PosteriorParts(sentences=(sentence,)), drawn
    table = _renamed(summarise(trace))
    features = list(run.data.spec.features or ())
    own = table["term"].isin(features) if features else table["parameter"].str.match(_COLUMN)
    coefficients, rest = table[own], table[~own]
    if not own.any() and len(table):
        coefficients, rest, scale = table, table[:0], "coefficient"
    columns, units = ["term", *INTERVAL], _units(run)
    shared = SharedEffects(
        coefficients[columns].reset_index(drop=True),
        rest[columns].reset_index(drop=True),
        scale,
        units,
        (reading_of(scale, units=bool(units)),),
    )
    diagnostics = table.drop(columns="parameter").rename(columns={"term": "parameter"})
    draws = draws_section(
        {term_of(name): values for name, values in drawn.items()},
        diagnostics[["parameter", *DIAGNOSTICS]],
        getattr(getattr(posterior, "law", None), "k_hat", None),
    )
    sentences = tuple(filter(None, [effects_in_words(shared)]))
    cautions = draws.sentences[:1] if draws.poor else ()
    return PosteriorParts(shared, draws=draws, sentences=sentences, cautions=cautions), drawn


def _sites_part(
    run: Any, parts: PosteriorParts, drawn: Mapping[str, np.ndarray], scale: Scale
) -> PosteriorParts:
    from covey.inference.trace import summarise

    drawn_clients: Any = summarise(run.posterior.clients.trace(_CLIENT_DRAWS))
    table = _renamed(drawn_clients.reset_index("client"))
    known = {} if parts.shared is None else _means(parts.shared)
    effects = table[["client", "term", "mean", "sd", "q05", "q95"]].reset_index(drop=True)
    terms = list(dict.fromkeys(effects["term"]))
    reference = tuple((term, known[term]) for term in terms if term in known)
    new = population(terms, {term_of(name): values for name, values in drawn.items()})
    alone = _alone(run, effects, known, _FAMILIES.get(scale, "gaussian"))
    ordered = effects[effects["term"] == terms[0]].sort_values("mean")["client"]
    sentence = (
        f"Sites differ: {terms[0]} is lowest at {ordered.iloc[0]} and highest at "
        f"{ordered.iloc[-1]}."
    )
    sites = SiteEffects(effects, "the site's own value", reference, alone, _site_notes(alone))
    return replace(parts, sites=sites, new_site=new, sentences=(*parts.sentences, sentence))


def _renamed(table: Any) -> Any:
    """A summary in the columns of a report."""
    table = table.rename(columns={"lower_90": "q05", "upper_90": "q95"}).reset_index()
    table["term"] = [term_of(name) for name in table["parameter"]]
    return table


def term_of(parameter: str) -> str:
    """A parameter of a model as a formula would call it.

    Example:
        >>> [term_of(name) for name in ("weights[age]", "intercept", "sd[intercept]", "noise")]
        ['age', 'Intercept', 'sd(Intercept)', 'sigma']
    """
    if column := _COLUMN.fullmatch(parameter):
        return column[1]
    if effect := _OF_EFFECTS.fullmatch(parameter):
        kind = {"deviation": "sd", "correlation": "cor"}.get(effect[1], effect[1])
        return f"{kind}({','.join(term_of(name) for name in effect[2].split(', '))})"
    return {"intercept": "Intercept", "bias": "Intercept", "noise": "sigma"}.get(
        parameter, parameter
    )


def population(terms: list[str], drawn: Mapping[str, np.ndarray]) -> NewSite | None:
    """Parameters of a site that took no part: drawn from the population of sites.

    Args:
        terms: The terms that differ between sites.
        drawn: Draws of the shared parameters by term, with `sd(TERM)` for the variation.

    Returns:
        Mean, standard deviation and interval of each term; None where no variation is known.
    """
    rows = []
    for term in terms:
        if term in drawn and f"sd({term})" in drawn:
            found = of_population(drawn[term], drawn[f"sd({term})"])
            rows += [{"term": term} | found] if np.isfinite(found["sd"]) else []
    if not rows:
        return None
    sentence = (
        "A site that took no part and has no rows yet is expected in the population of sites: "
        f"its {rows[0]['term']} lies between {rows[0]['q05']:.3g} and {rows[0]['q95']:.3g} with "
        "probability 0.9."
    )
    return NewSite(pd.DataFrame(rows), None, (sentence,))


def of_population(centre: np.ndarray, deviation: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation and interval of an effect that is drawn from the population.

    The effect is a mixture of Gaussians over the draws of the posterior, whose quantiles are found
    by bisection: nothing is drawn.

    Args:
        centre: Draws of the population's mean; 0 for a deviation from it.
        deviation: Draws of the population's standard deviation.

    Returns:
        mean, sd, q05 and q95; NaN where a draw is not finite.

    Example:
        >>> found = of_population(np.zeros(3), np.ones(3))
        >>> round(found["q05"], 3), round(found["q95"], 3)
        (-1.645, 1.645)
    """
    centre, deviation = np.broadcast_arrays(centre, deviation)
    centre, deviation = centre.ravel(), np.maximum(deviation.ravel(), 1e-12)
    if not np.isfinite(centre).all() or not np.isfinite(deviation).all():
        return dict.fromkeys(INTERVAL, float("nan"))
    low, high = (centre - 9 * deviation).min(), (centre + 9 * deviation).max()

    def below(value: float) -> float:
        return float(ndtr((value - centre) / deviation).mean())

    ends: Any = [brentq(lambda value, at=at: below(value) - at, low, high) for at in (0.05, 0.95)]
    sd = np.sqrt(np.mean(deviation**2) + np.var(centre))
    return {"mean": float(centre.mean()), "sd": float(sd), "q05": ends[0], "q95": ends[1]}


def effects_in_words(shared: SharedEffects) -> str:
    """Which coefficients are clearly on one side, for the summary.

    Example:
        >>> row = {"term": ["age"], "mean": [0.7], "sd": [0.1], "q05": [0.5], "q95": [0.9]}
        >>> effects_in_words(SharedEffects(pd.DataFrame(row), pd.DataFrame(), "odds ratio"))
        'The odds are clearly higher with age (2.01 times; 90 % interval 1.65 to 2.46).'
    """
    table: Any = shared.coefficients
    if not len(table):
        return ""
    order = (table["mean"] / table["sd"]).abs().sort_values(ascending=False).index
    strongest = table.reindex(order)
    above = strongest[strongest["q05"] > 0]
    below = strongest[strongest["q95"] < 0]
    what = {"odds ratio": "The odds are", "rate ratio": "The expected count is"}
    subject = what.get(shared.scale, "The outcome is")
    said = [
        f"clearly {side} with {listed(_with_interval(shared, some))}"
        for side, some in (("higher", above), ("lower", below))
        if len(some)
    ]
    neutral = int(shared.scale != "coefficient")
    clear = {*above["term"], *below["term"]}
    rest = [shared.label(term) for term in table["term"] if term not in clear]
    sentences = [f"{subject} {'; '.join(said)}."] if said else []
    if rest:
        sentences.append(f"The 90 % interval has {neutral} in it for {listed(rest)}.")
    return " ".join(sentences)


def _with_interval(shared: SharedEffects, rows: Any) -> list[str]:
    """Terms with their values in brackets."""
    ratio = shared.scale != "coefficient"
    value = np.exp if ratio else (lambda coefficient: coefficient)
    return [
        f"{shared.label(row.term)} ({'' if ratio else 'by '}{value(row.mean):.3g}"
        f"{' times' if ratio else ''}; 90 % interval {value(row.q05):.3g} to {value(row.q95):.3g})"
        for row in rows[["term", "mean", "q05", "q95"]].itertuples(index=False, name="Row")
    ]


def _alone(
    run: Any, effects: pd.DataFrame, known: Mapping[str, float], family: str
) -> pd.DataFrame | None:
    """Each site's parameters from its own rows alone, where the predictor is linear in columns."""
    terms, features = list(dict.fromkeys(effects["term"])), run.data.spec.features
    if features is None or not set(terms) <= {"Intercept", *features}:
        return None
    if not set(features) <= set(known) or "Intercept" not in known:
        return None
    together = effects.set_index(["client", "term"])["mean"]
    rows = []
    for at in range(run.data.clients):
        name, here = run.data.name_of(at), run.data.rows_of(at, "train")
        x, y = np.asarray(here.x, float), np.asarray(here.y, float)
        columns = dict(zip(features, x.T, strict=True)) | {"Intercept": np.ones(len(y))}
        offset = sum(
            (known[term] * column for term, column in columns.items() if term not in terms),
            np.zeros(len(y)),
        )
        own = np.stack([columns[term] for term in terms], axis=1)
        for term, value in zip(terms, estimated_alone(family, own, y, offset), strict=True):
            row = {"client": name, "term": term, "alone": value}
            rows.append(row | {"together": together[name, term], "rows": len(y)})
    return pd.DataFrame(rows)


def _means(shared: SharedEffects) -> dict[str, float]:
    both = pd.concat([shared.coefficients, shared.variation])
    return dict(zip(both["term"], both["mean"], strict=True))


def _units(run: Any) -> tuple[tuple[str, str], ...]:
    """One unit of a standardised column on its original scale."""
    scaling, features = run.data.scaling, run.data.spec.features
    if scaling is None or features is None or np.shape(scaling.scale) != (len(features),):
        return ()
    kept = set(scaling.kept)
    return tuple(
        (name, f"{scale:.3g} (1 SD)")
        for index, (name, scale) in enumerate(zip(features, scaling.scale, strict=True))
        if index not in kept
    )


def reading_of(scale: Scale, *, units: bool) -> str:
    """The explanation of a coefficient or a ratio.

    Args:
        scale: Scale of the shown coefficients.
        units: Whether the table names the change of each column.
    """
    per = "the change that the table names" if units else "one unit of its column"
    if scale == "coefficient":
        return f"A coefficient is the change of the predictor for {per}, all else equal."
    what = "odds" if scale == "odds ratio" else "expected count"
    return (
        f"A ratio says by how much the {what} multiply for {per}, all else equal: 1 is no effect. "
        "It is the exponential of the coefficient's mean; the interval has probability 0.9."
    )


def _site_notes(alone: pd.DataFrame | None) -> tuple[str, ...]:
    notes = ("Intervals have probability 0.9; the dotted line is the shared value.",)
    if alone is None:
        return notes
    more = (
        "Alone: a site's own rows without the other sites, the shared coefficients held fixed. "
        "Together, estimates of sites with few rows move most."
    )
    lost = pd.unique(alone.loc[alone["alone"].isna(), "client"])
    missing = (f"Not estimable alone: {listed(list(lost))}.",) if len(lost) else ()
    return (*notes, more, *missing)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
