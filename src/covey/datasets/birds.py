"""Counts of birds by volunteers: observed cells of a matrix of sites by years or species.

Each observer is a client. A row is an observation: x = (index of the site, index of the column),
sites in sorted order; the outcome is the count. Files are read from `COVEY_DATA_DIR`.
"""

from typing import TYPE_CHECKING

import numpy as np

from covey.data.federated import FederatedData
from covey.datasets import sources

if TYPE_CHECKING:
    import pandas

WOODPECKER_YEARS = range(2004, 2018)
WREN_YEARS = range(1968, 2025)


def green_woodpecker() -> FederatedData:
    """Green Woodpeckers in Swiss quadrats, 2004 to 2017.

    Returns:
        One row per quadrat and year that was visited by a known observer: the largest count of the
        year's visits. Columns of the matrix are years.

    Example:
        >>> green_woodpecker().clients  # doctest: +SKIP
        437
    """
    table = _read(
        "green_woodpecker_wide.csv.gz", "the table `greenWoodpecker` of the R package AHMbook"
    )
    parts = []
    for column, year in enumerate(WOODPECKER_YEARS):
        most = table[[f"X{year}.{visit}.count" for visit in (1, 2, 3)]].max(axis=1).to_numpy()
        observer = table[f"X{year}.observer"].to_numpy()
        site = np.flatnonzero(~np.isnan(most) & ~np.isnan(observer))
        parts.append(
            np.stack([site, np.full(len(site), column), most[site], observer[site]], axis=1)
        )
    cells = np.concatenate(parts).astype(np.int64)
    return FederatedData.from_arrays(cells[:, :2], cells[:, 2], cells[:, 3])


def pacific_wren() -> FederatedData:
    """Pacific Wrens along routes of the North American Breeding Bird Survey, 1968 to 2024.

    Returns:
        One row per route and year with a count; there are no counts of zero. Columns of the matrix
        are years.

    Example:
        >>> pacific_wren().clients  # doctest: +SKIP
        683
    """
    table = _read(
        "bbs_pacific_wren.csv.gz", "the table `bbs_data_sample` of the R package bbsBayes2"
    )
    cells = np.stack([_codes(table, "site"), table["year"].to_numpy() - WREN_YEARS[0]], axis=1)
    return FederatedData.from_arrays(
        cells, table["species_total"].to_numpy(), table["obs_n"].to_numpy()
    )


def swiss_birds() -> FederatedData:
    """Birds of 158 species in Swiss quadrats, 2014.

    Returns:
        One row per quadrat and species: the largest count of the visits. Columns of the matrix are
        species, in alphabetical order.

    Example:
        >>> swiss_birds().clients  # doctest: +SKIP
        191
    """
    table = _read(
        "mhb2014_long.csv.gz", "the array `MHB2014` of the R package AHMbook, as a long table"
    )
    visits = table.dropna(subset=["count", "observer"])
    most = visits.groupby(["site", "species"], as_index=False).agg(
        count=("count", "max"), observer=("observer", "first")
    )
    cells = np.stack([_codes(most, "site"), _codes(most, "species")], axis=1)
    return FederatedData.from_arrays(
        cells, most["count"].to_numpy(), most["observer"].to_numpy(np.int64)
    )


def _codes(table: "pandas.DataFrame", column: str) -> np.ndarray:
    return np.unique(table[column].to_numpy(str), return_inverse=True)[1]


def _read(file: str, origin: str) -> "pandas.DataFrame":
    import pandas

    path = sources.local(f"birds/{file}")
    if path is None:
        raise ValueError(
            f"birds/{file} was not found, and it is not bundled: set COVEY_DATA_DIR to a directory"
            f" that has it. It is {origin}"
        )
    return pandas.read_csv(path)
