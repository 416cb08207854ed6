"""Files of a site that only its owner reads: all that is made of the table, and the secret key."""

from pathlib import Path

_FOLDER, _FILE = 0o700, 0o600


def make_folder(path: Path) -> None:
    """A folder that only its owner can enter; one that is there is closed to others.

    Args:
        path: The folder.

    Raises:
        OSError: It cannot be made, or belongs to somebody else.
    """
    for one in reversed([path, *path.parents]):  # `parents=True` gives those the usual mode
        if not one.exists():
            one.mkdir(exist_ok=True, mode=_FOLDER)
    path.chmod(_FOLDER)


def close_to_others(folder: Path) -> None:
    """Restrict a folder and all that is in it to its owner.

    Args:
        folder: The folder.
    """
    folder.chmod(_FOLDER)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(_FOLDER if path.is_dir() else _FILE)
