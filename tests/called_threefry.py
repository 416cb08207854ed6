"""Random bits as a call of a function in C, for the tests: the same bits, and programs that compile
in about half the time.

JAX writes threefry out, as a loop, at every place where a program draws or derives a key. XLA
compiles each of these loops by itself, and a round of a client has a dozen: half of the time that
small programs take to compile. Where there is no C compiler, tests are only slower.
"""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.random import threefry2x32

_NAME = "covey_tests_threefry2x32"
_SOURCE = Path(__file__).with_name("threefry.c")


def use_called_threefry() -> None:
    """Lower threefry to a call on CPUs, from here on and in this process only."""
    compiler = shutil.which("cc")
    if compiler is None:
        return
    jax.ffi.register_ffi_target(_NAME, _compiled(compiler), platform="cpu")
    written_out = threefry2x32._threefry2x32_cpu_lowering_rule
    word = np.uint32(7)
    primitive = threefry2x32.threefry2x32_p
    expected = primitive.bind(word, word, word, word)

    def called(context, *arguments):
        shape = context.avals_out[0]
        if 0 in shape.shape:
            return written_out(context, *arguments)
        rank = len(shape.shape)
        words = [
            mlir.broadcast_in_dim(
                context, word, shape, broadcast_dimensions=range(rank - len(given.shape), rank)
            )
            for word, given in zip(arguments, context.avals_in, strict=True)
        ]
        kind = mlir.aval_to_ir_type(context.module_context, shape)
        return mlir.custom_call(
            _NAME, result_types=[kind, kind], operands=words, backend_config={}, api_version=4
        ).results

    mlir.register_lowering(primitive, called, platform="cpu", inline=False)
    jax.clear_caches()
    found = primitive.bind(word, word, word, word)
    if [int(bits) for bits in found] != [int(bits) for bits in expected]:
        raise RuntimeError("tests/threefry.c does not give the bits of JAX's threefry")


def _compiled(compiler: str):
    """The function as XLA takes it."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "threefry.so")
        include = f"-I{jax.ffi.include_dir()}"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", include, "-o", library, str(_SOURCE)], check=True
        )
        return jax.ffi.pycapsule(ctypes.CDLL(library).threefry2x32)
