"""A client's side of FA-LD: Langevin steps on its rows."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from covey.algorithms.averaging import Info
from covey.algorithms.fald_privacy import Clipping
from covey.algorithms.mode import LogPrior
from covey.core.shard import Batch, Shard, all_rows, poisson_rows, some_rows
from covey.kernels.langevin_chains import Langevin, Noises, langevin_steps
from covey.models.model import Model
from covey.privacy.clipping import clipped_sum
from covey.privacy.mechanism import Sampling

# (parameters, batch, n / m) -> gradient of f^c
Gradient: TypeAlias = Callable[[PyTree, Batch, Float[Array, ""]], PyTree]


class Down(NamedTuple):
    """The broadcast.

    Attributes:
        theta: The states of the chains, on the last axis.
        shared_key: Key of the noise that all clients of the round share.
        round: Rounds done.
        examples: Training rows of all clients together (n).
    """

    theta: PyTree
    shared_key: UInt32[Array, " words"]
    round: Int[Array, ""]
    examples: Float[Array, ""]


class Walk(NamedTuple):
    """The settings of the clients' walk; see `fald` for the meaning of the fields."""

    steps: Langevin
    correlation: float
    batch_size: int | None = None
    sampling: Sampling = "fixed"
    jitter: float = 0.0
    clipping: Clipping | None = None


def local_walk(
    walk: Walk, gradient: Gradient, key: Key[Array, ""], down: Down, data: Shard
) -> tuple[PyTree, Float[Array, ""]]:
    """A client's chains after its local steps, beta^c, and its share p_c of all rows."""
    share = data.count / down.examples
    choose, own = jax.random.split(key)
    batch_of, rows = minibatches(data, walk.batch_size, walk.sampling)
    scale = down.examples / jnp.maximum(rows, 1)
    chains = jax.tree.leaves(down.theta)[0].shape[-1]
    beta = langevin_steps(
        walk.steps._replace(chains=chains),
        lambda key, theta: gradient(theta, batch_of(key), scale),
        choose,
        noises(own, down.shared_key, share, walk.correlation),
        down.round,
        down.theta,
    )
    return beta, share


def weighted_walk(
    steps: Langevin,
    gradient: Gradient,
    keys: tuple[Key[Array, ""], Key[Array, ""]],
    data: Shard,
    batch_size: int | None,
    weight: float | Float[Array, ""],
    start: PyTree,
    common: Callable[[PyTree], PyTree],
) -> PyTree:
    """Chains after Langevin steps on the energy of a client's rows times a weight, plus a term that
    is known for all chains at once.

    Args:
        steps: Settings of the steps; their size does not fall.
        gradient: Of the energy of a minibatch; see `energy_gradient`.
        keys: Of the minibatches and of the noise.
        data: The client's rows.
        batch_size: Rows per step, drawn without replacement; None takes all.
        weight: Factor of the gradient of all rows.
        start: The chains before the first step, on the last axis.
        common: (all chains) -> the gradients of that term.
    """
    choose, noise = keys
    batch_of, rows = minibatches(data, batch_size, "fixed")
    scale = weight * data.count / jnp.maximum(rows, 1)
    return langevin_steps(
        steps,
        lambda key, theta: gradient(theta, batch_of(key), scale),
        choose,
        [(1.0, noise)],
        jnp.int32(0),
        start,
        common,
    )


def energy_gradient(model: Model, log_prior: LogPrior | None, clip: int | float | None) -> Gradient:
    """(theta, batch, n / m) -> (n / m) sum over the batch of grad l, plus grad U.

    Args:
        model: Log-likelihood of the rows.
        log_prior: -U; None is flat.
        clip: Largest norm of one row's gradient; None clips nothing.
    """

    def plain(theta, batch):
        return jax.grad(lambda at: -_log_likelihood(model, at, batch))(theta)

    of_rows = plain if clip is None else clipped_sum(model.log_likelihood, clip=clip)

    def gradient(theta, batch, scale):
        pull = (
            jax.tree.map(jnp.zeros_like, theta) if log_prior is None else jax.grad(log_prior)(theta)
        )
        return jax.tree.map(lambda g, p: scale * g - p, of_rows(theta, batch), pull)

    return gradient


def minibatches(
    data: Shard, batch_size: int | None, sampling: Sampling
) -> tuple[Callable[[Key[Array, ""]], Batch], Int[Array, ""]]:
    """(key) -> a minibatch of a client's rows, and how many rows it has, on average."""
    rows = data.count if batch_size is None else jnp.minimum(batch_size, data.count)
    if batch_size is None or batch_size >= data.capacity:
        every = all_rows(data)
        return lambda key: every, rows
    draw = some_rows if sampling == "fixed" else poisson_rows
    return lambda key: draw(key, data, batch_size), rows


def noises(
    own: Key[Array, ""],
    shared: UInt32[Array, " words"],
    share: Float[Array, ""],
    correlation: int | float,
) -> Noises:
    """Scales and keys of the noise that all clients share and of the client's own.

    Random values are most of the cost of a step with few parameters: none are drawn that count for
    nothing.
    """
    of_all = jax.random.wrap_key_data(shared, impl="threefry2x32")
    own_scale = jnp.sqrt((1 - correlation**2) / jnp.where(share > 0, share, jnp.inf))
    both = [(jnp.asarray(correlation, float), of_all), (own_scale, own)]
    return both[correlation == 0 : 1 + (correlation < 1)]


def batch_loss(model: Model, theta: PyTree, batch: Batch) -> Float[Array, ""]:
    """The mean over the rows of a batch of -log p(row | theta)."""
    return -_log_likelihood(model, theta, batch) / jnp.maximum(jnp.sum(batch.mask), 1)


def first_chain(theta: PyTree) -> PyTree:
    """The parameters of the first of all chains."""
    return jax.tree.map(lambda leaf: leaf[..., 0], theta)


def chain_report(
    model: Model,
    key: Key[Array, ""],
    theta: PyTree,
    data: Shard,
    batch_size: int | None,
    steps: int,
) -> Info:
    """A sampler's report: the loss of a minibatch in the first chain, and its local steps."""
    batch_of, _ = minibatches(data, batch_size, "fixed")
    loss = batch_loss(model, first_chain(theta), batch_of(key))
    return Info(loss, jnp.asarray(steps))


def _log_likelihood(model: Model, theta: PyTree, batch: Batch) -> Float[Array, ""]:
    return jnp.sum(jnp.where(batch.mask, model.log_likelihood(theta, batch.rows), 0.0))
