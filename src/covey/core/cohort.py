"""Who takes part in a round, and with what weight.

A scheme is a function of the clients' row counts; it gives a `Sampler`, whose `sample(key, t)`
gives the cohort of round t as fixed-size arrays. Weights are inverse participation probabilities:
the weighted sum over the cohort is an unbiased estimate of the sum over all clients. A client drawn
twice runs once and carries the multiplicity in its weight.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Real

from covey.core.keys import Integer, without_replacement


class Cohort(NamedTuple):
    """Positions of clients in the data, which slots are taken, and inverse-probability weights
    (zero in empty slots).
    """

    index: Int[Array, "*rounds slots"]
    mask: Bool[Array, "*rounds slots"]
    weight: Float[Array, "*rounds slots"]


class Sampler(NamedTuple):
    """slots: the most clients that a cohort can have. sample: (key, t) -> Cohort.

    alike: some clients are drawn, each as likely as any other, whatever its number of rows.
    drawn: how many are drawn anew for each round; None for everyone, and for cohorts that are not
        draws of a given number.
    """

    slots: int
    sample: Callable[[Key[Array, ""], Integer], Cohort]
    alike: bool = False
    drawn: int | None = None


Scheme: TypeAlias = Callable[[np.ndarray], Sampler]


def full() -> Scheme:
    """Every client, every round, weight 1."""

    def scheme(counts: np.ndarray) -> Sampler:
        population = len(counts)

        def sample(key, t):
            return Cohort(jnp.arange(population), jnp.ones(population, bool), jnp.ones(population))

        return Sampler(population, sample)

    return scheme


def bernoulli(probability: float | np.ndarray) -> Scheme:
    """Each client independently with its own probability p_i; weight 1/p_i (Horvitz-Thompson)."""
    given = np.atleast_1d(np.asarray(probability, np.float32))
    if not np.all((given > 0) & (given <= 1)):
        raise ValueError(
            f"bernoulli: probabilities must be in (0, 1], got {given[(given <= 0) | (given > 1)][0]:g}"
        )

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
    """`size` clients without replacement, all sets equally likely ("scheme II"); weight b/S."""
    _check_size("uniform", size)

    def scheme(counts: np.ndarray) -> Sampler:
        population = len(counts)
        _check_population("uniform", size, population)
        # Floyd's draw touches `size` numbers, a permutation touches all clients: a million of them
        # would be sorted each round.
        draw = without_replacement if size * size < 32 * population else _draw_by_permutation

        def sample(key, t):
            return Cohort(
                draw(key, population, size), jnp.ones(size, bool), jnp.full(size, population / size)
            )

        return Sampler(
            size, sample, alike=size < population, drawn=size if size < population else None
        )

    return scheme


def weighted(size: int) -> Scheme:
    """`size` draws with replacement, client i with probability q_i = n_i/n ("scheme I"); weight
    (times drawn) / (S q_i).
    """
    _check_size("weighted", size)

    def scheme(counts: np.ndarray) -> Sampler:
        slots = min(size, len(counts))
        cumulative = jnp.asarray(np.cumsum(counts) / np.sum(counts), jnp.float32)
        chance = jnp.asarray(counts / np.sum(counts), jnp.float32)

        def sample(key, t):
            draws = jnp.searchsorted(cumulative, jax.random.uniform(key, (size,)), side="right")
            draws = jnp.minimum(draws, len(counts) - 1)
            index, times = jnp.unique(draws, return_counts=True, size=slots, fill_value=len(counts))
            mask = times > 0
            index = jnp.where(mask, index, 0)
            return Cohort(index, mask, jnp.where(mask, times / (size * chance[index]), 0.0))

        return Sampler(slots, sample, drawn=size)

    return scheme


def trace(available: np.ndarray, inner: Scheme | None = None) -> Scheme:
    """The clients of `inner` (default: all) that a client-by-round matrix shows as available; after
    its end it starts again.

    The weights stay those of `inner`: availability is given, not drawn, so it has no probability to
    correct for.
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
    """Weights that are given, e.g. those of a bootstrap: a plan for `rounds` rounds, then the next;
    after the last, the first.

    A client of weight zero does not take part. These weights are no inverse probabilities: the
    weighted sum is what they make it.
    """
    table = np.asarray(weights, np.float32)
    if table.ndim != 2 or not table.size or not np.all(np.isfinite(table) & (table >= 0)):
        raise ValueError(
            f"given: a matrix plans x clients of weights of at least 0 is needed, got one of shape {table.shape}"
        )
    if rounds < 1:
        raise ValueError(f"given: a plan is for at least 1 round, got {rounds}")

    def scheme(counts: np.ndarray) -> Sampler:
        plans, population = table.shape
        if len(counts) != population:
            raise ValueError(
                f"given: the matrix has weights of {population} clients, the data have {len(counts)}"
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
            f"{name}: a cohort of {size} clients was asked for, but the data have {population}; choose a size up to {population}"
        )
