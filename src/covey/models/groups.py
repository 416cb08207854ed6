"""Groups nested inside a client: effects v_g ~ N(0, tau^2) of the groups, integrated out of the
likelihood given the client's own effects.

A group's log-likelihood is handed out to its rows one after the other,

    term of row j = log p(rows 1 to j of its group) - log p(rows 1 to j - 1 of its group),

so that the terms of a group add up to its integral, and that no term depends on rows that come
later. Rows at the end that a method masks, because they only fill up an array, therefore change
nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from covey.core.shard import Rows
from covey.models.model import flat
from covey.models.predictive import Categorical, Mixture, Normal, Predictive, mixture_of

Terms = Callable[[Float[Array, " rows"]], Float[Array, " rows"]]  # predictor -> log-likelihood
NODES = 15  # of adaptive Gauss-Hermite quadrature
_STEPS = 12  # of Newton's method towards the mode of a group's effect
_LONGEST = 2.0  # step, in units of tau
_GRID = np.linspace(-6, 6, 61)  # of an unseen group's effect, in units of tau


class Groups(NamedTuple):
    """Rows of one client by group.

    Attributes:
        order: Rows sorted by group; within a group they keep their order.
        inverse: Where each row is in this order.
        first: Which rows, in this order, begin a group.
        group: Index of the group of each row, in this order.
    """

    order: Int[Array, " rows"]
    inverse: Int[Array, " rows"]
    first: Bool[Array, " rows"]
    group: Int[Array, " rows"]

    def before(self, values: Float[Array, " rows *any"]) -> Float[Array, " rows *any"]:
        """The sum over the rows of the same group that come before each row."""
        ordered = values[self.order]
        first = self.first.reshape(-1, *(1,) * (ordered.ndim - 1))

        def joined(left, right):
            return left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1])

        # The sum up to the row itself, of the row before: without cancellation between groups.
        flags = jnp.broadcast_to(first, ordered.shape)
        sums = jax.lax.associative_scan(joined, (flags, ordered))[1]
        shifted = jnp.concatenate([jnp.zeros_like(sums[:1]), sums[:-1]])
        return jnp.where(first, 0.0, shifted)[self.inverse]

    def total(self, values: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """The sum over all rows of each row's group."""
        ordered = values[self.order]
        sums = jax.ops.segment_sum(ordered, self.group, len(ordered), indices_are_sorted=True)
        return sums[self.group][self.inverse]


def groups_of(codes: Float[Array, " rows"]) -> Groups:
    """Rows by group.

    Args:
        codes: A number for each row, the same for rows of the same group.

    Returns:
        The groups.

    Example:
        >>> import jax.numpy as jnp
        >>> groups = groups_of(jnp.array([7.0, 3.0, 7.0]))
        >>> groups.total(jnp.array([1.0, 10.0, 100.0])).tolist()
        [101.0, 10.0, 101.0]
        >>> groups.before(jnp.array([1.0, 10.0, 100.0])).tolist()
        [0.0, 0.0, 1.0]
    """
    order = jnp.argsort(codes, stable=True)
    ordered = codes[order]
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return Groups(order, jnp.argsort(order), first, jnp.cumsum(first) - 1)


def gaussian_terms(
    groups: Groups,
    residual: Float[Array, " rows"],
    scale: Float[Array, " rows"],
    tau: Float[Array, ""],
) -> Float[Array, " rows"]:
    """The terms of Gaussian outcomes, in closed form.

    With S and R the sums of 1 / s^2 and r / s^2 over the earlier rows of the group, the effect of
    the group given these has variance V = tau^2 / (1 + tau^2 S) and mean V R, and the residual r of
    the next row is N(V R, s^2 + V).

    Args:
        groups: Rows by group.
        residual: Outcome minus its mean without the group's effect (r).
        scale: Standard deviation of the noise of each row (s).
        tau: Standard deviation of the groups' effects.

    Returns:
        One term per row.

    Example:
        >>> import jax.numpy as jnp
        >>> two = groups_of(jnp.zeros(2))
        >>> gaussian_terms(two, jnp.array([1.0, 1.0]), jnp.ones(2), jnp.ones(())).sum().round(4)
        Array(-2.7205, dtype=float32)
    """
    precision, pull = groups.before(scale**-2), groups.before(residual * scale**-2)
    variance = tau**2 / (1 + tau**2 * precision)
    return jax.scipy.stats.norm.logpdf(
        residual, variance * pull, jnp.sqrt(jnp.square(scale) + variance)
    )


def quadrature_terms(
    groups: Groups,
    terms: Terms,
    placing: Terms,
    predictor: Float[Array, " rows"],
    tau: Float[Array, ""],
    counted: Bool[Array, " rows"],
) -> Float[Array, " rows"]:
    """The terms of any outcomes, by adaptive Gauss-Hermite quadrature with 15 nodes.

    The effect of a group is v = tau b, b ~ N(0, 1). Nodes are placed by the mode and the curvature
    of each group's integrand and then held, so that derivatives are those of the integral itself.

    Args:
        groups: Rows by group.
        terms: (predictor) -> the log-likelihood of each row.
        placing: The same, through which no derivative is taken.
        predictor: The predictor of each row without the group's effect.
        tau: Standard deviation of the groups' effects.
        counted: Which rows the nodes are placed by.

    Returns:
        One term per row.
    """
    predictor_, tau_ = jax.lax.stop_gradient((predictor, tau))
    score = jax.grad(lambda at: jnp.sum(placing(at)))

    def slopes(b):
        at = predictor_ + tau_ * b
        first, second = jax.jvp(score, (at,), (jnp.ones_like(at),))
        return (
            tau_ * groups.total(jnp.where(counted, first, 0.0)) - b,
            1 + tau_**2 * groups.total(jnp.where(counted, jnp.maximum(-second, 0.0), 0.0)),
        )

    def step(_, b):
        first, second = slopes(b)
        return b + jnp.clip(first / second, -_LONGEST, _LONGEST)

    mode = jax.lax.fori_loop(0, _STEPS, step, jnp.zeros_like(predictor_))
    spread = jnp.sqrt(2 / slopes(mode)[1])
    nodes, weight = np.polynomial.hermite.hermgauss(NODES)
    b = jax.lax.stop_gradient(mode[:, None] + spread[:, None] * nodes)
    log_weight = jax.lax.stop_gradient(
        jnp.asarray(np.log(weight) + nodes**2 - 0.5 * np.log(2 * np.pi), b.dtype)
        + jnp.log(spread)[:, None]
        - b**2 / 2
    )
    each = jax.vmap(terms, in_axes=1, out_axes=1)(predictor[:, None] + tau * b)
    before = groups.before(each)
    is_first = groups.first[groups.inverse]
    earlier = jax.nn.logsumexp(log_weight + before, axis=1)
    return jax.nn.logsumexp(log_weight + before + each, axis=1) - jnp.where(is_first, 0.0, earlier)


def counted_rows(rows: Rows) -> Bool[Array, " rows"]:
    """All rows but those at the end that repeat the row before them, as rows that fill up an array
    do. Nodes are then the same, however long the array is.
    """
    x = flat(rows.x)
    same = jnp.all(x[1:] == x[:-1], axis=1) & (rows.y[1:] == rows.y[:-1])
    repeated = jnp.concatenate([jnp.zeros(1, bool), same])
    return ~jnp.flip(jnp.cumprod(jnp.flip(repeated).astype(int)).astype(bool))


def unseen_group(
    outcomes: Callable[[Float[Array, " rows"]], Predictive],
    predictor: Float[Array, " rows"],
    tau: Float[Array, ""],
) -> Categorical | Mixture:
    """The predictive distribution of rows of groups that were not seen: the mixture over their
    effects.

    Args:
        outcomes: (predictor) -> the distribution of the outcomes.
        predictor: The predictor of each row without the group's effect.
        tau: Standard deviation of the groups' effects.

    Returns:
        The mixture; of Gaussian outcomes, one Gaussian.

    Example:
        >>> import jax.numpy as jnp
        >>> from covey.models.predictive import Poisson
        >>> counts = unseen_group(Poisson, jnp.zeros(1), jnp.asarray(0.5))
        >>> round(float(counts.mean[0]), 4)  # exp(0.5^2 / 2)
        1.1331
    """
    known = outcomes(predictor)
    if isinstance(known, Normal):
        one = known._replace(scale=jnp.sqrt(known.scale**2 + tau**2))
        return mixture_of(jax.tree.map(lambda leaf: leaf[None], one))
    effects = jnp.asarray(_GRID, predictor.dtype)
    members = jax.vmap(lambda b: outcomes(predictor + tau * b))(effects)
    return mixture_of(members, jnp.exp(-(effects**2) / 2))
