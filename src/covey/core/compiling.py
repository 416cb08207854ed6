"""The compilation of programs: they are cached between commands, those of fits compile quickly."""

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
    """For a process that compiles more than it computes. Flags of the user win. XLA reads its flags
    when JAX looks for devices, before its first array: later this changes nothing.
    """
    if "XLA_FLAGS" in os.environ or not version("jaxlib").startswith(_KNOWN):
        return
    backends = sys.modules.get("jax._src.xla_bridge")
    if backends is None or not backends.backends_are_initialized():
        os.environ["XLA_FLAGS"] = _QUICK
