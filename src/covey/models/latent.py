"""Latent-variable models of the exponential family, for EM in the space of sufficient statistics.

The complete data of a row y with its latent variable z have the density
exp(<s(y, z), phi(theta)> - psi(theta)). With S the mean over rows of E[s(y, z) | y; theta], the
maximisation is T(S) = argmin over theta of psi(theta) + R(theta) - <S, phi(theta)>, R a penalty.
T depends on the proportions of S only, so that sums over rows serve as well as means.

Averages that are noisy, compressed or of few rows can be statistics of no data at all. `maximise`
must survive them: a component that has become empty keeps its parameters and a small weight, a
covariance that is not positive is lifted to one that is, and `Repairs` reports both.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from covey.core.shard import Batch, Rows, Spec
from covey.models.predictive import Predictive

EMPTY = 1e-6  # a component with less than this share of the rows counts as empty
LOW = 1e-6  # a variance shrinks by no more than this factor at once


class Repairs(NamedTuple):
    """Counts of components that kept their parameters because they were empty, and of covariances
    that were lifted.
    """

    empty: Float[Array, ""]
    singular: Float[Array, ""]


class LatentModel(NamedTuple):
    """A latent-variable model as pure functions.

    Attributes:
        name: The model's name in reports.
        init: (key, spec) -> theta, the start of EM. Data that do not fit raise a ValueError.
        expected: (theta) -> statistics with theta as their maximum, of weight one.
        statistics: (theta, batch) -> the sum over the batch's rows of E[s | row; theta].
        maximise: (statistics, theta before) -> (theta, repairs).
        log_likelihood: (theta, rows) -> log p(row; theta), one value per row.
        penalty: (theta) -> R(theta), beside minus the mean log-likelihood of a row.
        predictive: (theta, x) -> a predictive distribution: of the outcome, or of the component
            where there is no outcome.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], PyTree]
    expected: Callable[[PyTree], PyTree]
    statistics: Callable[[PyTree, Batch], PyTree]
    maximise: Callable[[PyTree, PyTree], tuple[PyTree, Repairs]]
    log_likelihood: Callable[[PyTree, Rows], Float[Array, " rows"]]
    penalty: Callable[[PyTree], Float[Array, ""]]
    predictive: Callable[[PyTree, Shaped[Array, " rows *features"]], Predictive]


def responsibilities(
    log_joint: Float[Array, "rows components"], mask: Bool[Array, " rows"]
) -> Float[Array, "rows components"]:
    """The probability p(component | row) from log p(component, row); zero for masked rows."""
    return jnp.where(mask[:, None], jax.nn.softmax(log_joint, axis=-1), 0.0)


def shares_of(
    weight: Float[Array, " components"],
) -> tuple[Float[Array, " components"], Bool[Array, " components"]]:
    """Each component's share of the rows, and which components are empty. An empty one keeps a
    share of `EMPTY`.
    """
    share = weight / jnp.maximum(jnp.sum(weight), jnp.finfo(weight.dtype).tiny)
    empty = ~(share > EMPTY)
    share = jnp.where(empty, EMPTY, share)
    return jnp.where(jnp.any(empty), share / jnp.sum(share), share), empty


def divided(
    total: Float[Array, " components *s"], by: Float[Array, " components"]
) -> Float[Array, " components *s"]:
    """`total / by` for each component; `total` itself, which must not be used, where `by` is
    zero.
    """
    return total / jnp.where(by > 0, by, 1.0).reshape(by.shape + (1,) * (total.ndim - 1))


def kept(
    empty: Bool[Array, " components"], before: Float[Array, " components *s"], now: Array
) -> Float[Array, " components *s"]:
    """`now`, and `before` for the components that are empty."""
    return jnp.where(empty.reshape(empty.shape + (1,) * (now.ndim - 1)), before, now)


def lifted(
    matrix: Float[Array, "*components d d"], scale: Float[Array, "*components"], ridge: float
) -> tuple[Float[Array, "*components d d"], Bool[Array, "*components"]]:
    """Symmetric matrices with eigenvalues raised to `LOW * scale`, and which matrices had one
    below that or below the ridge.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    least = LOW * scale
    raised = (vectors * jnp.maximum(values, least[..., None])[..., None, :]) @ jnp.swapaxes(
        vectors, -1, -2
    )
    too_low = values[..., 0] < least
    return jnp.where(too_low[..., None, None], raised, matrix), too_low | (values[..., 0] < ridge)


def check_components(name: str, components: int, ridge: float) -> None:
    """Raise a ValueError for options that no mixture has."""
    if components < 1:
        raise ValueError(f"{name}: components must be at least 1, got {components}")
    if not ridge >= 0:
        raise ValueError(f"{name}: ridge must be at least 0, got {ridge:g}")


def given_or(
    name: str, what: str, given: object, shape: tuple[int, ...], otherwise: Callable[[], Array]
) -> Float[Array, "*s"]:
    """A start that was given, with its shape checked, or one that is made."""
    if given is None:
        return otherwise()
    value = jnp.asarray(given, float)
    if value.shape != shape:
        raise ValueError(
            f"{name}: {what} must have the shape {shape} for these data, got {value.shape}"
        )
    return value


def weights_or_equal(name: str, given: object, components: int) -> Float[Array, " components"]:
    """Weights that were given, scaled to a sum of one, or equal weights."""
    value = given_or(name, "weights", given, (components,), lambda: jnp.ones(components))
    return value / jnp.sum(value)
