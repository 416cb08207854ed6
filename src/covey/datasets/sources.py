"""Files of data sets: bundled, in `COVEY_DATA_DIR`, or fetched from Hugging Face and cached.

Nothing is trusted by its name. The SHA-256 of known files is in `files/SHA256SUMS`, that of a
cached file lies beside it; both are checked at the first use in a process.
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


def data_directory() -> Path | None:
    """The folder that the environment variable `COVEY_DATA_DIR` names.

    Returns:
        The folder, or None where the variable is not set.

    Example:
        >>> data_directory()  # doctest: +SKIP
        PosixPath('/data')
    """
    given = os.environ.get("COVEY_DATA_DIR")
    if not given:
        return None
    directory = Path(given).expanduser()
    if not directory.is_dir():
        raise ValueError(f"COVEY_DATA_DIR={given} is not a directory; correct it or unset it")
    return directory


def cache_directory() -> Path:
    """The folder in which fetched data are kept.

    Returns:
        `COVEY_CACHE_DIR` where it is set, otherwise `covey` in the user's cache folder.

    Example:
        >>> cache_directory().name  # doctest: +SKIP
        'covey'
    """
    given = os.environ.get("COVEY_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    user = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(user) if user else Path.home() / ".cache") / "covey"


def bundled(name: str) -> Path:
    """A file that is part of the package.

    Args:
        name: Name of the file.

    Returns:
        The path.

    Example:
        >>> bundled("heart_disease.csv").is_file()
        True
    """
    return Path(__file__).with_name("files") / name


def local(name: str) -> Path | None:
    """A file of `COVEY_DATA_DIR`, checked where its SHA-256 is known.

    Args:
        name: Path of the file in that folder.

    Returns:
        The path, or None where there is no such file.

    Example:
        >>> local("no such file") is None
        True
    """
    directory = data_directory()
    if directory is None or not (directory / name).is_file():
        return None
    path = directory / name
    known = _known_digests()
    if name in known:
        _check(path, known[name], "replace it by the original, or point COVEY_DATA_DIR elsewhere")
    return path


def cached(name: str, fetch: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays that are fetched once and then kept in the cache, with their SHA-256 beside them.

    Args:
        name: Name of the file in the cache, without its ending.
        fetch: Gets the arrays where the cache has none.

    Returns:
        The arrays.

    Example:
        >>> cached("mnist-test", lambda: {"x": np.zeros(3)})  # doctest: +SKIP
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
    """A package of Hugging Face, or an error that says how to get the data set.

    Args:
        data_set: Name of the data set in the error.
        wanted: The files that would be read from COVEY_DATA_DIR, for the error.
        module: Name of the package: `datasets`, or the `huggingface_hub` it brings along.

    Returns:
        The imported package.

    Example:
        >>> hugging_face("mnist", "mnist/mnist.npz").__name__  # doctest: +SKIP
        'datasets'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the data set {data_set!r} was not found. Either set COVEY_DATA_DIR to a directory"
            f" that has {wanted}, or fetch it from Hugging Face: pip install 'covey[datasets]'"
        ) from error


@cache
def _known_digests() -> dict[str, str]:
    """The SHA-256 of files by their path in `COVEY_DATA_DIR`, in the format of `sha256sum`."""
    lines = bundled("SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


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
