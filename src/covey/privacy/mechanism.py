"""What a client of FA-LD releases, described once for every accountant.

A local step on n_c rows, of which a minibatch S of m_c = gamma_c n_c is drawn, adds private noise
to a sum of clipped gradients,

    theta <- theta - eta / (gamma_c p_c) sum_S clip(grad l, C) + sqrt(2 eta tau (1 - rho^2) / p_c) xi  (+ noise that all know).

Replacing one row changes the sum by at most Delta = 2 C, so the noise is

    z_c = sqrt(2 tau (1 - rho^2) p_c / eta) gamma_c / Delta

times the sensitivity. The noise that clients share, a part rho^2 of the variance, is public and
protects nothing. K such steps (of each chain) are one round, in which S of N clients take part.

What is protected is one row of one client, in what the clients upload. Whatever else is shown of
training rows (their loss, say) is outside of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from covey.core.cohort import Sampler

CohortScheme: TypeAlias = Literal["full", "uniform", "weighted"]
Sampling: TypeAlias = Literal["fixed", "poisson"]

_GROUPS = (
    16  # of clients with about as many rows, each accounted by the worst that any of them could be
)


def participation(sampler: Sampler) -> tuple[CohortScheme, int | None]:
    """The scheme and S of a sampler of cohorts. One of another kind is taken as everyone, every
    round: that reveals the most.
    """
    if sampler.drawn is None:
        return "full", None
    return "uniform" if sampler.alike else "weighted", sampler.drawn


@dataclass(frozen=True)
class Group:
    """Clients of about equal size, by their worst: minibatch of rows, noise, chance to be in a
    cohort.

    batch, rows: the minibatch of the smallest of them, of the rows it is drawn from; the largest
        sampling rate.
    noise: standard deviation over sensitivity when one row is replaced, of the one with the least.
    chance: to take part in a round, of the one with the largest.
    """

    batch: int
    rows: int
    noise: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The settings that decide what a round reveals.

    step_size: eta; where steps decrease, the largest.
    temperature: tau.
    correlation: rho, of the noise that all clients share.
    clip: C, the largest norm of one row's gradient.
    local_steps: K, in a round.
    rows: the training rows of every client; p_c are their shares.
    batch_size: rows of a minibatch; None, or more than a client has: all of them.
    scheme: who takes part, as in `core.cohort`: "full", "uniform" (scheme II) or "weighted" (scheme
        I).
    cohort_size: S, for the last two.
    sampling: "fixed" minibatches drawn without replacement; "poisson": each row by itself, with
        chance batch_size / n_c.
    chains: that walk side by side, each with minibatches and noise of its own. All are uploaded, so
        each costs as much as one.
    """

    step_size: int | float
    temperature: int | float
    correlation: int | float
    clip: int | float
    local_steps: int
    rows: tuple[int, ...]
    batch_size: int | None = None
    scheme: CohortScheme = "full"
    cohort_size: int | None = None
    sampling: Sampling = "fixed"
    chains: int = 1

    def __post_init__(self) -> None:
        for name in ("step_size", "temperature", "clip"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise ValueError(f"privacy: {name} must be a finite number above 0, got {value:g}")
        if not 0 <= self.correlation <= 1:
            raise ValueError(
                f"privacy: correlation (rho) must be in [0, 1], got {self.correlation:g}"
            )
        for name in ("local_steps", "batch_size", "cohort_size", "chains"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"privacy: {name} must be at least 1, got {value}")
        if not self.rows or min(self.rows) < 1:
            raise ValueError(
                "privacy: every client needs at least one training row; leave out the clients without"
            )
        if (self.scheme == "full") != (self.cohort_size is None):
            raise ValueError(
                f"privacy: cohort_size goes with scheme 'uniform' or 'weighted', got {self.cohort_size} with {self.scheme!r}"
            )
        if (
            self.scheme == "uniform"
            and self.cohort_size is not None
            and self.cohort_size > self.clients
        ):
            raise ValueError(
                f"privacy: a cohort of {self.cohort_size} of {self.clients} clients; choose a size up to {self.clients}"
            )

    @cached_property
    def clients(self) -> int:
        """N."""
        return len(self.rows)

    @cached_property
    def draws(self) -> int:
        """S, the clients (draws of clients, in scheme I) of a round."""
        return self.clients if self.cohort_size is None else self.cohort_size

    @cached_property
    def steps(self) -> int:
        """Steps of a client in a round, of all its chains."""
        return self.local_steps * self.chains

    @cached_property
    def sensitivity(self) -> float:
        """Delta: how far the sum of clipped gradients moves when one row is replaced."""
        return 2.0 * self.clip

    @cached_property
    def private_temperature(self) -> float:
        """The temperature tau (1 - rho^2) of the noise that is each client's own."""
        return self.temperature * (1 - self.correlation**2)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The different numbers of rows that clients have, smallest first."""
        return np.unique(self.rows)

    @cached_property
    def shares(self) -> np.ndarray:
        """p_c of clients of these sizes."""
        return self.sizes / np.sum(self.rows)

    @cached_property
    def rates(self) -> np.ndarray:
        """gamma_c of clients of these sizes."""
        return self.batches / self.sizes

    @cached_property
    def batches(self) -> np.ndarray:
        """m_c of clients of these sizes."""
        return self.sizes if self.batch_size is None else np.minimum(self.sizes, self.batch_size)

    @cached_property
    def chances(self) -> np.ndarray:
        """How probable it is that a client of each of these sizes is in a round's cohort."""
        if self.scheme == "weighted":
            return -np.expm1(self.draws * np.log1p(-np.minimum(self.shares, 1 - 1e-16)))
        return np.full(len(self.sizes), self.draws / self.clients)

    @cached_property
    def noises(self) -> np.ndarray:
        """z_c of clients of these sizes."""
        return (
            np.sqrt(2 * self.private_temperature * self.shares / self.step_size)
            * self.rates
            / self.sensitivity
        )

    @cached_property
    def groups(self) -> Sequence[Group]:
        """Clients of at most 16 kinds. A client is never worse than its group: accountants may look
        at groups only.
        """
        places = np.array_split(np.arange(len(self.sizes)), min(_GROUPS, len(self.sizes)))
        return [
            Group(
                int(self.batches[place[0]]),
                int(self.sizes[place[0]]),
                float(self.noises[place].min()),
                float(self.chances[place].max()),
            )
            for place in places
        ]
