"""What FA-LD reveals of a row, and what it is worth: epsilon by shared noise, clients in a round
and rounds; accuracy beside it.

Deng et al. (2024), section 5: by theorem 5.1 epsilon grows with eta / (tau (1 - rho^2)), with S / N
and with T. The paper has no numbers of it. Here they are, for logistic regression on MNIST with ten
equal random clients, temperature 0.05 and rows clipped to norm 0.5, by the theorem and by Renyi
differential privacy of the same mechanism. The step size is nine tenths of the largest that the
theorem permits for the most noise that is shared, one for all runs, so that accuracies can be
compared.

The theorem's epsilon of few clients takes it that nobody knows who took part; that by Renyi
divergences does not.
"""

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from covey.algorithms.fald import fald
from covey.core import cohort
from covey.core.algorithm import Algorithm, Plan
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.models import softmax
from covey.privacy import Budget, largest_permitted
from covey.runs.launch import run as run_method
from reproductions.expected_warnings import biases_of_fald
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

CLIENTS, TEMPERATURE, CLIP, DELTA = 10, 0.05, 0.5, 1e-5
CORRELATIONS, SIZES_OF_COHORT = (0.0, 0.5, 0.8), (10, 5, 2)
ACCOUNTANTS = ("theorem", "rdp")


class Size(NamedTuple):
    """How large a run is; `rounds` are those after which accuracy is looked at."""

    seeds: int
    rows: int
    batch: int
    local_steps: int
    rounds: tuple[int, ...]


SIZES: dict[Scale, Size] = {
    "quick": Size(seeds=1, rows=600, batch=300, local_steps=2, rounds=(10, 20, 40)),
    "full": Size(seeds=3, rows=6000, batch=200, local_steps=10, rounds=(75, 150, 300)),
}


class Setting(NamedTuple):
    """What is varied: rho and S."""

    correlation: float
    clients: int


class Course(NamedTuple):
    """Epsilon by every accountant after each round, and accuracy after some."""

    epsilon: dict[str, np.ndarray]
    accuracy: np.ndarray


PLAIN = Setting(0.0, CLIENTS)
SETTINGS = [
    PLAIN,
    *(Setting(rho, CLIENTS) for rho in CORRELATIONS[1:]),
    *(Setting(0.0, size) for size in SIZES_OF_COHORT[1:]),
]


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Epsilon and accuracy of FA-LD on MNIST."""
    size = with_changes(SIZES[scale])
    images = load("mnist", partition="iid", clients=CLIENTS, seed=0)
    data = images if scale == "full" else images.limited(train_rows=size.rows, seed=0)
    test = load("mnist", split="test", partition="iid", clients=1, seed=0)
    step_size = permitted_step(data, size)
    courses: dict[Setting, list[Course]] = {}
    for setting in SETTINGS:
        for seed in range(size.seeds):
            report(
                f"rho = {setting.correlation:g}, {setting.clients} of {CLIENTS} clients, "
                f"seed {seed + 1} of {size.seeds}"
            )
            courses.setdefault(setting, []).append(
                course(data, test, setting, step_size, size, seed)
            )
    return (
        rows_of(courses, size),
        claims_of({setting: found[0] for setting, found in courses.items()}, size),
        figure(courses, size),
    )


def method_of(setting: Setting, step_size: float, size: Size) -> Algorithm:
    """FA-LD with clipped rows; draws are collected in the second half of the rounds."""
    last = size.rounds[-1]
    return fald(
        softmax(),
        step_size=step_size,
        local_steps=size.local_steps,
        batch_size=size.batch,
        temperature=TEMPERATURE,
        correlation=setting.correlation,
        chains=1,
        burn_in=size.rounds[0] // 2,
        thinning=max(last // 40, 1),
        keep=20,
        clip=CLIP,
    )


def permitted_step(data: FederatedData, size: Size) -> float:
    """Nine tenths of the largest step size that the theorem permits to every setting."""
    counts = data.counts("train")
    found = []
    for setting in SETTINGS:
        mechanism = method_of(setting, 1.0, size).privacy
        if mechanism is None:
            raise ValueError("fald has no mechanism to account for")
        described = mechanism(Plan(counts, cohort.uniform(setting.clients)(counts)))
        found.append(largest_permitted(described, rounds=size.rounds[-1], delta=DELTA))
    return 0.9 * min(found)


def course(
    data: FederatedData,
    test: FederatedData,
    setting: Setting,
    step_size: float,
    size: Size,
    seed: int,
) -> Course:
    """One run, looked at on its way."""
    budget = Budget(delta=DELTA, accountants=ACCOUNTANTS)
    with biases_of_fald():
        done = run_method(
            method_of(setting, step_size, size),
            data,
            rounds=size.rounds[0],
            seed=seed,
            cohort=cohort.uniform(setting.clients),
            privacy=budget,
            progress=False,
        )
    accuracy = [done.evaluate(test, split="train").pooled["accuracy"]]
    for before, after in zip(size.rounds, size.rounds[1:], strict=False):
        accuracy.append(
            done.advance(after - before).evaluate(test, split="train").pooled["accuracy"]
        )
    return Course(
        {name: done.metrics[f"epsilon_{name}"].to_numpy() for name in ACCOUNTANTS},
        np.array(accuracy),
    )


def rows_of(courses: dict[Setting, list[Course]], size: Size) -> list[Row]:
    """Epsilons and accuracy of every setting at the end, and of the plain one on its way."""
    rows = []
    for setting, found in courses.items():
        ends = size.rounds if setting == PLAIN else size.rounds[-1:]
        for end in ends:
            label = (
                f"rho {setting.correlation:g}, {setting.clients} of {CLIENTS} clients, {end} rounds"
            )
            rows += [
                row(f"epsilon by {name}, {label}", found[0].epsilon[name][[end - 1]])
                for name in ACCOUNTANTS
            ]
            rows.append(
                row(
                    f"test accuracy, {label}",
                    np.array([one.accuracy[size.rounds.index(end)] for one in found]),
                )
            )
    return rows


def claims_of(courses: dict[Setting, Course], size: Size) -> list[Claim]:
    """How epsilon moves with what is varied, by the theorem's own words, and that it is less by
    Renyi divergences.
    """
    claims = []
    for name in ACCOUNTANTS:
        end = {setting: float(one.epsilon[name][-1]) for setting, one in courses.items()}
        by_rho = [end[Setting(rho, CLIENTS)] for rho in CORRELATIONS]
        by_size = [end[Setting(0.0, count)] for count in SIZES_OF_COHORT]
        by_round = courses[PLAIN].epsilon[name][[count - 1 for count in size.rounds]]
        for what, values in (
            ("with rho", by_rho),
            ("with S / N", by_size[::-1]),
            ("with T", by_round),
        ):
            least = float(np.min(np.diff(np.log(values))))
            claims.append(
                Claim(
                    f"epsilon by {name} grows {what} (least difference of logarithms)",
                    least,
                    0.0,
                    least > 0,
                )
            )
    ratio = max(
        float(one.epsilon["rdp"][-1] / one.epsilon["theorem"][-1]) for one in courses.values()
    )
    claims.append(
        Claim(
            "epsilon by rdp over that by the theorem at the end, the largest", ratio, 1.0, ratio < 1
        )
    )
    worst = min(float(one.accuracy[-1]) for one in courses.values())
    claims.append(Claim("the least accuracy at the end, of ten digits", worst, 0.5, worst > 0.5))
    return claims


def figure(courses: dict[Setting, list[Course]], size: Size) -> go.Figure:
    """Epsilon by rounds, and accuracy against it."""
    chart = go.Figure().set_subplots(
        1, 2, subplot_titles=("epsilon by rounds", "test accuracy by epsilon (rdp)")
    )
    colours = ("#1f6fb2", "#3a9a5b", "#d1733b", "#8e5ea2", "#7f7f7f")
    for (setting, found), colour in zip(courses.items(), colours, strict=True):
        label = f"rho {setting.correlation:g}, {setting.clients} of {CLIENTS}"
        for name, dash in zip(ACCOUNTANTS, ("dot", "solid"), strict=True):
            values = found[0].epsilon[name]
            line = {"color": colour, "dash": dash}
            chart.add_trace(
                go.Scatter(
                    x=1 + np.arange(len(values)), y=values, name=f"{label}, {name}", line=line
                ),
                1,
                1,
            )
        at = found[0].epsilon["rdp"][[count - 1 for count in size.rounds]]
        mean = np.mean([one.accuracy for one in found], 0)
        points = go.Scatter(
            x=at, y=mean, name=label, mode="lines+markers", line={"color": colour}, showlegend=False
        )
        chart.add_trace(points, 1, 2)
    chart.update_yaxes(type="log", col=1)
    chart.update_layout(title="Privacy of FA-LD on MNIST", template="plotly_white")
    return chart
