"""The server's state of `covey.marginal`, and what follows from it."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from covey.algorithms.marginal.parameters import (
    Coordinates,
    Scales,
    Settings,
    Theta,
    log_prior,
    logarithms,
    unbounded,
)
from covey.core.algorithm import Empty
from covey.kernels.newton import Climb

_ZERO = 1e-3  # a deviation, in units of what the rows can tell from 0, that counts as 0
_VAGUE = 100.0  # standard error of a logarithm that has no maximum: it runs to 0 or infinity


class State(NamedTuple):
    """The server's state.

    Attributes:
        phi: The model's own start of the shared parameters, which gives theta its structure.
        climb: Newton's method on the flattened theta.
        unit: Standard deviations of the effects in whose units the covariance is written.
        scales: Of the default prior.
        variance: Of phi, by a pooled regression.
        value: The marginal log-likelihood at the best point, minus the level for each row.
        level: The log-likelihood of an average row.
        restriction: Term of REML.
        log_prior: Term of the prior.
        rows: Number of training rows.
        basis: Columns that make the design well conditioned, for REML.
        clients: Number of clients to wait for; 0 where that is not known.
        round: Rounds in which everyone was heard. The first finds the start.
        waited: Rounds in a row, up to the last one, in which clients were missing.
        seed: Of the draws of the posterior.
    """

    phi: PyTree
    climb: Climb
    unit: Float[Array, " q"]
    scales: Scales
    variance: Float[Array, " p"]
    value: Float[Array, ""]
    level: Float[Array, ""]
    restriction: Float[Array, ""]
    log_prior: Float[Array, ""]
    rows: Float[Array, ""]
    basis: Float[Array, "p p"] | Empty
    clients: Float[Array, ""]
    round: Int[Array, ""]
    waited: Int[Array, ""]
    seed: UInt32[Array, ""]

    @property
    def log_likelihood(self) -> Float[Array, ""]:
        """The marginal log-likelihood at the best point, that of REML for REML."""
        return self.value + self.level * self.rows + self.restriction

    @property
    def settled(self) -> Bool[Array, ""]:
        """Whether the best point is a maximum."""
        return self.climb.settled


class Published(NamedTuple):
    """The state that clients predict with: the server's, and draws of the flattened theta from its
    posterior, where these are known.
    """

    state: State
    points: Float[Array, "points k"] | Empty = Empty()


def theta_of(state: State, coordinates: Coordinates, flat: Float[Array, " k"]) -> Theta:
    """The flattened parameters as a tree."""
    return theta_like(state.phi, state.unit, coordinates, flat)


def theta_like(
    phi: PyTree, unit: Float[Array, " q"], coordinates: Coordinates, flat: Float[Array, " k"]
) -> Theta:
    """The flattened parameters as a tree: phi like this one, and the covariance of the effects."""
    entries = jnp.zeros(coordinates.size(len(unit)), flat.dtype)
    return ravel_pytree(Theta(phi, entries))[1](flat)


def log_prior_at(settings: Settings, state: State, flat: Float[Array, " k"]) -> Float[Array, ""]:
    """The log prior density of the flattened parameters; see `log_prior`."""
    theta = theta_of(state, settings.coordinates, flat)
    model, coordinates = settings.model, settings.coordinates
    return log_prior(model, coordinates, settings.prior, theta, state.unit, state.scales)


def limited(phi: PyTree, coordinates: Coordinates, effects: int) -> Bool[np.ndarray, " k"]:
    """Parameters that are logarithms: the noise and the deviations of the effects."""
    entries = np.zeros(coordinates.size(effects), bool)
    entries[coordinates.diagonal(effects)] = True
    return np.concatenate([logarithms(phi), entries])


def at_zero(state: State, coordinates: Coordinates) -> Bool[Array, " k"]:
    """Which parameters are a deviation of effects that is estimated as 0."""
    flat = state.climb.point
    if coordinates.positive:
        return jnp.zeros(flat.shape, bool)
    entries = jnp.arange(len(flat)) >= len(flat) - coordinates.size(len(state.unit))
    diagonal = jnp.asarray(limited(state.phi, coordinates, len(state.unit))) & entries
    return diagonal & (jnp.abs(jnp.sinh(flat)) < _ZERO)


def spread_of(state: State, coordinates: Coordinates) -> Float[Array, "k k"]:
    """S with S S' the covariance of theta: the inverse of the negative Hessian.

    Directions without a maximum, deviations at 0, and logarithms that run away do not vary in it:
    draws of these would be 0 or infinite. Before the best point has been evaluated nothing does.
    """
    curvature, axes = jnp.linalg.eigh(state.climb.curvature)
    regular = curvature > 0.5
    spread = state.climb.frame @ ((axes * regular) @ axes.T)
    may = unbounded(state.phi)
    vague = jnp.linalg.norm(spread, axis=1) > _VAGUE
    vague &= jnp.asarray(np.pad(may, (0, len(spread) - len(may))))
    fixed = (at_zero(state, coordinates) | vague)[:, None] | (state.round < 2)
    return jnp.where(fixed, 0.0, spread)
