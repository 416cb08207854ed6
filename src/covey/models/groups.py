"""Groups nested inside a client: effects v_g ~ N(0, tau^2) of the groups, integrated out of the
likelihood given the client's own effects.

A group's log-likelihood is handed out to its rows one after the other,

    term of row j = log p(rows 1 to j of its group) - log p(rows 1 to j - 1 of its group),

so that the terms of a group add up to its integral, and that no term depends on rows that come
later. Rows at the end that a method masks, because they only fill up an array, therefore change
nothing.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from covey.core.shard import Rows
from covey.models.model import flat
from covey.models.predictive import Categorical, Mixture, Normal, Predictive, mixture_of

Terms = Callable[[Float[Array, " rows"]], Float[Array, " rows"]]  # predictor -> log-likelihood
NODES = 15  # of adaptive Gauss-Hermite quadrature
_PAIRED = 512  # rows up to which pairs of them are compared
_BLOCK = 128  # sorted rows that are summed at once
_STEPS = 12  # of Newton's method towards the mode of a group's effect
_LONGEST = 2.0  # step, in units of tau
_GRID = np.linspace(-6, 6, 61)  # of an unseen group's effect, in units of tau


class PairedRows(NamedTuple):
    """Few rows by group, as a matrix: sums and their derivatives are products with it, which take a
    quarter of the time to compile that sorted rows take.

    Attributes:
        same: Which pairs of rows are of the same group.
    """

    same: Bool[Array, "rows rows"]

    def before(self, values: Float[Array, " rows *any"]) -> Float[Array, " rows *any"]:
        """The sum over the rows of the same group that come before each row."""
        return jnp.tensordot(jnp.tril(self.same, -1).astype(values.dtype), values, 1)

    def total(self, values: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """The sum over all rows of each row's group."""
        return self.same.astype(values.dtype) @ values

    def first(self) -> Bool[Array, " rows"]:
        """Which rows begin a group."""
        return ~jnp.any(jnp.tril(self.same, -1), axis=1)


class SortedRows(NamedTuple):
    """Rows sorted by group.

    Attributes:
        order: Rows sorted by group; within a group they keep their order.
        inverse: Index of each row in this order.
        begins: Which rows, in this order, begin a group.
        group: Index of the group of each row, in this order.
    """

    order: Int[Array, " rows"]
    inverse: Int[Array, " rows"]
    begins: Bool[Array, " rows"]
    group: Int[Array, " rows"]

    def before(self, values: Float[Array, " rows *any"]) -> Float[Array, " rows *any"]:
        """See `PairedRows`."""
        return _sums_before(values[self.order], self.group)[self.inverse]

    def total(self, values: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """See `PairedRows`."""
        ordered = values[self.order]
        sums = jax.ops.segment_sum(ordered, self.group, len(ordered), indices_are_sorted=True)
        return sums[self.group][self.inverse]

    def first(self) -> Bool[Array, " rows"]:
        """See `PairedRows`."""
        return self.begins[self.inverse]


Groups: TypeAlias = PairedRows | SortedRows


def _sums_before(
    values: Float[Array, " rows *any"], group: Int[Array, " rows"]
) -> Float[Array, " rows *any"]:
    """For rows sorted by group, the sum over the rows of the same group before each row.

    Sums inside blocks of rows are products with a matrix of 0 and 1, and a short loop carries them
    from block to block. Differences of sums over all rows would cancel.
    """
    rows, width = len(values), min(len(values), _BLOCK)
    spare = -rows % width
    blocks = jnp.pad(values, ((0, spare), *((0, 0),) * (values.ndim - 1)))
    blocks = blocks.reshape(-1, width, *values.shape[1:])
    groups = jnp.pad(group, (0, spare), constant_values=-1).reshape(-1, width)
    earlier = jnp.tril(groups[:, :, None] == groups[:, None, :], -1).astype(values.dtype)
    inside = jnp.einsum("bij,bj...->bi...", earlier, blocks)

    def next_block(carried, block):
        of, total = carried
        group, values = block
        sums = jnp.tensordot((group == group[-1]).astype(values.dtype), values, 1)
        found = jnp.tensordot((group == of).astype(values.dtype), total, 0)
        return (group[-1], sums + jnp.where(group[-1] == of, total, 0.0)), found

    start = jnp.full((), -2, groups.dtype), jnp.zeros(values.shape[1:], values.dtype)
    carried = jax.lax.scan(next_block, start, (groups, blocks))[1]
    return (inside + carried).reshape(-1, *values.shape[1:])[:rows]


def groups_of(codes: Float[Array, " rows"]) -> Groups:
    """Rows by group.

    Args:
        codes: A code for each row, the same for rows of the same group.

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
    if len(codes) <= _PAIRED:
        return PairedRows(codes[:, None] == codes[None, :])
    order = jnp.argsort(codes, stable=True)
    ordered = codes[order]
    begins = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return SortedRows(order, jnp.argsort(order), begins, jnp.cumsum(begins) - 1)


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

    def derivatives(b):
        at = predictor_ + tau_ * b
        first, second = jax.jvp(score, (at,), (jnp.ones_like(at),))
        return (
            tau_ * groups.total(jnp.where(counted, first, 0.0)) - b,
            1 + tau_**2 * groups.total(jnp.where(counted, jnp.maximum(-second, 0.0), 0.0)),
        )

    def step(_, b):
        first, second = derivatives(b)
        return b + jnp.clip(first / second, -_LONGEST, _LONGEST)

    mode = jax.lax.fori_loop(0, _STEPS, step, jnp.zeros_like(predictor_))
    spread = jnp.sqrt(2 / derivatives(mode)[1])
    nodes, weight = np.polynomial.hermite.hermgauss(NODES)
    b = jax.lax.stop_gradient(mode[:, None] + spread[:, None] * nodes)
    log_weight = jax.lax.stop_gradient(
        jnp.asarray(np.log(weight) + nodes**2 - 0.5 * np.log(2 * np.pi), b.dtype)
        + jnp.log(spread)[:, None]
        - b**2 / 2
    )
    each = jax.vmap(terms, in_axes=1, out_axes=1)(predictor[:, None] + tau * b)
    before = groups.before(each)
    earlier = jax.nn.logsumexp(log_weight + before, axis=1)
    return jax.nn.logsumexp(log_weight + before + each, axis=1) - jnp.where(
        groups.first(), 0.0, earlier
    )


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
