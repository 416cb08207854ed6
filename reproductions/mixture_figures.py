"""FedEM for mixtures on synthetic data: partial participation, the number of components, unseen
clients, and equal communication.

Marfoq et al. (2021), figure 1 and appendices J.3 and J.5. The paper shows them for CIFAR-10; here
they use the data of `mixture_synthetic`, where the truth is known, with its methods, settings and
measures.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.mixture import mixture
from covey.config.model_selection import choose_components
from covey.core.algorithm import Algorithm
from covey.models import logistic
from reproductions.mixture_synthetic import (
    BATCH,
    COLOURS,
    COMPONENTS,
    SETTINGS,
    SIZES,
    Reproduced,
    held_out,
    method_of,
    oracle,
    problem,
    score,
    seeds_of,
    trained,
    with_validation,
)
from reproductions.result import Claim, Report, Scale, row, spread, with_changes

RIVALS = ("Local", "FedAvg+", "pFedMe", "APFL")


def run_sampling(scale: Scale, report: Report) -> Reproduced:
    """Figure 1, left: accuracy by the share of clients in each round."""
    size, shares = (
        with_changes(SIZES[scale]),
        (0.1, 1.0) if scale == "quick" else (0.1, 0.2, 0.5, 1.0),
    )
    found = {
        name: {share: np.zeros(size.seeds) for share in shares} for name in ("FedEM", "FedAvg+")
    }
    for index, seed in enumerate(seeds_of(size)):
        data, _ = problem(size, seed)
        for share in shares:
            for name, of in found.items():
                report(
                    f"{name}, {share:.0%} of clients per round, seed {index + 1} of {size.seeds}"
                )
                of[share][index] = score(
                    trained(_usual(name), data, size, seed, share).evaluate()
                ).mean
    rows = [
        row(f"accuracy, {name}, {share:.0%} a round", of[share])
        for name, of in found.items()
        for share in shares
    ]
    claims = [
        _above(
            f"accuracy of FedEM over FedAvg+, {share:.0%} a round",
            found["FedEM"][share] - found["FedAvg+"][share],
            5.0,
        )
        for share in shares
    ]
    return rows, claims, lines(found, "Test accuracy by the share of clients in a round")


def run_components(scale: Scale, report: Report) -> Reproduced:
    """Figure 1, right: one to four components, and the count with the best held-out likelihood."""
    size, counts = with_changes(SIZES[scale]), (1, 2, 3, 4)
    accuracy = {count: np.zeros(size.seeds) for count in counts}
    nll = {count: np.zeros(size.seeds) for count in counts}
    chosen = []
    for index, seed in enumerate(seeds_of(size)):
        report(f"1 to {max(counts)} components, seed {index + 1} of {size.seeds}")
        data = with_validation(problem(size, seed)[0])
        choice = choose_components(
            lambda count, data=data, seed=seed: trained(_usual("FedEM", count), data, size, seed),
            counts,
        )
        chosen.append(choice.components)
        for count in counts:
            nll[count][index] = choice.nll[count]
            accuracy[count][index] = score(choice.runs[count].evaluate()).mean
    rows = [row(f"accuracy, {count} components", accuracy[count]) for count in counts]
    rows += [row(f"validation nll, {count} components", nll[count]) for count in counts]
    rows.append(row("components chosen", np.array(chosen, float)))
    loss = float(np.max(nll[3] - np.min(list(nll.values()), axis=0)))
    claims = [
        _above("accuracy of 3 components over 1", accuracy[3] - accuracy[1], 5.0),
        _above("accuracy of 4 components over 3", accuracy[4] - accuracy[3], -1.0),
        Claim("least number of components chosen", min(chosen), 3, min(chosen) >= 3),
        Claim(
            "validation nll of 3 components over that of the chosen number",
            loss,
            0.01,
            loss <= 0.01,
        ),
    ]
    return rows, claims, lines({"FedEM": accuracy}, "Test accuracy by the number of components")


def run_unseen(scale: Scale, report: Report) -> Reproduced:
    """Appendix J.3: unseen clients with few rows and with all; one update of pi and many."""
    size, limits = with_changes(SIZES[scale]), (10, 30, 100, 1000)  # clients have 1000 at most
    sgd = optax.sgd(SETTINGS["FedEM"][0])
    methods = {
        "FedEM": _usual("FedEM"),
        "FedEM, one update": mixture(
            logistic(), client_optimizer=sgd, batch_size=BATCH, adapt_steps=1
        ),
        "FedAvg": _usual("FedAvg"),
        "FedAvg+": _usual("FedAvg+"),
    }
    found = {name: {limit: np.zeros(size.seeds) for limit in limits} for name in methods}
    for index, seed in enumerate(seeds_of(size)):
        old, new = held_out(problem(size, seed)[0])
        for name, method in methods.items():
            report(f"{name} on unseen clients, seed {index + 1} of {size.seeds}")
            done = trained(method, old, size, seed)
            for limit in limits:
                evaluation = done.evaluate(new.limited(train_rows=limit, seed=seed))
                # Clients count by all their rows, not by those they may use, so that the weights
                # are the same for every limit.
                found[name][limit][index] = score(replace(evaluation, data=new)).mean
    label = {10: "10 rows", 30: "30 rows", 100: "100 rows", 1000: "all rows"}
    rows = [
        row(f"accuracy, {name}, {label[limit]}", of[limit])
        for name, of in found.items()
        for limit in of
    ]
    claims = [
        _above(
            f"accuracy of FedEM over FedAvg+, {label[limit]}",
            found["FedEM"][limit] - found["FedAvg+"][limit],
            5.0,
        )
        for limit in (30, 100, 1000)
    ]
    return (
        rows,
        claims,
        lines(found, "Test accuracy of unseen clients by their training rows", log=True),
    )


def run_budget(scale: Scale, report: Report) -> Reproduced:
    """Appendix J.5: FedEM with a third of the rounds, as it sends three models per upload."""
    size = with_changes(SIZES[scale])
    third = size._replace(rounds=size.rounds // 3)
    found = {name: np.zeros(size.seeds) for name in ("oracle", "FedEM", *RIVALS)}
    for index, seed in enumerate(seeds_of(size)):
        data, truth = problem(size, seed)
        found["oracle"][index] = oracle(data, truth).mean
        for name in ("FedEM", *RIVALS):
            report(f"{name}, seed {index + 1} of {size.seeds}")
            done = trained(_usual(name), data, third if name == "FedEM" else size, seed)
            found[name][index] = score(done.evaluate()).mean
    rows = [
        row(
            f"accuracy, {name}" + (", a third of the rounds" if name == "FedEM" else ""),
            found[name],
        )
        for name in found
    ]
    best = max((found[name] for name in RIVALS), key=np.mean)
    claims = [
        _above(
            "accuracy of FedEM with a third of the rounds over the best other",
            found["FedEM"] - best,
            0.0,
        )
    ]
    chart = go.Figure(
        go.Bar(
            x=list(found), y=[values.mean() for values in found.values()], marker_color=COLOURS[0]
        )
    )
    chart.update_layout(title="Test accuracy at equal communication", template="plotly_white")
    return rows, claims, chart


def lines(
    found: Mapping[str, Mapping[int, np.ndarray] | Mapping[float, np.ndarray]],
    title: str,
    *,
    log: bool = False,
) -> go.Figure:
    """One curve per method: the mean over seeds by what is on the x axis."""
    chart = go.Figure()
    for (name, of), colour in zip(found.items(), COLOURS, strict=False):
        values = list(of.values())
        error = {"type": "data", "array": [spread(one) or 0.0 for one in values]}
        chart.add_trace(
            go.Scatter(
                x=list(of),
                y=[one.mean() for one in values],
                error_y=error,
                name=name,
                line_color=colour,
            )
        )
    chart.update_layout(title=title, template="plotly_white")
    chart.update_yaxes(title="percent")
    if log:
        chart.update_xaxes(type="log")
    return chart


def _usual(name: str, components: int = COMPONENTS) -> Algorithm:
    return method_of(name, SETTINGS[name][0], components)


def _above(claim: str, values: np.ndarray, bound: float) -> Claim:
    """A claim about the mean over seeds."""
    value = float(values.mean())
    return Claim(f"{claim}, in points", value, bound, value >= bound)
