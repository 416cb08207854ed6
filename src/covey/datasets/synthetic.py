"""Synthetic data whose parameters are known.

A client's data depend on the seed and the client's index alone, so more clients only add clients.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from covey.core.shard import Rows, Spec
from covey.data.assembly import row_spec
from covey.data.federated import FederatedData
from covey.data.values import float_type, settled

_SHARED = 2**32  # the stream of the shared parameters; clients have the streams below


class Mixture(NamedTuple):
    """Parameters that generated a mixture.

    theta: coefficients of the shared components.
    pi: weights of the components, for each client.
    """

    theta: Float64[np.ndarray, "components dimensions"]
    pi: Float64[np.ndarray, "clients components"]


class Regression(NamedTuple):
    """Parameters that generated a regression.

    theta: coefficients that the clients' coefficients vary around.
    local: coefficients of each client.
    """

    theta: Float64[np.ndarray, " dimensions"]
    local: Float64[np.ndarray, "clients dimensions"]


class Features(NamedTuple):
    """Parameters that generated regressions on shared features.

    phi: map to the shared features, with orthonormal columns.
    z: coefficients of each client on the shared features.
    """

    phi: Float64[np.ndarray, "dimensions effects"]
    z: Float64[np.ndarray, "clients effects"]


def mixture_of_linear(
    seed: int,
    clients: int = 300,
    dimensions: int = 150,
    components: int = 3,
    *,
    alpha: int | float = 0.4,
    noise: int | float = 0.1,
    test_rows: int = 5000,
    labels: Literal["mixture", "published"] = "mixture",
) -> tuple[FederatedData, Mixture]:
    """Binary labels from client-specific mixtures of shared linear models.

    theta_m ~ U[-1, 1]^d and pi_t ~ Dirichlet(alpha). Each row of client t draws a component
    z ~ pi_t and x ~ U[-1, 1]^d; y = round(sigmoid(<x, theta_z> + e)) with e normal. Clients have
    min(50 + floor(lognormal(4, 2)), 1000) training rows and no validation rows.

    Args:
        seed: Seed of the data.
        clients: Number of clients (T in the paper).
        dimensions: Number of features (d).
        components: Number of shared models (M).
        alpha: Concentration of the clients' weights; smaller values make clients more different.
        noise: Standard deviation of e.
        test_rows: Test rows per client.
        labels: "mixture" follows the paper; "published" makes the labels of the authors' code.

    Returns:
        The data, and the parameters that generated them.

    Example:
        >>> data, truth = mixture_of_linear(1, clients=4, dimensions=5, test_rows=10)
        >>> truth.pi.shape, data.counts("test").tolist()
        ((4, 3), [10, 10, 10, 10])

    Departures from the paper: the authors' published generator does not advance its row index from
    one component to the next: each component labels a client's first rows, over the labels of the
    one before, and the rows past the largest share keep label 0. Those labels are no mixture of
    the three models, so do not expect the paper's absolute numbers from the default.

    Reference: Marfoq et al. (2021), Federated multi-task learning under a mixture of
    distributions, assumption 1 and appendix I.
    """
    _check(clients=clients, dimensions=dimensions, components=components)
    if alpha <= 0 or noise < 0 or test_rows < 0:
        raise ValueError(
            f"alpha must be positive, noise and test_rows at least 0, got {alpha=}, {noise=},"
            f" {test_rows=}"
        )
    if labels not in ("mixture", "published"):
        raise ValueError(f"labels must be 'mixture' or 'published', got {labels!r}")
    theta = np.random.default_rng([seed, _SHARED]).uniform(-1, 1, (components, dimensions))
    generators = [np.random.default_rng([seed, client]) for client in range(clients)]
    sizes = np.asarray([min(50 + int(generator.lognormal(4, 2)), 1000) for generator in generators])
    starts = np.concatenate([[0], np.cumsum(sizes + test_rows)])
    x = np.empty((starts[-1], dimensions), float_type(np.dtype(np.float64)))
    y = np.empty(starts[-1], np.int32)
    pi = np.empty((clients, components))
    for client, generator in enumerate(generators):
        rows = slice(starts[client], starts[client + 1])
        pi[client] = generator.dirichlet(np.full(components, alpha))
        z = generator.choice(components, sizes[client] + test_rows, p=pi[client])
        points = generator.uniform(-1, 1, (len(z), dimensions))
        errors = noise * generator.standard_normal(len(z))
        score = np.einsum("nd,nd->n", points, theta[z]) + errors
        x[rows], y[rows] = points, score > 0  # sigmoid(s) rounds to 1 exactly where s > 0
        if labels == "published":
            for part in (slice(0, sizes[client]), slice(sizes[client], None)):
                order = generator.permutation(len(z[part]))
                y[rows][part][order] = _overwritten(
                    points[part][order], errors[part][order], theta, z[part]
                )
    tests = starts[:-1] + sizes
    bounds = np.stack([starts[:-1], tests, tests, starts[1:]], axis=1)
    return _data(Rows(x, y), bounds, 2), Mixture(theta, pi)


def least_squares(
    seed: int,
    clients: int,
    rows: int,
    dimensions: int,
    heterogeneity: int | float,
    *,
    noise: int | float = 0.1,
) -> tuple[FederatedData, Regression]:
    """Linear regression with clients of unequal size, different coefficients and designs.

    theta ~ N(0, I); theta_i = theta + heterogeneity N(0, I). Client i has uniformly rows/2 to
    3 rows/2 rows (at least one) of x = s_i * N(0, I), where log s_i ~ heterogeneity N(0, I) scales
    the features, and y = <x, theta_i> + noise N(0, 1).

    Args:
        seed: Seed of the data.
        clients: Number of clients.
        rows: Mean number of rows per client.
        dimensions: Number of features.
        heterogeneity: Standard deviation between clients. With 0 all clients have the same
            distribution; otherwise the local Hessians differ, and the optimum of the sum is not
            the average of the local optima.
        noise: Standard deviation of the outcome.

    Returns:
        The data, with training rows only, and the parameters that generated them.

    Example:
        >>> data, truth = least_squares(1, clients=3, rows=10, dimensions=2, heterogeneity=0.5)
        >>> data.clients, truth.local.shape
        (3, (3, 2))
    """
    _check(clients=clients, rows=rows, dimensions=dimensions)
    if heterogeneity < 0 or noise < 0:
        raise ValueError(
            f"heterogeneity and noise must be at least 0, got {heterogeneity=}, {noise=}"
        )
    theta = np.random.default_rng([seed, _SHARED]).standard_normal(dimensions)
    local = np.empty((clients, dimensions))
    parts: list[Rows] = []
    for client in range(clients):
        generator = np.random.default_rng([seed, client])
        size = max(1, int(generator.integers(rows // 2, rows + rows // 2, endpoint=True)))
        local[client] = theta + heterogeneity * generator.standard_normal(dimensions)
        scale = np.exp(heterogeneity * generator.standard_normal(dimensions))
        x = scale * generator.standard_normal((size, dimensions))
        parts.append(Rows(x, x @ local[client] + noise * generator.standard_normal(size)))
    return _train_only(parts), Regression(theta, local)


def shared_features(
    seed: int,
    clients: int = 100,
    dimensions: int = 20,
    effects: int = 2,
    *,
    few: int = 5,
    many: int = 10,
    share: int | float = 0.9,
    noise: int | float = 0.1,
) -> tuple[FederatedData, Features]:
    """Linear regressions of clients on a few features that all clients share.

    phi has orthonormal columns and z_i ~ N(0, I). Client i has rows x ~ N(0, I) and
    y = <z_i, phi'x> + noise N(0, 1).

    Args:
        seed: Seed of the data.
        clients: Number of clients (b in the paper).
        dimensions: Number of observed features.
        effects: Number of shared features.
        few: Rows of each of the first clients.
        many: Rows of each of the other clients.
        share: Share of the clients that have few rows.
        noise: Standard deviation of the outcome.

    Returns:
        The data, with training rows only, and the parameters that generated them.

    Example:
        >>> data, truth = shared_features(1, clients=4, share=0.5)
        >>> data.counts("train").tolist(), truth.phi.shape
        ([5, 5, 10, 10], (20, 2))

    Reference: Kotelevskii et al. (2022), FedPop: a Bayesian approach for personalised federated
    learning, section 5; Collins et al. (2021), Exploiting shared representations.
    """
    _check(clients=clients, dimensions=dimensions, effects=effects, few=few, many=many)
    if effects > dimensions:
        raise ValueError(f"effects must be at most dimensions, {dimensions}, got {effects}")
    if noise < 0 or not 0 <= share <= 1:
        raise ValueError(
            f"noise must be at least 0 and share within 0 and 1, got {noise=}, {share=}"
        )
    phi = np.linalg.qr(
        np.random.default_rng([seed, _SHARED]).standard_normal((dimensions, effects))
    )[0]
    sizes = np.where(np.arange(clients) < round(share * clients), few, many)
    z = np.empty((clients, effects))
    parts: list[Rows] = []
    for client, size in enumerate(sizes):
        generator = np.random.default_rng([seed, client])
        z[client] = generator.standard_normal(effects)
        x = generator.standard_normal((size, dimensions))
        parts.append(Rows(x, x @ phi @ z[client] + noise * generator.standard_normal(size)))
    return _train_only(parts), Features(phi, z)


def _overwritten(
    points: np.ndarray, errors: np.ndarray, theta: np.ndarray, z: np.ndarray
) -> np.ndarray:
    """Labels of the published generator: a row has that of the last component to reach it."""
    y = np.zeros(len(z), np.int32)
    for component, count in enumerate(np.bincount(z, minlength=len(theta))):
        y[:count] = points[:count] @ theta[component] + errors[:count] > 0
    return y


def _train_only(parts: list[Rows]) -> FederatedData:
    """Clients with training rows only."""
    ends = np.cumsum([len(part.y) for part in parts])
    bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends, ends, ends], axis=1)
    rows = Rows(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))
    return _data(settled(rows, None), bounds, None)


def _data(rows: Rows, bounds: np.ndarray, classes: int | None) -> FederatedData:
    spec = Spec(row_spec(rows), classes)
    return FederatedData(rows, bounds, np.arange(len(bounds)), None, spec)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
