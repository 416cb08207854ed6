"""Tables for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from covey.experiment.progress import duration
from covey.experiment.reproduce.frame import Claim, Result, number

if TYPE_CHECKING:
    import pandas as pd

_LINES = 60  # of a table in the terminal


def summary_table(title: str, summary: "pd.DataFrame", probability: float) -> list[Table | str]:
    """A line a number of a posterior; with a word on what is left out, where there are very many."""
    of_clients = summary.index.nlevels > 1
    table = Table(title=title, title_justify="left")
    for name in ("client", "parameter") if of_clients else ("parameter",):
        table.add_column(name, overflow="fold")  # by default a name that is too long is cut
    for name in ("mean", "sd", f"{100 * probability:g} % interval", "R-hat", "effective\ndraws"):
        table.add_column(name, justify="right")
    shown = summary.head(_LINES)
    for place, (mean, sd, lower, upper, bulk, tail, r_hat, _) in zip(shown.index, shown.to_numpy(), strict=True):
        numbers = (f"{mean:.3g}", f"{sd:.3g}", f"{lower:.3g} to {upper:.3g}", f"{r_hat:.3f}", f"{min(bulk, tail):.0f}")
        table.add_row(*map(Text, place if of_clients else [place]), *numbers)
    if len(summary) == len(shown):
        return [table]
    way = "choose with --client, or write" if of_clients else "write"
    return [table, f"{len(summary) - len(shown)} lines more: {way} all with --out FILE.csv"]


def result_tables(result: Result) -> list[Table]:
    """The numbers of a reproduction beside the paper's, and what became of its claims."""
    rows = Table("quantity", "paper", "ours", "sd", "seeds")
    for row in result.rows:
        rows.add_row(Text(row.quantity), number(row.paper), number(row.ours), number(row.sd), str(row.seeds))
    claims = Table("claim", "value", "bound", "holds")
    for claim in result.claims:
        claims.add_row(Text(claim.claim), number(claim.value), number(claim.bound), _verdict(claim))
    return [rows, claims]


def overview(results: Sequence[Result]) -> Table:
    """A line a reproduction, and one for each claim that is lost."""
    table = Table("experiment", "scale", "time", "claims that hold, and those lost", "value", "bound")
    for result in results:
        held = sum(claim.holds for claim in result.claims)
        table.add_row(result.id, result.scale, duration(result.seconds), f"{held} of {len(result.claims)}")
        for claim in result.claims:
            if not claim.holds:
                table.add_row("", "", "", Text(claim.claim, style="red"), number(claim.value), number(claim.bound))
    return table


def _verdict(claim: Claim) -> Text:
    return Text("yes", style="green") if claim.holds else Text("no", style="red")
