"""A law of random effects of any shape: exp(-E(z)), E a small network."""

import math
import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covey.models.law import Law, Normaliser


class Energy(NamedTuple):
    """Parameters of E(z) = |z - centre|^2 / (2 spread^2) + a network with one hidden layer.

    The first term makes the law proper.
    """

    centre: Float[Array, " effects"]
    inward: Float[Array, "units effects"]
    bias: Float[Array, " units"]
    outward: Float[Array, " units"]


def energy(
    *,
    units: int = 32,
    spread: float = 2.0,
    step_size: float = 0.02,
    particles: int = 200,
    steps: int = 20,
    fewest_clients: int = 50,
) -> Law:
    """Law of random effects of any shape: exp(-E(z)), E a small network.

        E(z) = |z - centre|^2 / (2 spread^2) + outward' tanh(inward (z - centre) + bias)

    The integral of exp(-E) is not known; its gradient is followed by Markov chains at the server,
    whose transitions are exact: an adjusted Langevin step, then an independence proposal from the
    wide Gaussian (Metropolis), which leads from mode to mode where effects are few.

    Args:
        units: Hidden units of the network. More units allow more modes and need more clients.
        spread: Standard deviation of the wide Gaussian, in units of the effects. The network is
            bounded, so choose it wider than the clients' effects. Default: 2.
        step_size: Step size of the particles' Langevin steps. Default: 0.02.
        particles: Markov chains that estimate the gradient of the integral.
        steps: Transitions of each particle per round.
        fewest_clients: A warning is given for fewer clients than this. Default: 50.

    Returns:
        A law for `fedpop(effects=...)`. Its density is known up to a constant.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import Spec
        >>> law = energy(units=4)
        >>> beta = law.init(jax.random.key(0), jnp.zeros(2), Spec(None))
        >>> beta.inward.shape
        (4, 2)

    Reference: Kotelevskii et al. (2022), FedPop, section 2 (an energy-based prior).
    """
    for name, value, least in (
        ("units", units, 1),
        ("particles", particles, 1),
        ("steps", steps, 1),
    ):
        if value < least:
            raise ValueError(f"energy: {name} must be at least {least}, got {value}")
    for name, value in (("spread", spread), ("step_size", step_size)):
        if value <= 0:
            raise ValueError(f"energy: {name} must be above 0, got {value:g}")
    import blackjax.mcmc.mala as adjusted  # takes a second to import

    langevin = adjusted.build_kernel()

    def init(key, z, spec):
        if spec.clients is not None and spec.clients < fewest_clients:
            warnings.warn(
                f"energy: {spec.clients} clients are few for the shape of a density; "
                "gaussian() or fixed() need fewer",
                stacklevel=2,
            )
        inward, bias = jax.random.split(key)
        scale = 1 / (spread * math.sqrt(len(z)))
        return Energy(
            centre=z,
            inward=scale * jax.random.normal(inward, (units, len(z)), z.dtype),
            bias=jax.random.normal(bias, (units,), z.dtype),
            outward=jnp.zeros(units, z.dtype),
        )

    def network(beta, z):
        return beta.outward @ jnp.tanh(beta.inward @ (z - beta.centre) + beta.bias)

    def log_density(beta, z):
        return -jnp.sum((z - beta.centre) ** 2) / (2 * spread**2) - network(beta, z)

    def wide(key, beta, count):
        """Draws of the law without its network."""
        return beta.centre + spread * jax.random.normal(
            key, (count, *beta.centre.shape), beta.centre.dtype
        )

    def moved(key, beta, at, transitions):
        """The particles after some transitions that leave the law invariant."""

        def walk(key, z):
            density = partial(log_density, beta)
            return langevin(key, adjusted.init(z, density), density, step_size)[0].position

        def step(index, at):
            walks, jump, accept = jax.random.split(jax.random.fold_in(key, index), 3)
            far = wide(jump, beta, len(at))
            at = jnp.asarray(jax.vmap(walk)(jax.random.split(walks, len(at)), at))
            # The wide Gaussian is both a factor of the law and the proposal, and cancels.
            gain = jax.vmap(partial(network, beta))(at) - jax.vmap(partial(network, beta))(far)
            taken = jnp.log(jax.random.uniform(accept, gain.shape, gain.dtype)) < gain
            return jnp.where(taken[:, None], far, at)

        return jax.lax.fori_loop(0, transitions, step, at)

    def draws(key, beta, count):
        start, walk = jax.random.split(key)
        return moved(walk, beta, wide(start, beta, count), math.ceil(5 * spread**2 / step_size))

    def gradient(key, beta, at):
        at = moved(key, beta, at, steps)
        return jax.grad(lambda beta: jnp.mean(jax.vmap(log_density, in_axes=(None, 0))(beta, at)))(
            beta
        ), at

    return Law(
        init=init,
        log_density=log_density,
        start=lambda beta: beta.centre,
        draws=draws,
        normaliser=Normaliser(lambda key, beta: wide(key, beta, particles), gradient),
    )
