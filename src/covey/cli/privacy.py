"""`covey privacy`: settings of a private run, planned before it starts."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line


class SchemeChoice(StrEnum):
    """The sampling of the S clients of a round."""

    uniform = "uniform"
    weighted = "weighted"


class SamplingChoice(StrEnum):
    """The sampling of a minibatch."""

    fixed = "fixed"
    poisson = "poisson"


class AccountantChoice(StrEnum):
    """The accountant of a privacy budget."""

    rdp = "rdp"
    theorem = "theorem"
    pld = "pld"


def plan_command(
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", help="Privacy budget: a bound on what a run reveals of one row."),
    ],
    delta: Annotated[
        float,
        typer.Option(
            "--delta",
            help="Probability that the bound fails; far below one over the number of rows.",
        ),
    ],
    clients: Annotated[int, typer.Option("--clients", help="Number of all clients (N).")],
    rows: Annotated[int, typer.Option("--rows", help="Training rows of the smallest client.")],
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Rows per minibatch. Default: all.")
    ] = None,
    local_steps: Annotated[
        int, typer.Option("--local-steps", help="Local steps per client and round (K).")
    ] = 10,
    chains: Annotated[
        int, typer.Option("--chains", help="Number of chains; each spends as much privacy as one.")
    ] = 1,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Temperature of the posterior (tau).")
    ] = 1.0,
    clip: Annotated[
        float, typer.Option("--clip", help="Per-example gradient clipping norm.")
    ] = 1.0,
    correlations: Annotated[
        list[float] | None,
        typer.Option(
            "--correlation", help="Correlation of the clients' noise (rho); may be repeated."
        ),
    ] = None,
    cohort_sizes: Annotated[
        list[int] | None,
        typer.Option("--cohort-size", help="Clients per round (S); may be repeated."),
    ] = None,
    rounds: Annotated[
        list[int] | None,
        typer.Option("--rounds", help="Number of rounds of the run; may be repeated."),
    ] = None,
    scheme: Annotated[
        SchemeChoice, typer.Option("--scheme", help="Sampling of the S clients of a round.")
    ] = SchemeChoice.uniform,
    sampling: Annotated[
        SamplingChoice, typer.Option("--sampling", help="Sampling of minibatches.")
    ] = SamplingChoice.fixed,
    kept_by: Annotated[
        AccountantChoice, typer.Option("--kept-by", help="Accountant of the budget.")
    ] = AccountantChoice.rdp,
) -> None:
    """Step sizes for FA-LD inside a privacy budget, by noise shared, clients in a round, and
    rounds.
    """
    with mistakes_in_one_line():
        from covey.privacy.planning import plan
        from covey.report.tables import cell_text

        proposals = plan(
            epsilon=epsilon,
            delta=delta,
            clients=clients,
            rows=rows,
            batch_size=batch_size,
            local_steps=local_steps,
            chains=chains,
            temperature=temperature,
            clip=clip,
            correlations=correlations or None,
            cohort_sizes=cohort_sizes or None,
            rounds=rounds or None,
            scheme=scheme.value,
            sampling=sampling.value,
            kept_by=kept_by.value,
        )
        table = Table(
            title=f"epsilon {epsilon:g} at delta {delta:g}, kept by {kept_by.value}",
            title_justify="left",
        )
        for name in ("S of N", "rounds", "rho", "largest step_size", "rdp", "theorem", "pld"):
            table.add_column(name, justify="right")
        for one in proposals:
            spent = [cell_text(one.spent.get(name)) for name in ("rdp", "theorem", "pld")]
            size = f"{one.cohort_size} of {clients}"
            table.add_row(
                size, str(one.rounds), f"{one.correlation:g}", cell_text(one.step_size), *spent
            )
        console.print(table)
        console.print(
            Text(
                "An empty cell: not accounted for there. rdp and pld take it as known who is in a "
                "round; the theorem does not."
            ),
            soft_wrap=True,
        )
