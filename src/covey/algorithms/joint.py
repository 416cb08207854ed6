"""A mixed model together with the law of its effects: the joint law p(D_i, z | theta) of a client's
rows and effects, theta = (phi, beta).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from covey.core.shard import Axis, Batch, Spec
from covey.kernels.importance import Laplace
from covey.models.effects import Law, gaussian
from covey.models.mixed import MixedModel


class Population(NamedTuple):
    """The shared parameters theta; gradients by theta have the same structure.

    Attributes:
        phi: Parameters of the likelihood.
        beta: Parameters of the law of the effects; empty where the law belongs to the model.
    """

    phi: PyTree
    beta: PyTree


class Joint(NamedTuple):
    """The joint law of a client's rows and effects.

    Attributes:
        model: The likelihood p(D_i | phi, z).
        law: The law of the effects, p(z | beta).
    """

    model: MixedModel
    law: Law

    def law_parameters(self, theta: Population) -> PyTree:
        """The parameters of the law of the effects: beta, or phi where the law is the model's."""
        return theta.beta if self.model.law is None else theta.phi

    def log_effects(self, theta: Population, z: Float[Array, " effects"]) -> Float[Array, ""]:
        """The log-density log p(z | beta)."""
        return self.law.log_density(self.law_parameters(theta), z)

    def log_rows(
        self, theta: Population, z: Float[Array, " effects"], batch: Batch
    ) -> Float[Array, ""]:
        """The log-likelihood log p(rows | phi, z) of a batch."""
        terms = self.model.log_likelihood(theta.phi, z, batch.rows)
        return jnp.sum(jnp.where(batch.mask, terms, 0.0))

    def mean_log_rows(
        self, theta: Population, draws: Float[Array, "draws effects"], batch: Batch
    ) -> Float[Array, ""]:
        """The log-likelihood of a batch, averaged over draws of the effects."""
        return jnp.mean(jax.vmap(lambda z: self.log_rows(theta, z, batch))(draws))

    def log_complete(
        self, theta: Population, z: Float[Array, " effects"], batch: Batch
    ) -> Float[Array, ""]:
        """The joint log-density log p(rows, z | theta)."""
        return self.log_effects(theta, z) + self.log_rows(theta, z, batch)

    def response(self, theta: Population, around: Laplace, batch: Batch) -> PyTree:
        """The response of the mode of a client's effects to theta, D = dz*/dtheta, by the implicit
        function theorem, as a tree like theta with the effects as leading axis of each leaf.
        """

        def gradient_at_mode(theta):
            return jax.grad(lambda z: self.log_complete(theta, z, batch))(around.mode)

        covariance = (around.axes * around.deviation**2) @ around.axes.T
        return jax.tree.map(
            lambda leaf: jnp.tensordot(covariance, leaf, axes=1),
            jax.jacobian(gradient_at_mode)(theta),
        )

    def log_moving(
        self,
        theta: Population,
        at: Population,
        response: PyTree,
        z: Float[Array, " effects"],
        batch: Batch,
    ) -> Float[Array, ""]:
        """The joint log-density of the rows and of effects that move along with theta,

            log p(rows, z + D (theta - at) | theta)

        Integrated over z it is the same likelihood, whatever D, so that Fisher's and Louis's
        identities hold as well. With D the response of the mode, its gradient by theta hardly
        depends on z: draws of z give it with little Monte Carlo error, also where rows alone tell
        much less about theta than rows and effects would.
        """
        moved = jax.tree.map(
            lambda d, new, old: jnp.tensordot(d, new - old, axes=jnp.ndim(new)),
            response,
            theta,
            at,
        )
        return self.log_complete(theta, z + sum(jax.tree.leaves(moved), jnp.zeros_like(z)), batch)

    def start(self, theta: Population) -> Float[Array, " effects"]:
        """The start of a client's chain: the effects of a typical client."""
        return self.law.start(self.law_parameters(theta))

    def prior_draws(
        self, key: Key[Array, ""], theta: Population, count: int
    ) -> Float[Array, "count effects"]:
        """Draws from p(z | beta): effects of clients without rows."""
        return self.law.draws(key, self.law_parameters(theta), count)

    def describe(self, theta: Population) -> dict[str, Array]:
        """Theta in the terms of the model: a typical client's coefficients, and how clients vary.

        Of a matrix over pairs of effects, such as correlations, the pairs below the diagonal are
        listed.
        """
        model, parameters = self.model, self.law_parameters(theta)
        if model.coefficients is None:
            shared = {"phi": ravel_pytree(theta.phi)[0]}
        else:
            shared = model.coefficients(theta.phi, self.law.start(parameters))
        variation = {} if self.law.describe is None else self.law.describe(parameters)
        return shared | {
            name: value[_pairs(value)] if value.ndim == 2 else value
            for name, value in variation.items()
            if value.shape != (1, 1)
        }

    def axes(self, spec: Spec) -> dict[str, Axis]:
        """Labels along the arrays of draws: those of the model, and effects for their law."""
        model, describe = self.model, self.law.describe
        known = {} if model.axes is None else model.axes(spec)
        if "effects" not in known or describe is None:
            return known
        labels = known["effects"].labels
        beta = jax.eval_shape(
            lambda key: self.law.init(key, jnp.zeros(len(labels)), spec), jax.random.key(0)
        )
        found = dict(known)
        for name, value in jax.eval_shape(describe, beta).items():
            if value.ndim == 1:
                found[name] = known["effects"]
            elif value.ndim == 2:
                pairs = zip(*_pairs(value), strict=True)
                named = tuple(f"{labels[b]}, {labels[a]}" for a, b in pairs)
                found[name] = Axis("pair", named)
        return found


def joint_of(model: MixedModel, effects: Law | None) -> Joint:
    """The joint law of a model: with its own law of the effects, the given one, or a Gaussian."""
    return Joint(model, model.law or effects or gaussian())


def _pairs(matrix: Array | jax.ShapeDtypeStruct) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the entries below the diagonal."""
    return np.tril_indices(matrix.shape[0], -1)
