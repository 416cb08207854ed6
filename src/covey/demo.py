"""`covey demo`: four hospitals and a heart-disease table that none of them would hand over.

Three hospitals train together; the fourth joins afterwards. Four logistic regressions are compared
on each hospital's test patients: one trained on its own patients alone, one by federated averaging,
one with a random intercept for each hospital (FedPop), and one on the pooled rows, which privacy
forbids and which is the reference. The split into training and test patients is repeated, as the
test set of one hospital is small.

Then the posterior of the mixed-effects model: the shared effects, each hospital's intercept, and
that of the fourth hospital as its first patients come in.
"""

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import optax
import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Table

from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpop import fedpop
from covey.algorithms.local import local
from covey.core import atomic_files
from covey.core.algorithm import Algorithm
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.kernels import ornstein_uhlenbeck
from covey.models import logistic, mixed_logistic
from covey.report.comparisons import grouped_bars, intervals
from covey.report.page import write_page
from covey.runs.launch import run

NEW = "va"
MEASURES = {"accuracy": "higher is better", "nll": "lower is better", "ece": "lower is better"}
METHODS = ("local", "federated", "mixed effects", "pooled")
ROUNDS, SPLITS = 60, 2
# prior deviation of the shared effects: features are standardised, and no effect is far larger
PRIOR = 2.0
FIRST = (0, 5)  # patients of the new hospital
PROBABILITY = 0.9


class Findings(NamedTuple):
    """Estimates and intervals of the mixed-effects model.

    Attributes:
        shared: The shared effects, one row per column of the data.
        intercepts: Each hospital's intercept.
    """

    shared: pd.DataFrame
    intercepts: pd.DataFrame


class Outcome(NamedTuple):
    """Results on test patients.

    Attributes:
        lines: One row per split, hospital and method, with its measures.
        bits: Bits that one run of federated averaging sent.
    """

    lines: pd.DataFrame
    bits: int


def main(out: Path, console: Console | None = None) -> None:
    """Run it, print the table, write the figure."""
    console = Console() if console is None else console
    console.print(
        "[bold]Four hospitals, one question:[/] does this patient have heart disease?\n"
        "Cleveland, Hungarian and Switzerland train together; no patient leaves a hospital. "
        f"{NEW.upper()} joins afterwards.\n"
    )
    outcome = compare(console)
    console.print(table_of(outcome.lines))
    console.print(
        f"Federated averaging sent {outcome.bits / 8e3:.0f} kB in {ROUNDS} rounds: parameters, "
        f"never patients. Means ± standard deviations over {SPLITS} splits into training and test "
        f"patients. {NEW}* joined after training: there, local is a model of its rows alone, "
        "federated and pooled are the others' models as they are, and mixed effects keeps the "
        "shared parameters and draws an intercept given its rows.\n"
    )
    findings = find()
    console.print(table_of_effects(findings))
    console.print(
        "Mixed effects, with standardised features: log odds of disease per standard deviation of "
        "a feature, and the log odds of an average patient in each hospital. "
        f"{NEW.upper()}'s interval narrows with its first patients; without any it is that of a "
        "hospital drawn from the population.\n"
    )
    panels = {name: by_hospital(outcome.lines, name, "mean") for name in MEASURES}
    charts = [
        grouped_bars(panels, title="Test patients", notes=MEASURES),
        intervals(
            {
                "shared effects": findings.shared,
                "intercept of each hospital": findings.intercepts,
            },
            title=f"Mixed effects: estimates and {PROBABILITY:.0%} intervals",
        ),
    ]
    out.mkdir(parents=True, exist_ok=True)
    write_page(out / "figure.html", "Heart disease in four hospitals", charts)
    atomic_files.write(out / "results.csv", outcome.lines.to_csv(index=False).encode())
    effects = pd.concat(
        {"shared": findings.shared, "intercept": findings.intercepts}, names=["kind", "name"]
    )
    atomic_files.write(out / "effects.csv", effects.to_csv().encode())
    console.print(f"Figure: {out / 'figure.html'}   Numbers: {out / 'results.csv'}")


def compare(console: Console) -> Outcome:
    """The four ways of training, over several splits of the rows."""
    pieces, bits = [], 0
    for seed in track(range(SPLITS), "training", console=console, transient=True):
        hospitals, new = (
            load("heart_disease").split(validation=0.0, test=0.3, seed=seed).hold_out([NEW])
        )
        hospitals, scaling = hospitals.standardised()
        new, _ = new.standardised(scaling=scaling)
        step = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.05, momentum=0.9))
        alone = local(logistic(), client_optimizer=step, adapt_epochs=ROUNDS)
        together = fedavg(logistic(), client_optimizer=step)
        mixed = fedpop(mixed_logistic(), step_size=0.02, draws=100, burn_in=20, phi_prior=PRIOR)
        runs = {
            "local": run(alone, hospitals, rounds=ROUNDS, seed=seed, progress=False),
            "federated": run(together, hospitals, rounds=ROUNDS, seed=seed, progress=False),
            "mixed effects": run(mixed, hospitals, rounds=3 * ROUNDS, seed=seed, progress=False),
            "pooled": run(together, hospitals.pooled(), rounds=ROUNDS, seed=seed, progress=False),
        }
        bits = int(runs["federated"].metrics[["bits_up", "bits_down"]].to_numpy().sum())
        for method, done in runs.items():
            known = done.evaluate(hospitals if method == "pooled" else None, split="test").clients
            unknown = done.evaluate(new, split="test").clients.assign(name=f"{NEW}*")
            both = pd.concat([known, unknown]).rename(columns={"name": "hospital"})
            pieces.append(both.assign(method=method, split=seed))
    lines = pd.concat(pieces, ignore_index=True).filter(
        ["split", "hospital", "method", "test_rows", *MEASURES]
    )
    return Outcome(lines, bits)


def mixed_effects() -> Algorithm:
    """The mixed-effects model with a kernel that needs no tuning, for five patients or two hundred;
    it takes longer to compile.
    """
    return fedpop(
        mixed_logistic(),
        step_size=1.0,
        draws=50,
        kernel=ornstein_uhlenbeck(),
        phi_prior=PRIOR,
        adapt_burn_in=20,
    )


def find() -> Findings:
    """Fit the mixed-effects model to all patients of three hospitals, and add the fourth as its
    patients come in.
    """
    hospitals, new = load("heart_disease").hold_out([NEW])
    hospitals, scaling = hospitals.standardised()
    new, _ = new.standardised(scaling=scaling)
    fit = run(mixed_effects(), hospitals, rounds=5 * ROUNDS, seed=0, progress=False)
    shared = fit.posterior.shared.summary(probability=PROBABILITY).filter(like="weights[", axis=0)
    shared = shared.rename(lambda label: label.removeprefix("weights[").removesuffix("]"))
    patients = int(new.counts("train")[0])
    arriving = {
        f"{NEW}, {count or 'no'} patients": arrived(new, count) for count in (*FIRST, patients)
    }
    tables = [fit.posterior.clients.summary(probability=PROBABILITY).droplevel("parameter")]
    tables += [
        fit.posterior.client(NEW, data=some).summary(probability=PROBABILITY).set_axis([name])
        for name, some in arriving.items()
    ]
    names = {
        "mean": "estimate",
        f"lower_{100 * PROBABILITY:g}": "low",
        f"upper_{100 * PROBABILITY:g}": "high",
    }
    named = (
        table.rename(columns=names).filter([*names.values()])
        for table in (shared, pd.concat(tables))
    )
    return Findings(*named)


def arrived(new: FederatedData, patients: int) -> FederatedData:
    """The new hospital with its first patients as training rows."""
    bounds = new.bounds.copy()
    bounds[:, 1:] = np.minimum(bounds[:, 1:], bounds[:, :1] + patients)
    return replace(new, bounds=bounds)


def table_of_effects(findings: Findings) -> Table:
    """The second table: shared effects and intercepts side by side."""
    table = Table(title="Posterior of the mixed-effects model", title_justify="left")
    for heading in (
        "shared effect",
        f"{PROBABILITY:.0%} interval",
        "intercept of",
        f"{PROBABILITY:.0%} interval",
    ):
        table.add_column(heading, justify="left" if heading[0] in "si" else "right")
    sides = [
        [
            (str(name), f"{line['estimate']:.2f} ({line['low']:.2f}, {line['high']:.2f})")
            for name, line in frame.iterrows()
        ]
        for frame in findings
    ]
    for left, right in zip_longest(*sides, fillvalue=("", "")):
        table.add_row(*left, *right)
    return table


def by_hospital(lines: pd.DataFrame, measure: str, summary: Literal["mean", "std"]) -> pd.DataFrame:
    """One row per hospital, one column per method."""
    table = lines.pivot_table(
        index="hospital",
        columns="method",
        values=measure,
        aggfunc=summary,
        sort=False,
        dropna=False,
    )
    return table.filter(list(METHODS))


def table_of(lines: pd.DataFrame) -> Table:
    """The table that the terminal shows; the best method per hospital in bold."""
    means = {measure: by_hospital(lines, measure, "mean") for measure in MEASURES}
    spreads = {measure: by_hospital(lines, measure, "std") for measure in MEASURES}
    table = Table("hospital", "method", title="Test patients", title_justify="left")
    for measure, note in MEASURES.items():
        table.add_column(f"{measure}\n[dim]{note}[/]", justify="right")
    for hospital, patients in lines.groupby("hospital", sort=False)["test_rows"].first().items():
        labels = iter((str(hospital), f"[dim]{patients} patients[/]", "", ""))
        for method in METHODS:
            cells = []
            for measure, note in MEASURES.items():
                mine = means[measure].loc[hospital]
                best = mine.max() if note.startswith("higher") else mine.min()
                text = f"{mine[method]:.3f} ± {spreads[measure].loc[hospital, method]:.3f}"
                cells.append(f"[bold green]{text}[/]" if mine[method] == best else text)
            table.add_row(next(labels), method, *cells)
        table.add_section()
    return table
