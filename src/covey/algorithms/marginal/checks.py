"""Checks of the options of `covey.marginal`, of the data and of a run."""

import warnings

import jax
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from covey.algorithms.marginal.parameters import Settings
from covey.algorithms.marginal.products import is_linear_gaussian
from covey.core.algorithm import Plan
from covey.core.shard import Spec
from covey.models.mixed import MixedModel

MOST_EFFECTS = 10
MOST_PARAMETERS = 1000  # a client sends half of a matrix with this many rows and columns
MOST_POINTS = 1000  # of a quadrature grid
NOT_FINITE = (
    "its likelihood is not finite: look for outcomes that the model does not allow and for extreme "
    "values in its columns, or leave it out (data.hold_out)"
)
NEEDS_SERVER = (
    "it adds up exact terms of all clients, which takes a server; use engine='simulate' or 'loop', "
    "or between peers covey.fedpop(model, step_size=..., phi_optimizer=optax.sgd(...), "
    "beta_optimizer=optax.sgd(...)), or covey.fedavg for a model without effects"
)


def check_options(
    estimate: str,
    covariance: str,
    prior: object,
    nodes: int | None,
    draws: int,
    predictive_draws: int,
    min_rows: int,
) -> None:
    """Errors for options that are not allowed."""
    for name, value, known in (
        ("estimate", estimate, ("ml", "reml", "posterior")),
        ("covariance", covariance, ("full", "diagonal")),
    ):
        if value not in known:
            raise ValueError(f"marginal: {name} must be one of {', '.join(known)}, got {value!r}")
    if isinstance(prior, (int, float)):
        if not 0 < prior < float("inf"):
            raise ValueError(
                f"marginal: prior is the standard deviation of the weights and must be above 0, "
                f"got {prior:g}"
            )
    elif prior is not None and not callable(prior):
        raise ValueError(
            "marginal: prior is None, a standard deviation of the weights, or a function of the "
            f"described parameters, got {type(prior).__name__}"
        )
    if prior is not None and estimate == "reml":
        raise ValueError("marginal: REML has no prior; use estimate='ml' or 'posterior' with one")
    for name, value, least in (
        ("nodes", nodes, 1),
        ("draws", draws, 100),
        ("predictive_draws", predictive_draws, 1),
        ("min_rows", min_rows, 0),
    ):
        if value is not None and value < least:
            raise ValueError(f"marginal: {name} must be at least {least}, got {value}")


def check_prior(model: MixedModel, prior: object) -> None:
    """An error where there are two priors."""
    if model.log_prior is not None and prior is not None:
        raise ValueError(
            f"marginal: {model.name} has its own prior, and prior= is another; write it into the "
            "model"
        )


def check_fit(settings: Settings, phi: PyTree, effects: Array, spec: Spec) -> None:
    """Errors and warnings for data that do not fit the model."""
    model, count = settings.model, len(effects)
    entries = settings.coordinates.size(count)
    size = ravel_pytree(phi)[0].size + entries
    if count > MOST_EFFECTS:
        raise ValueError(
            f"marginal: {model.name} has {count} effects, and up to {MOST_EFFECTS} can be "
            "integrated out; give fewer slopes, or use fedpop"
        )
    if size > MOST_PARAMETERS:
        raise ValueError(
            f"marginal: {model.name} has {size} parameters, and clients send a matrix with the "
            f"square of their number; it is for up to {MOST_PARAMETERS}. Use fedpop, or fedavg"
        )
    nodes = settings.nodes
    if nodes is not None and count and nodes**count > MOST_POINTS:
        raise ValueError(
            f"marginal: {nodes} nodes for each of {count} effects make a grid of {nodes**count} "
            f"points, and at most {MOST_POINTS} are allowed; take fewer, or nodes=1 (Laplace)"
        )
    known = not isinstance(effects, Tracer)
    if model.law is None and known and np.any(np.asarray(effects)):
        raise ValueError(
            f"marginal: the effects of {model.name} do not start at 0, and marginal takes their "
            "mean to be 0; use fedpop, whose effects have a mean"
        )
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), spec.rows)
    if settings.estimate == "reml" and not is_linear_gaussian(model, phi, count, rows):
        raise ValueError(
            f"marginal: REML is for linear models with Gaussian noise, and {model.name} is not "
            "one; use estimate='ml'"
        )
    if count and spec.clients is not None and spec.clients <= entries:
        warnings.warn(
            f"marginal: {spec.clients} clients say little about {entries} parameters of the "
            "covariance of their effects; use covariance='diagonal' (a double bar in a formula), "
            "fewer slopes, a model without effects, or estimate='posterior' with a prior that you "
            "believe",
            stacklevel=2,
        )


def need_everyone(plan: Plan) -> None:
    """An error where some clients are left out of a round, or uploads are changed on the way."""
    for t in range(5):
        cohort = plan.sampler.sample(jax.random.key(t), t)
        there, weight = np.asarray(cohort.mask), np.asarray(cohort.weight)
        together = np.unique(np.asarray(cohort.index)[there]).size
        everyone = together == len(plan.counts) and np.allclose(weight[there], 1.0)
        if there.any() and not everyone:
            raise ValueError(
                f"marginal adds up exact terms of all {len(plan.counts)} clients in every round, "
                f"and this cohort has {together} of them; leave cohort= out, or use fedpop"
            )
    if plan.omega != 0:
        raise ValueError(
            "marginal adds up exact terms of all clients, and this channel changes what they "
            "send; leave channel= out: an upload is a small matrix"
        )
