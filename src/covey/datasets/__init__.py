"""Public data sets by name, and synthetic ones whose truth is known."""

from covey.datasets.loaders import LOADERS, Loader, load

__all__ = ["LOADERS", "Loader", "load"]
