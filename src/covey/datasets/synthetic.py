"""Data whose truth is known. A client's data depend on (seed, number of the client) alone, so more
clients only add clients.
"""

from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float64

from covey.core.shard import Rows, Spec
from covey.data.federated import FederatedData

_SHARED = 2**32  # the stream of what all clients share; clients have the numbers below


class Mixture(NamedTuple):
    """What generated a mixture: the components that clients share, and each client's weights of
    them.
    """

    theta: Float64[np.ndarray, "components dimensions"]
    pi: Float64[np.ndarray, "clients components"]


class Regression(NamedTuple):
    """What generated a regression: the coefficients that clients vary around, and each client's
    own.
    """

    theta: Float64[np.ndarray, " dimensions"]
    local: Float64[np.ndarray, "clients dimensions"]


class Features(NamedTuple):
    """What generated regressions on shared features: the map to the features, orthonormal, and each
    client's coefficients.
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
    """Binary labels from client-specific mixtures of shared linear models (Marfoq et al. 2021,
    Assumption 1 and appendix I).

    theta_m ~ U[-1, 1]^d and pi_t ~ Dirichlet(alpha). Each row of client t draws its own component z
    ~ pi_t and x ~ U[-1, 1]^d; y = round(sigmoid(<x, theta_z> + e)), e normal with standard
    deviation `noise`. Clients have min(50 + floor(lognormal(4, 2)), 1000) training rows, no
    validation rows, and `test_rows` test rows.

    The authors' published generator does not advance its row index from one component to the next:
    each component labels a client's first rows, over the labels of the one before, and the rows
    past the largest share keep label 0. By default this one follows the paper; do not expect the
    paper's absolute numbers. `labels="published"` makes the authors' labels, which are no mixture
    of the three models.
    """
    _check(clients=clients, dimensions=dimensions, components=components)
    if alpha <= 0 or noise < 0 or test_rows < 0:
        raise ValueError(
            f"alpha must be positive, noise and test_rows at least 0, got {alpha=}, {noise=}, {test_rows=}"
        )
    if labels not in ("mixture", "published"):
        raise ValueError(f"labels must be 'mixture' or 'published', got {labels!r}")
    theta = np.random.default_rng([seed, _SHARED]).uniform(-1, 1, (components, dimensions))
    generators = [np.random.default_rng([seed, client]) for client in range(clients)]
    sizes = np.asarray([min(50 + int(generator.lognormal(4, 2)), 1000) for generator in generators])
    starts = np.concatenate([[0], np.cumsum(sizes + test_rows)])
    x, y = np.empty((starts[-1], dimensions), np.float32), np.empty(starts[-1], np.int32)
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
    """Federated linear regression with clients of unequal size, different coefficients and
    different designs.

    theta ~ N(0, I); theta_i = theta + heterogeneity N(0, I). Client i has uniformly rows/2 to 3
    rows/2 rows (at least one) of x = s_i * N(0, I), where log s_i ~ heterogeneity N(0, I) scales
    the features, and y = <x, theta_i> + noise N(0, 1). With heterogeneity 0 all clients have the
    same distribution. The local Hessians differ otherwise, so the optimum of the sum is not the
    average of the local optima.
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
    """Regressions on features that clients share (Kotelevskii et al. 2022, section 5; Collins et
    al. 2021).

    phi has orthonormal columns and z_i ~ N(0, I). Client i has rows x ~ N(0, I) and y = <z_i,
    phi'x> + noise N(0, 1): `few` rows for the first `share` of the clients, `many` for the others.
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
    """Labels in the order of the published generator: a row has that of the last component whose
    share reaches it.
    """
    y = np.zeros(len(z), np.int32)
    for component, count in enumerate(np.bincount(z, minlength=len(theta))):
        y[:count] = points[:count] @ theta[component] + errors[:count] > 0
    return y


def _train_only(parts: list[Rows]) -> FederatedData:
    """Clients with training rows only."""
    ends = np.cumsum([len(part.y) for part in parts])
    bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends, ends, ends], axis=1)
    return _data(
        Rows(*(np.concatenate(leaves).astype(np.float32) for leaves in zip(*parts, strict=True))),
        bounds,
        None,
    )


def _data(rows: Rows, bounds: np.ndarray, classes: int | None) -> FederatedData:
    spec = Rows(*(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in rows))
    return FederatedData(rows, bounds, np.arange(len(bounds)), None, Spec(spec, classes))


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
