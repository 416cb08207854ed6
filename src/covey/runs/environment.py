"""The environment of a run: versions that its results may depend on."""

import os
import platform
from importlib.metadata import version

_PACKAGES = ("covey", "jax", "jaxlib", "numpy", "optax", "equinox")


def versions() -> dict[str, str | int]:
    """Versions of Python and of the packages that compute, the machine, and its cores."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
    }
