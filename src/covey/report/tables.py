"""Tables for the terminal."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

_LINES = 60  # of a table in the terminal


def summary_table(title: str, summary: "pd.DataFrame", probability: float) -> list[Table | str]:
    """One row per parameter of a posterior; says what is left out where there are very many."""
    of_clients = summary.index.nlevels > 1
    table = Table(title=title, title_justify="left")
    for name in ("client", "parameter") if of_clients else ("parameter",):
        table.add_column(name, overflow="fold")  # by default a name that is too long is cut
    for name in ("mean", "sd", f"{100 * probability:g} % interval", "R-hat", "effective\ndraws"):
        table.add_column(name, justify="right")
    shown = summary.head(_LINES)
    for label, (mean, sd, lower, upper, bulk, tail, r_hat, _) in zip(
        shown.index, shown.to_numpy(), strict=True
    ):
        cells = (
            f"{mean:.3g}",
            f"{sd:.3g}",
            f"{lower:.3g} to {upper:.3g}",
            f"{r_hat:.3f}",
            f"{min(bulk, tail):.0f}",
        )
        table.add_row(*map(Text, label if of_clients else [label]), *cells)
    if len(summary) == len(shown):
        return [table]
    way = "choose with --client, or write" if of_clients else "write"
    return [table, f"{len(summary) - len(shown)} lines more: {way} all with --out FILE.csv"]


def cell_text(value: float | int | None) -> str:
    """A cell of a table: four digits; empty where there is no value."""
    return "" if value is None else f"{value:.4g}"
