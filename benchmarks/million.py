"""A million clients of about 20 rows, memory-mapped: a round with a cohort of 1,000, its time and
its memory.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import optax

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.local import local
from covey.core import cohort
from covey.core.algorithm import Algorithm
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

FEATURES = 20


def make(directory: Path, clients: int) -> FederatedData:
    """Rows written straight to a memory map, a million at a time."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(np.log(20) - 0.5, 1, clients).astype(int), 2, 200)
    total = int(sizes.sum())
    x = np.memmap(directory / "x.bin", np.float32, "w+", shape=(total, FEATURES))
    y = np.memmap(directory / "y.bin", np.int32, "w+", shape=(total,))
    truth = rng.normal(size=FEATURES).astype(np.float32)
    for at in range(0, total, 1 << 20):
        x[at : at + (1 << 20)] = rng.standard_normal(
            (min(1 << 20, total - at), FEATURES), np.float32
        )
        y[at : at + (1 << 20)] = x[at : at + (1 << 20)] @ truth > 0
    return FederatedData.from_rows(Rows(x, y), sizes, classes=2)


def resident() -> float:
    """Gigabytes of this process in memory now. Pages of the memory-mapped rows count while the
    kernel keeps them.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e9


def run(
    name: str,
    method: Algorithm,
    data: FederatedData,
    rounds: int,
    node_directory: Path | None = None,
) -> None:
    engine = Simulation(
        method,
        data,
        seed=0,
        cohort=cohort.uniform(1000),
        storage="host",
        node_directory=node_directory,
    )
    state, _ = engine.advance(engine.start(), 20)  # compile
    seconds, memory = [], [resident()]
    for number in range(rounds):
        start = time.perf_counter()
        state, _ = engine.advance(state, 1)
        seconds.append(time.perf_counter() - start)
        if (number + 1) % (rounds // 4) == 0:
            memory.append(resident())
    used = " -> ".join(f"{gigabytes:.2f}" for gigabytes in memory)
    median, tail = np.median(seconds), np.quantile(seconds, 0.9)
    print(
        f"  {name:24s} median {1e3 * median:6.2f} ms  90 % {1e3 * tail:6.2f} ms  resident {used} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = make(Path(directory), options.clients)
        print(
            f"\n{options.clients} clients, {len(data.rows.y)} rows, cohort 1,000, batches of 32, "
            f"{options.rounds} rounds"
        )
        run(
            "fedavg",
            fedavg(models.logistic(), client_optimizer=optax.sgd(0.1), batch_size=32),
            data,
            options.rounds,
        )
        states = Path(directory) / "nodes"
        alone = local(models.logistic(), client_optimizer=optax.sgd(0.1), batch_size=32)
        run("local, states on disk", alone, data, options.rounds, states)


if __name__ == "__main__":
    main()
