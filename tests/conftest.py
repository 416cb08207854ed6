import gc
import os
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

# Examples that are the same each time, and no limits of time: others may be using the machine.
settings.load_profile("ci")

# Tracing makes many small objects: the default thresholds look through all of JAX, again and again.
gc.disable()


def pytest_collection_finish():
    """Leave out of garbage collection what was imported, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, or a skip that says what to set."""
    given = os.environ.get("COVEY_DATA_DIR")
    if not given or not Path(given).is_dir():
        pytest.skip("COVEY_DATA_DIR is not set to a folder of data sets")
    return Path(given)
