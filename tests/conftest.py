import gc
import os
import threading
from pathlib import Path

import pytest
from hypothesis import settings

# Tests compile many small programs and run each for a moment: quick compilation beats quick
# programs. The older emitters of fused loops compile in half the time; a small program need not be
# split for several threads. Set before JAX is imported.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# No partitioner for a single device, and no stack traces inside of programs.
os.environ.setdefault("JAX_USE_SHARDY_PARTITIONER", "false")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax

from called_threefry import use_called_threefry

# Examples that are the same each time, and no limits of time: others may be using the machine.
settings.load_profile("ci")

# Tracing makes many small objects: the default thresholds look through all of JAX, again and again.
gc.disable()


def _keep_one_context_per_thread() -> None:
    """Lower all programs in one MLIR context: JAX makes one for each, which for a small program
    takes longer than the rest of its lowering. JAX has no setting for this; where a later version
    has no such function, tests are only slower.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    make, own = getattr(mlir, "make_ir_context", None), threading.local()
    if make is None:
        return

    def lowering() -> bool:
        try:
            return ir.InsertionPoint.current is not None
        except ValueError:
            return False

    def kept():
        if lowering():  # an op computed meanwhile would become a part of the program
            return make()
        if not hasattr(own, "context"):
            own.context = make()
        return own.context

    mlir.make_ir_context = kept


_keep_one_context_per_thread()
use_called_threefry()


def pytest_collection_finish():
    """Leave out of garbage collection what was imported, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


MOST_MEMORY = 5 * 2**30  # bytes of a worker, beyond which it forgets its compiled programs


def pytest_runtest_teardown(item, nextitem):
    """Compiled programs are kept, and a long suite has thousands: forget them between two files."""
    if nextitem is not None and nextitem.path == item.path:
        return
    held = Path("/proc/self/statm")  # Linux only; elsewhere they are kept
    if held.exists() and int(held.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") > MOST_MEMORY:
        from covey.engines import sharing

        sharing.forget()
        jax.clear_caches()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, or a skip that says what to set."""
    given = os.environ.get("COVEY_DATA_DIR")
    if not given or not Path(given).is_dir():
        pytest.skip("COVEY_DATA_DIR is not set to a folder of data sets")
    return Path(given)
