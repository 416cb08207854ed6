"""Image data sets: rows of uint8 pixels (height, width, channels) and labels."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Shaped, UInt8

from covey.data import partition
from covey.data.federated import FederatedData
from covey.datasets import sources

OfficialSplit: TypeAlias = Literal["train", "test"]
Arrays: TypeAlias = dict[str, np.ndarray]


class ImageSet(NamedTuple):
    """The loader of an image data set.

    name: its name in errors and in the cache.
    classes: number of labels.
    local: reads a split (`x`, `y` and groups) from `COVEY_DATA_DIR`, None where it is not there.
    fetch: gets a split from the public source.
    by: the groups by which rows can be divided, the default first. The group "label" is the label.
    """

    name: str
    classes: int
    local: Callable[[OfficialSplit], Arrays | None]
    fetch: Callable[[OfficialSplit], Arrays]
    by: tuple[str, ...] = ("label",)


def load_images(
    images: ImageSet,
    *,
    split: Literal["train", "test", "all"] = "train",
    by: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    alpha: int | float | None = None,
    beta: int | float | None = None,
    classes: int | None = None,
    seed: int | None = None,
) -> FederatedData:
    """Load an image data set and divide its rows among clients.

    The clients are either groups in the data (`by`) or made at random (`partition`):

        partition     needs                          see `covey.data.partition`
        "iid"         clients, seed                  iid
        "dirichlet"   clients, alpha, seed           label_dirichlet
        "quantity"    clients, alpha, seed           quantity_skew
        "classes"     clients, classes, seed         classes_per_client
        "pachinko"    clients, alpha, beta, seed     pachinko, for CIFAR-100

    Args:
        images: The data set.
        split: Which rows of the official division to take. `FederatedData.split` divides the rows
            of each client afterwards.
        by: Group of the data that makes a client, such as "writer" or "digit". Default: the
            writer, where the data know it.
        partition: Division of the rows, if not by a group.
        clients: Number of clients of the partition.
        alpha: Concentration of the partition's shares; smaller values make clients more different.
        beta: Concentration of the shares of fine labels, for "pachinko".
        classes: Labels per client, for "classes".
        seed: Seed of the partition.

    Returns:
        The data.

    Example:
        >>> load_images(MNIST, partition="iid", clients=10, seed=1)  # doctest: +SKIP
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f"split={split!r}: choose 'train', 'test' or 'all'")
    given = {"clients": clients, "alpha": alpha, "beta": beta, "classes": classes, "seed": seed}
    options: dict[str, int | float] = {
        name: value for name, value in given.items() if value is not None
    }
    if by is None and partition is None:
        if images.by[0] == "label":
            raise ValueError(
                f"the data set {images.name} does not say who made an image: choose a partition,"
                " such as partition='dirichlet', clients=100, alpha=0.4, seed=0"
            )
        by = images.by[0]
    if by is not None:
        _check_by(images, by, partition, options)
    rows = _read(images, ("train", "test") if split == "all" else (split,))
    rows["label"] = rows["y"]
    if partition is not None:
        owner = _divide(images, partition, rows, options)
    elif by in rows:
        owner = rows[by]
    else:
        raise ValueError(
            f"the public source of {images.name} does not say the {by} of an image; set"
            f" COVEY_DATA_DIR to a directory that has the {by}s, or choose a partition, such as"
            " partition='iid'"
        )
    return FederatedData.from_arrays(rows["x"], rows["y"], owner, classes=images.classes)


def _check_by(
    images: ImageSet, by: str, partition: str | None, options: dict[str, int | float]
) -> None:
    if partition is not None:
        raise ValueError(f"by={by!r} and partition={partition!r} were both given; choose one")
    if by not in images.by:
        raise ValueError(
            f"{images.name} cannot be divided by {by!r}; `by` can be {', '.join(images.by)}"
        )
    if options:
        raise ValueError(
            f"by={by!r} takes its clients from the data; leave out {', '.join(options)}, or choose"
            " a partition"
        )


def _divide(
    images: ImageSet, name: str, rows: Arrays, options: dict[str, int | float]
) -> np.ndarray:
    y = rows["y"].astype(np.int64)
    ways = {
        "iid": (partial(partition.iid, len(y)), ("clients", "seed")),
        "dirichlet": (partial(partition.label_dirichlet, y), ("clients", "alpha", "seed")),
        "quantity": (partial(partition.quantity_skew, len(y)), ("clients", "alpha", "seed")),
        "classes": (partial(partition.classes_per_client, y), ("clients", "classes", "seed")),
    }
    if "coarse" in rows:
        coarse = rows["coarse"].astype(np.int64)
        ways["pachinko"] = (
            partial(partition.pachinko, y, coarse),
            ("clients", "alpha", "beta", "seed"),
        )
    if name not in ways:
        raise ValueError(
            f"{images.name} has no partition {name!r}; choose one of {', '.join(ways)}"
        )
    way, needs = ways[name]
    if set(options) != set(needs):
        raise ValueError(
            f"partition={name!r} needs {', '.join(needs)}, and nothing else; got"
            f" {', '.join(options) or 'none'}"
        )
    return way(**options)


def _read(images: ImageSet, splits: tuple[OfficialSplit, ...]) -> Arrays:
    found = {split: rows for split in splits if (rows := images.local(split)) is not None}
    if found and len(found) < len(splits):
        # Local files may be another division of the images than the public source's: rows could be
        # in both.
        raise ValueError(
            f"COVEY_DATA_DIR has only the {next(iter(found))} split of {images.name}; choose that"
            " split, or unset it"
        )
    every = [
        found[split]
        if split in found
        else sources.cached(f"{images.name}-{split}", partial(images.fetch, split))
        for split in splits
    ]
    return {key: np.concatenate([rows[key] for rows in every]) for key in every[0]}


def decoded(
    coded: UInt8[np.ndarray, "rows 3 height width"],
) -> UInt8[np.ndarray, "rows height width 3"]:
    """RGB images from the lossless residual coding of the stored files.

    Red and blue are stored as differences from green, and every channel as its differences along
    rows and columns, modulo 256.

    Args:
        coded: The coded images, channels first.

    Returns:
        The images, channels last.

    Example:
        >>> decoded(np.ones((1, 3, 1, 2), np.uint8))[0, 0].tolist()
        [[2, 1, 2], [4, 2, 4]]
    """
    channels = np.cumsum(np.cumsum(coded, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    channels[:, 0] += channels[:, 1]
    channels[:, 2] += channels[:, 1]
    return channels.transpose(0, 2, 3, 1)


def from_hub(
    name: str,
    wanted: str,
    repository: str,
    columns: dict[str, str],
    split: OfficialSplit,
    *,
    configuration: str | None = None,
) -> Arrays:
    """Fetch a split of a Hugging Face data set.

    Args:
        name: Name of the data set in errors.
        wanted: The files that would be read from COVEY_DATA_DIR, for errors.
        repository: The repository on Hugging Face.
        columns: Which column becomes which array, images first.
        split: The split of the official division.
        configuration: Configuration of the repository, where it has several.

    Returns:
        The arrays.

    Example:
        >>> columns = {"x": "image", "y": "label"}
        >>> from_hub("mnist", "mnist.npz", "ylecun/mnist", columns, "test")  # doctest: +SKIP
    """
    library = sources.hugging_face(name, wanted)
    table = library.load_dataset(repository, configuration, split=split)
    image, *others = columns
    first = np.asarray(table[0][columns[image]])
    x = np.empty((len(table), *first.shape), np.uint8)
    for index, picture in enumerate(table[columns[image]]):
        x[index] = np.asarray(picture)
    return {image: _with_channel(x), **{key: np.asarray(table[columns[key]]) for key in others}}


def _with_channel(
    x: Shaped[np.ndarray, "rows height width *channel"],
) -> Shaped[np.ndarray, "rows height width channels"]:
    return x[..., None] if x.ndim == 3 else x


def _npz(name: str, split: OfficialSplit) -> Arrays | None:
    path = sources.local(name)
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as stored:
        if f"x_{split}" not in stored.files:
            return None
        return {"x": _with_channel(stored[f"x_{split}"]), "y": stored[f"y_{split}"]}


def _mnist(split: OfficialSplit) -> Arrays | None:
    rows = _npz("mnist/mnist.npz", split)
    if rows is None:
        return None
    rows["digit"] = rows["y"]
    path = sources.local("mnist/mnist_writers.npz")
    if path is not None:
        with np.load(path, allow_pickle=False) as stored:
            rows["writer"] = stored[f"writer_{split}"]
    return rows


def _fetch_mnist(split: OfficialSplit) -> Arrays:
    rows = from_hub("mnist", "mnist/mnist.npz", "ylecun/mnist", {"x": "image", "y": "label"}, split)
    return {**rows, "digit": rows["y"]}


def _cifar10(split: OfficialSplit) -> Arrays | None:
    files = ["test"] if split == "test" else [f"train_{batch}" for batch in range(5)]
    paths = [
        path
        for path in (sources.local(f"cifar10/cifar10_{file}.npz") for file in files)
        if path is not None
    ]
    if not paths:
        return None
    batches = [np.load(path, allow_pickle=False) for path in paths]
    return {
        "x": np.concatenate([decoded(batch["x_coded"]) for batch in batches]),
        "y": np.concatenate([batch["y"] for batch in batches]),
    }


def _cifar100(split: OfficialSplit) -> Arrays | None:
    path = sources.local(f"cifar100/cifar100_subset_{split}.npz")
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as stored:
        return {
            "x": decoded(stored["x_coded"]),
            "y": stored["y_fine"],
            "coarse": stored["y_coarse"],
        }


def _svhn(split: OfficialSplit) -> Arrays | None:
    path = sources.local("svhn/svhn_test_5000.npz") if split == "test" else None
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as stored:
        return {"x": decoded(stored["x_coded"]), "y": stored["y"]}


def _hub(
    name: str,
    wanted: str,
    repository: str,
    columns: dict[str, str],
    configuration: str | None = None,
) -> Callable[[OfficialSplit], Arrays]:
    return partial(from_hub, name, wanted, repository, columns, configuration=configuration)


_PLAIN = {"x": "image", "y": "label"}
MNIST = ImageSet("mnist", 10, _mnist, _fetch_mnist, ("writer", "digit"))
FASHION_MNIST = ImageSet(
    "fashion_mnist",
    10,
    partial(_npz, "fashion_mnist/fashion_mnist.npz"),
    _hub(
        "fashion_mnist", "fashion_mnist/fashion_mnist.npz", "zalando-datasets/fashion_mnist", _PLAIN
    ),
)
NOTMNIST = ImageSet(
    "notmnist",
    10,
    partial(_npz, "notmnist/notmnist_10k.npz"),
    _hub("notmnist", "notmnist/notmnist_10k.npz (split='test')", "anubhavmaity/notMNIST", _PLAIN),
)
CIFAR10 = ImageSet(
    "cifar10",
    10,
    _cifar10,
    _hub(
        "cifar10", "cifar10/cifar10_train_0.npz, ...", "uoft-cs/cifar10", {"x": "img", "y": "label"}
    ),
)
CIFAR100 = ImageSet(
    "cifar100",
    100,
    _cifar100,
    _hub(
        "cifar100",
        "cifar100/cifar100_subset_train.npz",
        "uoft-cs/cifar100",
        {"x": "img", "y": "fine_label", "coarse": "coarse_label"},
    ),
    ("label", "coarse"),
)
SVHN = ImageSet(
    "svhn",
    10,
    _svhn,
    _hub(
        "svhn",
        "svhn/svhn_test_5000.npz (split='test')",
        "ufldl-stanford/svhn",
        _PLAIN,
        configuration="cropped_digits",
    ),
)
