"""Summaries that clients share before a mixture is fitted, and starting values of EM from them."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from covey.data.federated import FederatedData

_LLOYD_STEPS = 10


class Summary(NamedTuple):
    """Summaries of their training rows that clients share.

    group_means: mean of each group of rows.
    group_sizes: rows in each group.
    mean: mean of all rows.
    second_moment: mean of x x' over all rows.
    """

    group_means: Float[np.ndarray, "groups features"]
    group_sizes: Int64[np.ndarray, " groups"]
    mean: Float[np.ndarray, " features"]
    second_moment: Float[np.ndarray, "features features"]

    @property
    def covariance(self) -> Float[np.ndarray, "features features"]:
        """Covariance of all rows."""
        return self.second_moment - np.outer(self.mean, self.mean)

    def starting_means(
        self, components: int, *, seed: int
    ) -> Float[np.ndarray, "components features"]:
        """Starting means of a mixture, by k-means++ on the groups.

        A group counts as often as it has rows.

        Args:
            components: Number of components of the mixture.
            seed: Seed of the choice.

        Returns:
            One mean per component, each the mean of a group.

        Example:
            >>> means, sizes = np.array([[0.0], [9.0]]), np.array([5, 6])
            >>> summary = Summary(means, sizes, np.array([5.0]), np.array([[44.0]]))
            >>> sorted(summary.starting_means(2, seed=1).tolist())
            [[0.0], [9.0]]

        Reference: Arthur and Vassilvitskii (2007), k-means++: the advantages of careful seeding.
        """
        if not 1 <= components <= len(self.group_means):
            raise ValueError(
                f"starting_means: {components} means were asked for and {len(self.group_means)}"
                " groups are shared; summarise with more groups, or with a smaller at_least"
            )
        generator = np.random.default_rng(seed)
        return self.group_means[
            _spread_out(generator, self.group_means, self.group_sizes, components)
        ]


def summarise(data: FederatedData, *, groups: int = 5, at_least: int = 5, seed: int) -> Summary:
    """Summarise the training rows of all clients, without sharing a row.

    Each client sums its rows and their outer products, and sorts its rows into a few groups by
    k-means. It shares the sums, and the mean and size of each group that is large enough: no row
    leaves a client, and no mean of too few rows.

    Args:
        data: The data; clients without training rows share nothing.
        groups: Most groups per client.
        at_least: Rows that a group needs to be shared. Larger is more discreet; no group may be
            left then.
        seed: Seed of the clients' k-means.

    Returns:
        The summary.

    Example:
        >>> import covey
        >>> data, _ = covey.load("heart_disease").standardised()
        >>> summary = summarise(data, groups=3, at_least=20, seed=1)
        >>> summary.starting_means(2, seed=1).shape, bool(summary.group_sizes.min() >= 20)
        ((2, 13), True)
    """
    if groups < 1 or at_least < 1:
        raise ValueError(
            f"summarise: groups and at_least must be at least 1, got {groups} and {at_least}"
        )
    means, sizes, total, products = [], [], 0.0, 0.0
    for position in range(data.clients):
        x = _training_rows(data, position)
        total, products = total + x.sum(0), products + x.T @ x
        for mean, size in _groups(
            np.random.default_rng([seed, int(data.ids[position])]), x, groups
        ):
            if size >= at_least:
                means.append(mean)
                sizes.append(size)
    if not means:
        raise ValueError(
            f"summarise: no client has a group of {at_least} rows; ask for fewer groups, or a"
            " smaller at_least"
        )
    rows = data.counts("train").sum()
    return Summary(np.stack(means), np.asarray(sizes, np.int64), total / rows, products / rows)


def random_rows(
    data: FederatedData, count: int, *, seed: int
) -> Float[np.ndarray, "count features"]:
    """Training rows of any clients, drawn without replacement: the usual start of EM.

    This publishes the rows, so it is for data that may be seen.

    Args:
        data: The data.
        count: Number of rows.
        seed: Seed of the draw.

    Returns:
        The features of the rows.

    Example:
        >>> import covey
        >>> random_rows(covey.load("eight_schools"), 3, seed=1).shape
        (3, 1)
    """
    counts = data.counts("train")
    if not 1 <= count <= counts.sum():
        raise ValueError(
            f"random_rows: {count} rows were asked for, the clients have {counts.sum()}"
        )
    chosen = np.sort(np.random.default_rng(seed).choice(counts.sum(), count, replace=False))
    client = np.searchsorted(np.cumsum(counts), chosen, side="right")
    index = chosen - (np.cumsum(counts) - counts)[client]
    return np.stack([_training_rows(data, int(c))[i] for c, i in zip(client, index, strict=True)])


def _training_rows(data: FederatedData, position: int) -> np.ndarray:
    x = data.rows_of(position, "train").x
    return np.asarray(x, np.float64).reshape(len(x), math.prod(x.shape[1:]))


def _groups(rng: np.random.Generator, x: np.ndarray, count: int) -> list[tuple[np.ndarray, int]]:
    """The k-means of one client: mean and size of each group."""
    if not len(x):
        return []
    centres = x[_spread_out(rng, x, np.ones(len(x)), min(count, len(x)))]
    for _ in range(_LLOYD_STEPS):
        members = [x[nearest] for nearest in _nearest(x, centres)]
        centres = np.stack(
            [own.mean(0) if len(own) else old for own, old in zip(members, centres, strict=True)]
        )
    members = [x[nearest] for nearest in _nearest(x, centres)]
    return [(own.mean(0), len(own)) for own in members if len(own)]


def _nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """For each centre, which rows are nearer to it than to any other."""
    return np.argmin(_distances(x, centres), axis=1) == np.arange(len(centres))[:, None]


def _spread_out(
    rng: np.random.Generator, points: np.ndarray, weights: np.ndarray, count: int
) -> np.ndarray:
    """k-means++: each next point with probability weight times squared distance to the nearest
    chosen one.
    """
    chosen = [int(rng.choice(len(points), p=weights / weights.sum()))]
    for _ in range(count - 1):
        chance = weights * _distances(points, points[chosen]).min(axis=1)
        if not chance.any():  # all others lie on chosen ones
            chance = np.isin(np.arange(len(points)), chosen, invert=True).astype(float)
        chosen.append(int(rng.choice(len(points), p=chance / chance.sum())))
    return np.asarray(chosen)


def _distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.sum((points[:, None] - centres) ** 2, axis=-1)
