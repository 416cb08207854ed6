"""The marginal likelihood of one client in a linear model with Gaussian effects and noise, in
closed form from cross products of its rows.

    y = X beta + Z L b + noise,   b ~ N(0, I),   noise ~ N(0, sigma^2 I)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covey.kernels.positive_definite import inverse, log_det
from covey.kernels.triangle import packed, unpacked


class CrossProducts(NamedTuple):
    """Statistics of the rows for the likelihood: their count, and X'X, X'Z, Z'Z, X'r, Z'r, r'r.

    r are residuals at a reference value of beta; from there, nothing cancels.
    """

    rows: Float[Array, ""]
    xx: Float[Array, "p p"]
    xz: Float[Array, "p q"]
    zz: Float[Array, "q q"]
    xr: Float[Array, " p"]
    zr: Float[Array, " q"]
    rr: Float[Array, ""]


def cross_products(
    x: Float[Array, "rows p"],
    z: Float[Array, "rows q"],
    residual: Float[Array, " rows"],
    mask: Bool[Array, " rows"],
) -> CrossProducts:
    """The cross products of the rows that the mask keeps.

    Args:
        x: Derivatives of the mean by beta.
        z: Derivatives of the mean by the effects.
        residual: Outcomes minus their means at the reference beta and without effects.
        mask: Which rows are real.

    Returns:
        The cross products.
    """
    keep = mask.astype(x.dtype)
    together = jnp.concatenate([x, z, residual[:, None]], axis=1) * keep[:, None]
    return _parts(jnp.sum(keep), together.T @ together, x.shape[1])


class Kept(NamedTuple):
    """Cross products as a client keeps them between rounds, in single precision: as sums of two
    values, so that little is lost (48 bits are left), and relative to the size of each column, so
    that any units do.

    Attributes:
        rows: Number of rows.
        size: Root of the sum of squares of each column of X, Z and r.
        high: The upper triangle of their cross products over the sizes, rounded.
        low: Remainder of that rounding.
    """

    rows: Float[Array, ""]
    size: Float[Array, " columns"]
    high: Float[Array, " entries"]
    low: Float[Array, " entries"]


def kept(of: CrossProducts) -> Kept:
    """The cross products, to be kept; called in double precision.

    Args:
        of: The cross products.

    Returns:
        The same in two parts.

    Example:
        >>> x, y = jnp.full((3, 1), 2.0), jnp.array([1.0, 2.0, 4.0])
        >>> of = cross_products(x, jnp.zeros((3, 0)), y, jnp.ones(3, bool))
        >>> round(float(recalled(kept(of), 1).xr[0]), 3)
        14.0
    """
    beside = jnp.concatenate([of.xx, of.xz, of.xr[:, None]], axis=1)
    below = jnp.concatenate([of.xz.T, of.zz, of.zr[:, None]], axis=1)
    last = jnp.concatenate([of.xr, of.zr, of.rr[None]])
    gram = jnp.concatenate([beside, below, last[None]])
    square = jnp.diagonal(gram)
    size = _in_single(jnp.where(square > 0, jnp.sqrt(square), 1.0))
    entries = packed(gram / jnp.outer(size, size))
    return Kept(of.rows, size, _in_single(entries), entries - _in_single(entries))


def recalled(of: Kept, coefficients: int) -> CrossProducts:
    """The cross products that were kept.

    Args:
        of: The cross products as kept.
        coefficients: Number of columns of X.

    Returns:
        The cross products.
    """
    gram = unpacked(of.high + of.low) * jnp.outer(of.size, of.size)
    return _parts(of.rows, gram, coefficients)


def _parts(rows: Float[Array, ""], gram: Float[Array, "n n"], p: int) -> CrossProducts:
    """The blocks of the cross products of [X Z r]."""
    x, z, r = slice(0, p), slice(p, len(gram) - 1), -1
    return CrossProducts(
        rows, gram[x, x], gram[x, z], gram[z, z], gram[x, r], gram[z, r], gram[r, r]
    )


def _in_single(values: Array) -> Array:
    return values.astype(jnp.float32).astype(values.dtype)


def log_likelihood(
    of: CrossProducts,
    change: Float[Array, " p"],
    root: Float[Array, "q q"],
    log_scale: Float[Array, ""],
) -> Float[Array, ""]:
    """The log density of N(y; X beta, sigma^2 I + Z L L' Z').

    Args:
        of: The client's cross products.
        change: beta minus its reference value.
        root: The Cholesky factor L of the covariance of the effects.
        log_scale: log sigma.

    Returns:
        The log-likelihood.

    Example:
        >>> x, z, y = jnp.ones((3, 1)), jnp.ones((3, 1)), jnp.array([1.0, 2.0, 4.0])
        >>> of = cross_products(x, z, y, jnp.ones(3, bool))
        >>> round(float(log_likelihood(of, jnp.zeros(1), jnp.eye(1), jnp.zeros(()))), 3)
        -7.825
    """
    precision = jnp.exp(-2 * log_scale)
    rr = of.rr - 2 * change @ of.xr + change @ of.xx @ change
    alone = -of.rows * (log_scale + jnp.log(2 * jnp.pi) / 2) - rr * precision / 2
    if not len(root):
        return alone
    within, half = _within(of, root, precision), root.T @ (of.zr - of.xz.T @ change)
    return alone - log_det(within) / 2 + half @ inverse(within) @ half * precision**2 / 2


def information(
    of: CrossProducts, root: Float[Array, "q q"], log_scale: Float[Array, ""]
) -> Float[Array, "p p"]:
    """X' V^-1 X with V = sigma^2 I + Z L L' Z': the client's information about beta."""
    precision = jnp.exp(-2 * log_scale)
    if not len(root):
        return of.xx * precision
    half = of.xz @ root
    return of.xx * precision - half @ inverse(_within(of, root, precision)) @ half.T * precision**2


def effects_given_rows(
    of: CrossProducts,
    change: Float[Array, " p"],
    root: Float[Array, "q q"],
    log_scale: Float[Array, ""],
    noise: Float[Array, " q"],
) -> Float[Array, " q"]:
    """A draw of the standardised effects b given the rows, from standard normal noise.

    b ~ N(A h, A) with A = (I + L'Z'Z L / sigma^2)^-1 and h = L'Z'(y - X beta) / sigma^2.
    """
    precision = jnp.exp(-2 * log_scale)
    factor = jnp.linalg.cholesky(_within(of, root, precision))
    half = root.T @ (of.zr - of.xz.T @ change) * precision
    white = jax.scipy.linalg.solve_triangular(factor, half, lower=True) + noise
    return jax.scipy.linalg.solve_triangular(factor.T, white, lower=False)


def _within(of: CrossProducts, root: Float[Array, "q q"], precision: Float[Array, ""]):
    """I + L'Z'ZL / sigma^2."""
    return jnp.eye(len(root), dtype=root.dtype) + root.T @ of.zz @ root * precision
