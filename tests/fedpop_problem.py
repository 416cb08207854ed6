"""A linear mixed model whose posteriors and marginal likelihood are exact, for tests of FedPop."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import models
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedpop_sampler import Down
from covey.algorithms.joint import Population
from covey.core.algorithm import Algorithm
from covey.core.shard import Rows, Spec
from covey.models import Linear
from covey.models.effects import Gaussian

NOISE, STEP, SLOPES = 0.8, 0.01, (1,)


THETA = Population(
    Linear(np.array([0.7, -0.4]), np.array(0.3)),
    Gaussian(np.array([0.5, -0.6]), np.log([0.9, 0.5])),
)


class Client(NamedTuple):
    """One client's rows, the columns that its effects multiply, and its exact posterior given
    THETA.
    """

    rows: Rows
    design: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def of_the_chain(self):
        """The covariance of what ULA samples."""
        precision = np.linalg.inv(self.covariance)
        return np.linalg.inv(precision @ (np.eye(2) - STEP * precision / 2))


def one_client(rows=12):
    rng = np.random.default_rng(3)
    x = rng.normal([0.5, -0.3], 1.0, (rows, 2))
    design = np.column_stack([np.ones(rows), x[:, SLOPES[0]]])
    fixed = x @ THETA.phi.weight + THETA.phi.bias
    y = fixed + design @ np.array([1.4, -1.1]) + NOISE * rng.normal(size=rows)
    prior = np.diag(np.exp(-2 * THETA.beta.log_scale))
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + prior)
    mean = covariance @ (design.T @ (y - fixed) / NOISE**2 + prior @ THETA.beta.mean)
    return Client(Rows(x, y), design, mean, covariance)


CLIENT = one_client()


SPEC = Spec(Rows(jax.ShapeDtypeStruct((2,), float), jax.ShapeDtypeStruct((), float)), clients=6)


def broadcast() -> Down:
    """The broadcast of THETA."""
    return Down(jax.tree.map(jnp.asarray, THETA), jnp.ones(()))


def method(*, step_size=STEP, scale=NOISE, **options) -> Algorithm:
    """FedPop on this model."""
    return fedpop(models.mixed_linear(scale=scale, slopes=SLOPES), step_size=step_size, **options)


def log_marginal(theta, x, y, design, noise):
    """log p(D_i | phi, beta) of a linear mixed model, effects integrated out."""
    mean = x @ theta.phi.weight + theta.phi.bias + design @ theta.beta.mean
    covariance = (
        noise**2 * jnp.eye(len(y)) + (design * jnp.exp(2 * theta.beta.log_scale)) @ design.T
    )
    return jax.scipy.stats.multivariate_normal.logpdf(y, mean, covariance)
