"""Plain values that came in a message, checked against a type before anybody uses them."""

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

Made = TypeVar("Made")


def checked(kind: type[Made], content: Any) -> Made:
    """A named tuple or data class from its fields as JSON gives them.

    Args:
        kind: The type; its annotations say what each field may be.
        content: The fields by name.

    Returns:
        The value.

    Raises:
        ValueError: A field is missing, unknown or of another type; the message names it.

    Example:
        >>> from covey.fitting.description import Moments
        >>> checked(Moments, {"count": 2, "mean": 1.5, "squares": 0})
        Moments(count=2.0, mean=1.5, squares=0.0)
        >>> checked(Moments, {"count": 2, "mean": "x", "squares": 0})
        Traceback (most recent call last):
        ValueError: mean: Input should be a valid number, unable to parse string as a number
    """
    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or getattr(kind, "__name__", "value")
        raise ValueError(f"{where}: {first['msg']}") from None


@lru_cache(maxsize=32)
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)
