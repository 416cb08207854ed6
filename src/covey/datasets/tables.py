"""Small tables of grouped data: four hospitals, and the classics of hierarchical modelling."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from covey.data import frames
from covey.data.federated import FederatedData
from covey.datasets import sources

if TYPE_CHECKING:
    import pandas

Coded: TypeAlias = str | tuple[str, str]


class Grouped(NamedTuple):
    """How a table becomes federated data.

    A column is coded as its name, where it is numeric, or as (column, value) for an indicator that
    is 1 where the column has that value and is called `column=value`.

    file: name of the file among the bundled files, or its path in `COVEY_DATA_DIR`.
    outcome: the outcome's column.
    client: name of the column that says which client owns a row.
    features: the feature columns.
    origin: where a user gets a file that cannot be bundled; None for bundled files.
    classes: number of labels, or None for a numeric outcome.
    missing: values that stand for "not recorded", by column.
    """

    file: str
    outcome: Coded
    client: str
    features: tuple[Coded, ...]
    origin: str | None = None
    classes: int | None = None
    missing: tuple[tuple[str, float], ...] = ()


def load_table(table: Grouped) -> FederatedData:
    """The data of a table.

    Args:
        table: The table and its columns.

    Returns:
        The data. Missing features are NaN; `FederatedData.standardised` fills them.

    Example:
        >>> load_table(EIGHT_SCHOOLS).rows.y.tolist()
        [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
    """
    import pandas

    path = _path(table)
    source = frames.Source(str(path), path)
    # Everything as text first: a level such as "01" must not become the number 1.
    text = pandas.read_csv(path, dtype=str)
    x = np.stack([_column(text, feature, source) for feature in table.features], axis=1)
    for column, value in table.missing:
        index = table.features.index(column)
        x[x[:, index] == value, index] = np.nan
    owner = frames.as_numbers(frames.owners(text, table.client, source).astype(str))
    y = _column(text, table.outcome, source)
    names = [
        feature if isinstance(feature, str) else "=".join(feature) for feature in table.features
    ]
    return FederatedData.from_arrays(
        x, y, owner, features=names, classes=table.classes, allow_missing=True
    )


def _column(text: "pandas.DataFrame", coded: Coded, source: frames.Source) -> np.ndarray:
    if isinstance(coded, str):
        return frames.numbers(text, coded, source)
    column, value = coded
    return (frames.owners(text, column, source) == value).astype(np.float64)


def _path(table: Grouped) -> Path:
    if table.origin is None:
        return sources.bundled(table.file)
    path = sources.local(table.file)
    if path is None:
        raise ValueError(
            f"{table.file} was not found, and it is not bundled: set COVEY_DATA_DIR to a directory"
            f" that has it. It is {table.origin}"
        )
    return path


HEART_DISEASE = Grouped(
    "heart_disease.csv",
    outcome="target",
    client="center",
    features=(
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
    ),
    classes=2,
    missing=(("chol", 0), ("trestbps", 0)),
)
EIGHT_SCHOOLS = Grouped("eight_schools.csv", outcome="y", client="school", features=("sigma",))
RADON_US = Grouped(
    "hierarchical/radon_all_us.csv.gz",
    outcome="log_radon",
    client="county_idx",
    features=("floor_measure", "log_uppm"),
    origin="the data `radon_all` of posteriordb, as a table",
    missing=(("floor_measure", 9),),
)
RADON = Grouped(
    "hierarchical/radon_mn.csv",
    outcome="log_radon",
    client="county",
    features=("floor", "log_uranium"),
    origin="the table `radon` of the R package rstanarm",
)
SLEEPSTUDY = Grouped(
    "hierarchical/sleepstudy.csv",
    outcome="Reaction",
    client="Subject",
    features=("Days",),
    origin="the table `sleepstudy` of the R package lme4",
)
EXAM = Grouped(
    "hierarchical/exam_london_schools.csv.gz",
    outcome="normexam",
    client="school",
    features=("standLRT", ("sex", "F"), "schavg", ("schgend", "boys"), ("schgend", "girls")),
    origin="the table `Exam` of the R package mlmRev",
)
CONTRACEPTION = Grouped(
    "hierarchical/contraception_bangladesh.csv",
    outcome=("use", "Y"),
    client="district",
    features=("age", ("urban", "Y"), ("livch", "1"), ("livch", "2"), ("livch", "3+")),
    origin="the table `Contraception` of the R package mlmRev",
    classes=2,
)
GROUSETICKS = Grouped(
    "hierarchical/grouseticks.csv",
    outcome="TICKS",
    client="LOCATION",
    features=("cHEIGHT", ("YEAR", "96"), ("YEAR", "97")),
    origin="the table `grouseticks` of the R package lme4",
)
CBPP = Grouped(
    "hierarchical/cbpp.csv",
    outcome="incidence",
    client="herd",
    features=("size", ("period", "2"), ("period", "3"), ("period", "4")),
    origin="the table `cbpp` of the R package lme4",
)
INST_EVAL = Grouped(
    "hierarchical/inst_eval.csv.gz",
    outcome="y",
    client="d",
    features=("studage", "lectage", "service"),
    origin="the table `InstEval` of the R package lme4",
)
GU_IMMUN = Grouped(
    "hierarchical/gu_immun.csv",
    outcome=("immun", "Y"),
    client="comm",
    features=(
        ("kid2p", "Y"),
        ("mom25p", "Y"),
        ("ord", "23"),
        ("ord", "46"),
        ("ord", "7p"),
        ("ethn", "N"),
        ("ethn", "S"),
        ("momEd", "P"),
        ("momEd", "S"),
        ("husEd", "P"),
        ("husEd", "S"),
        ("husEd", "U"),
        ("momWork", "Y"),
        ("rural", "Y"),
        "pcInd81",
    ),
    origin="the table `guImmun` of the R package mlmRev",
    classes=2,
)
