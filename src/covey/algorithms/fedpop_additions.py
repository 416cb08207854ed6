"""Additions to the paper's FedPop: annealing, the non-centred gradient, and a pass over the
client's rows for phi.
"""

from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.fedpop_sampler import Down
from covey.algorithms.joint import Joint, Population
from covey.core.shard import Shard, batches_of
from covey.kernels.descent import walk

Anneal: TypeAlias = tuple[float, int]


class RowPass(NamedTuple):
    """A pass over a client's rows for phi.

    Attributes:
        rate: Step per row (r).
        batch_size: Rows per minibatch; None takes one step with all rows.
    """

    rate: float
    batch_size: int | None


def temperature(anneal: Anneal | None, round_: Int[Array, ""]) -> Float[Array, ""]:
    """The temperature T of a round: the likelihood counts as p(D_i | phi, z)^(1/T).

    With little noise and few rows a client's effects fit its rows whatever phi is, and phi hardly
    moves. A flatter likelihood, which for Gaussian noise is more noise, lets it.

    Args:
        anneal: (first temperature, rounds): T falls to 1 by a constant factor per round; None is 1
            in every round.
        round_: The number of rounds done.
    """
    if anneal is None:
        return jnp.ones(())
    first, rounds = anneal
    return first ** jnp.maximum(1 - round_ / rounds, 0.0)


def non_centred(
    joint: Joint, at: Population, theta: Population, draws: Float[Array, "draws effects"]
) -> Float[Array, "draws effects"]:
    """Draws made under `at` as functions T(beta, u) of theta's beta, u their standardised effects.

    With z = T(beta, u) and a law of u without parameters, the gradient by beta has the form

        I_i = mean_m grad_beta log p(D_i | T(beta, U_m), phi)

    Its variance does not grow as effects get small, where that of the paper's form, for a Gaussian
    (Z - mean) / sigma^2, has no bound; where clients have many rows the paper's form is better.
    """
    if joint.law.transport is None:
        raise ValueError("fedpop: this law of the effects has no non-centred form")
    return jax.vmap(partial(joint.law.transport, at.beta, theta.beta))(draws)


def gradient_along_rows(
    key: Key[Array, ""],
    joint: Joint,
    down: Down,
    draws: Float[Array, "draws effects"],
    data: Shard,
    along: RowPass,
) -> PyTree:
    """The gradient J_i by phi, summed along a pass over the rows in minibatches, phi moving along:

        phi_i <- phi_i + r mean_m sum over a minibatch of grad_phi log p(row | Z_m, phi_i)
        J_i = (phi_i - phi) / r

    For r -> 0 this is the gradient at phi.

    Args:
        key: Random key of the order of the rows.
        joint: The model.
        down: The broadcast.
        draws: The client's draws Z_1 .. Z_M.
        data: The client's rows.
        along: The step and the minibatches of the pass.
    """
    rate, batch_size = along
    phi = down.theta.phi

    def fit(phi, batch):
        return joint.mean_log_rows(down.theta._replace(phi=phi), draws, batch)

    def step(phi, batch):
        gradient = jax.grad(fit)(phi, batch)
        return jax.tree.map(lambda p, g: p + rate / down.temperature * g, phi, gradient)

    end = walk(key, data, batch_size, 0, batches_of(data, batch_size)[1], step, phi)
    return jax.tree.map(lambda p, q: (p - q) / rate, end, phi)
