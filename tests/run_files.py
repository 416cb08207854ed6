"""The files of a run that is going, as its process writes them."""

import json
from socket import gethostname

CONFIG = '[method]\nname = "fedavg"\n\n[run]\nrounds = 10\nseed = 0\n'


def write(directory, rounds, *, torn=""):
    """The files of a run after some rounds."""
    line = (
        '{{"round": {}, "clients": 2, "bytes_up": 100, "bytes_down": 50, "train_loss": {}, '
        '"seconds": 2.0}}\n'
    )
    (directory / "config.toml").write_text(CONFIG)
    text = "".join(line.format(at, 1 / at) for at in range(1, rounds + 1))
    (directory / "metrics.jsonl").write_text(text + torn)


def hold(directory, pid):
    owner = {"pid": pid, "host": gethostname(), "started": ""}
    (directory / "lock").write_text(json.dumps(owner))
