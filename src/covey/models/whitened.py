"""A model in coordinates in which its posterior is nearly a standard Gaussian."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from covey.core.shard import Rows
from covey.models.model import Model


def whitened(
    model: Model,
    log_prior: Callable[[PyTree], Float[Array, ""]] | None,
    centre: PyTree,
    spread: Float[Array | np.ndarray, "d d"],
) -> tuple[Model, Model]:
    """A model whose parameters are u, with theta = m + S u, and the same with residuals.

    Where m is the mode of the posterior and S S' the inverse Hessian of its energy
    f = sum_i l_i + U there,

        f(u) = |u|^2 / 2 + sum_i r_i(u) + r_U(u) + constant,

    with r the remainder of a function beyond its second-order Taylor polynomial at u = 0. The
    second model has log-likelihoods -r_i and the log prior -|u|^2 / 2 - r_U. It has the same
    posterior, but the part in which clients differ most, their gradients and curvatures at the
    mode, is no longer divided between them: it has become the prior, which all of them know. For
    Gaussian posteriors r is zero, and clients do not differ at all.

    Args:
        model: The model.
        log_prior: Its log prior, -U; None is flat.
        centre: m, as the model's parameters.
        spread: S.

    Returns:
        Two models of u: with the likelihood itself, and with residuals.
    """
    flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), centre))
    root = jnp.asarray(spread, flat.dtype)

    def theta(u):
        return unravel(flat + root @ u)

    def rest_of_rows(u: Float[Array, " d"], rows: Rows) -> Float[Array, " rows"]:
        return _rest(lambda at: model.log_likelihood(theta(at), rows), u)

    prior = log_prior or (lambda parameters: jnp.zeros(()))

    def rest_of_prior(u: Float[Array, " d"]) -> Float[Array, ""]:
        return -0.5 * u @ u + _rest(lambda at: prior(theta(at)), u)

    described = model.describe
    plain = Model(
        name=model.name,
        init=lambda key, spec: jnp.zeros_like(flat),
        log_likelihood=lambda u, rows: model.log_likelihood(theta(u), rows),
        predictive=lambda u, x: model.predictive(theta(u), x),
        describe=theta if described is None else lambda u: described(theta(u)),
        axes=model.axes,
    )
    return plain, plain._replace(log_likelihood=rest_of_rows, log_prior=rest_of_prior)


def _rest(function: Callable[[Array], Array], u: Float[Array, " d"]) -> Array:
    """A function minus its second-order Taylor polynomial at 0."""
    zero = jnp.zeros_like(u)

    def along(at):
        return jax.jvp(function, (at,), (u,))

    (value, first), (_, second) = jax.jvp(along, (zero,), (u,))
    return function(u) - value - first - second / 2
