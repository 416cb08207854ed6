"""Where the files of data sets are: bundled, in `COVEY_DATA_DIR`, or fetched once from Hugging Face
and cached.

Nothing is trusted by its name. Known files have their SHA-256 here, and a cached file has its own
beside it; both are checked at the first use in a process.
"""

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

_DIGESTS = {
    "mnist/mnist.npz": "4c21aaa196eeaff8206461ef9b2954dfb5bbb5d21e1db468c779597f8749f6f3",
    "mnist/mnist_writers.npz": "9cb6a46f6056f20ab91252a94ba9c2b889a25859b98e1ff6b7324b9f96deda80",
    "fashion_mnist/fashion_mnist.npz": "83fc1fa368b0f776a23057287f99b72d44b59b6064d6d9bdb0eb51a2d3c9ca2f",
    "cifar10/cifar10_test.npz": "099d086dda309d8188a48207ea9382d4927be6a70129de3a79fb895a5866e01e",
    "cifar10/cifar10_train_0.npz": "4a3a2b877a409a23af66149dd62bb0aaf102146fe8937591240c28004fd9d455",
    "cifar10/cifar10_train_1.npz": "a88a2235c87415cff540aac49fef3f85f4c20ff29aa44b6a862985ed240598f9",
    "cifar10/cifar10_train_2.npz": "9904c47a8f1b9d06a6935d9ad21c11d2909b46e8d9a258f8ea9c0aa853d15973",
    "cifar100/cifar100_subset_train.npz": "3091a7cf229af93073f5d29b0b7d30ab3d0ce54683f624bfd835e2f3914340a0",
    "cifar100/cifar100_subset_test.npz": "f7b207113391f8967037f6ffadcaf0a2abc7f1227f9233320bc36387195505c9",
    "svhn/svhn_test_5000.npz": "56c09289d3c6a159cd6a8d10d87cdab9d37311d482e498151c2ed91379a6cc5b",
    "notmnist/notmnist_10k.npz": "349634885532707b630fc8bda0501b5e3b5934b666462605dbe5a9653c2e9b1c",
    "shakespeare/shakespeare_characters.jsonl.gz": "2561ac67f4e44782eeeffdd0af0028b04c9706c958774de096c1ca821a9b0bd1",
    "birds/bbs_pacific_wren.csv.gz": "c922bb56c700304c6d1fb50e905f9abcb162fe351200160072a8e30e13a2107e",
    "birds/green_woodpecker_wide.csv.gz": "6d24fe1b4f648c72193ad5d2a7d834d0e66a010c3fed94427254a717f1cfe228",
    "birds/mhb2014_long.csv.gz": "91ebb40a3f3ba548d69c121748996376df1fc0d6dd42453297c34dfd147a35e5",
    "hierarchical/cbpp.csv": "8919ad586aabfa75fa3b3ece7ad7b398c7b31bf17467f17c304cbec86afa910a",
    "hierarchical/contraception_bangladesh.csv": "dd76de5f4f1fb57081b01ef0f81581cd928ad545d13feb8bf7d337d71e690034",
    "hierarchical/exam_london_schools.csv.gz": "6b7f9791182234d597d726813f418b6c67e76a0620df14126426be8a181c11c5",
    "hierarchical/grouseticks.csv": "17b4bb79427f6052f7b62f91303768b74bdc4e1831e986e9ee3a1ea24db0211c",
    "hierarchical/gu_immun.csv": "1b9a2f7cb7b674609430c88edd6a8cd89cd872dbdc28686c156b82061b000998",
    "hierarchical/inst_eval.csv.gz": "da41cab085046c0f4f0e67920413270e868f97e40c7210d40507c397b00d19d0",
    "hierarchical/radon_all_us.csv.gz": "3995e453c90a33c5f8fdbed90d5abe4f28bd9c584e8ac7fdcff852e830d1f04e",
    "hierarchical/radon_mn.csv": "a63973b6958fb57aab59258e2179f52a34dbb1fe9c0f30b3e3de657f96ea1445",
    "hierarchical/sleepstudy.csv": "45ae58882997ad80a4bba978358d0847c9a9d9a7c80d7d494771e15d7d74ff43",
}


def data_directory() -> Path | None:
    """The directory of `COVEY_DATA_DIR`, if it is set."""
    given = os.environ.get("COVEY_DATA_DIR")
    if not given:
        return None
    directory = Path(given).expanduser()
    if not directory.is_dir():
        raise ValueError(f"COVEY_DATA_DIR={given} is not a directory; correct it or unset it")
    return directory


def cache_directory() -> Path:
    """Where fetched data are kept: `COVEY_CACHE_DIR`, or `covey` in the user's cache directory."""
    given = os.environ.get("COVEY_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    user = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(user) if user else Path.home() / ".cache") / "covey"


def bundled(name: str) -> Path:
    """A file that is part of the package."""
    return Path(__file__).with_name("files") / name


def local(name: str) -> Path | None:
    """A file of `COVEY_DATA_DIR` by its path there, checked where its SHA-256 is known; None where
    there is no such file.
    """
    directory = data_directory()
    if directory is None or not (directory / name).is_file():
        return None
    path = directory / name
    if name in _DIGESTS:
        _check(
            path, _DIGESTS[name], "replace it by the original, or point COVEY_DATA_DIR elsewhere"
        )
    return path


def cached(name: str, fetch: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of `fetch`, which is called once: they are kept as NAME.npz in the cache, with
    their SHA-256 beside them.
    """
    path = cache_directory() / f"{name}.npz"
    recorded = path.with_name(path.name + ".sha256")
    if not path.exists():
        arrays = fetch()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as work:
            ready = Path(work) / path.name
            np.savez(ready, allow_pickle=False, **arrays)
            (Path(work) / recorded.name).write_text(_digest(ready) + "\n")
            # The record first: a file without one is then never a complete file of ours.
            (Path(work) / recorded.name).replace(recorded)
            ready.replace(path)
        return arrays
    if not recorded.is_file():
        raise ValueError(
            f"{path} has no record of its SHA-256; delete it, it will be fetched again"
        )
    _check(path, recorded.read_text().strip(), "delete it, it will be fetched again")
    with np.load(path, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def hugging_face(data_set: str, wanted: str, module: str = "datasets") -> ModuleType:
    """The package `datasets` (or the `huggingface_hub` it brings along), or an error that says how
    to get the data set.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the data set {data_set!r} was not found. Either set COVEY_DATA_DIR to a directory that has {wanted},"
            " or fetch it from Hugging Face: pip install 'covey[datasets]'"
        ) from error


def _check(path: Path, expected: str, remedy: str) -> None:
    status = path.stat()
    if _digest_once(path, status.st_mtime_ns, status.st_size) != expected:
        raise ValueError(
            f"{path} is damaged or is another file: its SHA-256 is not {expected}; {remedy}"
        )


@cache
def _digest_once(path: Path, _changed: int, _size: int) -> str:
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
