"""What a client of FedPA costs beside one of FedAvg with the same steps, and beside solving with
the covariance.

Al-Shedivat et al. (2021), table 1: linear regressions with 100 to 100,000 features, 5 samples of
100 local steps each. The size of the paper's minibatches is not given; ours are 32 of 500 rows.
What FedPA adds to a step is one sum of parameters, so that its share is the larger the smaller the
minibatches are: with ten rows it was measured as 6 to 7 % at 100,000 features.

Clients take turns, in one order and then in the other, so that whatever else the machine does falls
on all of them alike. Seconds are those of the process, not of the clock, and ratios are medians
over the turns. The claim that FedPA adds at most 5 % allows for twice the standard error of that
median, at most another 5 %: on a machine too busy to tell, the claim is lost.
"""

from collections.abc import Callable
from time import process_time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpa import fedpa
from covey.core.shard import Rows, Spec, whole
from covey.models import linear
from reproductions.result import Claim, Report, Row, Scale, with_changes

ROWS, BATCH, SAMPLES, STEPS = 500, 32, 5, 100
PAPER = {  # milliseconds
    100: {"FedAvg": 72.0, "FedPA": 91.0, "dense": 82.0},
    1000: {"FedAvg": 76.0, "FedPA": 92.0, "dense": 104.0},
    10_000: {"FedAvg": 80.0, "FedPA": 93.0, "dense": 797.0},
    100_000: {"FedAvg": 149.0, "FedPA": 155.0},
}
COLOURS = {"FedAvg": "#1f6fb2", "FedPA": "#d1733b", "dense": "#7f7f7f"}


class Size(NamedTuple):
    """How large a run is.

    Attributes:
        turns: Turns of the clients, by the number of features.
        most_dense: Largest number of features that the dense solver gets.
    """

    turns: dict[int, int]
    most_dense: int


class Ratio(NamedTuple):
    """A ratio of times: the median over the turns, and its standard error."""

    median: float
    error: float


SIZES: dict[Scale, Size] = {
    "quick": Size({100: 20, 1000: 10, 2000: 3, 10_000: 9, 100_000: 16}, most_dense=2000),
    "full": Size({100: 200, 1000: 200, 10_000: 20, 100_000: 40}, most_dense=10_000),
}


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Milliseconds of a client's round, by the number of features."""
    size, rows, ratios, seconds = with_changes(SIZES[scale]), [], {}, {}
    for features, turns in size.turns.items():
        report(f"{features} features")
        seconds[features] = timed(clients(features, with_dense=features <= size.most_dense), turns)
        paper = PAPER.get(features, {})
        for name, values in seconds[features].items():
            rows.append(
                Row(
                    f"milliseconds, {name}, {features} features",
                    paper.get(name),
                    1e3 * float(np.median(values)),
                    None,
                    1,
                )
            )
            ratios[features, name] = ratio_of(values, seconds[features]["FedAvg"])
        for name in list(seconds[features])[1:]:
            published = 100 * (paper[name] / paper["FedAvg"] - 1) if name in paper else None
            rows.append(
                Row(
                    f"% more than FedAvg, {name}, {features} features",
                    published,
                    100 * ratios[features, name].median - 100,
                    100 * ratios[features, name].error,
                    1,
                )
            )
    largest = max(size.turns)
    claims = [overhead_claim(ratios[largest, "FedPA"], largest)]
    for features in size.turns:
        if 1000 <= features <= size.most_dense:
            faster = ratio_of(seconds[features]["FedPA"], seconds[features]["dense"]).median
            claims.append(
                Claim(
                    f"time of the recursion over the dense solver, {features} features",
                    faster,
                    1.0,
                    faster <= 1,
                )
            )
    return rows, claims, figure(seconds)


def ratio_of(values: np.ndarray, others: np.ndarray) -> Ratio:
    """The median ratio of two clients' seconds, turn by turn.

    The standard error is that of the median of Gaussian values, 1.25 sd / sqrt(turns), with the
    standard deviation from the median absolute deviation: single turns may be far off.
    """
    ratios = values / others
    median = float(np.median(ratios))
    deviation = 1.4826 * float(np.median(np.abs(ratios - median)))
    return Ratio(median, 1.2533 * deviation / np.sqrt(len(ratios)))


def overhead_claim(ratio: Ratio, features: int) -> Claim:
    """FedPA adds at most 5 %, as far as the turns tell."""
    more, bound = ratio.median - 1, 0.05 + min(2 * ratio.error, 0.05)
    return Claim(
        f"share that FedPA adds to FedAvg, {features} features", more, bound, more <= bound
    )


def clients(features: int, *, with_dense: bool) -> dict[str, Callable[[], object]]:
    """Rounds of one client, compiled; each call is one round."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, features), np.float32)
    data = whole(Rows(x, rng.standard_normal(ROWS, np.float32)))
    spec = Spec(
        Rows(jax.ShapeDtypeStruct((features,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32))
    )
    shared = {"client_optimizer": optax.sgd(0.1 / features), "batch_size": BATCH}
    made = {
        "FedAvg": fedavg(linear(), steps=SAMPLES * STEPS, **shared),
        "FedPA": fedpa(linear(), samples=SAMPLES, steps_per_sample=STEPS, **shared),
    }
    if with_dense:
        made["dense"] = fedpa(
            linear(), samples=SAMPLES, steps_per_sample=STEPS, solver="dense", **shared
        )
    rounds: dict[str, Callable[[], object]] = {}
    for name, method in made.items():
        down = method.broadcast(method.init(jax.random.key(0), spec))
        compiled = jax.jit(
            lambda key, down, data, method=method: method.client(key, down, None, data).up
        )
        rounds[name] = lambda compiled=compiled, down=down: jax.block_until_ready(
            compiled(jax.random.key(1), down, data)
        )
    return rounds


def timed(rounds: dict[str, Callable[[], object]], turns: int) -> dict[str, np.ndarray]:
    """Seconds of the process for each call, in turns, after one call of each.

    Every second turn is in reverse order: who comes first has the caches of who came last.
    """
    for call in rounds.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    order = list(rounds)
    for _ in range(turns):
        for name in order:
            start = process_time()
            rounds[name]()
            seconds[name].append(process_time() - start)
        order.reverse()
    return {name: np.array(values) for name, values in seconds.items()}


def figure(seconds: dict[int, dict[str, np.ndarray]]) -> go.Figure:
    """Medians against the number of features."""
    chart = go.Figure()
    for name, colour in COLOURS.items():
        points = [
            (features, 1e3 * float(np.median(of[name])))
            for features, of in seconds.items()
            if name in of
        ]
        x, y = zip(*points, strict=True)
        chart.add_trace(go.Scatter(x=x, y=y, name=name, line={"color": colour}))
    chart.update_layout(
        title="Milliseconds of a client's round", template="plotly_white", xaxis_title="features"
    )
    chart.update_xaxes(type="log")
    chart.update_yaxes(type="log")
    return chart
