"""The quality of a client's samples on least squares, by burn-in, steps per sample and step size.

Al-Shedivat et al. (2021), appendix A.2 with figure 4, on the regressions of `fedpa_estimates`. The
effective sample size of l samples is (sum w)^2 / sum w^2 with w the posterior density of each.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go
from jaxtyping import Array, Float, Key
from plotly.subplots import make_subplots

from covey.core.shard import Shard, whole
from covey.kernels.iasg import Averaging, burnt_in, next_sample
from reproductions.fedpa_estimates import (
    BATCH,
    COLOURS,
    FEWEST_CHAINS,
    GRADIENT,
    PASS,
    RATES,
    SIZES,
    problem,
)
from reproductions.result import Claim, Report, Row, Scale, with_changes


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Figure 4: the effective share of samples against burn-in, steps a sample and the step
    size.
    """
    size = with_changes(SIZES[scale])
    count, chains = 20, max(FEWEST_CHAINS, size.chains // 2)
    shares: dict[tuple[str, int, float], float] = {}
    for features, rate in RATES.items():
        report(f"{features} features")
        iterates = {}
        for factor in (0.1, 1.0, 10.0):
            found = [
                _iterates(features, seed, rate * factor, 500 + count * PASS, chains)
                for seed in range(size.problems)
            ]
            iterates[factor] = found
        for burn_in in (0, 100, 500):
            shares["burn-in", features, burn_in] = _share(
                iterates[1.0], features, burn_in, PASS, count
            )
        for steps in (1, 10, PASS):
            shares["steps a sample", features, steps] = _share(
                iterates[1.0], features, 500, steps, count
            )
        for factor, found in iterates.items():
            shares["step size", features, rate * factor] = _share(found, features, 500, PASS, count)
    rows = [
        Row(
            f"effective share of samples, {features} features, {kind} {value:g}",
            None,
            share,
            None,
            size.problems,
        )
        for (kind, features, value), share in shares.items()
    ]
    claims = []
    for features in RATES:
        longer = shares["steps a sample", features, PASS] / shares["steps a sample", features, 1]
        claims.append(
            Claim(
                f"effective share with {PASS} steps a sample over 1, {features} features",
                longer,
                1.0,
                longer > 1,
            )
        )
    # With fewer features the path comes to rest within its first sample.
    burnt = shares["burn-in", 1000, 500] / shares["burn-in", 1000, 0]
    claims.append(
        Claim(
            "effective share with 500 steps of burn-in over none, 1000 features",
            burnt,
            1.0,
            burnt > 1,
        )
    )
    fewer = shares["step size", 1000, RATES[1000]] / shares["step size", 10, RATES[10]]
    claims.append(Claim("effective share with 1000 features over 10", fewer, 1.0, fewer < 1))
    lost = shares["step size", 1000, 10 * RATES[1000]]
    claims.append(
        Claim(
            "effective share with 1000 features and step 0.1, which diverges", lost, 0.0, lost == 0
        )
    )
    return rows, claims, _figure(shares)


def effective(log_weight: np.ndarray) -> np.ndarray:
    """(sum w)^2 / sum w^2 over the last axis."""
    weight = np.exp(log_weight - log_weight.max(-1, keepdims=True))
    return weight.sum(-1) ** 2 / (weight**2).sum(-1)


def _iterates(features: int, seed: int, rate: float, steps: int, chains: int) -> np.ndarray:
    """Every iterate of some chains from one start: (chains, steps, d)."""
    start = np.random.default_rng([1, features, seed]).normal(size=(1, features)).astype(np.float32)
    keys = jax.random.split(jax.random.key(seed), (1, chains))
    plan = Averaging(BATCH, 0, 1, "independent")
    return np.asarray(
        _walked(
            keys, whole(problem(features, seed)), jnp.asarray(start), jnp.float32(rate), plan, steps
        )[0]
    )


@partial(jax.jit, static_argnames=("plan", "steps"))
def _walked(
    keys: Key[Array, "starts chains"],
    data: Shard,
    starts: Float[Array, "starts d"],
    rate: Float[Array, ""],
    plan: Averaging,
    steps: int,
) -> Float[Array, "starts chains steps d"]:
    def one(key, start):
        local = (key, data, GRADIENT, optax.sgd(rate), plan)

        def step(walk, _):
            iterate, walk = next_sample(*local, walk)
            return walk, iterate

        return jax.lax.scan(step, burnt_in(*local, start), length=steps)[1]

    return jax.vmap(jax.vmap(one, (0, None)), (0, 0))(keys, starts)


def _share(found: list[np.ndarray], features: int, burn_in: int, steps: int, count: int) -> float:
    """The effective share of samples that are means of `steps` iterates; none of chains that
    diverged.
    """
    shares = []
    for seed, iterates in enumerate(found):
        rows = problem(features, seed)
        samples = iterates[:, burn_in : burn_in + count * steps].astype(np.float64)
        samples = samples.reshape(len(samples), count, steps, features).mean(2)
        with np.errstate(over="ignore", invalid="ignore"):
            log_weight = -0.5 * np.sum((samples @ rows.x.T - rows.y) ** 2, -1)
        good = np.all(np.isfinite(log_weight), -1) & (
            np.abs(log_weight).max(-1, initial=0.0) < 1e30
        )
        shares.append(
            np.mean(
                np.where(good, effective(np.where(good[:, None], log_weight, 0.0)) / count, 0.0)
            )
        )
    return float(np.mean(shares))


def _figure(shares: dict[tuple[str, int, float], float]) -> go.Figure:
    kinds = list(dict.fromkeys(kind for kind, _, _ in shares))
    chart = make_subplots(cols=len(kinds), subplot_titles=kinds, shared_yaxes=True)
    for column, kind in enumerate(kinds, start=1):
        for features, colour in COLOURS.items():
            points = [
                (value, share)
                for (which, count, value), share in shares.items()
                if (which, count) == (kind, features)
            ]
            x, y = zip(*points, strict=True)
            curve = go.Scatter(
                x=[str(value) for value in x],
                y=y,
                name=f"{features} features",
                line={"color": colour},
            )
            chart.add_trace(curve.update(showlegend=column == 1), row=1, col=column)
    chart.update_layout(
        title="Effective share of the samples of averaged iterates", template="plotly_white"
    )
    return chart
