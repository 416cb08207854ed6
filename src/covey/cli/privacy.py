"""`covey privacy`: what a run would reveal of its rows."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line


class SchemeChoice(StrEnum):
    """How S clients of a round are drawn."""

    uniform = "uniform"
    weighted = "weighted"


class SamplingChoice(StrEnum):
    """How a minibatch is drawn."""

    fixed = "fixed"
    poisson = "poisson"


class AccountantChoice(StrEnum):
    """Who keeps a privacy budget."""

    rdp = "rdp"
    theorem = "theorem"
    pld = "pld"


def plan_command(
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="The budget: how much may be revealed of one row.")
    ],
    delta: Annotated[
        float,
        typer.Option(
            "--delta", help="The chance that more is; far below one over the number of rows."
        ),
    ],
    clients: Annotated[int, typer.Option("--clients", help="N, all clients.")],
    rows: Annotated[int, typer.Option("--rows", help="Training rows of the smallest client.")],
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Rows of a minibatch; all by default.")
    ] = None,
    local_steps: Annotated[
        int, typer.Option("--local-steps", help="K, steps of a client in a round.")
    ] = 10,
    chains: Annotated[
        int, typer.Option("--chains", help="Chains side by side; each costs as much as one.")
    ] = 1,
    temperature: Annotated[float, typer.Option("--temperature", help="tau.")] = 1.0,
    clip: Annotated[
        float, typer.Option("--clip", help="The largest norm of one row's gradient.")
    ] = 1.0,
    correlations: Annotated[
        list[float] | None, typer.Option("--correlation", help="rho; may be repeated.")
    ] = None,
    cohort_sizes: Annotated[
        list[int] | None, typer.Option("--cohort-size", help="S; may be repeated.")
    ] = None,
    rounds: Annotated[
        list[int] | None, typer.Option("--rounds", help="Rounds in all; may be repeated.")
    ] = None,
    scheme: Annotated[
        SchemeChoice, typer.Option("--scheme", help="How S clients are drawn.")
    ] = SchemeChoice.uniform,
    sampling: Annotated[
        SamplingChoice, typer.Option("--sampling", help="How minibatches are drawn.")
    ] = SamplingChoice.fixed,
    kept_by: Annotated[
        AccountantChoice, typer.Option("--kept-by", help="The accountant of the budget.")
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
