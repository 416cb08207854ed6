"""The methods that a fit can use by name, and their results in the terms of the formula."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from covey.fitting.design import Design
from covey.fitting.families import model_of
from covey.fitting.priors import LogPrior
from covey.fitting.terms import Terms, special_roles

if TYPE_CHECKING:
    from covey.core.algorithm import Algorithm
    from covey.models.mixed import MixedModel
    from covey.runs.run import Run

Estimate: TypeAlias = Literal["posterior", "ml", "reml"]
METHODS = ("marginal", "fedpop", "fald")
ESTIMATES = ("posterior", "ml", "reml")
DRAWS = 1000  # of each site, in pairs with the shared parameters
SHARED_DRAWS = 4000


class Found(NamedTuple):
    """The result of a method for the shared parameters.

    Attributes:
        table: One row per term: mean, sd, q05, q95 and diagnostics.
        draws: Draws in the order of the terms.
        diagnostics: Values by name: k_hat, ess, log_likelihood, ...
    """

    table: pd.DataFrame
    draws: np.ndarray
    diagnostics: dict[str, Any]


def mixed_model(design: Design) -> "MixedModel":
    """The mixed model of a design.

    Args:
        design: The design.
    """
    return model_of(
        design.family,
        design.slopes,
        special_roles(design),
        design.intercept,
        design.random_intercept,
        design.random_only,
    )


def check_method(design: Design, method: str, estimate: str, *, has_priors: bool) -> None:
    """An error for a method, estimate and priors that do not fit each other.

    Args:
        design: The design.
        method: The method's name.
        estimate: "posterior", "ml" or "reml".
        has_priors: Whether priors were given.
    """
    if estimate not in ESTIMATES:
        raise ValueError(f"estimate must be one of {', '.join(ESTIMATES)}, got {estimate!r}")
    if method not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)}, got {method!r}: these give the posterior "
            "of a regression with random effects; run others with covey.run"
        )
    if has_priors and (estimate != "posterior" or method == "fedpop"):
        why = f"estimate={estimate!r}" if estimate != "posterior" else "method='fedpop'"
        raise ValueError(
            f"priors are for estimate='posterior' with method='marginal' or 'fald'; {why} has none"
        )
    if method != "marginal" and estimate != "posterior":
        raise ValueError(
            f"estimate={estimate!r} is for method='marginal'; {method} has a posterior"
        )
    if method == "fedpop" and not design.effects:
        raise ValueError("method='fedpop' is for random effects; add a bar term, or use 'marginal'")
    if method == "fald" and (design.effects or design.group):
        raise ValueError("method='fald' is for models without random effects; use 'marginal'")
    if estimate == "reml" and (design.family != "gaussian" or design.group or design.weights):
        raise ValueError(
            "estimate='reml' is for Gaussian outcomes without groups inside sites and without "
            "weights; use estimate='ml' or 'posterior'"
        )


def method_of(design: Design, method: str, estimate: Estimate, prior: LogPrior) -> "Algorithm":
    """The method of a fit.

    Args:
        design: The design.
        method: Its name.
        estimate: What is estimated.
        prior: The log prior; for "posterior".
    """
    import covey

    model = mixed_model(design)
    if method == "marginal":
        return covey.marginal(
            model,
            estimate=estimate,
            covariance="full" if design.correlated else "diagonal",
            prior=prior if estimate == "posterior" else None,
        )
    if method == "fedpop":
        from covey.algorithms.fedpop import ANY_SCALE

        kind = "full" if design.correlated else "diagonal"
        law = covey.models.gaussian(covariance=kind, scale_bounds=ANY_SCALE)
        return covey.fedpop(model, effects=law)
    return covey.fald(_without_effects(model, prior))


def _without_effects(model: "MixedModel", prior: LogPrior):
    import jax.numpy as jnp

    from covey.algorithms.marginal.parameters import POSITIVE
    from covey.models.model import Model

    none, coefficients = jnp.zeros(0), model.coefficients
    assert coefficients is not None

    def log_prior(phi):
        known = coefficients(phi, none)
        return prior(known) + sum(jnp.log(known[name]) for name in POSITIVE if name in known)

    return Model(
        name=model.name,
        init=model.init,
        log_likelihood=lambda phi, rows: model.log_likelihood(phi, none, rows),
        predictive=lambda phi, x: model.predictive(phi, none, x),
        log_prior=log_prior,
        describe=lambda phi: coefficients(phi, none),
        axes=model.axes,
    )


def found_by(run: "Run", design: Design, method: str) -> Found:
    """The shared parameters that a run has found.

    Args:
        run: The run.
        design: The design.
        method: The method's name.
    """
    terms = Terms.of(design)
    if method == "marginal":
        return _of_marginal(run, terms)
    shared: Any = run.posterior.shared
    if method == "fald":
        drawn = {name: np.asarray(values) for name, values in shared.draws().items()}
        chains = terms.stacked(drawn)
        table = _table(terms, chains.reshape(-1, chains.shape[-1]), None)
        more = shared.summary(probability=0.9)
        ess = np.minimum(np.asarray(more["ess_bulk"]), np.asarray(more["ess_tail"]))
        r_hat = np.asarray(more["r_hat"])
        table["ess"], table["r_hat"] = ess, r_hat
        said = {"ess": float(ess.min()), "r_hat": float(r_hat.max())}
        return Found(table, chains.reshape(-1, chains.shape[-1])[:SHARED_DRAWS], said)
    drawn = _of_fedpop(shared.draws(SHARED_DRAWS, chains=1), terms)
    return Found(_table(terms, drawn, None), drawn, {})


def _of_fedpop(drawn: Any, terms: Terms) -> np.ndarray:
    """Draws of FedPop by the names of the marginal method."""
    flat = {name: np.asarray(values)[0] for name, values in drawn.items()}
    sd = flat.get("deviation")
    if sd is not None:
        flat["sd"] = sd.reshape(len(sd), -1)
    if "correlation" in flat:
        one, other = np.triu_indices(len(terms.effects), 1)
        flat["cor"] = flat["correlation"][:, one, other]
    return terms.stacked(flat)


def _of_marginal(run: "Run", terms: Terms) -> Found:
    import jax

    shared: Any = run.posterior.shared
    law = shared.law
    said = {
        "log_likelihood": law.log_likelihood,
        "parameters": law.parameters,
        "rows": law.rows,
        "aic": law.aic,
        "bic": law.bic,
        "settled": law.settled,
        "separated": bool(law.separated),
        "k_hat": law.k_hat,
        "ess": law.effective_draws,
    }
    if law.sample is None:
        points = law.points(jax.random.key(run.seed), SHARED_DRAWS)
        table = law.table(probability=0.9)
        table.columns = ["mean", "sd", "q05", "q95"]
        table.index = pd.Index(_in_terms(law.names, terms), name="term")
        table = table.loc[list(terms.names)]
        drawn = terms.stacked(jax.device_get(law.described(points)))
        return Found(table, drawn, said)
    values = terms.stacked(jax.device_get(law.described(law.sample.points)))
    table = _table(terms, values, law.sample.weights)
    table["ess"] = law.effective_draws
    from covey.kernels.pareto_smoothing import systematic

    random = np.random.default_rng(run.seed)
    return Found(table, values[systematic(random, law.sample.weights, SHARED_DRAWS)], said)


def _in_terms(names: tuple[str, ...], terms: Terms) -> list[str]:
    """Names of described values, `weights[age]`, by the names of the terms."""
    left = {part: iter(labels) for part, labels in terms.parts.items()}
    return [next(left[name.partition("[")[0]]) for name in names]


def _table(terms: Terms, values: np.ndarray, weights: np.ndarray | None) -> pd.DataFrame:
    """Mean, standard deviation and 90 % interval of each term."""
    weights = np.full(len(values), 1 / len(values)) if weights is None else weights
    mean = weights @ values
    order = np.argsort(values, axis=0)
    below = np.cumsum(weights[order], axis=0)
    sorted_values = np.take_along_axis(values, order, 0)
    ends = [
        sorted_values[np.argmax(below >= side, axis=0), np.arange(len(mean))]
        for side in (0.05, 0.95)
    ]
    sd = np.sqrt(weights @ (values - mean) ** 2)
    return pd.DataFrame(
        {"mean": mean, "sd": sd, "q05": ends[0], "q95": ends[1]},
        index=pd.Index(terms.names, name="term"),
    )
