"""Factories from a user's own file: `name = "my_file.py:scaffold"` in a configuration."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SEPARATOR = ".py:"


def is_user_code(name: str) -> bool:
    """Whether a name is that of a function in a file."""
    return _SEPARATOR in name


def load(name: str) -> tuple[Callable[..., Any], str]:
    """The function that a name such as "my_file.py:scaffold" means.

    The file is run as Python does when it imports it: use only files that you trust.

    Args:
        name: A path that ends in .py, a colon, and the name of a function in that file.

    Returns:
        The function, and its name with the absolute path, under which it is found from anywhere.

    Raises:
        ValueError: There is no such file or function, or the file cannot be run.
    """
    text, _, attribute = name.rpartition(":")
    path = Path(text).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{path} does not exist; write the path to your file, then :{attribute}")
    module_name = f"covey_user_{path.stem}_{digest(path)}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever a user's file raises is a mistake in that file
            del sys.modules[module_name]
            raise ValueError(
                f"{path} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(f"{path} has no function {attribute!r}; it has {', '.join(functions)}")
    return found, f"{path}:{attribute}"


def digest(path: Path) -> str:
    """A short text that changes with the contents of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def path_of(name: str) -> Path:
    """The file of a name such as "my_file.py:scaffold"."""
    return Path(name.rpartition(":")[0])
