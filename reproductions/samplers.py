"""Samplers of the shared parameters side by side, on logistic regression against NUTS.

No paper has this comparison. Clients are unequal and unlike: each has a mean of its features and a
weight vector of its own near a common one. The reference is NUTS on the pooled rows with the same
prior, N(0, 10^2) on every parameter; FedPA's Laplace approximation has a flat one, which differs by
little. The error of some draws is the Wasserstein-2 distance between Gaussians with their moments
and those of NUTS, in coordinates in which the posterior has unit variances, over the root of the
number of parameters: 0 is the posterior, and 1 is about one standard deviation in every direction.

After T rounds a sampler's draws are those of the second half of its rounds, of all chains. Uploads
are counted as sent, per chain, and gradients by rows: one is the gradient of one row's
log-likelihood; a Hessian counts as so many gradients as there are parameters. Rounds of preparation
count, where a method has them.

Step sizes follow one rule, a fifth of the smallest posterior variance along any direction
(0.2 / L), and were not searched for: this is no ranking. FA-LD finds its own; that was decided
after a short trial in which the rule's step made its clients drift apart, so it has an advantage
that the others do not. FedBE is no sampler, and stands beside them because it is called Bayesian:
its Gaussian says how far the models of clients are apart.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from covey import channel, cohort
from covey.algorithms.dg_lmc import dg_lmc
from covey.algorithms.fald import fald
from covey.algorithms.fedbe import fedbe
from covey.algorithms.fedpa import fedpa
from covey.algorithms.fsgld import fsgld
from covey.algorithms.marginal import marginal
from covey.algorithms.qlsd import qlsd
from covey.algorithms.qlsd_plus import qlsd_plus
from covey.core.algorithm import Algorithm
from covey.data.federated import FederatedData
from covey.inference.wasserstein import distance_of_draws
from covey.models import logistic
from covey.runs.launch import run as run_method
from covey.runs.run import Run
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

PRIOR = 10.0
SIZES_OF_CLIENTS = (20, 60, 40, 120, 60)
DIMENSION = 3
PARAMETERS = DIMENSION + 1
CHAINS = 8
BATCH = 10
LOCAL_STEPS = 5


class Size(NamedTuple):
    """Size of the experiment: data sets, rounds of the samplers, and draws of NUTS."""

    seeds: int
    rounds: int
    draws: int


SIZES: dict[Scale, Size] = {
    "quick": Size(seeds=1, rounds=2000, draws=4000),
    "full": Size(seeds=3, rounds=20000, draws=20000),
}


class Target(NamedTuple):
    """The pooled posterior by NUTS, and the largest curvature L of its Gaussian."""

    mean: np.ndarray
    covariance: np.ndarray
    largest: float


class Entry(NamedTuple):
    """A method of the comparison.

    Attributes:
        make: (target) -> the method.
        gradients: Row gradients of a round per chain, given all rows n and the parameters d.
        options: What its run needs beside rounds: cohort, channel.
        rounds: Rounds; None for the samplers' number.
    """

    make: Callable[[Target], Algorithm]
    gradients: Callable[[int, int], float]
    options: dict[str, Any]
    rounds: int | None = None


class Curve(NamedTuple):
    """The error of a method against what it has used so far."""

    rounds: np.ndarray
    bits: np.ndarray
    gradients: np.ndarray
    errors: np.ndarray


def entries() -> dict[str, Entry]:
    """All methods of the comparison; uploads of QLSD and QLSD++ have four bits per value."""
    clients = len(SIZES_OF_CLIENTS)
    lossy = {"channel": channel.dithering(levels=7)}
    common = {"prior": PRIOR, "chains": CHAINS, "keep": 100}
    model = logistic()
    mean_rows = float(np.mean(SIZES_OF_CLIENTS))

    def step(target: Target, share: float = 0.2) -> float:
        return share / target.largest

    return {
        "FA-LD": Entry(
            lambda t: fald(model, local_steps=LOCAL_STEPS, **common),
            lambda n, d: LOCAL_STEPS * n,
            {},
        ),
        "QLSD": Entry(
            lambda t: qlsd(model, step_size=step(t), batch_size=BATCH, **common),
            lambda n, d: clients * BATCH,
            lossy,
        ),
        "QLSD++": Entry(
            lambda t: qlsd_plus(model, step_size=step(t), batch_size=BATCH, **common),
            lambda n, d: 2 * clients * BATCH + n / 10,
            lossy,
        ),
        "DSGLD": Entry(
            lambda t: fsgld(
                model,
                step_size=2 * step(t),
                local_steps=LOCAL_STEPS,
                batch_size=BATCH,
                surrogates=False,
                **common,
            ),
            lambda n, d: LOCAL_STEPS * BATCH,
            {"cohort": cohort.uniform(1)},
        ),
        "FSGLD": Entry(
            lambda t: fsgld(
                model,
                step_size=2 * step(t),
                local_steps=LOCAL_STEPS,
                batch_size=BATCH,
                **common,
            ),
            lambda n, d: LOCAL_STEPS * BATCH + mean_rows * d / CHAINS,
            {"cohort": cohort.uniform(1)},
        ),
        "DG-LMC": Entry(
            lambda t: dg_lmc(
                model,
                tolerance=1 / t.largest,
                step_size=step(t),
                local_steps=LOCAL_STEPS,
                **common,
            ),
            lambda n, d: LOCAL_STEPS * n,
            {},
        ),
        "FedBE": Entry(
            lambda t: fedbe(model, client_optimizer=optax.sgd(0.1), batch_size=BATCH),
            lambda n, d: n,
            {},
            rounds=200,
        ),
        "FedPA": Entry(
            lambda t: fedpa(
                model,
                samples=10,
                burn_in_rounds=50,
                client_optimizer=optax.sgd(0.05),
                batch_size=BATCH,
            ),
            lambda n, d: 11 * n,
            {},
            rounds=200,
        ),
        "marginal": Entry(
            lambda t: marginal(model, estimate="posterior", prior=PRIOR),
            lambda n, d: (1 + d) * n,
            {},
            rounds=0,
        ),
    }


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """The error of each method at the end, and its way there."""
    size = with_changes(SIZES[scale])
    curves: dict[str, list[Curve]] = {name: [] for name in entries()}
    for seed in range(size.seeds):
        data = problem(seed)
        report(f"data {seed + 1} of {size.seeds}, NUTS")
        target = reference(data, size.draws)
        for name, entry in entries().items():
            report(f"data {seed + 1} of {size.seeds}, {name}")
            curves[name].append(curve(entry, target, data, size.rounds, seed))
    last = {name: np.array([one.errors[-1] for one in found]) for name, found in curves.items()}
    rows = [row(f"{name}, error at the end", values) for name, values in last.items()]
    for name, found in curves.items():
        rows.append(row(f"{name}, rounds", np.array([one.rounds[-1] for one in found], float)))
        rows.append(row(f"{name}, kbit per chain", np.array([one.bits[-1] for one in found]) / 1e3))
    claims = [
        _below("error of QLSD++ over that of QLSD with the same channel", last, "QLSD++", "QLSD"),
        _below("error of FSGLD over that of DSGLD", last, "FSGLD", "DSGLD"),
        Claim(
            "error of the marginal posterior",
            float(last["marginal"].mean()),
            0.1,
            bool(last["marginal"].mean() < 0.1),
        ),
        Claim(
            "error of FedBE's Gaussian over that of FedPA's",
            float(last["FedBE"].mean() / last["FedPA"].mean()),
            1.0,
            bool(last["FedBE"].mean() > last["FedPA"].mean()),
        ),
    ]
    return rows, claims, figure(curves)


def problem(seed: int) -> FederatedData:
    """Binary outcomes of unequal clients, whose features and weights differ."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=PARAMETERS)
    clients = {}
    for index, rows in enumerate(SIZES_OF_CLIENTS):
        x = rng.normal(size=(rows, DIMENSION)) + rng.normal(size=DIMENSION)
        own = truth + 0.3 * rng.normal(size=PARAMETERS)
        chance = 1 / (1 + np.exp(-(x @ own[:-1] + own[-1])))
        clients[f"client{index}"] = (
            x.astype(np.float32),
            (rng.random(rows) < chance).astype(np.int32),
        )
    return FederatedData.from_clients(clients, classes=2)


def reference(data: FederatedData, draws: int) -> Target:
    """NUTS on the pooled rows."""
    x, y = data.rows.x, data.rows.y
    design = jnp.asarray(np.column_stack([x, np.ones(len(x))]), jnp.float32)
    sign = jnp.where(jnp.asarray(y) == 1, 1.0, -1.0)

    def log_density(theta):
        fit = jnp.sum(jax.nn.log_sigmoid(sign * (design @ theta)))
        return fit - 0.5 * jnp.sum(theta**2) / PRIOR**2

    warm_up, walk = jax.random.split(jax.random.key(0))
    adaptation: Any = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = adaptation.run(warm_up, jnp.zeros(PARAMETERS), num_steps=1000)
    kernel: Any = blackjax.nuts(log_density, **parameters)

    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    _, found = jax.lax.scan(step, state, jax.random.split(walk, draws))
    found = np.asarray(found, np.float64)
    covariance = np.cov(found.T)
    return Target(found.mean(0), covariance, 1 / float(np.linalg.eigvalsh(covariance)[0]))


def error(draws: np.ndarray, target: Target) -> float:
    """The distance of draws from the reference, in whitened coordinates and per parameter."""
    white = np.linalg.inv(np.linalg.cholesky(target.covariance))
    moved = (draws - target.mean) @ white.T
    distance = distance_of_draws(moved, np.zeros(PARAMETERS), np.eye(PARAMETERS))
    return distance / np.sqrt(PARAMETERS)


def curve(entry: Entry, target: Target, data: FederatedData, rounds: int, seed: int) -> Curve:
    """A run of one method, looked at after more and more rounds."""
    wanted = rounds if entry.rounds is None else entry.rounds or None
    method = entry.make(target)
    with warnings.catch_warnings():  # of FedBE only its Gaussian is looked at
        warnings.filterwarnings("ignore", message="fedbe: there are no server_rows")
        warnings.filterwarnings("ignore", message="fedbe: the law of the shared parameters")
        done = run_method(method, data, rounds=wanted, seed=seed, progress=False, **entry.options)
        chained = entry.rounds is None
        draws = flat(done, count=None if chained else 2000)
    spent = done.metrics["bits_up"].to_numpy(float).cumsum()
    per_round = entry.gradients(sum(SIZES_OF_CLIENTS), PARAMETERS)
    asked = done.questions  # they count as rounds
    before = 8 * float(np.sum(asked["bytes_up"].to_numpy(float))) if len(asked) else 0.0
    if not chained:  # a law, known at the end
        ends, bits = np.array([done.round]), np.array([spent[-1]])
        errors = [error(draws.reshape(-1, PARAMETERS), target)]
    else:
        ends = np.unique(np.geomspace(20, rounds, 12).astype(int))
        bits = spent[ends - 1] / CHAINS
        errors = [error(draws[:, end // 2 : end].reshape(-1, PARAMETERS), target) for end in ends]
    total = ends + len(asked)
    return Curve(total, bits + before, total * per_round, np.array(errors))


def flat(done: Run, count: int | None) -> np.ndarray:
    """Draws of (weights, intercept), with chains and draws as leading axes."""
    shared: Any = done.posterior.shared
    found = shared.draws() if count is None else shared.draws(count)
    if isinstance(found, dict):
        weight, bias = found["weights"], found["intercept"]
    else:
        weight, bias = found.weight, found.bias
    return np.concatenate([np.asarray(weight), np.asarray(bias)[..., None]], axis=-1)


def figure(curves: dict[str, list[Curve]]) -> go.Figure:
    """Error against rounds, bits and gradients, each on logarithmic axes."""
    titles = ("rounds", "bits sent per chain", "row gradients per chain")
    chart = make_subplots(rows=1, cols=3, shared_yaxes=True, x_title="", y_title="error")
    palette = ("#1f6fb2", "#d1733b", "#2b8a3e", "#7f7f7f", "#8e44ad", "#b8860b", "#c0392b")
    palette = (*palette, "#16a085", "#000000")
    for (name, found), colour in zip(curves.items(), palette, strict=True):
        errors = np.mean([one.errors for one in found], 0)
        for column, field in enumerate(("rounds", "bits", "gradients"), start=1):
            chart.add_trace(
                go.Scatter(
                    x=np.mean([getattr(one, field) for one in found], 0),
                    y=errors,
                    name=name,
                    mode="lines" if len(errors) > 1 else "markers",
                    line={"color": colour, "width": 2},
                    marker={"size": 10},
                    legendgroup=name,
                    showlegend=column == 1,
                ),
                row=1,
                col=column,
            )
    for column, title in enumerate(titles, start=1):
        chart.update_xaxes(type="log", title=title, row=1, col=column)
    chart.update_yaxes(type="log")
    chart.update_layout(
        title="Samplers of logistic regression: distance from NUTS", template="plotly_white"
    )
    return chart


def _below(claim: str, last: dict[str, np.ndarray], one: str, other: str) -> Claim:
    ratio = float(last[one].mean() / last[other].mean())
    return Claim(claim, ratio, 1.0, ratio < 1)
