"""The marginal likelihood of a linear Gaussian model, from cross products of a client's rows.

They are computed once and kept: later rounds cost nothing in rows.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from covey.algorithms.marginal.parameters import Coordinates, Theta
from covey.core.shard import Batch, Rows
from covey.kernels import linear_gaussian
from covey.kernels.linear_gaussian import CrossProducts, Kept, kept, recalled
from covey.models.mixed import MixedModel
from covey.models.predictive import Normal

MOST_KEPT = 32  # coefficients and effects up to which clients keep cross products: 4 kB at most


class Products(NamedTuple):
    """Cross products of a client's rows.

    Attributes:
        reference: The flattened phi that residuals are taken at.
        of: The cross products.
    """

    reference: Float[Array, " p"]
    of: CrossProducts


class Memory(NamedTuple):
    """The state of a client with a linear Gaussian model; see `Products`."""

    reference: Float[Array, " p"]
    of: Kept


def products_of(model: MixedModel, phi: PyTree, effects: int, batch: Batch) -> Products:
    """The cross products of a client's rows.

    Args:
        model: A linear Gaussian model.
        phi: Reference for the residuals. From there, nothing cancels: it is best near the maximum.
        effects: Number of effects.
        batch: The client's rows.
    """
    shared, build = ravel_pytree(phi)
    none, rows = jnp.zeros(effects, shared.dtype), batch.rows

    def mean(phi, z):
        return model.predictive(build(phi), z, rows.x).mean

    x, z = jax.jacfwd(mean, argnums=(0, 1))(shared, none)
    residual = rows.y - mean(shared, none)
    return Products(shared, linear_gaussian.cross_products(x, z, residual, batch.mask))


def remembered(products: Products) -> Memory:
    """The cross products, to be kept; called in double precision."""
    return Memory(products.reference, kept(products.of))


def recollected(memory: Memory) -> Products:
    """The cross products that were kept."""
    return Products(memory.reference, recalled(memory.of, len(memory.reference)))


def closed_form(
    model: MixedModel,
    coordinates: Coordinates,
    theta: Theta,
    unit: Float[Array, " q"],
    rows: Rows,
    products: Products,
):
    """The value of a linear Gaussian likelihood, X'V^-1 X, and draws of the effects.

    Args:
        model: The model.
        coordinates: Those of the covariance of the effects.
        theta: The parameters as a tree, for their structure.
        unit: Of each effect.
        rows: The client's rows, for their shapes.
        products: Their cross products.
    """
    shared, build = ravel_pytree(theta.phi)
    reference, of = products

    def parts(at):
        phi, entries = at[: len(shared)], at[len(shared) :]
        root = coordinates.root(entries, unit) if len(unit) else jnp.zeros((0, 0), at.dtype)
        return phi - reference, root, log_scale(model, build(phi), len(unit), rows)

    def value(at, centre):
        return linear_gaussian.log_likelihood(of, *parts(at))

    def information(at):
        return linear_gaussian.information(of, *parts(at)[1:])

    def white(at, noise):
        return linear_gaussian.effects_given_rows(of, *parts(at), noise)

    return value, information, white


def log_scale(model: MixedModel, phi: PyTree, effects: int, rows: Rows) -> Float[Array, ""]:
    """The logarithm of the noise, which is the same for all rows."""
    any_row = jax.tree.map(lambda leaf: jnp.ones((1, *leaf.shape[1:]), leaf.dtype), rows.x)
    none = jnp.zeros(effects, ravel_pytree(phi)[0].dtype)
    found: Any = model.predictive(phi, none, any_row)
    return jnp.log(found.scale[0])


def is_linear_gaussian(model: MixedModel, phi: PyTree, effects: int, rows: Rows) -> bool:
    """Whether outcomes are Gaussian with a mean that is linear in the coefficients and effects and
    one noise for all rows.

    Found out by trying: the mean of the sum of two random parameters must be the sum of means.
    """
    if model.law is not None:
        return False
    leaves, structure = jax.tree.flatten((phi, rows))
    shapes = tuple((leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves)
    return _tried_linear(model, effects, structure, shapes)


@lru_cache(maxsize=256)
def _tried_linear(model: MixedModel, effects: int, structure: Any, shapes: tuple) -> bool:
    phi, rows = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])
    flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), phi))
    random = np.random.default_rng(0)

    def shape_of(v, z, x):
        return model.predictive(unravel(v), z, x)

    try:
        one = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((3, *leaf.shape[1:]), leaf.dtype), rows
        )
        shape = jax.eval_shape(shape_of, flat, jnp.zeros(effects, flat.dtype), one.x)
    except (ValueError, TypeError):  # it predicts nothing
        return False
    if not isinstance(shape, Normal) or shape.mean.shape != (3,):
        return False
    with jax.ensure_compile_time_eval():
        x = jax.tree.map(
            lambda leaf: jnp.asarray(random.normal(size=leaf.shape)).astype(leaf.dtype), one.x
        )

        def at(v, z) -> Any:
            dtype = flat.dtype
            return model.predictive(unravel(jnp.asarray(v, dtype)), jnp.asarray(z, dtype), x)

        def drawn():
            return random.normal(size=flat.size) / 2, random.normal(size=effects) / 2

        (v, z), (w, u) = drawn(), drawn()
        together, first, second, none = at(v + w, z + u), at(v, z), at(w, u), at(0 * v, 0 * z)
        bent = together.mean - first.mean - second.mean + none.mean
        linear = np.allclose(bent, 0, atol=1e-4 * float(np.max(np.abs(together.mean)) + 1))
        plain = np.allclose(first.scale, first.scale[0], rtol=1e-6)
        y = jnp.asarray(random.normal(size=3)).astype(rows.y.dtype)
        given = model.log_likelihood(
            unravel(jnp.asarray(v, flat.dtype)), jnp.asarray(z, flat.dtype), Rows(x, y)
        )
        plain = plain and np.allclose(given, first.log_prob(y), rtol=1e-4, atol=1e-4)
        return bool(linear and plain and np.allclose(at(v, u).scale, first.scale, rtol=1e-6))
