"""`covey posterior`: the posterior of a finished run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line
from covey.cli.options import RunFolder

if TYPE_CHECKING:
    from covey.data.federated import FederatedData
    from covey.runs.run import Run


def posterior_command(
    directory: RunFolder,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", help="A client's own parameters; may be repeated."
        ),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Posterior of the shared parameters only.")
    ] = False,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="Posterior of the clients that were held out from the run."
        ),
    ] = False,
    draws: Annotated[
        int | None,
        typer.Option(
            "--draws",
            help="Draws per chain. Default: 1000, or all draws of chains that the run has kept. "
            "Fewer of these are evenly spaced.",
        ),
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            "--chains",
            help="Number of chains. Default: 4, or all chains that the run has kept. Fewer of "
            "these are the first ones.",
        ),
    ] = None,
    probability: Annotated[
        float, typer.Option("--probability", help="Probability of the credible intervals.")
    ] = 0.9,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.nc|FILE.csv",
            help="Write the draws (.nc) or their summary (.csv).",
        ),
    ] = None,
) -> None:
    """Credible intervals of the shared parameters and of each client's own, of a finished run."""
    with mistakes_in_one_line():
        if out is not None and out.suffix not in (".nc", ".csv"):
            raise ValueError(
                f"{out}: draws are written as .nc, their summary as .csv; end the name with one"
            )
        if shared and (clients or held_out):
            raise ValueError("--shared is about no client: leave --client and --held-out away")
        from covey.config import configuration
        from covey.core import atomic_files
        from covey.inference import trace
        from covey.inference.drawing import check_probability
        from covey.report.tables import summary_table

        check_probability(probability)
        done = configuration.reopen(directory)
        held = done.unseen
        if held_out and held is None:
            raise ValueError(f"{directory}: no clients were held out from this run")
        wanted = _posteriors(done, held if held_out else None, clients, shared=shared)
        if out is not None and len(wanted) > 1:
            raise ValueError(f"--out writes one posterior: add --shared or --client to {out}")
        given = {"count": draws, "chains": chains}
        asked = {name: value for name, value in given.items() if value is not None}
        of = f"{done.round} round{'s' * (done.round != 1)}"
        for about, posterior in wanted.items():
            drawn = posterior.trace(**asked)
            table = trace.summarise(drawn, probability=probability)
            title = f"{done.name}, {about}: {done.method.name} after {of}"
            console.print(*summary_table(title, table, probability))
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                content = trace.netcdf(drawn) if out.suffix == ".nc" else table.to_csv().encode()
                atomic_files.write(out, content)
                console.print(Text(f"written to {out}"), soft_wrap=True)


def _posteriors(
    done: "Run", held: "FederatedData | None", clients: list[str] | None, *, shared: bool
) -> dict:
    """The posteriors to show: those named by options, or all that the method has."""
    has = done.method.posterior
    own = bool(clients) or held is not None or (not shared and has.client is not None)
    found = {}
    if shared or (not clients and held is None and (has.shared is not None or not own)):
        try:
            found["shared parameters"] = done.posterior.shared
        except ValueError as error:
            if shared or not own:
                raise
            console.print(Text(f"shared parameters: {error}"))
    if own:
        found["clients"] = done.posterior.select(clients or None, data=held)
    return found
