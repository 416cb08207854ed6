"""Tables as TOML text, and nested tables as dotted keys. Python reads TOML but does not write
it.
"""

import json
from collections.abc import Mapping
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | list | Mapping  # the values of TOML, dates aside
Tables: TypeAlias = Mapping[str, Mapping[str, Value]]


def text_of(tables: Tables) -> str:
    """One `[table]` after the other; tables inside a table are written inline."""
    parts = [
        "\n".join(
            [f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
        )
        for name, table in tables.items()
    ]
    return "\n\n".join(parts) + "\n"


def flat(tables: Mapping[str, Value], prefix: str = "") -> dict[str, Value]:
    """Nested tables as one, with dotted keys."""
    result: dict[str, Value] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def holds(value: object) -> bool:
    """Whether TOML can hold the value; it has no null and no objects."""
    if isinstance(value, list | tuple):
        return all(holds(part) for part in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and holds(part) for key, part in value.items())
    return isinstance(value, str | int | float)


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        # the shortest text that reads back as the same number; inf and nan are TOML too
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_key(str(key))} = {_value(part)}" for key, part in value.items())
            + "}"
        )
    raise TypeError(f"TOML cannot hold {value!r}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
