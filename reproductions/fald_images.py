"""FA-LD on MNIST and Fashion-MNIST: logistic regression by local steps, with and without a warm-up
(figures 2 and 4).

Deng et al. (2024), section 6.2 and appendix J: ten equal random clients, temperature 0.05, batches
of 200, a draw each tenth round; probabilities are averaged over all draws so far, or over those
after a warm-up, and judged on the official test images. The paper prints curves without numbers and
tunes the step for each K. For MNIST we did so, with two steps a K, on a tenth of the training
images and never on the test images; for Fashion-MNIST steps are shorter and were not tuned. Steps
are given as learning rates of the mean loss, eta n.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import plotly.graph_objects as go
from jaxtyping import Array, Float, PyTree

from covey.algorithms.fald import fald
from covey.core.metrics import values
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.models import softmax
from covey.models.predictive import Categorical
from covey.runs.launch import run as run_method
from reproductions.expected_warnings import biases_of_fald
from reproductions.result import Claim, Report, Row, Scale, with_changes

Reproduced: TypeAlias = tuple[list[Row], list[Claim], go.Figure]

CLIENTS, TEMPERATURE, BATCH, THINNING = 10, 0.05, 200, 10
RATES = {
    "mnist": {1: 1.0, 10: 1.0, 20: 1.0, 50: 0.5, 100: 0.5},
    "fashion_mnist": {1: 0.5, 10: 0.3, 20: 0.2, 50: 0.1, 100: 0.1},
}
MEASURES = ("accuracy", "brier", "ece")
COLOURS = {1: "#7f7f7f", 10: "#1f6fb2", 20: "#3a9a5b", 50: "#d1733b", 100: "#8e5ea2"}


class Size(NamedTuple):
    """How large a run is; `warm_up` in rounds."""

    steps: tuple[int, ...]
    rounds: int
    warm_up: int


SIZES: dict[Scale, Size] = {
    "quick": Size(steps=(1, 10, 20), rounds=100, warm_up=50),
    "full": Size(steps=(1, 10, 20, 50, 100), rounds=1500, warm_up=500),
}


def run_mnist(scale: Scale, report: Report) -> Reproduced:
    """MNIST."""
    return _run("mnist", scale, report, accuracy=0.91)


def run_fashion(scale: Scale, report: Report) -> Reproduced:
    """Fashion-MNIST."""
    return _run("fashion_mnist", scale, report, accuracy=0.80)


def _run(name: str, scale: Scale, report: Report, *, accuracy: float) -> Reproduced:
    size = with_changes(SIZES[scale])
    data = load(name, partition="iid", clients=CLIENTS, seed=0)
    test = load(name, split="test", partition="iid", clients=1, seed=0).rows_of(0, "train")
    curves, rows = {}, []
    for count in size.steps:
        report(f"K = {count}, {size.rounds} rounds")
        found = draws(data, count, RATES[name][count], size.rounds)
        for label, skip in (
            ("", 0),
            (f", warm-up of {size.warm_up} rounds", size.warm_up // THINNING),
        ):
            curves[count, skip > 0] = curve(
                jax.tree.map(lambda leaf, skip=skip: leaf[skip:], found), test
            )
            rows += [
                Row(
                    f"{measure}, K = {count}{label}",
                    None,
                    float(curves[count, skip > 0][measure][-1]),
                    None,
                    1,
                )
                for measure in MEASURES
            ]
    end = {
        count: {measure: float(curves[count, True][measure][-1]) for measure in MEASURES}
        for count in size.steps
    }
    best = max(size.steps, key=lambda count: end[count]["accuracy"])
    others = [count for count in size.steps if count != 1]
    gaps = {
        "accuracy": min(end[count]["accuracy"] for count in others) - end[1]["accuracy"],
        "brier": end[1]["brier"] - max(end[count]["brier"] for count in others),
    }
    claims = [
        Claim(
            f"accuracy of the best K, {best}",
            end[best]["accuracy"],
            accuracy,
            end[best]["accuracy"] >= accuracy,
        ),
        Claim(f"calibration error of K = {best}", end[best]["ece"], 0.03, end[best]["ece"] <= 0.03),
        *(
            Claim(f"K = 1 is worst at equal rounds, {measure}", gap, 0.0, gap > 0)
            for measure, gap in gaps.items()
        ),
    ]
    return rows, claims, figure(curves, size, name)


def draws(
    data: FederatedData, local_steps: int, rate: float, rounds: int, *, seed: int = 0
) -> PyTree:
    """The parameters after each tenth round, of one chain."""
    method = fald(
        softmax(),
        step_size=rate / int(data.counts("train").sum()),
        local_steps=local_steps,
        batch_size=BATCH,
        temperature=TEMPERATURE,
        chains=1,
        thinning=THINNING,
        keep=1 + rounds // THINNING,
    )
    with biases_of_fald():
        done = run_method(method, data, rounds=rounds, seed=seed, progress=False)
        drawn = done.posterior.shared.draws()
    return jax.tree.map(lambda leaf: leaf[0], drawn)


def curve(drawn: PyTree, test: Rows) -> dict[str, np.ndarray]:
    """Measures on the test rows of the mean probability of the draws so far, after each draw."""
    return values(_measured(drawn, jax.tree.map(jnp.asarray, test)))


@jax.jit
def _measured(drawn: PyTree, test: Rows) -> dict:
    everything = jnp.ones(test.y.shape[0], bool)
    model = softmax()

    def step(total: Float[Array, "rows classes"], one: tuple[PyTree, Float[Array, ""]]):
        parameters, count = one
        total = total + model.predictive(parameters, test.x).mean
        return total, Categorical(jnp.log(total / count)).measures(test.y.astype(int), everything)

    count = len(jax.tree.leaves(drawn)[0])
    start = jnp.zeros((test.y.shape[0], drawn.bias.shape[-1]))
    return jax.lax.scan(step, start, (drawn, 1 + jnp.arange(count, dtype=float)))[1]


def figure(
    curves: dict[tuple[int, bool], dict[str, np.ndarray]], size: Size, name: str
) -> go.Figure:
    """Accuracy, Brier score and calibration error by rounds; dotted, without the draws of the
    warm-up.
    """
    chart = go.Figure().set_subplots(1, 3, subplot_titles=MEASURES)
    for (count, warmed), found in curves.items():
        for index, measure in enumerate(MEASURES):
            rounds = THINNING * (1 + np.arange(len(found[measure]))) + (
                size.warm_up if warmed else 0
            )
            line = {"color": COLOURS[count], "dash": "dot" if warmed else "solid"}
            label = f"K = {count}" + (", after the warm-up" if warmed else "")
            chart.add_trace(
                go.Scatter(
                    x=rounds, y=found[measure], name=label, line=line, showlegend=index == 0
                ),
                1,
                index + 1,
            )
    chart.update_layout(title=f"FA-LD on {name} by rounds", template="plotly_white")
    return chart
