"""Laws of random effects, p(z | beta): how the effects of clients spread over the population.

    gaussian   a mean and a covariance: one deviation for all effects, one each, or a full matrix
    mixture    several Gaussians: kinds of clients
    energy     exp(-E(z; beta)), E a small network: whatever shape the clients have
    fixed      a Gaussian that is given and not learned: for few clients

A law is a NamedTuple of pure functions of its parameters beta; a method learns beta from the
clients' draws of z.
"""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import blackjax.mcmc.mala as adjusted
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from covey.core.shard import Spec


class Normaliser(NamedTuple):
    """The gradient of log of the integral of exp(log_density) by beta, for a law whose integral is
    not known.

    It is the mean of grad_beta log_density over the law itself, here over particles of a Markov
    chain that goes on from round to round. It needs no data, so the server does it.

    init: (key, beta) -> particles.
    gradient: (key, beta, particles) -> (the gradient, particles).
    """

    init: Callable[[Key[Array, ""], PyTree], PyTree]
    gradient: Callable[[Key[Array, ""], PyTree, PyTree], tuple[PyTree, PyTree]]


class Law(NamedTuple):
    """A law of random effects.

    init: (key, z, spec) -> beta; z is where a model's effects start.
    log_density: (beta, z) -> log p(z | beta), up to a constant; where that depends on beta there is
        a normaliser.
    start: (beta) -> z, where the chain of a client begins.
    draws: (key, beta, number) -> effects of clients about which nothing is known, stacked.
    project: (beta) -> beta within its bounds.
    normaliser: None where log_density is complete.
    transport: (beta, other beta, z) -> z as the other law would have it, of the same standardised
        effects; None where a law has no such thing.
    learned: whether beta is learned; if not, clients send nothing about it.
    describe: (beta) -> {name: value}: how clients differ, as users know it, every axis one of
        effects; None where beta is all there is.
    """

    init: Callable[[Key[Array, ""], Float[Array, " effects"], Spec], PyTree]
    log_density: Callable[[PyTree, Float[Array, " effects"]], Float[Array, ""]]
    start: Callable[[PyTree], Float[Array, " effects"]]
    draws: Callable[[Key[Array, ""], PyTree, int], Float[Array, "number effects"]]
    project: Callable[[PyTree], PyTree] = lambda beta: beta
    normaliser: Normaliser | None = None
    transport: (
        Callable[[PyTree, PyTree, Float[Array, " effects"]], Float[Array, " effects"]] | None
    ) = None
    learned: bool = True
    describe: Callable[[PyTree], dict[str, Array]] | None = None


class Gaussian(NamedTuple):
    """A mean and log standard deviations: one for all effects, or one for each."""

    mean: Float[Array, "*components effects"]
    log_scale: Float[Array, "*deviations"]

    def log_density(self, z: Float[Array, " effects"]) -> Float[Array, ""]:
        """The Gaussian log-density."""
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, self.mean, jnp.exp(self.log_scale)))


class Correlated(NamedTuple):
    """A Gaussian z = mean + L xi, L = (I + lower) diag(exp(log_scale)), lower strictly triangular:
    any covariance LL'.
    """

    mean: Float[Array, " effects"]
    log_scale: Float[Array, " effects"]
    lower: Float[Array, "effects effects"]

    @property
    def root(self) -> Float[Array, "effects effects"]:
        """The Cholesky factor L of the covariance."""
        return (
            jnp.eye(len(self.mean), dtype=self.mean.dtype) + jnp.tril(self.lower, -1)
        ) * jnp.exp(self.log_scale)

    @property
    def covariance(self) -> Float[Array, "effects effects"]:
        """LL'."""
        return self.root @ self.root.T

    def log_density(self, z: Float[Array, " effects"]) -> Float[Array, ""]:
        """The Gaussian log-density."""
        white = jax.scipy.linalg.solve_triangular(self.root, z - self.mean, lower=True)
        return jnp.sum(jax.scipy.stats.norm.logpdf(white)) - jnp.sum(self.log_scale)


Bounded = TypeVar("Bounded", Gaussian, Correlated)  # laws with deviations to keep within bounds


class Mixture(NamedTuple):
    """Gaussian components with log weights up to a constant."""

    logits: Float[Array, " components"]
    components: Gaussian


class Energy(NamedTuple):
    """E(z) = |z - centre|^2 / (2 spread^2) + a network's value with one hidden layer; the first
    term makes the law proper.
    """

    centre: Float[Array, " effects"]
    inward: Float[Array, "units effects"]
    bias: Float[Array, " units"]
    outward: Float[Array, " units"]


def gaussian(
    *,
    covariance: Literal["isotropic", "diagonal", "full"] = "diagonal",
    initial_scale: float = 1.0,
    scale_bounds: tuple[float, float] = (1e-2, 1e2),
) -> Law:
    """A Gaussian whose mean and covariance are learned; deviations start at `initial_scale` and
    stay within `scale_bounds`.

    With a full covariance the bounds are those of each effect given the ones before it.
    """
    if covariance not in ("isotropic", "diagonal", "full"):
        raise ValueError(
            f"gaussian: covariance must be 'isotropic', 'diagonal' or 'full', got {covariance!r}"
        )
    _check_scales("gaussian", initial_scale, scale_bounds)

    def init(key, z, spec):
        shape = () if covariance == "isotropic" else z.shape
        log_scale = jnp.full(shape, math.log(initial_scale), z.dtype)
        if covariance == "full":
            return Correlated(z, log_scale, jnp.zeros((len(z), len(z)), z.dtype))
        return Gaussian(z, log_scale)

    def draws(key, beta, number):
        noise = jax.random.normal(key, (number, *beta.mean.shape), beta.mean.dtype)
        return beta.mean + (
            noise @ beta.root.T if covariance == "full" else jnp.exp(beta.log_scale) * noise
        )

    def transport(beta, other, z):
        if covariance == "full":
            return other.mean + other.root @ jax.scipy.linalg.solve_triangular(
                beta.root, z - beta.mean, lower=True
            )
        return other.mean + jnp.exp(other.log_scale - beta.log_scale) * (z - beta.mean)

    return Law(
        init=init,
        log_density=lambda beta, z: beta.log_density(z),
        start=lambda beta: beta.mean,
        draws=draws,
        project=lambda beta: _clipped(beta, scale_bounds),
        transport=transport,
        describe=_deviations,
    )


def mixture(
    *, components: int, initial_scale: float = 1.0, scale_bounds: tuple[float, float] = (1e-2, 1e2)
) -> Law:
    """`components` Gaussians with diagonal covariances; their means start at random,
    `initial_scale` around the model's start.
    """
    if components < 1:
        raise ValueError(f"mixture: components must be at least 1, got {components}")
    _check_scales("mixture", initial_scale, scale_bounds)

    def init(key, z, spec):
        means = z + initial_scale * jax.random.normal(key, (components, *z.shape), z.dtype)
        scales = jnp.full(means.shape, math.log(initial_scale), z.dtype)
        return Mixture(jnp.zeros(components, z.dtype), Gaussian(means, scales))

    def log_density(beta, z):
        each = jax.vmap(lambda one: one.log_density(z))(beta.components)
        return jax.nn.logsumexp(jax.nn.log_softmax(beta.logits) + each)

    def draws(key, beta, number):
        choose, spread = jax.random.split(key)
        which = jax.random.categorical(choose, beta.logits, shape=(number,))
        mean, log_scale = beta.components.mean[which], beta.components.log_scale[which]
        return mean + jnp.exp(log_scale) * jax.random.normal(spread, mean.shape, mean.dtype)

    return Law(
        init=init,
        log_density=log_density,
        start=lambda beta: jax.nn.softmax(beta.logits) @ beta.components.mean,
        draws=draws,
        project=lambda beta: beta._replace(components=_clipped(beta.components, scale_bounds)),
    )


def energy(
    *,
    units: int = 32,
    spread: float = 2.0,
    step_size: float = 0.02,
    particles: int = 200,
    steps: int = 20,
    fewest_clients: int = 50,
) -> Law:
    """A density exp(-E(z)) of any shape, E a network of `units` hidden units inside a wide Gaussian
    of deviation `spread`.

    The network is bounded, so `spread` must be wider than the clients'. Its integral is followed by
    `particles` Markov chains of `steps` transitions a round, exact ones: a Langevin step of
    `step_size`, adjusted, and a jump to a draw of the wide Gaussian, taken or not (Metropolis).
    Jumps lead from mode to mode where effects are few. Fewer than `fewest_clients` clients give a
    warning: a shape needs many points.
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
    langevin = adjusted.build_kernel()

    def init(key, z, spec):
        if spec.clients is not None and spec.clients < fewest_clients:
            warnings.warn(
                f"energy: {spec.clients} clients are few for the shape of a density; gaussian() or fixed() need fewer",
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

    def wide(key, beta, number):
        """Draws of the law without its network."""
        return beta.centre + spread * jax.random.normal(
            key, (number, *beta.centre.shape), beta.centre.dtype
        )

    def moved(key, beta, at, number):
        """Particles after `number` transitions that keep the law."""

        def walk(key, z):
            density = partial(log_density, beta)
            return langevin(key, adjusted.init(z, density), density, step_size)[0].position

        def step(place, at):
            walks, jump, accept = jax.random.split(jax.random.fold_in(key, place), 3)
            far = wide(jump, beta, len(at))
            at = jnp.asarray(jax.vmap(walk)(jax.random.split(walks, len(at)), at))
            # The wide Gaussian is both a factor of the law and the proposal, and cancels.
            gain = jax.vmap(partial(network, beta))(at) - jax.vmap(partial(network, beta))(far)
            taken = jnp.log(jax.random.uniform(accept, gain.shape, gain.dtype)) < gain
            return jnp.where(taken[:, None], far, at)

        return jax.lax.fori_loop(0, number, step, at)

    def draws(key, beta, number):
        start, walk = jax.random.split(key)
        return moved(walk, beta, wide(start, beta, number), math.ceil(5 * spread**2 / step_size))

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


def fixed(*, scale: float = 1.0) -> Law:
    """A Gaussian of deviation `scale` around where the model's effects start, as it is: clients
    send nothing about it.
    """
    if scale <= 0:
        raise ValueError(f"fixed: scale is a standard deviation and must be above 0, got {scale:g}")
    return gaussian(
        covariance="isotropic", initial_scale=scale, scale_bounds=(scale, scale)
    )._replace(learned=False)


LAWS: dict[str, Callable[..., Law]] = {
    "gaussian": gaussian,
    "mixture": mixture,
    "energy": energy,
    "fixed": fixed,
}
"""Laws by name. The first line of a factory's docstring is its description."""


def _deviations(beta: Gaussian | Correlated) -> dict[str, Array]:
    if isinstance(beta, Gaussian):
        return {"deviation": jnp.exp(beta.log_scale)}
    deviation = jnp.sqrt(jnp.diagonal(beta.covariance))
    return {
        "deviation": deviation,
        "correlation": beta.covariance / jnp.outer(deviation, deviation),
    }


def _check_scales(name: str, initial: float, bounds: tuple[float, float]) -> None:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(
            f"{name}: scale_bounds must be two positive numbers in order, got {bounds}"
        )
    if not bounds[0] <= initial <= bounds[1]:
        raise ValueError(
            f"{name}: initial_scale must lie within scale_bounds {bounds}, got {initial:g}"
        )


def _clipped(beta: Bounded, bounds: tuple[float, float]) -> Bounded:
    return beta._replace(
        log_scale=jnp.clip(beta.log_scale, math.log(bounds[0]), math.log(bounds[1]))
    )
