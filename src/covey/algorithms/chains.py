"""Chains of the shared parameters that a server walks through: what sampling methods have in
common.

Chains lie on the last axis of all arrays. The server keeps the newest draws of each chain in a
ring, from which a run collects all of them and clients predict.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from optax.tree_utils import tree_norm

from covey.algorithms.mode import LogPrior
from covey.core.algorithm import Chains, Kept, Plan, Posterior, State
from covey.core.shard import Spec
from covey.kernels.langevin_chains import noise_like
from covey.models.model import Model
from covey.models.predictive import Predictive, mixture_of

_BATCH = 32  # draws that predict side by side


class Recording(NamedTuple):
    """Which states of the chains are draws.

    Attributes:
        burn_in: Rounds before the first draw.
        thinning: Rounds from one draw to the next.
        keep: Newest draws of each chain that the server keeps.
    """

    burn_in: int = 0
    thinning: int = 1
    keep: int = 100

    def due(self, round_: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether the state after `round_` rounds is a draw."""
        return (round_ > self.burn_in) & ((round_ - self.burn_in) % self.thinning == 0)


class Ring(NamedTuple):
    """The newest draws of all chains.

    Attributes:
        draws: Arrays (size, ..., chains); the next draw goes to index `count` modulo the size.
        count: Draws since the first round.
    """

    draws: PyTree
    count: Int[Array, ""]


class Published(NamedTuple):
    """The published state, which clients predict with.

    Attributes:
        draws: Draws of all chains, on the leading axis.
        weight: 1 for the entries that hold a draw, 0 for the others.
    """

    draws: PyTree
    weight: Float[Array, " draws"]


def first_states(
    key: Key[Array, ""],
    apart: Key[Array, ""],
    model: Model,
    spec: Spec,
    chains: int,
    jitter: int | float,
) -> PyTree:
    """The start of the chains: that of the model, plus Gaussian noise of sd `jitter` by `apart`."""
    theta = jax.vmap(lambda key: model.init(key, spec), out_axes=-1)(jax.random.split(key, chains))
    if not jitter:
        return theta
    return jax.tree.map(lambda at, xi: at + jitter * xi, theta, noise_like(apart, theta))


def log_prior_of(name: str, model: Model, prior: int | float | LogPrior | None) -> LogPrior | None:
    """The log-density of the prior up to a constant; None is flat.

    Args:
        name: The method, for its errors.
        model: The model, which may have a prior.
        prior: Standard deviation of a Gaussian with mean zero on every parameter, or a log-density;
            None takes the model's.
    """
    if prior is None:
        return model.log_prior
    if model.log_prior is not None:
        raise ValueError(f"{name}: {model.name} has its own prior; leave prior= out")
    if callable(prior):
        return prior
    if not prior > 0:
        raise ValueError(f"{name}: prior must be above 0, got {prior:g}")
    return lambda theta: -0.5 * tree_norm(theta, squared=True) / prior**2


def empty_ring(size: int, theta: PyTree) -> Ring:
    """A ring for `size` draws of each chain, without any yet."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), theta)
    return Ring(zeros, jnp.int32(0))


def recorded(ring: Ring, theta: PyTree, due: Bool[Array, ""]) -> Ring:
    """The ring with a new draw, where one is due, in place of the oldest.

    Example:
        >>> ring = empty_ring(2, jnp.zeros((1,)))
        >>> for value in (5.0, 6.0, 7.0):
        ...     ring = recorded(ring, jnp.array([value]), jnp.bool_(True))
        >>> ring.draws[:, 0].tolist(), int(ring.count)
        ([7.0, 6.0], 3)
    """
    size = jax.tree.leaves(ring.draws)[0].shape[0]
    index = ring.count % size
    draws = jax.tree.map(
        lambda all_, new: all_.at[index].set(jnp.where(due, new, all_[index])), ring.draws, theta
    )
    return Ring(draws, ring.count + due)


def published(ring: Ring, theta: PyTree) -> Published:
    """The draws that the server keeps; before the first, the states of the chains."""
    size, chains = (jax.tree.leaves(ring.draws)[0].shape[axis] for axis in (0, -1))
    draws = jax.tree.map(
        lambda all_, now: all_.at[0].set(jnp.where(ring.count == 0, now, all_[0])),
        ring.draws,
        theta,
    )
    held = jnp.arange(size) < jnp.maximum(ring.count, 1)
    flat = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, -1, 1).reshape(-1, *leaf.shape[1:-1]), draws
    )
    return Published(flat, jnp.repeat(held.astype(float), chains))


def averaged_predictive(model: Model, down: Published, x: PyTree) -> Predictive:
    """The predictive distribution of the rows x, averaged over the draws."""
    members = jax.lax.map(
        lambda one: model.predictive(one, x), down.draws, batch_size=min(_BATCH, len(down.weight))
    )
    return mixture_of(members, down.weight)


def chain_posterior(model: Model, ring_of: Callable[[State], Ring]) -> Posterior:
    """The posterior of a method whose state has a ring.

    Args:
        model: Describes and predicts with a draw.
        ring_of: (server state) -> its ring.
    """

    def kept(state):
        draws, count = ring_of(state)
        return Kept(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 1), draws), count)

    described = Chains(kept, model.describe or (lambda draw: draw), model.predictive)
    return Posterior(shared=described, axes=model.axes)


def check_recording(name: str, recording: Recording) -> None:
    """An error for a recording that keeps nothing."""
    for option, least in (("burn_in", 0), ("thinning", 1), ("keep", 1)):
        value = getattr(recording, option)
        if value < least:
            raise ValueError(f"{name}: {option} must be at least {least}, got {value}")


def check_rounds(name: str, recording: Recording, plan: Plan) -> None:
    """An error where the run ends before the first draw."""
    first = recording.burn_in + recording.thinning
    if plan.rounds is not None and plan.rounds < first:
        raise ValueError(
            f"{name}: the first draw is after round {first} (burn_in={recording.burn_in}, "
            f"thinning={recording.thinning}), and rounds={plan.rounds} ends before it; ask for "
            "more rounds, or for a shorter burn_in or thinning"
        )
