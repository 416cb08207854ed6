"""`covey demo`: four hospitals and a heart-disease table that none of them would hand over.

Three hospitals learn together; the fourth was never part of it. For each, a logistic regression
trained on its own patients alone, one trained by federated averaging, one with an intercept of its
own for each hospital (FedPop), and one on the pooled rows, which privacy forbids and the others are
measured by. The divisions into training and test patients are repeated, as a hospital's test set
alone is small.

Then what the mixed-effects model says and how sure it is: the effects that hospitals share, each
hospital's own intercept, and that of the fourth as its first patients come in.
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
from covey.inference.information import shared_effects
from covey.kernels import ornstein_uhlenbeck
from covey.models import logistic, mixed_logistic
from covey.report.figures import grouped_bars, intervals
from covey.report.page import write_page
from covey.runs.launch import run

NEW = "va"
MEASURES = {"accuracy": "higher is better", "nll": "lower is better", "ece": "lower is better"}
METHODS = ("local", "federated", "mixed effects", "pooled")
ROUNDS, SPLITS = 60, 2
# the deviation of the shared effects: features are standardised, and no effect is far larger
PRIOR = 2.0
FIRST = (0, 5)  # patients of the new hospital
PROBABILITY = 0.9


class Findings(NamedTuple):
    """What the mixed-effects model says: estimates and intervals of the shared effects, and of each
    hospital's intercept.
    """

    shared: pd.DataFrame
    intercepts: pd.DataFrame


class Outcome(NamedTuple):
    """A line a division, hospital and method, with its measures; and the bits that the federation
    sent in one run.
    """

    lines: pd.DataFrame
    bits: int


def main(out: Path, console: Console | None = None) -> None:
    """Run it, print the table, write the figure."""
    console = Console() if console is None else console
    console.print(
        "[bold]Four hospitals, one question:[/] does this patient have heart disease?\n"
        f"Cleveland, Hungarian and Switzerland learn together; no patient leaves a hospital. {NEW.upper()} joins afterwards.\n"
    )
    outcome = compare(console)
    console.print(table_of(outcome.lines))
    console.print(
        f"Federated averaging sent {outcome.bits / 8e3:.0f} kB in {ROUNDS} rounds: parameters, never patients. Means ± standard "
        f"deviations over {SPLITS} divisions into training and test patients. {NEW}* joined after the learning was done: there, "
        "local is a model of its own rows alone, federated and pooled are the others' models as they are, and mixed effects "
        "keeps what the others share and draws an intercept from its own rows.\n"
    )
    findings = find()
    console.print(table_of_effects(findings))
    console.print(
        "Mixed effects, with standardised features: log odds of disease by a standard deviation of a feature, and the log odds "
        f"of an average patient in each hospital. {NEW.upper()}'s interval narrows with its first patients; with none it is that "
        "of a hospital like the others.\n"
    )
    panels = {name: by_hospital(outcome.lines, name, "mean") for name in MEASURES}
    charts = [
        grouped_bars(panels, title="Test patients", notes=MEASURES),
        intervals(
            {
                "effects that hospitals share": findings.shared,
                "each hospital's own intercept": findings.intercepts,
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
    """The three ways of learning, over several divisions of the rows."""
    pieces, bits = [], 0
    for seed in track(range(SPLITS), "learning", console=console, transient=True):
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
            pieces.append(both.assign(method=method, division=seed))
    lines = pd.concat(pieces, ignore_index=True).filter(
        ["division", "hospital", "method", "test_rows", *MEASURES]
    )
    return Outcome(lines, bits)


def mixed_effects() -> Algorithm:
    """The mixed-effects model by a kernel that needs no tuning for five patients or two hundred; it
    takes longer to compile.
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
    """The mixed-effects model of all patients of three hospitals, and the fourth as its patients
    come in.
    """
    hospitals, new = load("heart_disease").hold_out([NEW])
    hospitals, scaling = hospitals.standardised()
    new, _ = new.standardised(scaling=scaling)
    method = mixed_effects()
    fit = run(method, hospitals, rounds=5 * ROUNDS, seed=0, progress=False)
    shared = shared_effects(
        method,
        mixed_logistic(),
        fit.state.theta,
        hospitals,
        phi_prior=PRIOR,
        probability=PROBABILITY,
    )
    shared = shared.filter(like="weights[", axis=0).rename(
        lambda label: label.removeprefix("weights[").removesuffix("]")
    )
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
    columns = list(names.values())
    return Findings(shared.filter(columns), pd.concat(tables).rename(columns=names).filter(columns))


def arrived(new: FederatedData, patients: int) -> FederatedData:
    """The new hospital with its first patients to learn from."""
    bounds = new.bounds.copy()
    bounds[:, 1:] = np.minimum(bounds[:, 1:], bounds[:, :1] + patients)
    return replace(new, bounds=bounds)


def table_of_effects(findings: Findings) -> Table:
    """The second table: both kinds of effects side by side."""
    table = Table(title="What the mixed-effects model says", title_justify="left")
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
    """A row a hospital, a column a method."""
    table = lines.pivot_table(
        index="hospital", columns="method", values=measure, aggfunc=summary, sort=False
    )
    return table.filter(list(METHODS))


def table_of(lines: pd.DataFrame) -> Table:
    """The table that the terminal shows; the best of the three in bold."""
    means = {measure: by_hospital(lines, measure, "mean") for measure in MEASURES}
    spreads = {measure: by_hospital(lines, measure, "std") for measure in MEASURES}
    table = Table("hospital", "learned", title="Test patients", title_justify="left")
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
