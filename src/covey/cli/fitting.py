"""`covey fit`, `predict`, `add-client` and `compare`: formulas on one table per site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from covey.cli import stopping
from covey.cli.consoles import code_of, console, mistakes_in_one_line, tell_of_stop
from covey.cli.options import Estimate, Family, Formula, Missing, Seed
from covey.core.compiling import compile_quickly

if TYPE_CHECKING:
    import pandas as pd

    from covey.fitting.result import Fit

_SHOWN = 20  # predictions that are printed
Folder = Annotated[Path, typer.Argument(help="The folder of a fit.", metavar="RUN")]


def fit_command(
    formula: Formula,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="A folder with one CSV or Parquet file per site, or one table.",
            metavar="PLACE",
        ),
    ],
    family: Family = None,
    estimate: Estimate = "posterior",
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="Method of the fit: marginal integrates the random effects out, in about a dozen "
            "rounds; fedpop and, without random effects, fald draw posterior samples, where its "
            "approximation is in doubt.",
        ),
    ] = "marginal",
    priors: Annotated[
        Path | None,
        typer.Option("--priors", help="A TOML file with priors by term.", metavar="FILE.toml"),
    ] = None,
    missing: Missing = "drop",
    weights: Annotated[
        str | None, typer.Option("--weights", help="Column of prior weights.", metavar="COLUMN")
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--client", help="Column that names the site, in one table.", metavar="COLUMN"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the fit. Default: runs/OUTCOME.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Fit a regression with random effects to one table per site."""
    folder = out or _unused(Path("runs") / _outcome_of(formula))
    with mistakes_in_one_line(), stopping.says(lambda: _stopped(folder)):
        if method == "marginal":
            compile_quickly()
        from covey.fitting.fit import fit

        try:
            found = fit(
                formula,
                data,
                family=family,
                estimate=estimate,  # pyright: ignore[reportArgumentType]  # checked by fit
                method=method,
                priors=priors,
                missing=missing,  # pyright: ignore[reportArgumentType]
                weights=weights,
                client=client,
                out=folder,
                seed=seed,
            )
        except KeyboardInterrupt as interrupt:
            tell_of_stop(_stopped(folder))
            raise typer.Exit(code_of(interrupt)) from None
        _print_fit(found)
        console.print(Text(f"written to {folder}"), soft_wrap=True)


def predict_command(
    folder: Folder,
    table: Annotated[Path, typer.Argument(help="New rows, a CSV or Parquet file.", metavar="NEW")],
    client: Annotated[
        str | None,
        typer.Option("--client", help="The site of the rows. Default: a new site.", metavar="NAME"),
    ] = None,
    new_levels: Annotated[
        str,
        typer.Option(
            "--new-levels",
            help="Factor levels that no site had: error, or reference "
            "to predict with the reference level.",
        ),
    ] = "error",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the predictions to this CSV file.")
    ] = None,
) -> None:
    """Predictions for new rows: mean, and 50 and 90 % intervals."""
    with mistakes_in_one_line(), stopping.says(lambda: "stopped before the rows were predicted"):
        from covey.fitting.store import load_fit

        found = load_fit(folder)
        predictions = found.predict(table, client, new_levels=new_levels)
        if out is None:
            _print_table(predictions.head(_SHOWN))
            if len(predictions) > _SHOWN:
                console.print(f"{len(predictions)} rows in all; --out writes them", highlight=False)
            return
        predictions.to_csv(out, index=False)
        console.print(Text(f"{_of(len(predictions))} written to {out}"), soft_wrap=True)


def add_client_command(
    folder: Folder,
    table: Annotated[
        Path, typer.Argument(help="The new site's rows, a CSV or Parquet file.", metavar="NEW")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the site. Default: the name of its file.")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit again with the new rows, from the present maximum.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Tables of the other sites, for --refit. Default: where the fit read them.",
            metavar="PLACE",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the new fit. Default: RUN; with --refit, RUN-NAME."),
    ] = None,
) -> None:
    """Add a site to a fit: its effects, without a refit or with one."""
    with mistakes_in_one_line():
        compile_quickly()
        from covey.fitting.store import load_fit

        called = name or table.stem
        before = load_fit(folder, data=data)
        found = before.add_client(called, table, refit=refit)
        target = out or (folder.with_name(f"{folder.name}-{called}") if refit else folder)
        found.save(target)
        if refit:
            _print_fit(found)
        effects = found.effects()
        _print_table(effects[effects["client"] == called].set_index("term"))
        console.print(Text(f"{called} added; written to {target}"), soft_wrap=True)


def compare_command(
    one: Folder,
    other: Annotated[Path, typer.Argument(help="The folder of another fit.", metavar="RUN")],
) -> None:
    """Compare two fits of the same rows."""
    with mistakes_in_one_line():
        from covey.fitting.store import load_fit

        table = load_fit(one).compare(load_fit(other))
        for name, formula in table.pop("formula").items():
            console.print(Text(f"{name}: {formula}"), soft_wrap=True)
        _print_table(table)
        console.print(Text(table.attrs["test"]), soft_wrap=True)


def _of(count: int) -> str:
    return f"{count} prediction{'s' * (count != 1)}"


def _stopped(folder: Path) -> str:
    """The message of a fit that is stopped."""
    if (folder / "fit.json").exists():
        return f"stopped; the fit is saved in {folder}; `covey report {folder}` writes its report"
    if (folder / "config.toml").exists():
        return f"stopped before the fit was done; to start again, remove {folder} or choose --out"
    return "stopped before the fit was done; nothing was saved"


def _print_fit(found: "Fit") -> None:
    console.print(Text(repr(found.summary())), soft_wrap=True)
    if found.priors:
        said = "; ".join(f"{term} ~ {prior}" for term, prior in found.priors.items())
        console.print(Text(f"Priors: {said}."), soft_wrap=True)


def _print_table(table: "pd.DataFrame") -> None:
    console.print(Text(table.to_string(float_format="{:.4g}".format)), soft_wrap=True)


def _outcome_of(formula: str) -> str:
    """A folder's name: the first word of the formula."""
    words = "".join(one if one.isalnum() else " " for one in formula.partition("~")[0]).split()
    return words[-1] if words else "fit"


def _unused(folder: Path) -> Path:
    count, found = 2, folder
    while found.exists():
        found, count = folder.with_name(f"{folder.name}-{count}"), count + 1
    return found
