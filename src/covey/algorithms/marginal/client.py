"""A client's term of the marginal likelihood: values, derivatives, and draws of its effects.

Called in double precision; see `kernels.precision`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from covey.algorithms.marginal.parameters import Settings, Theta, logarithms
from covey.algorithms.marginal.products import (
    Products,
    closed_form,
    is_linear_gaussian,
    products_of,
)
from covey.core.shard import Batch, Rows, Shard, all_rows
from covey.kernels.laplace import (
    Conditional,
    Jet,
    Randomness,
    differentiated,
    draw_effects,
    jet,
    log_marginal,
    mode,
    randomness,
    through_predictor,
)
from covey.kernels.pareto_smoothing import HIGHEST_K, smoothed
from covey.kernels.precision import in_double
from covey.kernels.triangle import packed

NODES = {1: 9, 2: 7, 3: 5}  # quadrature nodes per effect by the number of effects; beyond, Laplace


class Term(NamedTuple):
    """A client's log marginal likelihood as a function of the flattened theta.

    Attributes:
        centre: (theta, start) -> the mode of the standardised effects, where one is needed.
        value: (theta, centre) -> the log marginal likelihood.
        information: (theta) -> X'V^-1 X, what the client knows of the coefficients beta; None where
            the likelihood is not linear and Gaussian.
        draw: (random numbers, theta, start) -> a draw of the effects z given the rows.
        start: Start of the search for a mode that is not known: zeros. A mode at a theta nearby
            is closer.
    """

    centre: Callable[[Float[Array, " k"], Float[Array, " q"]], Float[Array, " q"]]
    value: Callable[[Float[Array, " k"], Float[Array, " q"]], Float[Array, ""]]
    information: Callable[[Float[Array, " k"]], Float[Array, "p p"]] | None
    draw: Callable[[Randomness, Float[Array, " k"], Float[Array, " q"]], Float[Array, " q"]]
    start: Float[Array, " q"]


class Information(NamedTuple):
    """X'V^-1 X in a well-conditioned basis, and its first and second derivatives by the parameters
    of V; upper triangles of what is symmetric.
    """

    value: Float[Array, " beta"]
    first: Float[Array, "beta m"]
    second: Float[Array, "beta pairs"]


def client_rows(data: Shard, min_rows: int = 0) -> Batch:
    """The client's rows; none of them counts where they are fewer than `min_rows`.

    Those beyond its own repeat its last one, and are ones where it has none: a density of zeros or
    of another client's rows may not be finite, and then its derivatives are not, masked or not.
    """
    batch = all_rows(data)

    def own(leaf):
        return jnp.where(data.count > 0, leaf, jnp.ones((), leaf.dtype))

    return Batch(jax.tree.map(own, batch.rows), batch.mask & (data.count >= min_rows))


def exact_term(
    settings: Settings, theta: Theta, unit: Float[Array, " q"], shapes: Rows, products: Products
) -> Term:
    """The term of a client with a linear Gaussian model, in closed form.

    Args:
        settings: Those of the method.
        theta: Any value of the parameters.
        unit: Of each effect.
        shapes: Of its rows, which are not looked at.
        products: Cross products of its rows.

    Returns:
        The term.
    """
    model, coordinates = settings.model, settings.coordinates
    value, information, white = closed_form(model, coordinates, theta, unit, shapes, products)
    flat, unravel = ravel_pytree(theta)

    def draw(random, at, start):
        b = white(at, random.normal[0].astype(at.dtype))
        return coordinates.root(unravel(at).root, unit) @ b if len(unit) else b

    none = jnp.zeros(0, flat.dtype)
    return Term(lambda at, start: none, value, information, draw, none)


def client_term(settings: Settings, theta: Theta, unit: Float[Array, " q"], batch: Batch) -> Term:
    """A client's term.

    Args:
        settings: Those of the method.
        theta: Any value of the parameters; for a linear Gaussian model, the reference.
        unit: Of each effect.
        batch: The client's rows.

    Returns:
        The term. A likelihood that is linear in coefficients and effects and Gaussian is integrated
        in closed form from cross products of the rows, any other by quadrature.
    """
    model, coordinates, effects = settings.model, settings.coordinates, len(unit)
    flat, unravel = ravel_pytree(theta)
    nodes = NODES.get(effects, 1) if settings.nodes is None else settings.nodes

    def log_likelihood(at, b):
        here, z = unravel(at), effects_of(at, b)
        terms = model.log_likelihood(here.phi, z, batch.rows)
        value = jnp.sum(jnp.where(batch.mask, terms, 0.0))
        if model.law is None:
            return value
        # Of z by its own law, relative to a standard normal distribution.
        log_density = model.law.log_density(here.phi, z)
        return value + log_density + (z @ z + effects * jnp.log(2 * jnp.pi)) / 2

    def effects_of(at, b):
        if model.law is not None or not effects:
            return b
        return coordinates.root(unravel(at).root, unit) @ b

    def given(at) -> Conditional:
        of = model.predictor
        if of is None or of.log_likelihood is not model.log_likelihood or not effects:
            return differentiated(lambda b: log_likelihood(at, b))
        here, rows = unravel(at), batch.rows

        def predictor(b):
            return of.value(here.phi, effects_of(at, b), rows.x)

        offset, design = predictor(start), jax.jacfwd(predictor)(start)
        return through_predictor(
            lambda value: of.terms(here.phi, value, rows), offset, design, batch.mask
        )

    start = jnp.zeros(effects, flat.dtype)
    if is_linear_gaussian(model, theta.phi, effects, batch.rows):
        products = products_of(model, theta.phi, effects, batch)
        return exact_term(settings, theta, unit, batch.rows, products)

    def centre(at, start):
        return mode(given(at), start)

    def draw(random, at, start):
        return effects_of(at, draw_effects(random, given(at), start))

    def value(at, centre):
        return log_marginal(given(at), centre, nodes=nodes)

    return Term(centre, value, None, draw, start)


def jet_and_gain(
    term: Term, trial: Float[Array, " k"], point: Float[Array, " k"]
) -> tuple[Jet, Float[Array, ""]]:
    """The term with derivatives at a trial point, and how much higher it is than at another."""
    both = jnp.stack([trial, point])
    centres = jax.vmap(term.centre, in_axes=(0, None))(both, term.start)
    values = jax.vmap(term.value)(both, centres)
    return jet(lambda at: term.value(at, centres[0]), trial), values[0] - values[1]


def information_jet(
    term: Term, theta: Theta, flat: Float[Array, " k"], basis: Float[Array, "p p"]
) -> Information:
    """X'V^-1 X with its derivatives by the noise and the covariance of the effects, for REML.

    Args:
        term: The client's term.
        theta: The parameters as a tree, for their structure.
        flat: The parameters.
        basis: Columns that make X well conditioned.

    Returns:
        The information.
    """
    assert term.information is not None
    information, (beta, others) = term.information, coefficients_of(theta)

    def of(values):
        of_beta = information(flat.at[others].set(values))[np.ix_(beta, beta)]
        return packed(basis.T @ of_beta @ basis)

    at = flat[others]
    first = jax.jacfwd(of)
    return Information(of(at), first(at), packed(jax.jacfwd(first)(at)))


def coefficients_of(theta: Theta) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the coefficients beta in the flattened theta, and those of all others."""
    other = np.concatenate([logarithms(theta.phi), np.ones(np.size(theta.root), bool)])
    return np.flatnonzero(~other), np.flatnonzero(other)


def values(
    settings: Settings, sent: "Points", batch: Batch
) -> tuple[Float[Array, " points"], Float[Array, ""]]:
    """The client's log marginal likelihood at some points, and that at theta."""
    term = client_term(settings, sent.theta, sent.unit, batch)
    theta, _ = ravel_pytree(sent.theta)
    here = term.centre(theta, term.start)

    def value(at):
        return term.value(at, term.centre(at, here))

    found = jax.lax.map(value, sent.points, batch_size=_together(len(sent.points)))
    return found, term.value(theta, here)


def draws_of_effects(
    settings: Settings,
    theta: Theta,
    unit: Float[Array, " q"],
    key: Key[Array, ""],
    points: Float[Array, "draws k"],
    batch: Batch,
) -> Float[Array, "draws q"]:
    """Draws of a client's effects z given its rows, one for each point of theta."""
    term = client_term(settings, theta, unit, batch)
    random = randomness(key, len(points), len(unit))

    here = term.centre(ravel_pytree(theta)[0], term.start)

    def one(pair):
        random, at = pair
        return term.draw(random, at, here)

    return jax.lax.map(one, (random, points), batch_size=_together(len(points)))


class Points(NamedTuple):
    """A question to a client: its likelihood at some points.

    Attributes:
        theta: The maximum, that values are compared with.
        unit: Units of the effects.
        points: Values of the flattened theta.
    """

    theta: Theta
    unit: Float[Array, " q"]
    points: Float[Array, "points k"]


class LeftOut(NamedTuple):
    """A client's terms of the sums for leaving it out.

    Attributes:
        value: The log predictive density of its rows, given those of all others.
        square: Its square.
        unreliable: 1 where the weights are not reliable.
        clients: 1, for a client with rows.
    """

    value: Float[Array, ""]
    square: Float[Array, ""]
    unreliable: Float[Array, ""]
    clients: Float[Array, ""]


def answer_gains(
    settings: Settings, key: Key[Array, ""], sent: Points, data: Shard
) -> Float[Array, " points"]:
    """The client's log marginal likelihood at the points minus that at the maximum."""
    return in_double(_gains, settings)(sent, client_rows(data, settings.min_rows))


def _gains(settings: Settings, sent: Points, batch: Batch) -> Float[Array, " points"]:
    found, here = values(settings, sent, batch)
    return found - here


def answer_left_out(settings: Settings, key: Key[Array, ""], sent: Points, data: Shard) -> LeftOut:
    """The predictive density of the client's rows where it is left out of the posterior, of which
    the points are draws: each is weighted by one over the client's likelihood, Pareto smoothed.
    """
    return in_double(_left_out, settings)(sent, client_rows(data, settings.min_rows))


def _left_out(settings: Settings, sent: Points, batch: Batch) -> LeftOut:
    found, _ = values(settings, sent, batch)
    log_weights, k_hat = smoothed(-found)
    value = jax.nn.logsumexp(log_weights + found)
    there = jnp.any(batch.mask).astype(value.dtype)
    bad = (k_hat > HIGHEST_K).astype(value.dtype)
    return LeftOut(value * there, value**2 * there, bad * there, there)


def _together(count: int) -> int:
    """The count of points computed side by side; a rest would be compiled anew."""
    return max(size for size in range(1, 33) if count % size == 0)
