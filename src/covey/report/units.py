"""Durations and sizes in words."""

from typing import Any


def in_bytes(count: Any) -> str:
    """A count of bytes in a readable unit.

    Example:
        >>> in_bytes(3156)
        '3.16 kB'
    """
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def duration(seconds: int | float) -> str:
    """Seconds in the words of a clock.

    Example:
        >>> duration(5), duration(75), duration(7300)
        ('5 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
