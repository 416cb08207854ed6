"""Mixed models on pooled rows, in NumPy and SciPy: what a federated fit must equal."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp

from covey.data.federated import FederatedData


class Pooled(NamedTuple):
    """All rows with their clients."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray

    @classmethod
    def of(cls, data: FederatedData) -> "Pooled":
        counts = data.counts("train")
        x = np.asarray(data.rows.x, np.float64)
        return cls(
            x, np.asarray(data.rows.y, np.float64), np.repeat(np.arange(len(counts)), counts)
        )

    @property
    def design(self) -> np.ndarray:
        return np.column_stack([np.ones(len(self.y)), self.x])


class Fit(NamedTuple):
    """Maximum likelihood: coefficients (intercept first), their standard errors, deviations and
    correlation of the effects, noise, log-likelihood.
    """

    beta: np.ndarray
    se: np.ndarray
    sd: np.ndarray
    cor: float
    noise: float
    log_likelihood: float


def gaussian(rows: Pooled, slopes: list[int], *, reml: bool = False) -> Fit:
    """A linear mixed model with a full covariance, coefficients profiled out."""
    x, effects = rows.design, 1 + len(slopes)
    z = rows.design[:, [0, *(1 + column for column in slopes)]]
    scale, middle = rows.y.std(), rows.y.mean()
    y = rows.y - middle
    groups, count = rows.client, rows.client.max() + 1

    def summed(one, other):
        """Sums over the rows of each client of products of columns."""
        total = np.zeros((count, one.shape[1], other.shape[1]))
        np.add.at(total, groups, one[:, :, None] * other[:, None, :])
        return total

    xx, xz, zz = summed(x, x).sum(0), summed(x, z), summed(z, z)
    xy, zy, yy = x.T @ y, summed(z, y[:, None]), y @ y

    def parts(v):
        root = np.zeros((effects, effects))
        root[np.tril_indices(effects)] = v[:-1]
        sigma = np.exp(v[-1]) * scale
        # V^-1 = (I - Z L M^-1 L'Z') / sigma^2 with M = I + L'Z'Z L, by Woodbury's formula.
        inner = np.eye(effects) + root.T @ zz @ root
        middle_part = root @ np.linalg.inv(inner) @ root.T
        information = (xx - np.sum(xz @ middle_part @ xz.transpose(0, 2, 1), 0)) / sigma**2
        score = (xy - np.sum(xz @ middle_part @ zy, 0)[:, 0]) / sigma**2
        squares = (yy - np.sum(zy.transpose(0, 2, 1) @ middle_part @ zy)) / sigma**2
        log_det = np.sum(np.linalg.slogdet(inner)[1]) + 2 * len(y) * np.log(sigma)
        beta = np.linalg.solve(information, score)
        value = -(log_det + squares - score @ beta + len(y) * np.log(2 * np.pi)) / 2
        if reml:
            value -= np.linalg.slogdet(information)[1] / 2 - x.shape[1] * np.log(2 * np.pi) / 2
        return value, beta, information, root * sigma, sigma

    start = np.append(np.eye(effects)[np.tril_indices(effects)] / 2, 0.0)
    found = minimize(lambda v: -parts(v)[0], start, method="BFGS", options={"gtol": 1e-5})
    value, beta, information, root, sigma = parts(found.x)
    beta = beta + np.append(middle, np.zeros(x.shape[1] - 1))
    covariance = root @ root.T
    sd = np.sqrt(np.diag(covariance))
    cor = covariance[0, -1] / (sd[0] * sd[-1]) if effects > 1 else np.nan
    return Fit(beta, np.sqrt(np.diag(np.linalg.inv(information))), sd, cor, sigma, value)


def intercepts(rows: Pooled, family: str, *, nodes: int = 31) -> Fit:
    """A logistic or Poisson model with random intercepts, by adaptive quadrature of its own."""
    x, scale = rows.design, np.append(1.0, np.maximum(rows.x.std(0), 1e-12))
    groups, count = rows.client, rows.client.max() + 1
    node, weight = np.polynomial.hermite.hermgauss(nodes)

    def log_rows(predictor, y):
        if family == "logistic":
            return y * predictor - np.logaddexp(0, predictor)
        return y * predictor - np.exp(predictor) - gammaln(y + 1)

    def value(v):
        fixed, sd = x @ (v[:-1] / scale), np.exp(v[-1])
        z = np.zeros(count)
        for _ in range(60):
            predictor = fixed + z[groups]
            mean = expit(predictor) if family == "logistic" else np.exp(predictor)
            slope = mean * (1 - mean) if family == "logistic" else mean
            gradient = np.bincount(groups, rows.y - mean, count) - z / sd**2
            curvature = np.bincount(groups, slope, count) + 1 / sd**2
            z += np.clip(gradient / curvature, -1, 1)
        width = np.sqrt(2 / curvature)
        total = np.zeros((count, nodes))
        for number, at in enumerate(node):
            here = z + width * at
            terms = np.bincount(groups, log_rows(fixed + here[groups], rows.y), count)
            total[:, number] = terms - (here / sd) ** 2 / 2 + at**2 + np.log(weight[number])
        constant = np.log(width) - np.log(sd) - np.log(2 * np.pi) / 2
        return np.sum(logsumexp(total, axis=1) + constant)

    start = np.zeros(x.shape[1] + 1)
    start[0] = np.log(rows.y.mean() + 0.1) if family == "poisson" else 0.0
    found = minimize(lambda v: -value(v), start, method="BFGS", options={"gtol": 1e-4})
    step = 1e-3 * np.eye(len(start))
    hessian = [
        [
            value(found.x + e + f)
            - value(found.x + e - f)
            - value(found.x - e + f)
            + value(found.x - e - f)
            for f in step
        ]
        for e in step
    ]
    covariance = np.linalg.inv(-np.array(hessian) / 4e-6)
    # One Newton step more: finite differences leave BFGS a little short of the maximum.
    gradient = [(value(found.x + e) - value(found.x - e)) / 2e-3 for e in step]
    best = found.x + covariance @ gradient
    se = np.sqrt(np.diag(covariance))[:-1] / scale
    return Fit(best[:-1] / scale, se, np.exp(best[-1:]), np.nan, np.nan, value(best))
