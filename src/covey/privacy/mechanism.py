"""The release of an FA-LD client in a round, described once for every accountant."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from covey.core.cohort import Sampler

CohortScheme: TypeAlias = Literal["full", "uniform", "weighted"]
Sampling: TypeAlias = Literal["fixed", "poisson"]
Adjacency: TypeAlias = Literal["replace-one", "zero-out"]

_GROUPS = 16  # of clients of about equal size, each accounted by the worst of its clients


def participation(sampler: Sampler) -> tuple[CohortScheme, int | None]:
    """The scheme of a sampler of cohorts, and its draws per round.

    A sampler without a fixed number of draws is taken as everyone in every round, which reveals
    the most.

    Args:
        sampler: Sampler of cohorts, from `core.cohort`.

    Returns:
        The name of the scheme, and S; None for everyone.

    Example:
        >>> from covey.core import cohort
        >>> participation(cohort.uniform(2)(np.array([50, 50, 50])))
        ('uniform', 2)
        >>> participation(cohort.bernoulli(0.1)(np.array([50, 50, 50])))
        ('full', None)
    """
    if sampler.drawn is None:
        return "full", None
    return "uniform" if sampler.alike else "weighted", sampler.drawn


@dataclass(frozen=True)
class Group:
    """Clients of about equal size, accounted by the worst of them.

    Attributes:
        batch: Minibatch of the smallest of them: the largest sampling rate.
        rows: Rows of the smallest of them, which that minibatch is drawn from.
        noise: Smallest standard deviation of the noise over the sensitivity.
        chance: Largest probability of taking part in a round.
    """

    batch: int
    rows: int
    noise: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class LangevinMechanism:
    """The settings of FA-LD that decide what a round reveals of one row.

    A local step on n_c rows, of which a minibatch S of m_c = gamma_c n_c is drawn, adds private
    noise to a sum of clipped gradients,

        theta <- theta - eta / (gamma_c p_c) sum_S clip(grad l, C)
                 + sqrt(2 eta tau (1 - rho^2) / p_c) xi  (+ noise that all clients share),

    so the noise is z_c = sqrt(2 tau (1 - rho^2) p_c / eta) gamma_c / Delta times the sensitivity
    Delta of the sum. The shared noise, a share rho^2 of the variance, is public and protects
    nothing. K such steps of each chain are one round, in which S of N clients take part.

    Adjacency, that is, what two data sets that cannot be told apart differ in:

        fixed minibatches     replace-one: a row is replaced by any other row, Delta = 2 C
        Poisson minibatches   zero-out: a row is replaced by one without a gradient, Delta = C

    Neither hides how many rows a client has: n_c travels exactly, as its weight, so that adding or
    removing a row is not protected. Epsilons under the two are not comparable: replacing a row is
    zeroing it and filling it again, two steps of zero-out.

    The protected unit is one row of one client, in the uploads. Whatever else is shown
    of training rows (their loss, for example) is outside of it.

    Attributes:
        step_size: Langevin step (eta); where steps decrease, the largest.
        temperature: Temperature of the target (tau).
        correlation: Share of the noise that all clients have in common, from 0 to 1 (rho).
        clip: Largest norm of one row's gradient (C).
        local_steps: Langevin steps per round (K).
        rows: Training rows of every client; p_c are their shares.
        batch_size: Rows of a minibatch. Default: None, all rows; so are more than a client has.
        scheme: Scheme of the cohorts, as in `core.cohort`: "full" (default), "uniform" (scheme II)
            or "weighted" (scheme I).
        cohort_size: Clients per round (S), for the last two.
        sampling: "fixed" (default): minibatches of a fixed size, drawn without replacement.
            "poisson": each row independently, with probability batch_size / n_c.
        chains: Chains side by side, each with its own minibatches and noise. All are uploaded, so
            each costs as much as one. Default: 1.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> round_.adjacency, round_.sensitivity, round(float(round_.noises[0]), 2)
        ('replace-one', 1.0, 89.44)

    Reference: Deng et al. (2024), On convergence of federated averaging Langevin dynamics,
    appendix G; zero-out: Kairouz et al. (2021), Practical and private (deep) learning without
    sampling or shuffling, definition 1.1.
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
                "privacy: every client needs at least one training row; "
                "leave out the clients without"
            )
        if (self.scheme == "full") != (self.cohort_size is None):
            raise ValueError(
                "privacy: cohort_size goes with scheme 'uniform' or 'weighted', "
                f"got {self.cohort_size} with {self.scheme!r}"
            )
        if (
            self.scheme == "uniform"
            and self.cohort_size is not None
            and self.cohort_size > self.clients
        ):
            raise ValueError(
                f"privacy: a cohort of {self.cohort_size} of {self.clients} clients; "
                f"choose a size up to {self.clients}"
            )

    @cached_property
    def clients(self) -> int:
        """Number of clients (N)."""
        return len(self.rows)

    @cached_property
    def draws(self) -> int:
        """Clients per round, or draws of clients in scheme I (S)."""
        return self.clients if self.cohort_size is None else self.cohort_size

    @cached_property
    def steps(self) -> int:
        """Steps of a client per round, of all its chains together."""
        return self.local_steps * self.chains

    @property
    def adjacency(self) -> Adjacency:
        """The difference between two data sets that an epsilon covers; n_c is the same in both."""
        return "zero-out" if self.sampling == "poisson" else "replace-one"

    @cached_property
    def sensitivity(self) -> float:
        """The largest change of the sum of clipped gradients between adjacent data sets (Delta)."""
        return (1.0 if self.adjacency == "zero-out" else 2.0) * self.clip

    @cached_property
    def private_temperature(self) -> float:
        """Temperature of the noise that each client draws itself, tau (1 - rho^2)."""
        return self.temperature * (1 - self.correlation**2)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The different row counts of clients, smallest first."""
        return np.unique(self.rows)

    @cached_property
    def shares(self) -> np.ndarray:
        """Shares of all rows of clients of these sizes (p_c)."""
        return self.sizes / np.sum(self.rows)

    @cached_property
    def rates(self) -> np.ndarray:
        """Sampling rates of clients of these sizes (gamma_c)."""
        return self.batches / self.sizes

    @cached_property
    def batches(self) -> np.ndarray:
        """Minibatches of clients of these sizes (m_c)."""
        return self.sizes if self.batch_size is None else np.minimum(self.sizes, self.batch_size)

    @cached_property
    def chances(self) -> np.ndarray:
        """Probabilities that a client of each of these sizes is in a round's cohort."""
        if self.scheme == "weighted":
            return -np.expm1(self.draws * np.log1p(-np.minimum(self.shares, 1 - 1e-16)))
        return np.full(len(self.sizes), self.draws / self.clients)

    @cached_property
    def noises(self) -> np.ndarray:
        """Standard deviation of the noise over the sensitivity, by size (z_c)."""
        return (
            np.sqrt(2 * self.private_temperature * self.shares / self.step_size)
            * self.rates
            / self.sensitivity
        )

    @cached_property
    def groups(self) -> Sequence[Group]:
        """Clients in at most 16 groups.

        No client is worse off than its group, so accountants may look at groups only.
        """
        parts = np.array_split(np.arange(len(self.sizes)), min(_GROUPS, len(self.sizes)))
        return [
            Group(
                int(self.batches[part[0]]),
                int(self.sizes[part[0]]),
                float(self.noises[part].min()),
                float(self.chances[part].max()),
            )
            for part in parts
        ]
