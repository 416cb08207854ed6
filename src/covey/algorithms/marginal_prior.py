"""Priors of the parameters of a marginal likelihood."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from covey.algorithms.marginal_parameters import (
    Coordinates,
    Theta,
    described,
    deviations,
    named,
)
from covey.models.mixed import MixedModel

LogPrior: TypeAlias = Callable[[dict[str, Array]], Float[Array, ""]]
_WEAK = 2.5  # weakly informative standard deviations, in units that the data give
_FREEDOM = 3.0  # degrees of freedom of the half Student t prior of the effects' deviations
_CONCENTRATION = 2.0  # of the LKJ prior of their correlations


class Scales(NamedTuple):
    """Standard deviations of the default prior, from the data: of each number of phi, infinite
    where the prior is flat, and of each effect.
    """

    phi: Float[Array, " p"]
    effects: Float[Array, " effects"]


def default_scales(
    phi: PyTree,
    per_weight: Float[Array, " p"],
    spread: Float[Array, ""],
    mean_square: Float[Array, " effects"],
) -> Scales:
    """The scales of the default prior: 2.5 times the standard error that one average row would
    give, for weights; 2.5 units of the linear predictor, for effects.
    """
    flat = named(phi, "bias") | named(phi, "log_scale")
    return Scales(
        jnp.where(flat, jnp.inf, _WEAK * jnp.sqrt(per_weight)),
        _WEAK * spread / jnp.sqrt(mean_square),
    )


def log_prior(
    model: MixedModel,
    coordinates: Coordinates,
    prior: float | LogPrior | None,
    theta: Theta,
    unit: Float[Array, " effects"],
    scales: Scales,
) -> Float[Array, ""]:
    """The log prior density of theta, up to a constant; see `covey.marginal`.

    With `coordinates.positive` it is a density in these coordinates, with the Jacobian; else the
    density of the described parameters, for a penalised maximum.
    """
    posterior = coordinates.positive
    flat, _ = ravel_pytree(theta.phi)
    known = described(model, coordinates, theta, unit)
    if callable(prior):
        value = prior(known)
    else:
        value = jnp.zeros((), flat.dtype)
        if model.log_prior is not None:
            value += model.log_prior(theta.phi)
        elif prior is not None:
            finite = jnp.isfinite(scales.phi)
            value -= jnp.sum(jnp.where(finite, (flat / prior) ** 2, 0.0)) / 2
        elif posterior:
            value -= jnp.sum((flat / scales.phi) ** 2) / 2
        if posterior:
            value += _law_prior(coordinates, theta.root, unit, scales.effects)
            value -= jnp.log(known["noise"]) if "noise" in known else 0.0
    if posterior:
        value += coordinates.log_jacobian(theta.root, unit) if len(unit) else 0.0
        value += jnp.log(known["noise"]) if "noise" in known else 0.0
    return value


def _law_prior(
    coordinates: Coordinates,
    entries: Float[Array, " entries"],
    unit: Float[Array, " effects"],
    scale: Float[Array, " effects"],
) -> Float[Array, ""]:
    """Half Student t deviations and LKJ correlations."""
    if not len(unit):
        return jnp.zeros((), entries.dtype)
    root = coordinates.root(entries, unit)
    sd, _ = deviations(root)
    spread = -(_FREEDOM + 1) / 2 * jnp.sum(jnp.log1p((sd / scale) ** 2 / _FREEDOM))
    determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(root) / sd))  # of the correlations
    return spread + (_CONCENTRATION - 1) * determinant
