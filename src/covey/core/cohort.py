"""Which clients take part in a round, and with what weight.

A scheme is a function of the clients' row counts that gives a `Sampler`; `sample(key, t)` then
gives the cohort of round t as arrays of a fixed size.

Weights are inverse participation probabilities: the weighted sum over the cohort is an unbiased
estimate of the sum over all clients. A client drawn twice runs once and carries the multiplicity in
its weight. Where messages are lost at random, engines scale the sums by contacted over heard.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Real

from covey.core.keys import Integer, without_replacement

__all__ = [
    "Cohort",
    "Sampler",
    "Scheme",
    "bernoulli",
    "full",
    "given",
    "trace",
    "uniform",
    "weighted",
]

_MOST_DRAWS = 2**24  # of `weighted`: counts up to here are exact in float32
_MOST_BY_FRACTION = 2**20  # clients; a fraction in float32 would not tell more of them apart


class Cohort(NamedTuple):
    """The clients of a round, in slots.

    Attributes:
        index: Position of each slot's client in the data; 0 in empty slots.
        mask: Whether the slot is taken.
        weight: Inverse participation probability of the client; 0 in empty slots.
    """

    index: Int[Array, "*rounds slots"]
    mask: Bool[Array, "*rounds slots"]
    weight: Float[Array, "*rounds slots"]


class Sampler(NamedTuple):
    """A scheme for a given population of clients.

    Attributes:
        slots: Largest possible size of a cohort.
        sample: (key, t) -> Cohort.
        alike: Whether only some clients are drawn, each with the same probability, whatever its
            number of rows.
        drawn: Draws per round (S in the papers); None where everyone takes part, and for cohorts
            without a fixed number of draws.
    """

    slots: int
    sample: Callable[[Key[Array, ""], Integer], Cohort]
    alike: bool = False
    drawn: int | None = None


Scheme: TypeAlias = Callable[[np.ndarray], Sampler]


def full() -> Scheme:
    """Every client takes part in every round, with weight 1.

    Returns:
        A scheme for `covey.run(cohort=...)`; the default.

    Example:
        >>> cohort = full()(np.array([3, 50, 7])).sample(jax.random.key(0), 0)
        >>> cohort.weight.tolist()
        [1.0, 1.0, 1.0]
    """
    return lambda counts: _everyone(len(counts))


@lru_cache(maxsize=64)  # the same function for the same population, so that programs are shared
def _everyone(population: int) -> Sampler:
    def sample(key, t):
        return Cohort(jnp.arange(population), jnp.ones(population, bool), jnp.ones(population))

    return Sampler(population, sample)


def bernoulli(probability: float | np.ndarray) -> Scheme:
    """Each client takes part independently with probability p_i, and weight 1/p_i.

    The weighted sum is the Horvitz-Thompson estimate. A cohort may be empty: the round then
    changes nothing.

    Args:
        probability: Participation probability in (0, 1], one for all clients or one per client
            (p_i in the papers).

    Returns:
        A scheme for `covey.run(cohort=...)`.

    Example:
        >>> cohort = bernoulli(0.5)(np.array([3, 50, 7])).sample(jax.random.key(1), 0)
        >>> cohort.mask.tolist(), cohort.weight.tolist()
        ([True, False, True], [2.0, 0.0, 2.0])
    """
    given = np.atleast_1d(np.asarray(probability, np.float32))
    wrong = given[~((given > 0) & (given <= 1))]
    if len(wrong):
        raise ValueError(f"bernoulli: probabilities must be in (0, 1], got {wrong[0]:g}")

    def scheme(counts: np.ndarray) -> Sampler:
        population = len(counts)
        if len(given) not in (1, population):
            raise ValueError(
                f"bernoulli: {len(given)} probabilities were given for {population} clients"
            )
        chance = jnp.asarray(np.broadcast_to(given, population))

        def sample(key, t):
            mask = jax.random.uniform(key, (population,)) < chance
            return Cohort(jnp.arange(population), mask, jnp.where(mask, 1 / chance, 0.0))

        return Sampler(population, sample)

    return scheme


def uniform(size: int) -> Scheme:
    """A fixed number of clients per round, drawn without replacement ("scheme II").

    All sets of S clients are equally likely; each of the b clients has weight b/S.

    Args:
        size: Clients per round (S in the papers), from 1 to the number of clients.

    Returns:
        A scheme for `covey.run(cohort=...)`.

    Example:
        >>> cohort = uniform(2)(np.array([3, 50, 7, 20])).sample(jax.random.key(0), 0)
        >>> cohort.index.shape, cohort.weight.tolist()
        ((2,), [2.0, 2.0])
    """
    _check_size("uniform", size)

    def scheme(counts: np.ndarray) -> Sampler:
        _check_population("uniform", size, len(counts))
        return _some(len(counts), size)

    return scheme


@lru_cache(maxsize=64)  # as for everyone: one function for equal counts
def _some(population: int, size: int) -> Sampler:
    # Floyd's algorithm draws `size` integers, a permutation sorts all clients: too slow for a
    # million of them in every round.
    draw = without_replacement if size * size < 32 * population else _draw_by_permutation

    def sample(key, t):
        return Cohort(
            draw(key, population, size), jnp.ones(size, bool), jnp.full(size, population / size)
        )

    return Sampler(size, sample, alike=size < population, drawn=size if size < population else None)


def weighted(size: int) -> Scheme:
    """Draws with replacement, in proportion to the clients' rows ("scheme I").

    A draw is client i with probability q_i = n_i/n; its weight is (times drawn) / (S q_i).

    Args:
        size: Draws per round (S in the papers), from 1 to 16,777,216. A client drawn several times
            runs once.

    Returns:
        A scheme for `covey.run(cohort=...)`.

    Example:
        >>> cohort = weighted(1)(np.array([1, 3])).sample(jax.random.key(0), 0)
        >>> cohort.index.tolist(), round(float(cohort.weight[0]), 3)
        ([1], 1.333)
    """
    _check_size("weighted", size)
    if size > _MOST_DRAWS:
        raise ValueError(
            f"weighted: at most {_MOST_DRAWS} draws per round are possible, got {size}; "
            "with many more draws than clients, full() is nearly the same"
        )

    def scheme(counts: np.ndarray) -> Sampler:
        if not np.any(counts):
            raise ValueError("weighted: no client has a training row to be drawn by")
        slots, rows = min(size, len(counts)), int(np.sum(counts))
        by_row = len(counts) > _MOST_BY_FRACTION
        if by_row and rows >= 2**31:
            raise ValueError(
                f"weighted: {len(counts)} clients have {rows} training rows together, and at most "
                f"{2**31 - 1} can be drawn from; use uniform({size})"
            )
        ends = np.cumsum(counts)
        cumulative = (
            jnp.asarray(ends, jnp.int32) if by_row else jnp.asarray(ends / rows, jnp.float32)
        )
        chance = jnp.asarray(counts / rows, jnp.float32)

        def sample(key, t):
            ticket = (
                jax.random.randint(key, (size,), 0, rows)
                if by_row
                else jax.random.uniform(key, (size,))
            )
            draws = jnp.searchsorted(cumulative, ticket, side="right")
            draws = jnp.minimum(draws, len(counts) - 1)
            index, times = jnp.unique(draws, return_counts=True, size=slots, fill_value=len(counts))
            mask = times > 0
            index = jnp.where(mask, index, 0)
            return Cohort(index, mask, jnp.where(mask, times / (size * chance[index]), 0.0))

        return Sampler(slots, sample, drawn=size)

    return scheme


def trace(available: np.ndarray, inner: Scheme | None = None) -> Scheme:
    """Clients by a recorded trace of availability.

    The weights stay those of `inner`: availability is given, not drawn, so there is no probability
    to correct for.

    Args:
        available: Matrix of clients by rounds, true where the client is available. After its last
            column it starts again.
        inner: Scheme that draws the clients, of which the available ones take part. Default: all
            clients.

    Returns:
        A scheme for `covey.run(cohort=...)`.

    Example:
        >>> table = np.array([[1, 0], [1, 1], [0, 1]], bool)
        >>> sampler = trace(table)(np.array([3, 50, 7]))
        >>> [sampler.sample(jax.random.key(0), t).mask.tolist() for t in (0, 1)]
        [[True, True, False], [False, True, True]]
    """
    table = np.asarray(available, bool)
    if table.ndim != 2 or not table.shape[1]:
        raise ValueError(f"trace: a matrix clients x rounds is needed, got shape {table.shape}")

    def scheme(counts: np.ndarray) -> Sampler:
        if len(counts) != table.shape[0]:
            raise ValueError(
                f"trace: the matrix has {table.shape[0]} clients, the data {len(counts)}"
            )
        sampler = (inner or full())(counts)
        on = jnp.asarray(table.T)

        def sample(key, t):
            cohort = sampler.sample(key, t)
            mask = cohort.mask & on[t % on.shape[0]][cohort.index]
            return Cohort(cohort.index, mask, jnp.where(mask, cohort.weight, 0.0))

        return Sampler(sampler.slots, sample, sampler.alike, sampler.drawn)

    return scheme


def given(weights: Real[np.ndarray, "plans clients"], *, rounds: int = 1) -> Scheme:
    """Weights that are given rather than drawn, such as those of a bootstrap.

    A client of weight zero does not take part. These weights are not inverse probabilities: the
    weighted sum is whatever they make it.

    Args:
        weights: Matrix of plans by clients, of weights of at least 0. After the last plan comes
            the first again.
        rounds: Consecutive rounds that follow one plan. Default: 1.

    Returns:
        A scheme for `covey.run(cohort=...)`.

    Example:
        >>> sampler = given(np.array([[2.0, 0.0], [1.0, 1.0]]), rounds=3)(np.array([5, 9]))
        >>> [sampler.sample(jax.random.key(0), t).weight.tolist() for t in (0, 2, 3)]
        [[2.0, 0.0], [2.0, 0.0], [1.0, 1.0]]
    """
    table = np.asarray(weights, np.float32)
    if table.ndim != 2 or not table.size or not np.all(np.isfinite(table) & (table >= 0)):
        raise ValueError(
            "given: a matrix plans x clients of weights of at least 0 is needed, "
            f"got one of shape {table.shape}"
        )
    if rounds < 1:
        raise ValueError(f"given: a plan is for at least 1 round, got {rounds}")

    def scheme(counts: np.ndarray) -> Sampler:
        plans, population = table.shape
        if len(counts) != population:
            raise ValueError(
                f"given: the matrix has weights of {population} clients, "
                f"the data have {len(counts)}"
            )
        all_weights = jnp.asarray(table)

        def sample(key, t):
            weight = all_weights[(t // rounds) % plans]
            return Cohort(jnp.arange(population), weight > 0, weight)

        return Sampler(population, sample)

    return scheme


def _draw_by_permutation(key: Key[Array, ""], population: int, size: int) -> Int[Array, " size"]:
    return jax.random.permutation(key, population)[:size]


def _check_size(name: str, size: int) -> None:
    if size < 1:
        raise ValueError(f"{name}: a cohort needs at least one client, got size {size}")


def _check_population(name: str, size: int, population: int) -> None:
    if size > population:
        raise ValueError(
            f"{name}: a cohort of {size} clients was asked for, but the data have {population}; "
            f"choose a size up to {population}"
        )
