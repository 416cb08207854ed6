"""Arguments and options that several commands have, each with one text."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path, typer.Argument(help="The configuration, a TOML file.", metavar="CONFIG.toml")
]
RunFolder = Annotated[Path, typer.Argument(help="The run directory.", metavar="RUN_DIRECTORY")]
StudyName = Annotated[str, typer.Argument(help="Name of the study.", metavar="STUDY")]
Formula = Annotated[
    str, typer.Argument(help='E.g. "ill ~ age + sex + (1 | hospital)".', metavar="FORMULA")
]
Family = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="Family of the outcome: gaussian, bernoulli, binomial, poisson or "
        "negative_binomial. Default: bernoulli for an outcome of two values, binomial for "
        "cbind() and p(), else gaussian; name it for counts.",
    ),
]
Estimate = Annotated[
    str,
    typer.Option(
        "--estimate",
        help="The estimate: posterior (with priors), ml (maximum likelihood) or reml "
        "(restricted, for gaussian outcomes); ml and reml to compare with lme4.",
    ),
]
Missing = Annotated[
    str,
    typer.Option(
        "--missing",
        help="Treatment of rows with missing values: drop leaves them out, impute fills in the "
        "mean or the most frequent level, indicator also adds a column that marks these rows.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random values.")]
