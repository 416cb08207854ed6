"""Factories from a user's own file: `name = "my_file.py:scaffold"` in a configuration."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

_SEPARATOR = ".py:"


def is_user_code(name: str) -> bool:
    """Whether a name is that of a function in a file."""
    return _SEPARATOR in name


def load(name: str, folder: Path | None = None) -> tuple[Callable[..., Any], str]:
    """The function that a name such as "my_file.py:scaffold" means.

    The file is run as Python does when it imports it: use only files that you trust.

    Args:
        name: A path that ends in .py, a colon, and the name of a function in that file.
        folder: Folder that is searched for a relative path before the current folder.

    Returns:
        The function, and its name with the absolute path, under which it is found from anywhere.

    Raises:
        ValueError: There is no such file or function, or the file cannot be run.
    """
    text, _, attribute = name.rpartition(":")
    path = _found(Path(text).expanduser(), folder, attribute)
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
        except (Exception, SystemExit) as error:  # whatever it raises is a mistake in that file
            del sys.modules[module_name]
            raise ValueError(f"{path} cannot be imported: {_why(error, path)}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        functions = _functions(module)
        near = get_close_matches(attribute, functions, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{path} has no function {attribute!r}{hint} (it has: {', '.join(functions) or 'none'})"
        )
    _need_annotations(found, path, attribute)
    return found, f"{path}:{attribute}"


def _why(error: BaseException, path: Path) -> str:
    """The error of a file, its line, and advice about modules beside it."""
    lines = [
        frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    where = f" (line {lines[-1]})" if lines else ""
    said = f"{type(error).__name__}{where}: {error}"
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is not None and path.with_name(f"{absent}.py").exists():
        return (
            f"{said}; {absent}.py lies beside it, but only installed packages are found: put "
            "the needed functions into the file itself"
        )
    return said


def _need_annotations(function: Callable[..., Any], path: Path, attribute: str) -> None:
    """An error for annotations with unknown names: options are read from annotations."""
    try:
        inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(
            f"{path}:{attribute}: an annotation of {attribute} cannot be read: {error}; import "
            "its names at the top of the file, not under `if TYPE_CHECKING:` alone"
        ) from error


def _found(path: Path, folder: Path | None, attribute: str) -> Path:
    """The file that a path means, absolute."""
    places = list(dict.fromkeys((start / path).resolve() for start in (folder or Path(), Path())))
    for place in places:
        if place.is_file():
            return place
    exist = "does not exist" if len(places) == 1 else "do not exist"
    told = " and ".join(map(str, places))
    raise ValueError(f"{told} {exist}; write the path to your file, then :{attribute}")


def _functions(module: ModuleType) -> list[str]:
    """The public functions that a file defines; not those that it imports."""
    return [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and callable(value)
        and not isinstance(value, type)
        and getattr(value, "__module__", None) == module.__name__
    ]


def digest(path: Path) -> str:
    """A short text that changes with the contents of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def path_of(name: str) -> Path:
    """The file of a name such as "my_file.py:scaffold"."""
    return Path(name.rpartition(":")[0])
