"""FA-LD on Gaussians: local steps, heterogeneity, correlated noise, densities, and cohorts (figures
1 and 3).

Deng et al. (2024), section 6.1 and appendix I, on the problems of `fald_gaussian`; distances are W2
to the posterior from 300 chains. The paper prints curves without numbers.

What was found. On the paper's problem all clients have the same curvature, and there the
synchronised state does not depend on how local steps are grouped, on rho, or on how far clients'
data are apart, except through the distance from the start: more local steps always save rounds,
down to a single one. The trade-off that the paper describes is real where curvatures differ: then a
small K costs rounds, a large K has a bias that no round mends, and the least rounds are in between.
Both are shown. With few devices in a round the noise of each is too large for so few to average,
and that bias stays when steps get shorter.
"""

from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import plotly.graph_objects as go

from covey.core import cohort
from reproductions.fald_gaussian import (
    CLIENTS,
    STEP,
    Problem,
    distances,
    exact_distances,
    law,
    problem,
    rounds_to,
    simulate,
)
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

Reproduced: TypeAlias = tuple[list[Row], list[Claim], go.Figure]

FAR = np.array([1.0, -1.0])  # where chains start, unless at the origin or at the posterior mean
CLOSE, NEAR = (
    1e-3,
    2e-3,
)  # distances to reach; by chance alone 300 chains are 2e-4 and 6e-4 away from the two posteriors
NEVER = 0.0  # in rows, as JSON has no infinity
COLOURS = ("#1f6fb2", "#d1733b", "#3a9a5b", "#7f7f7f", "#8e5ea2", "#c9a227")


class LocalSteps(NamedTuple):
    """Numbers of local steps K, where clients' curvatures differ and where they do not."""

    steps: tuple[int, ...]
    long_steps: tuple[int, ...]


class Heterogeneity(NamedTuple):
    """Variances of the clients' centres."""

    alphas: tuple[float, ...]


class Correlation(NamedTuple):
    """Shares of the noise that clients have in common."""

    correlations: tuple[float, ...]


class Density(NamedTuple):
    """Rounds of each chain, and rounds from draw to draw."""

    rounds: int
    every: int


class Partial(NamedTuple):
    """Numbers of devices per round, and step sizes."""

    devices: tuple[int, ...]
    lengths: tuple[float, ...]


def run_local_steps(scale: Scale, report: Report) -> Reproduced:
    """Figure 1a: rounds until the distance is reached, by K."""
    turned, same = problem(0, turned=True), problem(0)
    quick = LocalSteps((1, 10, 30, 100), (100, 3000))
    full = LocalSteps((1, 3, 10, 20, 30, 50, 100, 300), (10, 100, 300, 1000, 3000, 10000))
    steps, long_steps = with_changes(quick if scale == "quick" else full)
    found: dict[int, int | None] = {}
    off, rows = [], []
    for count in steps:
        report(f"curvatures that differ, K = {count}")
        options = {"local_steps": count, "rounds": max(900 // count, 10), "start": FAR}
        distance, exact = (
            distances(turned, simulate(turned, **options)),
            exact_distances(turned, law(turned, **options)),
        )
        found[count] = rounds_to(distance, CLOSE)
        off.append(float(abs(distance[-1] - exact[-1])) / _chance(turned))
        rows.append(
            Row(
                f"rounds to {CLOSE:g}, curvatures that differ, K = {count} (0: never)",
                None,
                found[count] or NEVER,
                None,
                1,
            )
        )
        rows.append(
            Row(
                f"final distance, curvatures that differ, K = {count}",
                None,
                float(distance[-1]),
                None,
                1,
            )
        )
    saved: list[int | None] = []
    for count in long_steps:
        report(f"the paper's problem, K = {count}")
        states = simulate(same, local_steps=count, rounds=max(10_000 // count, 2), start=FAR)
        saved.append(rounds_to(distances(same, states), NEAR))
        rows.append(
            Row(
                f"rounds to {NEAR:g}, the paper's problem, K = {count}",
                None,
                saved[-1] or NEVER,
                None,
                1,
            )
        )
    reached = {count: rounds for count, rounds in found.items() if rounds is not None}
    best = min(reached, key=lambda count: reached[count])
    falling = all(
        one is not None and two is not None and two <= one for one, two in pairwise(saved)
    )
    claims = [
        Claim(
            "best K where curvatures differ is more than the least", best, steps[0], best > steps[0]
        ),
        Claim(
            "best K where curvatures differ is less than the most",
            best,
            steps[-1],
            best < steps[-1],
        ),
        Claim(
            "rounds that the best K saves, times",
            reached[steps[0]] / reached[best],
            5.0,
            reached[steps[0]] / reached[best] >= 5,
        ),
        Claim(
            "on the paper's problem more local steps never cost rounds",
            float(falling),
            1.0,
            falling,
        ),
        Claim(
            "final distances from the exact law's, in units of chance", max(off), 3.0, max(off) <= 3
        ),
    ]
    chart = go.Figure()
    chart.add_trace(
        go.Scatter(
            x=list(reached), y=list(reached.values()), name=f"curvatures differ, W2 to {CLOSE:g}"
        )
    )
    chart.add_trace(go.Scatter(x=long_steps, y=saved, name=f"the paper's problem, W2 to {NEAR:g}"))
    return (
        rows,
        claims,
        _styled(
            chart,
            "Rounds by local steps; K that never get there have no point",
            "K",
            "rounds",
            log_x=True,
        ),
    )


def run_heterogeneity(scale: Scale, report: Report) -> Reproduced:
    """Figure 1b: the farther apart clients' data, the farther from the start is the posterior, with
    K = 10.
    """
    quick, full = Heterogeneity((0.0, 10.0, 1000.0)), Heterogeneity((0.0, 1.0, 10.0, 100.0, 1000.0))
    (alphas,) = with_changes(quick if scale == "quick" else full)
    rounds, chart = 1200, go.Figure()
    needed, last, rows = [], [], []
    for alpha, colour in zip(alphas, COLOURS, strict=False):
        report(f"alpha = {alpha:g}")
        given = problem(0, alpha)
        distance = distances(
            given, simulate(given, local_steps=10, rounds=rounds, start=np.zeros(2))
        )
        needed.append(rounds_to(distance, NEAR) or rounds + 1)
        last.append(float(distance[-100:].mean()))
        rows.append(Row(f"rounds to {NEAR:g}, alpha = {alpha:g}", None, needed[-1], None, 1))
        rows.append(
            Row(f"distance in the last 100 rounds, alpha = {alpha:g}", 1e-3, last[-1], None, 1)
        )
        other = problem(0, alpha, turned=True)
        exact = exact_distances(
            other, law(other, local_steps=10, rounds=rounds, start=np.zeros(2))
        )[-1]
        rows.append(
            Row(
                f"the same where curvatures differ, exact, alpha = {alpha:g}",
                None,
                float(exact),
                None,
                1,
            )
        )
        chart.add_trace(
            go.Scatter(
                x=np.arange(1, rounds + 1), y=distance, name=f"alpha = {alpha:g}", line_color=colour
            )
        )
    slower = all(one <= two for one, two in pairwise(needed))
    claims = [
        Claim(
            "rounds grow with the distance of clients' data",
            needed[-1] / needed[0],
            1.0,
            slower and needed[-1] > needed[0],
        ),
        Claim("all end at the same level", max(last), NEAR, max(last) <= NEAR),
    ]
    return rows, claims, _styled(chart, "W2 by rounds, K = 10", "round", "W2", log_y=True)


def run_correlation(scale: Scale, report: Report) -> Reproduced:
    """Figure 1c: noise that clients share, K = 100."""
    quick, full = Correlation((0.0, 1.0)), Correlation((0.0, 0.25, 0.5, 0.75, 1.0))
    (correlations,) = with_changes(quick if scale == "quick" else full)
    same, turned = problem(0), problem(0, turned=True)
    rows, needed, biased, chart = [], [], [], go.Figure()
    for rho, colour in zip(correlations, COLOURS, strict=False):
        report(f"rho = {rho:g}")
        distance = distances(
            same, simulate(same, local_steps=100, rounds=110, start=FAR, correlation=rho)
        )
        needed.append(rounds_to(distance, NEAR) or 111)
        bias = distances(
            turned, simulate(turned, local_steps=100, rounds=40, start=turned.mean, correlation=rho)
        )[-20:]
        biased.append(float(bias.mean()))
        rows.append(Row(f"rounds to {NEAR:g}, rho = {rho:g}", None, needed[-1], None, 1))
        rows.append(
            Row(f"final distance where curvatures differ, rho = {rho:g}", None, biased[-1], None, 1)
        )
        chart.add_trace(
            go.Scatter(x=np.arange(1, 111), y=distance, name=f"rho = {rho:g}", line_color=colour)
        )
    claims = [
        Claim(
            "rounds with rho = 1 over those with rho = 0",
            needed[-1] / needed[0],
            1.05,
            needed[-1] <= 1.05 * needed[0],
        ),
        Claim(
            "final distance where curvatures differ, rho = 1 over rho = 0",
            biased[-1] / biased[0],
            1.0,
            biased[-1] < biased[0],
        ),
    ]
    return rows, claims, _styled(chart, "W2 by rounds, K = 100", "round", "W2", log_y=True)


def run_density(scale: Scale, report: Report) -> Reproduced:
    """Figure 1d and e: the density of draws beside the posterior's, K = 10."""
    given = problem(0)
    # 300 rounds forget all but e^-2.6 of the slowest direction
    rounds, every = with_changes(Density(600 if scale == "quick" else 3000, 300))
    report(f"300 chains of {rounds} rounds")
    states = simulate(given, local_steps=10, rounds=rounds, start=given.mean)
    draws = states[every - 1 :: every].reshape(-1, 2)
    effective = 300 * len(states[every - 1 :: every])
    deviation = np.sqrt(np.diag(given.covariance))
    mean_off = np.abs(draws.mean(0) - given.mean) / deviation * np.sqrt(effective)
    exact = law(given, local_steps=10, rounds=rounds, start=given.mean).covariances[-1]
    covariance = np.cov(draws.T)
    error = np.sqrt((exact**2 + np.outer(np.diag(exact), np.diag(exact))) / effective)
    wide_off = np.abs(covariance - exact) / error
    bias = float(np.abs(exact / given.covariance - 1).max())
    rows = [
        row("largest difference of means, in standard errors", mean_off.max(keepdims=True)),
        row("largest difference of covariances, in standard errors", np.atleast_1d(wide_off.max())),
        Row("bias of the covariance by the length of the step, exact", None, bias, None, 1),
    ]
    claims = [
        Claim(
            "mean of the draws, in standard errors",
            float(mean_off.max()),
            4.0,
            bool(mean_off.max() < 4),
        ),
        Claim(
            "covariance of the draws, in standard errors",
            float(wide_off.max()),
            4.0,
            bool(wide_off.max() < 4),
        ),
        Claim("the step's own bias of the covariance", bias, 0.05, bias < 0.05),
    ]
    return rows, claims, _densities(given, draws)


def run_partial(scale: Scale, report: Report) -> Reproduced:
    """Figure 3: S of 50 devices in a round, by both schemes and for several steps, K = 100."""
    given = problem(0)
    quick = Partial((10, 30, 50), (4 * STEP, STEP))
    full = Partial((10, 20, 30, 40, 50), (4 * STEP, 2 * STEP, STEP))
    devices, lengths = with_changes(quick if scale == "quick" else full)
    rows, final = [], {}
    for scheme, draw in {"I": cohort.weighted, "II": cohort.uniform}.items():
        for count in devices:
            for length in lengths:
                if count == CLIENTS and scheme == "I":
                    continue  # everyone is the same under both
                report(f"scheme {scheme}, {count} of {CLIENTS} devices, step {length:g}")
                rounds = round(
                    30 * STEP / length
                )  # as far as the slowest direction goes in 2.6 times its time
                some = None if count == CLIENTS else draw(count)
                states = simulate(
                    given,
                    local_steps=100,
                    rounds=rounds + 10,
                    start=given.mean,
                    step_size=length,
                    cohort=some,
                )
                # Chains at some distance in time are averaged over: a mean of distances has less
                # noise than one distance.
                final[scheme, count, length] = float(distances(given, states)[-10:].mean())
                label = "all devices" if some is None else f"scheme {scheme}, S = {count}"
                rows.append(
                    Row(
                        f"final distance, {label}, step {length:g}",
                        None,
                        final[scheme, count, length],
                        None,
                        1,
                    )
                )
    few, many, long, short = devices[0], devices[-2], lengths[0], lengths[-1]
    claims = []
    for scheme in ("I", "II"):
        one, two = final[scheme, few, short], final[scheme, many, short]
        claims.append(
            Claim(
                f"scheme {scheme}: distance with S = {few} over S = {many}",
                one / two,
                1.5,
                one >= 1.5 * two,
            )
        )
        ratio = one / final[scheme, few, long]
        claims.append(
            Claim(
                f"scheme {scheme}: distance, step {short:g} over {long:g}", ratio, 0.8, ratio >= 0.8
            )
        )
    everyone = final["II", CLIENTS, short]
    claims.append(
        Claim(
            "distance with all devices over S = 30, scheme II",
            everyone / final["II", many, short],
            0.7,
            everyone <= 0.7 * final["II", many, short],
        )
    )
    chart = go.Figure()
    for index, scheme in enumerate(("I", "II")):
        for length in lengths:
            known = [count for count in devices if (scheme, count, length) in final]
            values = [final[scheme, count, length] for count in known]
            dash = "solid" if length == short else "dot"
            name = f"scheme {scheme}, step {length:g}"
            chart.add_trace(
                go.Scatter(
                    x=known, y=values, name=name, line={"color": COLOURS[index], "dash": dash}
                )
            )
    return rows, claims, _styled(chart, "W2 at the end by the devices of a round", "S", "W2")


def _chance(given: Problem) -> float:
    """About how far 300 draws of the posterior itself are from it."""
    return float(np.sqrt(np.trace(given.covariance) / 300))


def _densities(given: Problem, draws: np.ndarray) -> go.Figure:
    chart = go.Figure(
        go.Histogram2dContour(
            x=draws[:, 0], y=draws[:, 1], colorscale="Blues", name="draws", showscale=False
        )
    )
    angle = np.linspace(0, 2 * np.pi, 100)
    root = np.linalg.cholesky(given.covariance)
    for mass in (0.5, 0.9):
        ring = (
            given.mean
            + np.sqrt(-2 * np.log(1 - mass))
            * np.column_stack([np.cos(angle), np.sin(angle)])
            @ root.T
        )
        chart.add_trace(
            go.Scatter(
                x=ring[:, 0],
                y=ring[:, 1],
                mode="lines",
                name=f"{mass:.0%} of the posterior",
                line_color="#d1733b",
            )
        )
    return _styled(chart, "Density of draws, and the posterior", "theta_1", "theta_2")


def _styled(
    chart: go.Figure, title: str, x: str, y: str, *, log_x: bool = False, log_y: bool = False
) -> go.Figure:
    chart.update_layout(title=title, template="plotly_white", xaxis_title=x, yaxis_title=y)
    if log_x:
        chart.update_xaxes(type="log")
    if log_x or log_y:
        chart.update_yaxes(type="log")
    return chart
