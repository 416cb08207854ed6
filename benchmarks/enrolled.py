"""Up to 10^8 enrolled clients, of which 1,000 take part in a round and keep a state: the time of a
round and the memory, over 1,000 rounds with checkpoints.

Rows are holes of a sparse file, about 20 per client: they pass through the kernel's page cache as
those of a real file would that is in it, but no disk is read. What is known of each client (where
its rows are, its id) is written in full: 4 GB for 10^8 clients. Free memory is touched once before:
a virtual machine takes its memory from its host when it first uses it, which costs more than the
rounds do.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import optax

from covey import models
from covey.algorithms.local import local
from covey.core import cohort, wire
from covey.core.mapped import release
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.runs import checkpoint

FEATURES, COHORT = 20, 1000
TOGETHER = 5_000_000  # clients that are written at once
CHECKPOINT_EVERY = 250


def make(directory: Path, clients: int) -> None:
    """Data as `FederatedData.save` would write them, with rows of which only the size is there."""
    directory.mkdir()
    bounds = _array(directory / "bounds.npy", (clients, 4), np.int64)
    ids = _array(directory / "ids.npy", (clients,), np.int64)
    total = 0
    for first in range(0, clients, TOGETHER):
        last = min(first + TOGETHER, clients)
        rng = np.random.default_rng(first)
        sizes = rng.lognormal(np.log(20) - 0.5, 1, last - first).astype(np.int64).clip(2, 200)
        ends = total + np.cumsum(sizes)
        bounds[first:last, 0], bounds[first:last, 1:] = ends - sizes, ends[:, None]
        ids[first:last] = np.arange(first, last)
        total = int(ends[-1])
        release(bounds)
        release(ids)
    _array(directory / "x.npy", (total, FEATURES), np.float32)
    _array(directory / "y.npy", (total,), np.int32)
    about = {
        "format": "covey federated data",
        "version": 1,
        "clients": clients,
        "rows": total,
        "classes": 2,
        "named": False,
    }
    (directory / "about.json").write_text(json.dumps(about))


def _array(path: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def memory() -> dict[str, float]:
    """Gigabytes of this process: in memory now, of these not backed by a file, and the most so
    far.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {
        line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Vm", "Rss"))
    }
    return {name: int(found[name]) * 1024 / 1e9 for name in ("VmRSS", "RssAnon", "VmHWM")}


def touch_free_memory() -> None:
    """Use nine tenths of the free memory once."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemFree"))
    np.ones(int(0.9 * free), np.uint8)


def on_disk(directory: Path) -> float:
    """Gigabytes that files take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir()) / 1e9


def run(directory: Path, clients: int, rounds: int) -> None:
    start = time.perf_counter()
    data = FederatedData.open(directory / "data")
    method = local(models.logistic(), client_optimizer=optax.sgd(0.1), batch_size=32)
    nodes = directory / "nodes"
    engine = Simulation(
        method, data, seed=0, cohort=cohort.uniform(COHORT), storage="host", node_directory=nodes
    )
    state, _ = engine.advance(engine.start(), 20)  # compile
    began = time.perf_counter() - start
    seconds, used, saving = [], [memory()], []
    for number in range(1, rounds + 1):
        start = time.perf_counter()
        state, _ = engine.advance(state, 1)
        seconds.append(time.perf_counter() - start)
        if number % CHECKPOINT_EVERY == 0:
            start = time.perf_counter()
            body = wire.pack(engine.snapshot(state))
            header = checkpoint.Header(state.round, method.name, "")
            checkpoint.save(directory, checkpoint.Checkpoint(header, body))
            engine.checkpointed()
            saving.append(time.perf_counter() - start)
        if number % max(rounds // 4, 1) == 0:
            used.append(memory())
    ms = 1e3 * np.array(seconds)
    most = min(100, rounds // 2)
    print(
        f"  {clients:>11,} clients: median {np.median(ms):6.2f} ms, "
        f"95 % {np.quantile(ms, 0.95):6.2f}, first {most} {np.median(ms[:most]):6.2f}, "
        f"last {most} {np.median(ms[-most:]):6.2f}; begin {began:.1f} s"
    )
    resident = " -> ".join(f"{one['VmRSS']:.2f}" for one in used)
    anonymous = " -> ".join(f"{one['RssAnon']:.2f}" for one in used)
    print(
        f"    resident {resident} GB, without pages of files {anonymous}, at most "
        f"{used[-1]['VmHWM']:.2f}; checkpoint {1e3 * np.median(saving or [np.nan]):.0f} ms, "
        f"{engine.seen(state).sum():,} states in {on_disk(nodes):.3f} GB on disk"
    )


def measured(clients: int, rounds: int) -> None:
    """One number of clients, in processes of its own: the most memory is that of the rounds."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for target, given in (
            (make, (Path(folder) / "data", clients)),
            (touch_free_memory, ()),
            (run, (Path(folder), clients, rounds)),
        ):
            process = context.Process(target=target, args=given)
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{target.__name__} ended with exit code {process.exitcode}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=float, nargs="*", default=[1e4, 1e6, 1e8])
    parser.add_argument("--rounds", type=int, default=1000)
    options, _ = parser.parse_known_args()
    print(
        f"\nEnrolled clients, cohort {COHORT:,}, every client that took part has a state on disk, "
        f"{options.rounds} rounds, checkpoints every {CHECKPOINT_EVERY}",
        flush=True,
    )
    for clients in options.clients:
        measured(int(clients), options.rounds)


if __name__ == "__main__":
    main()
