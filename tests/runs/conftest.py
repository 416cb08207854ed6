"""The small federation of `federation.py`, as fixtures."""

from federation import config, data, method  # noqa: F401
