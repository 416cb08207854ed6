"""The data sets by name."""

import difflib
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from covey.data.federated import FederatedData
from covey.datasets import birds, tables
from covey.datasets.handwriting import FEMNIST, emnist
from covey.datasets.images import (
    CIFAR10,
    CIFAR100,
    FASHION_MNIST,
    MNIST,
    NOTMNIST,
    SVHN,
    load_images,
)
from covey.datasets.shakespeare import shakespeare
from covey.datasets.tables import load_table


class Loader(NamedTuple):
    """The loader of a data set, and its description.

    load: makes the data; its keyword-only arguments are the options of `covey.load`.
    description: one line that says first how many clients there are.
    licence: terms of the data.
    source: who made the data, and where they come from.
    """

    load: Callable[..., FederatedData]
    description: str
    licence: str
    source: str


def load(name: str, **options: str | int | float | Sequence[str]) -> FederatedData:
    """Load a data set by its name.

    Files are read from the folder that the environment variable COVEY_DATA_DIR names, or else
    fetched from their public source and cached. All rows are training rows: `FederatedData.split`
    divides them.

    Args:
        name: Name of the data set; `covey list data` shows them all.
        **options: Options of the data set, such as `partition`, `clients` and `seed` for images;
            for tables `client`, `features` and `outcome`, which choose other columns of the file
            (`column=value` is an indicator).

    Returns:
        The data.

    Example:
        >>> data = load("heart_disease")
        >>> data.clients, data.counts("train").tolist(), data.features[:3]
        (4, [303, 294, 123, 200], ('age', 'sex', 'cp'))
        >>> load("heart_disease", client="sex", features=["age", "cp=4"]).features
        ('age', 'cp=4')
    """
    if name not in LOADERS:
        near = difflib.get_close_matches(name, LOADERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no data set {name!r}; {hint}known are {', '.join(LOADERS)}")
    loader = LOADERS[name].load
    known = [
        key
        for key, value in inspect.signature(loader).parameters.items()
        if value.kind is value.KEYWORD_ONLY
    ]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(
            f"data set {name!r} has no option {unknown[0]!r}; its options are:"
            f" {', '.join(known) or 'none'}"
        )
    return loader(**options)


_GPL = "GPL-3 (R package), not bundled"

LOADERS: dict[str, Loader] = {
    "heart_disease": Loader(
        partial(load_table, tables.HEART_DISEASE),
        "4 hospitals, 920 patients; outcome heart disease (2 classes); 13 features with gaps,"
        " cholesterol or pressure 0 is a gap",
        "CC BY 4.0",
        "UCI Machine Learning Repository, data set 45",
    ),
    "mnist": Loader(
        partial(load_images, MNIST),
        "539 writers (297 others in split='test') or a partition; 60,000 + 10,000 digits, 28 x 28",
        "commonly cited as CC BY-SA 3.0; writers: BSD-style",
        "LeCun, Cortes & Burges; writers from QMNIST; Hugging Face ylecun/mnist",
    ),
    "fashion_mnist": Loader(
        partial(load_images, FASHION_MNIST),
        "clients by partition; 60,000 + 10,000 pictures of clothes, 28 x 28, 10 classes",
        "MIT",
        "Zalando; Hugging Face zalando-datasets/fashion_mnist",
    ),
    "cifar10": Loader(
        partial(load_images, CIFAR10),
        "clients by partition; 50,000 + 10,000 photographs, 32 x 32 x 3, 10 classes;"
        " COVEY_DATA_DIR: batches found, e.g. 3 of 5",
        "none stated",
        "Krizhevsky 2009; Hugging Face uoft-cs/cifar10",
    ),
    "cifar100": Loader(
        partial(load_images, CIFAR100),
        "clients by partition; 50,000 + 10,000 photographs, 100 classes in 20 groups;"
        " COVEY_DATA_DIR: 10,000 + 2,000 of them",
        "none stated",
        "Krizhevsky 2009; Hugging Face uoft-cs/cifar100",
    ),
    "svhn": Loader(
        partial(load_images, SVHN, split="test"),
        "clients by partition; 73,257 + 26,032 house numbers, 32 x 32 x 3, 10 classes;"
        " COVEY_DATA_DIR: 5,000 of the 26,032",
        "non-commercial use only",
        "Netzer et al. 2011; Hugging Face ufldl-stanford/svhn",
    ),
    "notmnist": Loader(
        partial(load_images, NOTMNIST, split="test"),
        "clients by partition; 14,979 + 3,745 letters A-J of many fonts, 28 x 28, 10 classes;"
        " COVEY_DATA_DIR: 10,000, test only",
        "none stated; posted with the author's permission",
        "Bulatov 2011; Hugging Face anubhavmaity/notMNIST",
    ),
    "emnist": Loader(
        emnist,
        "clients by partition; 697,932 + 116,323 handwritten characters, 28 x 28, 62 classes;"
        " subset= chooses one of five others",
        "not stated by NIST; mirrors differ",
        "Cohen et al. 2017; Hugging Face Royc30ne/emnist-*",
    ),
    "femnist": Loader(
        partial(load_images, FEMNIST),
        "3,597 writers, 814,277 handwritten characters, 28 x 28, dark on white, 62 classes;"
        " COVEY_DATA_DIR: LEAF's JSON files",
        "BSD 2-Clause",
        "LEAF (Caldas et al. 2018); Hugging Face flwrlabs/femnist",
    ),
    "shakespeare": Loader(
        shakespeare,
        "438 speaking roles of at least 2,000 characters; the character after 80 others"
        " (81 classes); public source: LEAF",
        "public domain; LEAF: BSD 2-Clause",
        "Project Gutenberg; Hugging Face flwrlabs/shakespeare (LEAF)",
    ),
    "radon": Loader(
        partial(load_table, tables.RADON),
        "85 counties of Minnesota, 919 homes; outcome log_radon; features floor, log_uranium",
        _GPL,
        "R package rstanarm",
    ),
    "radon_us": Loader(
        partial(load_table, tables.RADON_US),
        "386 counties of the United States, 12,573 homes; outcome log_radon; features floor"
        " (with 284 gaps), log_uranium",
        "not stated for the data; not bundled",
        "State Residential Radon Survey (US EPA), as in posteriordb, radon_all",
    ),
    "sleepstudy": Loader(
        partial(load_table, tables.SLEEPSTUDY),
        "18 subjects, 180 days; outcome reaction time in ms; feature days without sleep",
        _GPL,
        "R package lme4",
    ),
    "eight_schools": Loader(
        partial(load_table, tables.EIGHT_SCHOOLS),
        "8 schools, one row each; outcome the estimated effect; feature its known standard error",
        "published numbers",
        "Rubin 1981",
    ),
    "exam": Loader(
        partial(load_table, tables.EXAM),
        "65 London schools, 4,059 pupils; outcome exam score; features intake, girl, mean intake,"
        " boys' school, girls' school",
        _GPL,
        "R package mlmRev, Exam",
    ),
    "contraception": Loader(
        partial(load_table, tables.CONTRACEPTION),
        "60 districts of Bangladesh, 1,934 women; outcome use (2 classes); features centred age,"
        " urban, 1, 2, 3+ living children",
        _GPL,
        "R package mlmRev, Contraception",
    ),
    "grouseticks": Loader(
        partial(load_table, tables.GROUSETICKS),
        "63 locations, 403 grouse chicks; outcome number of ticks; features centred height,"
        " year 96, year 97; other columns: BROOD, INDEX, HEIGHT",
        _GPL,
        "R package lme4",
    ),
    "cbpp": Loader(
        partial(load_table, tables.CBPP),
        "15 herds of zebu, 56 rows; outcome new cases of disease; features herd size"
        " (the binomial total), periods 2, 3, 4",
        _GPL,
        "R package lme4",
    ),
    "inst_eval": Loader(
        partial(load_table, tables.INST_EVAL),
        "1,128 lecturers, 73,421 ratings; outcome rating 1 to 5; features age of student,"
        " age of lecture, service lecture",
        _GPL,
        "R package lme4, InstEval",
    ),
    "gu_immun": Loader(
        partial(load_table, tables.GU_IMMUN),
        "161 communities of Guatemala, 2,159 children; outcome immunised (2 classes);"
        " 14 indicators, share of indigenous people",
        _GPL,
        "R package mlmRev, guImmun",
    ),
    "green_woodpecker": Loader(
        birds.green_woodpecker,
        "437 observers, 3,699 counts of Green Woodpeckers in 267 Swiss quadrats and 14 years,"
        " 2004 to 2017; cells of a matrix",
        "GPL-3 (R package), not bundled; data of the Swiss Ornithological Institute",
        "R package AHMbook, greenWoodpecker",
    ),
    "pacific_wren": Loader(
        birds.pacific_wren,
        "683 observers, 5,480 counts of Pacific Wrens along 393 routes in 57 years, 1968 to 2024,"
        " no zeros; cells of a matrix",
        "MIT (R package), not bundled; data of the USGS",
        "R package bbsBayes2; North American Breeding Bird Survey, doi 10.5066/P14SNUV4",
    ),
    "swiss_birds": Loader(
        birds.swiss_birds,
        "191 observers, 42,028 counts of 158 species in 266 Swiss quadrats, 2014;"
        " cells of a matrix",
        "GPL-3 (R package), not bundled; data of the Swiss Ornithological Institute",
        "R package AHMbook, MHB2014",
    ),
}
