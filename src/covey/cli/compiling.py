"""How commands compile: programs are kept between them, and those of fits are compiled quickly."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

# With these a first fit waits half as long for its programs, which then run for a second or two.
_QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
_KNOWN = ("0.10.",)  # versions of jaxlib: XLA ends a process that gives it a flag it does not know


def keep_programs() -> None:
    """Let JAX keep compiled programs between commands; its own variables win. Read when JAX is
    imported.
    """
    given = os.environ.get("COVEY_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME")
    cache = Path(given) if given else (Path(user) if user else Path.home() / ".cache") / "covey"
    try:
        (cache / "jax").mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written: programs are compiled each time
        return
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "jax"))
    # Also small ones: a fit has forty, a second in all, and they take less than a megabyte.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def compile_quickly() -> None:
    """For commands that compile more than they compute. Flags of the user win."""
    if "jax" in sys.modules or "XLA_FLAGS" in os.environ:
        return
    if version("jaxlib").startswith(_KNOWN):
        os.environ["XLA_FLAGS"] = _QUICK
