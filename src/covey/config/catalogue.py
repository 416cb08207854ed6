"""Everything that a configuration can name, as plain tables from name to factory."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from covey.algorithms.apfl import apfl
from covey.algorithms.clustered import clustered
from covey.algorithms.dg_lmc import dg_lmc
from covey.algorithms.ditto import ditto
from covey.algorithms.em import em
from covey.algorithms.fald import fald
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedavg_plus import fedavg_plus
from covey.algorithms.fedbe import fedbe
from covey.algorithms.fedem import fedem
from covey.algorithms.fedmissem import fedmissem
from covey.algorithms.fedpa import fedpa
from covey.algorithms.fedper import fedper
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedprox import fedprox
from covey.algorithms.fedrep import fedrep
from covey.algorithms.fsgld import fsgld
from covey.algorithms.l2gd import l2gd
from covey.algorithms.lg_fedavg import lg_fedavg
from covey.algorithms.local import local
from covey.algorithms.marginal import marginal
from covey.algorithms.mb_sgd import mb_sgd
from covey.algorithms.mime import mime
from covey.algorithms.mimelite import mimelite
from covey.algorithms.mixture import mixture
from covey.algorithms.mocha import mocha
from covey.algorithms.per_fedavg import per_fedavg
from covey.algorithms.pfedme import pfedme
from covey.algorithms.qlsd import qlsd
from covey.algorithms.qlsd_plus import qlsd_plus
from covey.algorithms.scaffold import scaffold
from covey.algorithms.vr_fedem import vr_fedem
from covey.channel import CHANNELS as CODECS
from covey.config.options import Factory
from covey.core import cohort
from covey.data import FederatedData
from covey.datasets import LOADERS, Loader
from covey.models import LATENT_MODELS, MATRIX_MODELS, MIXED_MODELS
from covey.models import MODELS as PLAIN_MODELS
from covey.topology import TOPOLOGIES as GRAPHS
from covey.topology import Topology, custom
from covey.topology.mixing import Weights

MODELS: dict[str, Factory] = {**PLAIN_MODELS, **MIXED_MODELS, **LATENT_MODELS, **MATRIX_MODELS}

METHODS: dict[str, Factory] = {
    "em": em,
    "apfl": apfl,
    "fald": fald,
    "fedavg": fedavg,
    "fedavg_plus": fedavg_plus,
    "fedper": fedper,
    "fedem": fedem,
    "fedmissem": fedmissem,
    "fedpa": fedpa,
    "fedpop": fedpop,
    "fedprox": fedprox,
    "fedrep": fedrep,
    "local": local,
    "marginal": marginal,
    "mb_sgd": mb_sgd,
    "mixture": mixture,
    "clustered": clustered,
    "pfedme": pfedme,
    "vr_fedem": vr_fedem,
    "scaffold": scaffold,
    "mime": mime,
    "mimelite": mimelite,
    "ditto": ditto,
    "l2gd": l2gd,
    "per_fedavg": per_fedavg,
    "lg_fedavg": lg_fedavg,
    "mocha": mocha,
    "qlsd": qlsd,
    "qlsd_plus": qlsd_plus,
    "fsgld": fsgld,
    "fedbe": fedbe,
    "dg_lmc": dg_lmc,
}


def trace(path: Path, *, size: int | None = None) -> cohort.Scheme:
    """Clients present by a CSV file of 0 and 1: one row per client, one column per round.

    Args:
        path: The file.
        size: Clients to draw per round, before those that are away are left out. Default: all.

    Returns:
        The sampler of the clients of a round.
    """
    try:
        available = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"cohort.path: {path} is not a table of 0 and 1 separated by commas: {error}"
        ) from error
    if not np.isin(available, (0, 1)).all():
        raise ValueError(f"cohort.path: {path} has values other than 0 and 1")
    return cohort.trace(available.astype(bool), None if size is None else cohort.uniform(size))


COHORTS: dict[str, Factory] = {
    "full": cohort.full,
    "bernoulli": cohort.bernoulli,
    "uniform": cohort.uniform,
    "weighted": cohort.weighted,
    "trace": trace,
}

CHANNELS: dict[str, Factory] = dict(CODECS)


def edges(path: Path, *, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """The graph of a CSV file with one pair of peers per row, counted from 0."""
    return custom(path, weights=weights, gossip_steps=gossip_steps)


TOPOLOGIES: dict[str, Factory] = {**GRAPHS, "edges": edges}


def table(
    path: Path,
    *,
    outcome: str,
    client: str,
    clients: list[str] | None = None,
    features: list[str] | None = None,
    split_column: str | None = None,
    classes: int | None = None,
    allow_missing: bool = False,
) -> FederatedData:
    """A CSV file with the rows of all clients; see `FederatedData.from_table`.

    Args:
        path: The file, UTF-8 text with a header.
        outcome: Name of the outcome's column.
        client: Name of the column with the client that owns each row.
        clients: Names of all clients, also of those without rows. Default: those in the file.
        features: Names of the feature columns. Default: all other columns.
        split_column: Name of the column with the split of each row, "train", "validation" or
            "test". Default: all are training rows.
        classes: Number of labels 0, 1, ...; leave it out for a numeric outcome.
        allow_missing: Whether features may be missing; `standardise = true` fills them.

    Returns:
        The data.
    """
    return FederatedData.from_table(
        path,
        outcome=outcome,
        client=client,
        clients=clients,
        features=features,
        split_column=split_column,
        classes=classes,
        allow_missing=allow_missing,
    )


def saved(path: Path, *, memory_map: bool = True) -> FederatedData:
    """Data that `FederatedData.save` wrote.

    Args:
        path: The directory.
        memory_map: Whether rows stay on disk until they are used.

    Returns:
        The data, with their splits and their scaling.
    """
    return FederatedData.open(path, memory_map=memory_map)


LOADED: dict[str, Loader] = {
    **LOADERS,
    "table": Loader(
        table,
        "your own CSV file: with one column that names the client of each row",
        "yours",
        "path",
    ),
    "saved": Loader(saved, "your own data, as FederatedData.save wrote them", "yours", "path"),
}

DATA: dict[str, Factory] = {name: loader.load for name, loader in LOADED.items()}


def described(named: Mapping[str, Factory]) -> dict[str, str]:
    """One line per name: a data set's description, or the first line of a factory's
    documentation.
    """
    return {
        name: LOADED[name].description
        if named is DATA
        else (factory.__doc__ or "").partition("\n")[0]
        for name, factory in named.items()
    }
