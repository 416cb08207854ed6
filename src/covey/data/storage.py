"""Federated data on disk: one .npy file per array, so that rows can be memory-mapped, and a small
JSON file.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from covey.core.shard import Rows
from covey.data.scaling import Scaling

_FORMAT = "covey federated data"
_VERSION = 1
_LARGE = 64 * 1024**2  # bytes of a table of clients that stays on disk, as rows do


class Stored(NamedTuple):
    """The content of a directory: the fields of `FederatedData`."""

    rows: Rows
    bounds: Int[np.ndarray, "clients 4"]
    ids: Int[np.ndarray, " clients"]
    names: Shaped[np.ndarray, " clients"] | None
    classes: int | None
    features: tuple[str, ...] | None
    scaling: Scaling | None = None


def write(directory: Path, stored: Stored) -> None:
    """Write to a temporary directory beside the target, then rename it.

    The target exists completely or not at all.

    Args:
        directory: The target, which must not exist.
        stored: The content.

    Example:
        >>> rows = Rows(np.zeros((2, 1)), np.zeros(2))
        >>> bounds, ids = np.array([[0, 2, 2, 2]]), np.array([0])
        >>> folder = Path(tempfile.mkdtemp()) / "set"
        >>> write(folder, Stored(rows, bounds, ids, None, None, ("age",)))
        >>> read(folder, memory_map=False).features
        ('age',)
    """
    if directory.exists():
        raise ValueError(
            f"{directory} exists already; save to another directory, or delete it first"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        x, y = stored.rows
        arrays = {"x": x, "y": y, "bounds": stored.bounds, "ids": stored.ids}
        if stored.names is not None:
            arrays["names"] = stored.names
        if stored.scaling is not None:
            arrays["scaling"] = np.stack([stored.scaling.mean, stored.scaling.scale])
        for name, array in arrays.items():
            np.save(work / f"{name}.npy", array, allow_pickle=False)
        about = {
            "format": _FORMAT,
            "version": _VERSION,
            "clients": len(stored.ids),
            "rows": len(stored.rows.y),
            "classes": stored.classes,
            "named": stored.names is not None,
            "features": stored.features,
            "standardised": stored.scaling is not None,
            "kept": [] if stored.scaling is None else list(stored.scaling.kept),
        }
        (work / "about.json").write_text(json.dumps(about, indent=2) + "\n")
        work.chmod(0o755)  # mkdtemp makes it private; data is shared like any other file
        work.rename(directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def read(directory: Path, *, memory_map: bool) -> Stored:
    """Read what `write` wrote.

    Args:
        directory: The directory.
        memory_map: Whether rows stay on disk until they are used, and the table of the clients too
            where that is more than 64 MB.

    Returns:
        The contents of the directory. See `write` for an example.
    """
    try:
        about = json.loads((directory / "about.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{directory} is not a directory that FederatedData.save wrote: {error}"
        ) from error
    if about.get("format") != _FORMAT or about.get("version") != _VERSION:
        found = (about.get("format"), about.get("version"))
        raise ValueError(
            f"{directory / 'about.json'} says {found}; this version of covey reads"
            f" {(_FORMAT, _VERSION)}"
        )
    # An array without rows cannot be memory-mapped.
    mode = "r" if memory_map and about["rows"] else None
    x, y = (
        np.load(directory / f"{name}.npy", mmap_mode=mode, allow_pickle=False)
        for name in ("x", "y")
    )
    tables = [directory / f"{name}.npy" for name in ("bounds", "ids")]
    large = memory_map and tables[0].exists() and tables[0].stat().st_size > _LARGE
    bounds, ids = (
        np.load(path, mmap_mode="r" if large else None, allow_pickle=False) for path in tables
    )
    names = (
        np.load(directory / "names.npy", mmap_mode="r" if memory_map else None, allow_pickle=False)
        if about["named"]
        else None
    )
    if (
        not len(x) == len(y) == about["rows"] == bounds[-1, 3]
        or not len(bounds) == len(ids) == about["clients"]
    ):
        raise ValueError(
            f"the files of {directory} do not fit together; some were replaced after they were"
            " saved"
        )
    # Directories of earlier versions have no names of columns, no scaling, or no columns kept.
    features = None if about.get("features") is None else tuple(about["features"])
    scaling = None
    if about.get("standardised", False):
        mean, scale = np.load(directory / "scaling.npy", allow_pickle=False)
        scaling = Scaling(mean, scale, features, tuple(about.get("kept", ())))
    return Stored(Rows(x, y), bounds, ids, names, about["classes"], features, scaling)
