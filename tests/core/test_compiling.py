"""How processes compile."""

import os
import subprocess
import sys

import pytest

from covey.core import compiling


def test_compiled_programs_are_kept_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("COVEY_CACHE_DIR", str(tmp_path))
    compiling.keep_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "jax")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    compiling.keep_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_fits_are_compiled_quickly_where_xla_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    monkeypatch.setenv("XLA_FLAGS", "of the user")
    compiling.compile_quickly()
    assert os.environ["XLA_FLAGS"] == "of the user"
    monkeypatch.delenv("XLA_FLAGS")
    with monkeypatch.context() as later:
        later.setattr(compiling, "version", lambda name: "0.99.0")  # may not know the flags
        compiling.compile_quickly()
    assert "XLA_FLAGS" not in os.environ
    compiling.compile_quickly()
    assert "optimization_level" in os.environ["XLA_FLAGS"]


@pytest.mark.processes
def test_jax_takes_the_flags_before_its_first_array_and_not_after():
    code = (
        "import os, jax\n"
        "from covey.core.compiling import compile_quickly\n"
        "import covey.deploy.fit_part, covey.deploy.fit_plan, covey.deploy.server\n"
        "import covey.deploy.site\n"
        "compile_quickly()\n"
        "print('XLA_FLAGS' in os.environ)\n"
        "del os.environ['XLA_FLAGS']\n"
        "jax.numpy.zeros(1)\n"
        "compile_quickly()\n"
        "print('XLA_FLAGS' in os.environ)"
    )
    clean = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False"]
