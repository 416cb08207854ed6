"""A method of a configuration at a site: the site's description of its columns, and its rows.

Features are numbers, in the order that the study names; the outcome is a number or, with
`classes`, a label 0, 1, ... Missing features are allowed where the study standardises, which fills
them by the mean over all sites.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from covey.data.federated import FederatedData
from covey.data.scaling import Scaling, Sums, of_sums, sums
from covey.deploy.plain_values import checked
from covey.deploy.plan import BadAnswerError
from covey.deploy.policy import check_rows
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.site_table import mistakes_kept
from covey.deploy.study import Study
from covey.fitting.expressions import nearest
from covey.fitting.tables import Table, column


class Said(NamedTuple):
    """A site's description of its columns before the first round. Plain values only.

    Attributes:
        site: The site.
        absent: Columns that the study needs and the table lacks, with a hint at a similar name.
        kinds: For each column, "number", "text" or "empty".
        sums: For standardising, by feature: observed training values, their sum, and that of
            their squares; and the resolution of the rows. None where nothing is standardised.
    """

    site: str
    absent: dict[str, str]
    kinds: dict[str, str]
    sums: tuple[list[int], list[float], list[float], float] | None


class _Scaled(NamedTuple):
    mean: list[float]
    scale: list[float]


def described(site: SiteFile, study: Study, table: Table, position: int) -> dict[str, Any]:
    """The site's description of its columns.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study.
        table: The site's table.
        position: The site's index among those of the study, which its splits are drawn with.

    Raises:
        DeclinedError: The table cannot be used, or has too few rows.
    """
    check_batches(site, study)
    columns = study.tables["columns"]
    names = [*columns["features"], columns["outcome"]]
    absent = {
        name: nearest(name, list(table.frame.columns)) for name in names if name not in table.frame
    }
    with mistakes_kept(table, names):
        there = {name: column(table, name) for name in names if name not in absent}
    kinds = {name: one.kind for name, one in there.items()}
    said = Said(site.name, absent, kinds, None)
    if absent or set(kinds.values()) != {"number"}:
        return said._asdict()
    data = data_of(site, study, table, position)
    check_rows(site, int(data.counts("train").sum()))
    if columns["standardise"]:
        found = _sums(data)
        lists = (found.count.tolist(), found.total.tolist(), found.squares.tolist())
        said = said._replace(sums=(*lists, found.resolution))
    return said._asdict()


def check_batches(site: SiteFile, study: Study) -> None:
    """A refusal of batches of a few rows: a step on one of them would be sent, e.g. a gradient of
    one row, or a change that a large step size makes of the last one.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study.
    """
    least, options = site.limits.min_count, study.tables["method"]
    for name, size in options.items():
        if name.endswith("batch_size") and type(size) is int and size < least:
            raise DeclinedError(
                "rows",
                f"method.{name} is {size}, and {site.name} computes nothing of fewer than {least} "
                "rows; use larger batches, or none",
            )


def data_of(
    site: SiteFile, study: Study, table: Table, position: int, scaling: Scaling | None = None
) -> FederatedData:
    """The site's rows as the data of one client, in their splits.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study.
        table: The site's table.
        position: The site's index among those of the study.
        scaling: Means and scales of all sites; None leaves features as they are.

    Raises:
        DeclinedError: The table cannot be used.
    """
    columns = study.tables["columns"]
    with mistakes_kept(table, [*columns["features"], columns["outcome"]]):
        values = {name: column(table, name).values for name in columns["features"]}
        outcome = column(table, columns["outcome"]).values
        x = np.column_stack([np.asarray(one, float) for one in values.values()])
        y = np.asarray(outcome, float)
        filled = columns["features"] if columns["standardise"] else ()
        for name, one in (values | {columns["outcome"]: y}).items():
            if name not in filled:
                _need_all(site, table, name, one)
        _check_labels(site, table, columns, y)
        data = FederatedData.from_clients(
            {site.name: (x, y)},
            features=columns["features"],
            classes=columns.get("classes"),
            allow_missing=columns["standardise"],
        )
        data = replace(data, ids=np.array([position], np.int64))
        if columns["validation"] or columns["test"]:
            shares = columns["validation"], columns["test"]
            data = data.split(*shares, seed=study.seed)
        return data if scaling is None else data.standardised(scaling=scaling)[0]


def _need_all(site: SiteFile, table: Table, name: str, values: np.ndarray) -> None:
    """A refusal for missing values that nothing fills."""
    gaps = np.isnan(np.asarray(values, float))
    if gaps.any():
        raise DeclinedError(
            "table",
            f"the column {name!r} of the table of {site.name!r} has missing values; fill them "
            "there, leave the rows out, or, for features, let the study standardise",
            f"{table.row(int(np.argmax(gaps)))}: {name!r} is missing; {int(gaps.sum())} are in all",
        )


def _check_labels(site: SiteFile, table: Table, columns: dict[str, Any], y: np.ndarray) -> None:
    """A refusal for an outcome that is no label, where the study counts labels."""
    classes = columns.get("classes")
    if classes is None:
        return
    wrong = ~np.isin(y, np.arange(classes))
    if wrong.any():
        at, name = int(np.argmax(wrong)), columns["outcome"]
        raise DeclinedError(
            "table",
            f"the outcome {name!r} of the table of {site.name!r} has values other than the labels "
            f"0 to {classes - 1}",
            f"{table.row(at)}: {name!r} is {y[at]:g}, and labels are 0 to {classes - 1}",
        )


def _sums(data: FederatedData) -> Sums:
    start, end, *_ = data.bounds[0]
    is_train = np.zeros(len(np.asarray(data.rows.y)), bool)
    is_train[start:end] = True
    return sums(np.asarray(data.rows.x), is_train)


def check_said(study: Study, said: Mapping[str, Said]) -> None:
    """An error where sites' columns do not fit the study; it names site and column.

    Args:
        study: The study.
        said: The description from each site.

    Raises:
        ValueError: A column is missing, or has no numbers.
    """
    for site, one in said.items():
        for name, hint in one.absent.items():
            raise ValueError(
                f"the table of {site!r} lacks the column {name!r}{hint}; add it there, or leave "
                "the column or the site out of the study"
            )
        for name, kind in one.kinds.items():
            if kind != "number":
                what = "words" if kind == "text" else "no value at all"
                raise ValueError(
                    f"column {name!r} of {site!r} has {what}, and the study needs numbers; code "
                    "it as numbers in the same way everywhere, or fit a formula"
                )


def scaling_of(study: Study, said: Mapping[str, Said]) -> Scaling | None:
    """Means and scales over all sites; None where the study does not standardise.

    Args:
        study: The study.
        said: The description from each site.
    """
    columns = study.tables["columns"]
    if not columns["standardise"]:
        return None
    total: Sums | None = None
    for one in said.values():
        assert one.sums is not None
        count, first, second, resolution = one.sums
        found = Sums(np.asarray(count), np.asarray(first), np.asarray(second), resolution)
        total = found if total is None else total + found
    assert total is not None
    return of_sums(total, columns["features"])


def said_of(study: Study, site: str, content: Any) -> Said:
    """The description that a site has sent, checked.

    Args:
        study: The study.
        site: The site's name.
        content: Plain values.

    Raises:
        BadAnswerError: They are not what a site says of columns for this study.
    """
    try:
        said = checked(Said, content)
    except ValueError as error:
        raise BadAnswerError(site, f"says of its columns what is not known: {error}") from None
    columns = study.tables["columns"]
    needed, known = {*columns["features"], columns["outcome"]}, {*said.kinds, *said.absent}
    if needed != known or not set(said.kinds.values()) <= {"number", "text", "empty"}:
        raise BadAnswerError(site, "speaks of other columns than those of the study")
    usable = not said.absent and set(said.kinds.values()) == {"number"}
    if not usable or not columns["standardise"]:
        return said
    if said.sums is None:
        raise BadAnswerError(site, "gives no sums of its features, which the study scales")
    count, first, second, resolution = map(np.asarray, said.sums)
    of_all = all(one.shape == (len(columns["features"]),) for one in (count, first, second))
    if not of_all or resolution < 0 or not np.all((count >= 0) & (second >= 0)):
        raise BadAnswerError(site, "gives sums of its features that no rows have")
    # The sum of n values is at most the root of n times that of their squares; and rounding.
    if not np.all(np.abs(first) <= np.sqrt(count * second) * (1 + 1e-3) + 1e-6):
        raise BadAnswerError(site, "gives sums of its features that no rows have")
    return said


def scaling_to_json(scaling: Scaling | None) -> dict[str, Any] | None:
    """A scaling as plain values.

    Args:
        scaling: The scaling.
    """
    if scaling is None:
        return None
    return {"mean": scaling.mean.tolist(), "scale": scaling.scale.tolist()}


def scaling_from_json(study: Study, content: Any) -> Scaling | None:
    """The scaling that a server has sent.

    Args:
        study: The study.
        content: Plain values.

    Raises:
        DeclinedError: It does not fit the study.
    """
    columns = study.tables["columns"]
    if (content is None) == columns["standardise"]:
        raise DeclinedError("message", "a scaling was sent where the study asks for none, or none")
    if content is None:
        return None
    names = tuple(columns["features"])
    try:
        given = checked(_Scaled, content)
    except ValueError:
        raise DeclinedError("message", "the scaling cannot be read") from None
    mean, scale = np.asarray(given.mean), np.asarray(given.scale)
    if mean.shape != (len(names),) or scale.shape != mean.shape or not np.all(scale > 0):
        raise DeclinedError("message", "the scaling does not fit the study's features")
    return Scaling(mean, scale, names)
