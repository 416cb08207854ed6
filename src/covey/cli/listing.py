"""`covey list`: the names for configurations, and the experiments."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line
from covey.cli.reproducing import find_reproductions

if TYPE_CHECKING:
    from reproductions.result import Experiment


class Kind(StrEnum):
    """The kinds of names that `covey list` knows."""

    methods = "methods"
    models = "models"
    data = "data"
    cohorts = "cohorts"
    channels = "channels"
    topologies = "topologies"
    experiments = "experiments"


def list_command(kind: Annotated[Kind, typer.Argument(help="The kind of names.")]) -> None:
    """List the names for configurations, or the experiments that can be reproduced."""
    with mistakes_in_one_line():
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, text in _listed(kind):
            table.add_row(Text(name, style="bold"), Text(text))
        console.print(table)


def _listed(kind: Kind) -> list[tuple[str, str]]:
    if kind is Kind.experiments:
        from covey.runs.progress import duration

        find_reproductions()
        from reproductions import EXPERIMENTS

        def described(experiment: "Experiment") -> str:
            times = [f"{k} {duration(s)}" for k, s in experiment.expected_seconds.items()]
            return f"{experiment.description} ({', '.join(times)})"

        return [(name, described(experiment)) for name, experiment in EXPERIMENTS.items()]
    from covey.config import catalogue

    named = {
        Kind.methods: catalogue.METHODS,
        Kind.models: catalogue.MODELS,
        Kind.data: catalogue.DATA,
        Kind.cohorts: catalogue.COHORTS,
        Kind.channels: catalogue.CHANNELS,
        Kind.topologies: catalogue.TOPOLOGIES,
    }[kind]
    return list(catalogue.described(named).items())
