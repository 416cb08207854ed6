"""What a round costs beyond its work: 100 small clients on Covey and its peers, and a Ray cluster
of 3 actors that exchange 1 MB.

Each peer runs in its own interpreter, since their requirements conflict, and all take turns.
`--install FOLDER` makes the interpreters, FOLDER/flower and so on; without them the rows say so.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import optax

from benchmarks.peers.turns import CLIENTS, FEATURES, ROWS, STEP, clients
from covey import models
from covey.algorithms.fedavg import fedavg
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

SCRIPTS = Path(__file__).parent / "peers"
PEERS = {  # what to install
    "fedjax": [
        *("fedjax==0.0.17", "jax==0.4.20", "jaxlib==0.4.20", "numpy==1.26.4", "scipy<1.13"),
        *("ml_dtypes==0.3.2", "dm-haiku==0.0.12", "flax==0.7.5", "orbax-checkpoint==0.4.4"),
    ],
    "pfl": ["pfl==0.6.0", "torch==2.13.0"],
    "flower": ["flwr[simulation]==1.41.0"],
}
TURNS, ROUNDS = 15, {"covey": 50, "fedjax": 3, "pfl": 3, "flower": 1}
MEGABYTE = 1 << 18  # values of 4 bytes


def install(folder: Path) -> None:
    """An interpreter with each peer; one that does not install is reported and left out."""
    for name, requirements in PEERS.items():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder / name], check=True)
        pip = [folder / name / "bin" / "pip", "install", "--quiet", *requirements]
        if subprocess.run(pip).returncode:
            print(f"{name} does not install")


class Peer:
    """A script in its own interpreter, which runs rounds when it is asked to."""

    def __init__(self, python: Path, script: Path):
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self.process = subprocess.Popen(
            [python, script], stdin=-1, stdout=-1, stderr=self.log, text=True, cwd=SCRIPTS
        )
        self.answer("READY")

    def answer(self, word: str) -> str:
        """The rest of the next line that begins with a word; other output is skipped."""
        for line in self.process.stdout or ():
            if line.startswith(word):
                return line.removeprefix(word).strip()
        self.log.seek(0)
        said = [line for line in self.log.read().splitlines() if line.strip()]
        raise OSError((said or ["it ended without a word"])[-1][:200])

    def rounds(self, count: int) -> float:
        """Seconds per round."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return float(self.answer("SECONDS"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Covey:
    """The same rounds here."""

    def __init__(self) -> None:
        data = FederatedData.from_clients(
            {str(at): one for at, one in enumerate(clients())}, classes=2
        )
        method = fedavg(models.logistic(), client_optimizer=optax.sgd(STEP), batch_size=ROWS)
        self.engine = Simulation(method, data, seed=0)
        self.state, _ = self.engine.advance(self.engine.start(), 2)

    def rounds(self, count: int) -> float:
        start = time.perf_counter()
        self.state, _ = self.engine.advance(self.state, count)
        return (time.perf_counter() - start) / count

    def close(self) -> None:
        """Nothing to do."""


def small_clients(folder: Path) -> None:
    print(
        f"\nOverhead: FedAvg, {CLIENTS} clients, {ROWS} rows of {FEATURES} features, one step, "
        f"a round; medians of {TURNS} interleaved turns",
        flush=True,
    )
    contenders: dict[str, Peer | Covey] = {"covey": Covey()}
    for name in PEERS:
        python = folder / name / "bin" / "python"
        if not python.exists():
            print(f"  {name:10s} is not installed in {folder}: see --install", flush=True)
            continue
        try:
            contenders[name] = Peer(python, SCRIPTS / f"{name}_rounds.py")
        except OSError as error:
            print(f"  {name:10s} does not run: {error}", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, contender in contenders.items():
            seconds[name].append(contender.rounds(ROUNDS[name]))
    ours = np.array(seconds["covey"])
    for name, values in seconds.items():
        ratio = np.median(np.array(values) / ours)
        print(
            f"  {name:10s} {1e3 * np.median(values):9.2f} ms   covey is {ratio:.1f} times as fast"
        )
        contenders[name].close()


def three_actors(rounds: int = 100) -> None:
    """A round's time beyond that of the slowest actor's own work."""
    from covey.engines.cluster import Cluster
    from covey.engines.ray import RayCrew

    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 1, MEGABYTE)).astype(np.float32)
    data = FederatedData.from_clients(
        {str(at): (one, np.zeros(1, np.float32)) for at, one in enumerate(x)}
    )
    method = fedavg(models.linear(), client_optimizer=optax.sgd(1e-6), batch_size=None)
    crew = RayCrew(data, actors=3)
    engine = Cluster(method, data, crew=crew, seed=0)
    state, _ = engine.advance(engine.start(), 5)
    beyond, whole = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        state, (line,) = engine.advance(state, 1)
        whole.append(time.perf_counter() - start)
        beyond.append(whole[-1] - line["slowest_seconds"])
    crew.close()
    print(
        f"\nRay, 3 actors, 1 MB down and up: a round {1e3 * np.median(whole):.1f} ms, beyond the "
        f"slowest actor's work {1e3 * np.median(beyond):.1f} ms (90 % "
        f"{1e3 * np.quantile(beyond, 0.9):.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, default=Path("/tmp/peers"))
    parser.add_argument("--install", type=Path)
    options, _ = parser.parse_known_args()
    if options.install:
        install(options.install)
        return
    small_clients(options.peers)
    three_actors()


if __name__ == "__main__":
    main()
