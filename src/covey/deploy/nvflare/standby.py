"""A process that stands by for the next study: its imports are done when the study begins.

Imports take seconds at every site. `python -m covey.deploy.nvflare.standby MODULE ...` imports the
modules and waits; the launcher (`launchers.py`) then sends it one study's command as a line on its
standard input. It ends with the process that started it.
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class Standby:
    """A process that has imported some modules and runs the next command.

    Args:
        modules: Names of the modules.
    """

    def __init__(self, modules: Sequence[str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            stdin=subprocess.PIPE,
            start_new_session=True,  # NVFlare ends a study by its process group
        )

    def run(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | None:
        """Let the process run a module, as `python -m` does.

        Args:
            module: Name of the module.
            arguments: Its arguments.
            environment: Variables beside those that the process has.

        Returns:
            The process; None if it has ended.
        """
        order = [module, list(arguments), dict(environment)]
        line = self._process.stdin
        assert line is not None
        try:
            with line:
                line.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            self._process.wait()
            return None
        return self._process


def main() -> None:
    """Import the modules that the arguments name, wait, and run the command."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    module, arguments, environment = json.loads(line)
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it is imported as __main__
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
