"""Tables of reproductions for the terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from covey.report.tables import cell_text
from covey.runs.progress import duration
from reproductions.result import Claim, Result


def result_tables(result: Result) -> list[Table]:
    """The numbers of a reproduction beside the paper's, and what became of its claims."""
    rows = Table("quantity", "paper", "ours", "sd", "seeds")
    for row in result.rows:
        rows.add_row(
            Text(row.quantity),
            cell_text(row.paper),
            cell_text(row.ours),
            cell_text(row.sd),
            str(row.seeds),
        )
    claims = Table("claim", "value", "bound", "holds")
    for claim in result.claims:
        claims.add_row(
            Text(claim.claim), cell_text(claim.value), cell_text(claim.bound), _verdict(claim)
        )
    return [rows, claims]


def overview(results: Sequence[Result]) -> Table:
    """A line a reproduction, and one for each claim that is lost."""
    table = Table(
        "experiment", "scale", "time", "claims that hold, and those lost", "value", "bound"
    )
    for result in results:
        held = sum(claim.holds for claim in result.claims)
        table.add_row(
            result.id,
            Text(result.size),
            duration(result.seconds),
            f"{held} of {len(result.claims)}",
        )
        for claim in result.claims:
            if not claim.holds:
                table.add_row(
                    "",
                    "",
                    "",
                    Text(claim.claim, style="red"),
                    cell_text(claim.value),
                    cell_text(claim.bound),
                )
    return table


def _verdict(claim: Claim) -> Text:
    return Text("yes", style="green") if claim.holds else Text("no", style="red")
