"""Small tables of grouped data: four hospitals, and the classics of hierarchical modelling."""

import warnings
from collections.abc import Mapping, Sequence
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
    """The description by which a table becomes federated data.

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


def load_table(
    table: Grouped,
    *,
    client: str | None = None,
    features: Sequence[str] | None = None,
    outcome: str | None = None,
) -> FederatedData:
    """The data of a table.

    Columns have the names of the file, in upper or lower case. `column=value` is an indicator that
    is 1 where the column has that value.

    Args:
        table: The table and its columns.
        client: Column that says which client owns a row. Default: that of the table.
        features: The feature columns, or indicators. Default: those of the table.
        outcome: Column of the outcome; an indicator has two classes, any other column is numeric.
            Rows without it are left out, with a warning. Default: that of the table.

    Returns:
        The data. Missing features are NaN; `FederatedData.standardised` fills them.

    Example:
        >>> load_table(EIGHT_SCHOOLS).rows.y.tolist()
        [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
        >>> load_table(HEART_DISEASE, features=["age", "cp=4"], outcome="sex").features
        ('age', 'cp=4')
    """
    import pandas

    path = _path(table)
    source = frames.Source(str(path), path)
    # Everything as text first: a level such as "01" must not become the number 1.
    text = pandas.read_csv(path, dtype=str)
    owners = table.client if client is None else _found(text, client, source)
    chosen = table.features
    if features is not None:
        if isinstance(features, str) or not features:
            raise ValueError(f"features is a list of columns, got {features!r}")
        chosen = tuple(_coded(text, feature, source) for feature in features)
    result = table.outcome if outcome is None else _coded(text, outcome, source)
    classes = table.classes if result == table.outcome else None if isinstance(result, str) else 2
    if result in chosen:
        raise ValueError(f"the outcome {_name(result)!r} is also in `features`; take it out")
    gaps = dict(table.missing)
    x = np.stack([_column(text, feature, source, gaps) for feature in chosen], axis=1)
    owner = frames.as_numbers(frames.owners(text, owners, source).astype(str))
    y = _column(text, result, source, gaps)
    known = ~np.isnan(y)
    if not known.all():
        warnings.warn(
            f"{np.sum(~known)} of {len(y)} rows have no outcome {_name(result)!r} and are left out",
            stacklevel=2,
        )
    return FederatedData.from_arrays(
        x[known],
        y[known],
        owner[known],
        features=[_name(feature) for feature in chosen],
        classes=classes,
        allow_missing=True,
    )


def _name(coded: Coded) -> str:
    return coded if isinstance(coded, str) else "=".join(coded)


def _coded(text: "pandas.DataFrame", name: str, source: frames.Source) -> Coded:
    """A column, or an indicator, as a user names it."""
    column, equals, value = name.partition("=")
    found = _found(text, column, source)
    if not equals:
        return found
    levels = sorted(set(text[found].dropna().str.removesuffix(".0")))  # some files write 4.0
    if value not in levels:
        raise ValueError(
            f"{source.name}: column {found!r} has no value {value!r}; its values are "
            f"{', '.join(levels[:10])}{', ...' if len(levels) > 10 else ''}"
        )
    return found, value


def _found(text: "pandas.DataFrame", name: str, source: frames.Source) -> str:
    """The column of a name, in whatever case it is written."""
    alike = [column for column in text.columns if column.casefold() == name.casefold()]
    if name in alike or len(alike) != 1:
        frames.check_columns(text, [name], source)
        return name
    return alike[0]


def _column(
    text: "pandas.DataFrame", coded: Coded, source: frames.Source, gaps: Mapping[str, int | float]
) -> np.ndarray:
    if isinstance(coded, str):
        values = frames.numbers(text, coded, source)
        return np.where(values == gaps[coded], np.nan, values) if coded in gaps else values
    column, value = coded
    frames.owners(text, column, source)  # an indicator needs a value in every row
    return (text[column].str.removesuffix(".0") == value).to_numpy(np.float64)


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
