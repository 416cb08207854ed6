"""A client's answer in a round of `covey.marginal`: its terms of the sums."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from covey.algorithms.marginal.client import (
    Information,
    Term,
    client_rows,
    client_term,
    coefficients_of,
    exact_term,
    information_jet,
    jet_and_gain,
)
from covey.algorithms.marginal.initialisation import Moments, moments
from covey.algorithms.marginal.parameters import Settings, Theta
from covey.algorithms.marginal.products import (
    MOST_KEPT,
    Memory,
    is_linear_gaussian,
    log_scale,
    products_of,
    recollected,
    remembered,
)
from covey.core import tree
from covey.core.algorithm import Empty, Local
from covey.core.shard import Batch, Rows, Shard
from covey.kernels import linear_gaussian
from covey.kernels.linear_gaussian import CrossProducts
from covey.kernels.precision import AsItIs, doubled, in_double
from covey.kernels.triangle import packed

_BAD = -1e30  # the gain of a step to where a client's likelihood is not finite


class Down(NamedTuple):
    """The broadcast of a round.

    Attributes:
        trial: The parameters to evaluate.
        point: Those to compare with.
        frame: The directions that derivatives are taken in.
        unit: Units of the effects.
        level: Log-likelihood of an average row, which values are sent without.
        basis: Columns that make the design well conditioned, for REML.
        round: Rounds so far.
    """

    trial: Theta
    point: Theta
    frame: Float[Array, "k k"]
    unit: Float[Array, " q"]
    level: Float[Array, ""]
    basis: Float[Array, "p p"] | Empty
    round: Int[Array, ""]


class Up(NamedTuple):
    """A client's terms of the sums.

    Attributes:
        value: Its log marginal likelihood at the trial point, minus the level for each row: what is
            left is small, so that sums of float32 numbers are precise. First round:
            `Moments.squares`.
        gain: The value minus that at the best point.
        rows: Its count of rows. First round: `Moments.weight`.
        gradient: In the frame. First round: `Moments.score`.
        hessian: In the frame, its upper triangle. First round: `Moments.information`, and
            `Moments.effects` on the diagonal.
        information: X'V^-1 X with derivatives, for REML.
    """

    value: Float[Array, ""]
    gain: Float[Array, ""]
    rows: Float[Array, ""]
    gradient: Float[Array, " k"]
    hessian: Float[Array, " pairs"]
    information: Information | Empty


class ClientInfo(NamedTuple):
    """The negative log marginal likelihood per row."""

    train_loss: Float[Array, ""]


def init_client(settings: Settings, key, down: Down, data: Shard) -> Memory | Empty:
    """A client's state: cross products of its rows where the model is linear and Gaussian."""
    model, phi, effects = settings.model, down.trial.phi, len(down.unit)
    size = ravel_pytree(phi)[0].size + effects
    if size > MOST_KEPT or not is_linear_gaussian(model, phi, effects, _shapes(data)):
        return Empty()
    return in_double(_memory, settings)(down, AsItIs(data))


def _memory(settings: Settings, down: Down, data: AsItIs) -> Memory:
    batch = doubled(client_rows(data.value, settings.min_rows))
    return remembered(products_of(settings.model, down.trial.phi, len(down.unit), batch))


def _shapes(data: Shard) -> Rows:
    """Shapes of one row."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), data.rows
    )


def client(settings: Settings, key, down: Down, state: Memory | Empty, data: Shard) -> Local:
    """A client's round: terms of the start in the first, derivatives in all others."""
    if isinstance(state, Empty):
        batch = client_rows(data, settings.min_rows)
        up, loss = in_double(_from_rows, settings)(down, batch)
    else:
        up, loss, state = in_double(_from_memory, settings)(down, state, AsItIs(data))
    return Local(up, state, ClientInfo(loss / jnp.maximum(data.count, 1)))


def _from_rows(settings: Settings, down: Down, batch: Batch) -> tuple[Up, Array]:
    first, later = partial(_first_terms, settings), partial(_later_terms, settings)
    return jax.lax.cond(down.round == 0, first, later, down, batch)


def _from_memory(
    settings: Settings, down: Down, state: Memory, data: AsItIs
) -> tuple[Up, Array, Memory]:
    """A client's terms from its state. Residuals are taken anew where the start is found: from
    there on, the parameters change little, and no row is looked at.
    """
    state = jax.lax.cond(down.round == 1, lambda: _memory(settings, down, data), lambda: state)
    products, shapes = recollected(state), _shapes(data.value)

    def first():
        return _first_from_products(settings, down, shapes, products.of)

    def later():
        term = exact_term(settings, down.trial, down.unit, shapes, products)
        return _terms(down, term, products.of.rows)

    return *jax.lax.cond(down.round == 0, first, later), state


def _first_from_products(
    settings: Settings, down: Down, shapes: Rows, of: CrossProducts
) -> tuple[Up, Array]:
    """As `_first_terms`, of a linear Gaussian model."""
    found = Moments(of.rr, of.rows, of.xr, of.xx, jnp.diagonal(of.zz))
    scale = log_scale(settings.model, down.trial.phi, len(down.unit), shapes)
    value = linear_gaussian.log_likelihood(of, 0 * of.xr, jnp.zeros((0, 0)), scale)
    return _as_upload(settings, down, found), -value


def _first_terms(settings: Settings, down: Down, batch: Batch) -> tuple[Up, Array]:
    """A client's terms of the start."""
    model, none = settings.model, jnp.zeros(len(down.unit))
    of = moments(model, down.trial.phi, none, batch.rows, batch.mask)
    each = model.log_likelihood(down.trial.phi, none, batch.rows)
    return _as_upload(settings, down, of), -jnp.sum(jnp.where(batch.mask, each, 0.0))


def _as_upload(settings: Settings, down: Down, of: Moments) -> Up:
    """The terms of the start in the fields of an upload."""
    coordinates, effects = settings.coordinates, len(down.unit)
    known = of.effects[: len(coordinates.diagonal(effects))]
    shared, size = len(of.score), len(down.frame)
    entry = shared + coordinates.diagonal(effects)
    hessian = jnp.zeros((size, size)).at[:shared, :shared].set(of.information)
    hessian = hessian.at[entry, entry].set(known)
    information: Information | Empty = Empty()
    if isinstance(down.basis, jax.Array):
        (beta, others), zeros = coefficients_of(down.trial), jnp.zeros
        p, m = (count * (count + 1) // 2 for count in (len(beta), len(others)))
        information = Information(zeros(p), zeros((p, len(others))), zeros((p, m)))
    return Up(
        of.squares,
        jnp.zeros(()),
        of.weight,
        jnp.zeros(size).at[:shared].set(of.score),
        packed(hessian),
        information,
    )


def _later_terms(settings: Settings, down: Down, batch: Batch) -> tuple[Up, Array]:
    """A client's terms of a step."""
    term = client_term(settings, down.trial, down.unit, batch)
    return _terms(down, term, jnp.sum(batch.mask, dtype=float))


def _terms(down: Down, term: Term, rows: Float[Array, ""]) -> tuple[Up, Array]:
    """A client's marginal likelihood with derivatives. A likelihood that is not finite is reported
    as a bad step, not as a failure; at the start, where there is no step to take back, as it is.
    """
    (trial, _), (point, _) = ravel_pytree(down.trial), ravel_pytree(down.point)
    found, gain = jet_and_gain(term, trial, point)
    information: Information | Empty = Empty()
    if isinstance(down.basis, jax.Array):
        information = information_jet(term, down.trial, trial, down.basis)
    up = Up(
        found.value - down.level * rows,
        gain,
        rows,
        down.frame.T @ found.gradient,
        packed(down.frame.T @ found.hessian @ down.frame),
        information,
    )
    # Also finite once they are sent in single precision.
    sizes = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(up)]
    good = tree.is_finite(up) & (jnp.stack(sizes).max() < -_BAD)
    refused = jax.tree.map(jnp.zeros_like, up)._replace(gain=jnp.asarray(_BAD), rows=up.rows)
    up = tree.where(good | (down.round == 1), up, refused)
    return up, jnp.where(good, -found.value, -_BAD)
