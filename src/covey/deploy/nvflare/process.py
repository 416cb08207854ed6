"""NVFlare's process of a kit, as a child that does not outlive the command that started it.

`python -m covey.deploy.nvflare.process PARENT MODULE ...` runs an NVFlare module and ends, with all
its children, when the process PARENT is gone.
"""

import os
import runpy
import signal
import sys
import threading
import time


def main() -> None:
    """Run the module that the arguments name."""
    parent, module, sys.argv = int(sys.argv[1]), sys.argv[2], sys.argv[2:]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: _end())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    _end()


def _end() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
