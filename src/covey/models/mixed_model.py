"""Mixed models: their interface, their construction from a predictive distribution, and predictions
averaged over draws of the effects.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models.columns import Column
from covey.models.law import Law
from covey.models.predictive import Categorical, Mixture, Predictive, mixture_of


class LinearPredictor(NamedTuple):
    """The linear predictor by which a mixed model depends on its effects.

    Attributes:
        value: (phi, z, x) -> the predictor by row, linear in z.
        terms: (phi, predictor, rows) -> log p(y | x, phi, z) by row, given the predictor.
        log_likelihood: The log-likelihood that it belongs to. A model that was given another one
            does not depend on its effects in this way.
    """

    value: Callable[
        [PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Float[Array, " rows"]
    ]
    terms: Callable[[PyTree, Float[Array, " rows"], Rows], Float[Array, " rows"]]
    log_likelihood: Callable[[PyTree, Float[Array, " effects"], Rows], Float[Array, " rows"]]


class MixedModel(NamedTuple):
    """A likelihood p(y | x, phi, z) as pure functions: phi is shared, z is each client's own.

    The law of the effects z belongs to the method, unless the model has its own.

    Attributes:
        name: Name in reports.
        init: (key, spec) -> phi, a pytree of floating-point arrays. Data that do not fit raise a
            ValueError.
        init_effects: (key, spec) -> z, a vector: the effects of a client without rows.
        log_likelihood: (phi, z, rows) -> log p(y | x, phi, z) by row, with all normalising
            constants.
        predictive: (phi, z, x) -> the predictive distribution of the outcomes of the rows x of a
            client with effects z.
        log_prior: (phi) -> log p(phi) up to a constant; None is flat.
        law: The law of the effects, whose parameters are then phi; None leaves it to the method.
        describe: (phi, z) -> {name: value}: effects as users know them; None where z needs no
            further description.
        coefficients: (phi, z) -> {name: value}: all coefficients of a client with effects z, shared
            ones too; None where they have no names.
        axes: (spec) -> {name: Axis}: labels of what is described, such as the columns of x, and of
            the `effects` z themselves.
        groups: Column with the groups inside a client whose effects the log-likelihood integrates
            out; None where there are none. The terms of rows then add up over whole groups only:
            methods that learn from minibatches cannot use such a model.
        predictor: The linear predictor by which the log-likelihood depends on z, where it does so;
            None otherwise. Methods that integrate z out are quicker with it.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], PyTree]
    init_effects: Callable[[Key[Array, ""], Spec], Float[Array, " effects"]]
    log_likelihood: Callable[[PyTree, Float[Array, " effects"], Rows], Float[Array, " rows"]]
    predictive: Callable[
        [PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Predictive
    ]
    log_prior: Callable[[PyTree], Float[Array, ""]] | None = None
    law: Law | None = None
    describe: Callable[[PyTree, Float[Array, " effects"]], dict[str, Array]] | None = None
    coefficients: Callable[[PyTree, Float[Array, " effects"]], dict[str, Array]] | None = None
    axes: Callable[[Spec], dict[str, Axis]] | None = None
    groups: Column | None = None
    predictor: LinearPredictor | None = None


def from_mixed_predictive(
    name: str,
    init: Callable[[Key[Array, ""], Spec], PyTree],
    init_effects: Callable[[Key[Array, ""], Spec], Float[Array, " effects"]],
    predictive: Callable[
        [PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Predictive
    ],
) -> MixedModel:
    """The model whose log-likelihood is its predictive's log-probability: one formula for learning
    and for scoring.
    """

    def log_likelihood(
        phi: PyTree, z: Float[Array, " effects"], rows: Rows
    ) -> Float[Array, " rows"]:
        return predictive(phi, z, rows.x).log_prob(rows.y)

    return MixedModel(name, init, init_effects, log_likelihood, predictive)


def averaged(
    predictive: Callable[[Float[Array, " effects"]], Predictive],
    draws: Float[Array, "draws effects"],
) -> Categorical | Mixture:
    """The predictive distribution of several draws: the mixture with one member per draw.

    Args:
        predictive: (z) -> the predictive distribution of some rows given the effects z.
        draws: Draws of the effects, one per row.

    Returns:
        The mixture with equal weights; see `mixture_of`.

    Example:
        >>> import jax.numpy as jnp
        >>> from covey.models.predictive import Poisson
        >>> draws = jnp.array([[-1.0], [0.0], [1.0]])
        >>> counts = averaged(lambda z: Poisson(2.0 + z), draws)
        >>> round(float(counts.mean[0]), 2), round(float(counts.variance[0]), 2)
        (10.06, 63.91)
    """
    return mixture_of(jax.vmap(predictive)(draws))
