"""EMNIST and FEMNIST: handwritten characters of NIST Special Database 19."""

import gzip
import json
import struct
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from covey.data.federated import FederatedData
from covey.datasets import sources
from covey.datasets.images import Arrays, ImageSet, OfficialSplit, from_hub, load_images

_EMNIST_CLASSES = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}


def emnist(
    *,
    subset: str = "byclass",
    split: Literal["train", "test", "all"] = "train",
    by: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    alpha: int | float | None = None,
    classes: int | None = None,
    seed: int | None = None,
) -> FederatedData:
    """One of the six subsets of EMNIST, which differ in their labels.

    Args:
        subset: "byclass" (62 labels, the default), "bymerge" or "balanced" (47), "letters" (26),
            "digits" or "mnist" (10).
        split: Which rows of the official division to take; see `images.load_images`, also for the
            other arguments.
        by: "label", for one client per label.
        partition: Division of the rows among clients, such as "dirichlet".
        clients: Number of clients of a partition.
        alpha: Concentration of a partition's shares.
        classes: Labels per client of the partition "classes".
        seed: Seed of a partition.

    Returns:
        The data.

    Example:
        >>> emnist(subset="digits", partition="iid", clients=10, seed=1)  # doctest: +SKIP
    """
    if subset not in _EMNIST_CLASSES:
        raise ValueError(f"subset={subset!r}: EMNIST has {', '.join(_EMNIST_CLASSES)}")
    images = ImageSet(
        f"emnist-{subset}",
        _EMNIST_CLASSES[subset],
        partial(_emnist_local, subset),
        partial(_emnist_fetch, subset),
    )
    return load_images(
        images,
        split=split,
        by=by,
        partition=partition,
        clients=clients,
        alpha=alpha,
        classes=classes,
        seed=seed,
    )


def idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Read a gzipped IDX file of unsigned bytes: two zero bytes, type 8, rank, sizes, values.

    Args:
        path: The file.

    Returns:
        The array.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.gz"
        >>> _ = path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])))
        >>> idx(path).tolist()
        [7, 9]
    """
    with gzip.open(path, "rb") as file:
        content = file.read()
    zeros, kind, rank = struct.unpack_from(">HBB", content)
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    shape = struct.unpack_from(f">{rank}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(
            f"{path} should hold {shape} bytes and holds {values.size}; it was cut short"
        )
    return values.reshape(shape)


def _emnist_files(subset: str, split: OfficialSplit) -> tuple[str, str]:
    return (
        f"emnist-{subset}-{split}-images-idx3-ubyte.gz",
        f"emnist-{subset}-{split}-labels-idx1-ubyte.gz",
    )


def _emnist_local(subset: str, split: OfficialSplit) -> Arrays | None:
    images, labels = (sources.local(f"emnist/{file}") for file in _emnist_files(subset, split))
    return None if images is None or labels is None else _emnist_arrays(subset, images, labels)


def _emnist_fetch(subset: str, split: OfficialSplit) -> Arrays:
    files = _emnist_files(subset, split)
    hub = sources.hugging_face(
        "emnist", " and ".join(f"emnist/{file}" for file in files), "huggingface_hub"
    )
    images, labels = (
        Path(hub.hf_hub_download(f"Royc30ne/emnist-{subset}", file, repo_type="dataset"))
        for file in files
    )
    return _emnist_arrays(subset, images, labels)


def _emnist_arrays(subset: str, images: Path, labels: Path) -> Arrays:
    # The files hold every image transposed, a remnant of their MATLAB origin; "letters" are
    # numbered from 1.
    return {
        "x": idx(images).swapaxes(1, 2)[..., None],
        "y": idx(labels) - np.uint8(subset == "letters"),
    }


def _femnist_local(split: OfficialSplit) -> Arrays | None:
    directory = sources.data_directory()
    if directory is None:
        return None
    root = directory / "femnist"
    divided = (root / "train").is_dir() or (root / "test").is_dir()
    files = (
        sorted((root / split if divided else root).glob("*.json"))
        if divided or split == "train"
        else []
    )
    return leaf(files) if files else None


def leaf(files: list[Path]) -> Arrays:
    """Read the JSON files of LEAF: {"users": [...], "user_data": {user: {"x": ..., "y": ...}}}.

    Args:
        files: The files; a writer may have rows in several.

    Returns:
        Images "x", labels "y" and the "writer" of each image.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.json"
        >>> rows = {"x": [[0.0] * 784], "y": [3]}
        >>> _ = path.write_text(json.dumps({"users": ["f1"], "user_data": {"f1": rows}}))
        >>> leaf([path])["writer"].tolist()
        ['f1']
    """
    x, y, writer = [], [], []
    for path in files:
        content = json.loads(path.read_text())
        for user in content["users"]:
            rows = content["user_data"][user]
            pixels = np.asarray(rows["x"], np.float32)
            if pixels.shape != (len(rows["y"]), 784):
                raise ValueError(
                    f"{path}: writer {user!r} has {len(rows['y'])} labels and pixels of shape"
                    f" {pixels.shape}"
                )
            x.append(np.rint(255 * pixels).astype(np.uint8).reshape(-1, 28, 28, 1))
            y.append(np.asarray(rows["y"], np.uint8))
            writer.append(np.full(len(rows["y"]), user))
    return {"x": np.concatenate(x), "y": np.concatenate(y), "writer": np.concatenate(writer)}


def _femnist_fetch(split: OfficialSplit) -> Arrays:
    if split == "test":
        raise ValueError(
            "the public FEMNIST has no test rows; take split='train' and use FederatedData.split"
        )
    columns = {"x": "image", "y": "character", "writer": "writer_id"}
    return from_hub("femnist", "femnist/*.json (of LEAF)", "flwrlabs/femnist", columns, split)


FEMNIST = ImageSet("femnist", 62, _femnist_local, _femnist_fetch, ("writer", "label"))
