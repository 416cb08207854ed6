"""Bias and variance of a client's delta on least squares.

Al-Shedivat et al. (2021), appendix A.1 with figure 3: regressions of 500 rows with 10, 100 and
1,000 features, made as scikit-learn's `make_regression` makes them (standard Gaussian features, ten
that matter), with coefficients from 0 to 1 and noise of deviation 1; batches of ten rows, step 0.1,
and 0.01 for 1,000 features. The paper shows curves without numbers and no scales; two choices are
ours.

The scale of a delta is the server's step, so the bias is that of its direction: |m/|m| - D/|D||, m
the mean delta over chains and D the exact one, Sigma^-1 (theta - mu) with Sigma^-1 = X'X; what the
noise of m adds is taken off. The variance is in units of |m|^2. And minibatches are independent
draws, as in the theory of averaged iterates (`kernels.iasg`). FedPA makes 100 steps of burn-in (500
with 1,000 features), then takes samples of 50 steps; with samples from the way to the mode the
covariance would be that of the way.

With more features than rows a hundred samples say nothing of most directions, and rho has to be
large before the covariance of the others counts beside I; how large, the third column of the figure
says. All rho are tried on the same chains.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go
from jaxtyping import Array, Float, Key
from plotly.subplots import make_subplots

from covey.core.shard import Rows, Shard, whole
from covey.kernels import shrinkage
from covey.kernels.descent import mean_gradient
from covey.kernels.iasg import Averaging, burnt_in, next_sample
from reproductions.result import Claim, Report, Row, Scale, with_changes

ROWS, BATCH, PASS = 500, 10, 50
RATES = {10: 0.1, 100: 0.1, 1000: 0.01}
BURN_IN = {10: 100, 100: 100, 1000: 500}
RHOS = (0.1, 1.0, 10.0, 100.0, 1000.0)
COLOURS = {10: "#4f9d69", 100: "#1f6fb2", 1000: "#d1733b"}
FEWEST_CHAINS = 4


class Size(NamedTuple):
    """How large a run is: data sets and starts of each number of features, chains from each start,
    and samples of a chain.
    """

    problems: int
    starts: int
    chains: int
    samples: int


SIZES: dict[Scale, Size] = {
    "quick": Size(problems=2, starts=2, chains=12, samples=60),
    "full": Size(problems=10, starts=10, chains=20, samples=100),
}
GRADIENT = mean_gradient(lambda theta, rows: -0.5 * (rows.x @ theta - rows.y) ** 2)


class Error(NamedTuple):
    """Bias and variance of a delta along a path."""

    bias: np.ndarray
    variance: np.ndarray


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Figure 3: FedAvg against local steps, FedPA against samples and against rho."""
    size = with_changes(SIZES[scale])
    averaged: dict[int, Error] = {}
    corrected: dict[tuple[int, float], Error] = {}
    for features in RATES:
        report(f"{features} features")
        found = [_deltas(features, seed, size) for seed in range(size.problems)]
        averaged[features] = _mean([one[0] for one in found])
        for rho in RHOS:
            corrected[features, rho] = _mean([one[1][rho] for one in found])
    rows, claims = [], []
    for features in RATES:
        plain, chosen = averaged[features], corrected[features, 10.0 if features > ROWS else 1.0]
        steps = 10 * size.samples
        rows += [
            Row(
                f"bias of FedAvg after 10 steps, {features} features",
                None,
                float(plain.bias[0]),
                None,
                size.problems,
            ),
            Row(
                f"bias of FedAvg after {steps} steps, {features} features",
                None,
                float(plain.bias[-1]),
                None,
                size.problems,
            ),
        ]
        for rho in RHOS:
            end = corrected[features, rho]
            rows.append(
                Row(
                    f"bias of FedPA, rho {rho:g}, {features} features",
                    None,
                    float(end.bias[-1]),
                    None,
                    size.problems,
                )
            )
            rows.append(
                Row(
                    f"variance of FedPA, rho {rho:g}, {features} features",
                    None,
                    float(end.variance[-1]),
                    None,
                    size.problems,
                )
            )
        if features > 10:  # with ten features X'X is nearly a multiple of I, and nothing has a bias
            grows = float(plain.bias[-1] / plain.bias[0])
            falls = float(chosen.bias[-1] / chosen.bias[0])
            claims.append(
                Claim(
                    f"bias of FedAvg, {steps} steps over 10, {features} features",
                    grows,
                    1.0,
                    grows > 1,
                )
            )
            claims.append(
                Claim(
                    f"bias of FedPA, {size.samples} samples over one, {features} features",
                    falls,
                    1.0,
                    falls < 1,
                )
            )
            rises = float(chosen.variance.max() / chosen.variance[1])
            claims.append(
                Claim(
                    f"largest variance of FedPA over that of two samples, {features} features",
                    rises,
                    1.0,
                    rises > 1,
                )
            )
    return rows, claims + _trade(corrected), _figure(averaged, corrected, size)


def _trade(corrected: dict[tuple[int, float], Error]) -> list[Claim]:
    """Figure 3c: a larger rho trades bias for variance."""
    claims = []
    for features in (100, 1000):
        least, most = corrected[features, RHOS[0]], corrected[features, RHOS[-1]]
        bias = float(most.bias[-1] / least.bias[-1])
        variance = float(most.variance[-1] / least.variance[-1])
        of = f"of FedPA, rho {RHOS[-1]:g} over {RHOS[0]:g}, {features} features"
        claims += [
            Claim(f"bias {of}", bias, 1.0, bias < 1),
            Claim(f"variance {of}", variance, 1.0, variance > 1),
        ]
    return claims


def problem(features: int, seed: int) -> Rows:
    """Standard Gaussian features of which ten matter, in float32."""
    rng = np.random.default_rng([features, seed])
    theta = np.zeros(features)
    theta[rng.permutation(features)[:10]] = rng.uniform(size=10)
    x = rng.normal(size=(ROWS, features))
    return Rows(x.astype(np.float32), (x @ theta + rng.normal(size=ROWS)).astype(np.float32))


def error_of(deltas: np.ndarray, exact: np.ndarray) -> Error:
    """Bias of the direction and relative variance, along the path, of deltas as (starts, chains,
    path, d).
    """
    chains = deltas.shape[1]
    mean = deltas.mean(1)
    length = np.linalg.norm(mean, axis=-1)
    variance = ((deltas - mean[:, None]) ** 2).sum(-1).sum(1) / (chains - 1) / length**2
    direction = exact / np.linalg.norm(exact, axis=-1, keepdims=True)
    off = np.sum((mean / length[..., None] - direction[:, None]) ** 2, -1) - variance / chains
    return Error(np.sqrt(np.maximum(off, 0.0)).mean(0), variance.mean(0))


@partial(jax.jit, static_argnames=("plan", "count"))
def _paths(
    keys: Key[Array, "starts chains"],
    data: Shard,
    starts: Float[Array, "starts d"],
    rate: Float[Array, ""],
    rhos: Float[Array, " rhos"],
    plan: Averaging,
    count: int,
) -> tuple[
    Float[Array, "starts chains path rhos d"],
    Float[Array, "starts chains path d"],
    Float[Array, "starts chains path d"],
]:
    """FedPA's delta after each sample by rho, FedAvg's after as many steps, and the samples.
    Any-time: one chain has all numbers.
    """

    def one(key, start):
        local = (key, data, GRADIENT, optax.sgd(rate), plan)

        def corrected(known, sample, rho):
            known = shrinkage.add(known, sample - start, rho)
            return known, shrinkage.delta(known, shrinkage.given(rho, known.count))

        def step(carry, _):
            walk, known = carry
            sample, walk = next_sample(*local, walk)
            known, deltas = jax.vmap(corrected, (0, None, 0))(known, sample, rhos)
            return (walk, known), (deltas, start - walk.path.parameters, sample)

        empty = jax.vmap(lambda _: shrinkage.no_samples(count, start.size))(rhos)
        return jax.lax.scan(step, (burnt_in(*local, start), empty), length=count)[1]

    return jax.vmap(jax.vmap(one, (0, None)), (0, 0))(keys, starts)


def _deltas(features: int, seed: int, size: Size) -> tuple[Error, dict[float, Error]]:
    """FedAvg's errors after 10, 20, ... steps; FedPA's after each sample, by rho."""
    rows = problem(features, seed)
    starts = (
        np.random.default_rng([1, features, seed])
        .normal(size=(size.starts, features))
        .astype(np.float32)
    )
    x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
    exact = (starts @ x.T - y) @ x
    chains = max(FEWEST_CHAINS, size.chains // 2) if features > ROWS else size.chains
    keys = jax.random.split(jax.random.key(seed), (size.starts, chains))
    common = (keys, whole(rows), jnp.asarray(starts), jnp.float32(RATES[features]))
    short, long = (
        Averaging(BATCH, 0, 10, "independent"),
        Averaging(BATCH, BURN_IN[features], PASS, "independent"),
    )
    plain = _paths(*common, jnp.zeros(1), short, size.samples)[1]
    corrected = _paths(*common, jnp.array(RHOS), long, size.samples)[0]
    found = {
        rho: error_of(np.asarray(corrected[..., index, :], np.float64), exact)
        for index, rho in enumerate(RHOS)
    }
    return error_of(np.asarray(plain, np.float64), exact), found


def _mean(errors: list[Error]) -> Error:
    return Error(
        np.mean([one.bias for one in errors], 0), np.mean([one.variance for one in errors], 0)
    )


def _figure(
    averaged: dict[int, Error], corrected: dict[tuple[int, float], Error], size: Size
) -> go.Figure:
    titles = ["FedAvg: local steps", "FedPA, rho = 1: samples", "FedPA: rho"]
    chart = make_subplots(rows=2, cols=3, column_titles=titles, row_titles=["bias", "variance"])
    samples = np.arange(1, size.samples + 1)
    for features, colour in COLOURS.items():
        ends = [corrected[features, rho] for rho in RHOS]
        curves = [
            (10 * samples, averaged[features]),
            (samples, corrected[features, 1.0]),
            (
                np.array(RHOS),
                Error(
                    np.array([end.bias[-1] for end in ends]),
                    np.array([end.variance[-1] for end in ends]),
                ),
            ),
        ]
        for column, (x, error) in enumerate(curves, start=1):
            for line, values in enumerate(error, start=1):
                curve = go.Scatter(
                    x=x, y=values, name=f"{features} features", line={"color": colour}
                )
                chart.add_trace(curve.update(showlegend=column == line == 1), row=line, col=column)
    chart.update_layout(
        title="Bias and variance of a client's delta on least squares", template="plotly_white"
    )
    chart.update_xaxes(type="log")
    return chart
