import os
from pathlib import Path

import pytest

# Tests compile many small programs and run each for a moment: quick compilation beats quick
# programs. Set before JAX is imported.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, or a skip that says what to set."""
    given = os.environ.get("COVEY_DATA_DIR")
    if not given or not Path(given).is_dir():
        pytest.skip("COVEY_DATA_DIR is not set to a folder of data sets")
    return Path(given)
