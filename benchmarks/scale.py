"""Every number of docs/guides/scale.md: the machine's limits, and the cost of a round as the
cohort, the clients, the parameters and the devices grow.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import enrolled, overhead
from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.local import local
from covey.core import cohort
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.engines import round as rounds
from covey.engines.simulate import Simulation

FEATURES, SIZE = 20, 20  # of a row, and rows per client
CLIENTS = 100_000


def median(call: Callable[[], object], repeats: int = 15) -> float:
    """Seconds of a call, of which the first is not counted."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def limits() -> tuple[float, float]:
    """Bytes per second that a program can read and write, and float32 operations per second."""
    large = jnp.ones(1 << 26)  # 256 MB
    add = jax.jit(lambda a, b: a + b)
    bandwidth = 3 * large.nbytes / median(lambda: add(large, large))
    matrix = jnp.ones((2048, 2048))
    operations = 2 * 2048**3 / median(lambda: jax.jit(jnp.dot)(matrix, matrix))
    one = jnp.zeros(())
    dispatch = median(lambda: add(one, one), 200)
    print(
        f"\nThe machine: {os.cpu_count()} cores, memory {bandwidth / 1e9:.1f} GB/s (a + b), "
        f"{operations / 1e9:.0f} GFLOP/s (float32 matrices), a call of a compiled program "
        f"{1e6 * dispatch:.0f} us"
    )
    return bandwidth, operations


def data_of(clients: int, features: int = FEATURES, size: int = SIZE) -> FederatedData:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * size, features), np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    return FederatedData.from_rows(Rows(x, y), np.full(clients, size), classes=2)


def method_of():
    return fedavg(models.logistic(), client_optimizer=optax.sgd(0.1), batch_size=SIZE)


def round_seconds(engine: Simulation, together: int, repeats: int = 15) -> float:
    """Seconds per round, of `together` rounds in one call."""
    state = engine.start()

    def some():
        nonlocal state
        state, _ = engine.advance(state, together)
        return state.server

    return median(some, repeats) / together


def cohorts(bandwidth: float, operations: float) -> None:
    """Rows on the device: 10^5 clients of 20 rows, FedAvg, one batch per client."""
    data = data_of(CLIENTS)
    print(f"\nCohort, of {CLIENTS:,} clients with {SIZE} rows of {FEATURES} features, FedAvg")
    for size in (100, 1000, 10_000, 100_000):
        engine = Simulation(method_of(), data, seed=0, cohort=cohort.uniform(size))
        seconds = round_seconds(engine, max(1, 10_000 // size), repeats=7)
        rows = size * SIZE
        flops, moved = 4 * rows * FEATURES, rows * (FEATURES + 1) * 4
        print(
            f"  {size:>7,}: {1e3 * seconds:8.2f} ms, {1e6 * seconds / size:6.2f} us per client; "
            f"{100 * moved / seconds / bandwidth:.1f} % of the memory's speed, "
            f"{100 * flops / seconds / operations:.2f} % of the operations",
            flush=True,
        )


def parameters(bandwidth: float) -> None:
    """Parameters of a linear model, 16 clients of 4 rows: rows are as wide as the model."""
    print("\nParameters, 16 clients with 4 rows, FedAvg, one step")
    for features in (100, 10_000, 1_000_000):
        data = data_of(16, features, 4)
        optimizer = optax.sgd(1e-6)
        method = fedavg(models.linear(), client_optimizer=optimizer, batch_size=4)
        regression = FederatedData.from_rows(Rows(data.rows.x, data.rows.x[:, 0]), np.full(16, 4))
        engine = Simulation(method, regression, seed=0)
        seconds = round_seconds(engine, 3, repeats=7)
        moved = 16 * features * 4 * (4 + 3)  # rows once; parameters read, written and summed
        print(
            f"  {features:>9,}: {1e3 * seconds:8.2f} ms; {100 * moved / seconds / bandwidth:.0f} % "
            "of the memory's speed",
            flush=True,
        )


def one_of_devices() -> None:
    engine = Simulation(method_of(), data_of(10_000), seed=0, cohort=cohort.uniform(2000))
    print(
        f"  {len(engine.devices)}: {1e3 * round_seconds(engine, 5, repeats=7):8.2f} ms", flush=True
    )


def devices() -> None:
    print("\nDevices of one process, forced on these cores: cohort 2,000 of 10,000 clients, FedAvg")
    sys.stdout.flush()
    for count in (1, 2, 4):
        flags = f"--xla_force_host_platform_device_count={count}"
        command = [sys.executable, "-m", "benchmarks.scale", "--only", "one_of_devices"]
        subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, check=True)


def parts_of_a_round() -> None:
    """Where a round of 1,000 stateful clients on the host spends its time."""
    clients = 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        enrolled.make(Path(folder) / "data", clients)
        data = FederatedData.open(Path(folder) / "data")
        method = local(models.logistic(), client_optimizer=optax.sgd(0.1), batch_size=32)
        engine = Simulation(
            method,
            data,
            seed=0,
            cohort=cohort.uniform(1000),
            storage="host",
            node_directory=Path(folder) / "nodes",
        )
        state, _ = engine.advance(engine.start(), 20)
        driver: Any = engine.driver
        root = engine.setup.root
        slots = jax.device_get(driver.call_up(root, 3, engine.ids)[0])
        index = np.asarray(slots.index)
        down, seen = driver.broadcast(state.server), np.array(state.seen)
        tally = driver.clients.round(3, down, slots, seen)
        counts = driver.call_up(root, 3, engine.ids)[1]

        def kept() -> None:
            driver.store.put(index, driver.store.take(index))

        found = {
            "draw the cohort": lambda: driver.call_up(root, 3, engine.ids),
            "gather its rows": lambda: engine.rows.view(index, "train"),
            "read and write its states": kept,
            "rounds of its clients, with both": lambda: driver.clients.round(3, down, slots, seen),
            "server": lambda: driver.close_round(root, 3, state.server, tally, counts),
        }
        print(f"\nWhere a round goes: cohort 1,000 of {clients:,}, states on disk")
        for name, call in found.items():
            print(f"  {name:34s} {1e3 * median(call):7.2f} ms", flush=True)
        total = median(lambda: engine.advance(state, 1)[0].server)
        print(f"  {'a round':34s} {1e3 * total:7.2f} ms")


def tree(bandwidth: float) -> None:
    """Tallies added in a tree: 10^6 uploads, 1,000 per aggregator, two levels."""
    print(
        "\n10^6 uploads in a round: one server, or 1,000 aggregators of 1,000 uploads and a server"
    )
    add = jax.jit(lambda total, upload: total + upload, donate_argnums=0)
    for size, name in ((1000, "4 kB"), (250_000, "1 MB")):
        upload, total = jnp.ones(size), jnp.zeros(size)
        few = jax.block_until_ready([upload + at for at in range(8)])
        start, count = time.perf_counter(), 2000 if size < 10_000 else 400
        for at in range(count):
            total = add(total, few[at % 8])
        total.block_until_ready()
        each = (time.perf_counter() - start) / count
        print(
            f"  uploads of {name}: {1e6 * each:.0f} us to add one ({3 * 4 * size / each / 1e9:.1f} "
            f"GB/s); one server {1e6 * each:,.1f} s, the tree {2000 * each:.2f} s per round",
            flush=True,
        )
    parts = [jnp.full(1000, 1.0 + at / 64) for at in range(64)]
    sums = [
        rounds.Tally(
            rounds.Aggregate(one, one, jnp.ones(()), jnp.ones(())), (), *2 * (jnp.int32(0),)
        )
        for one in parts
    ]
    merged = jax.jit(rounds.merged)
    print(f"  64 tallies of 4 kB in one program: {1e6 * median(lambda: merged(sums)):.0f} us")
    values = np.random.default_rng(0).random(1_000_000, np.float32)
    exact = values.astype(np.float64).sum()
    flat = np.add.accumulate(values)[-1]
    nested = np.add.accumulate(np.add.accumulate(values.reshape(1000, 1000), axis=1)[:, -1])[-1]
    print(
        f"  relative error of a float32 sum: in a row {abs(flat - exact) / exact:.1e}, in the tree "
        f"{abs(nested - exact) / exact:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=None, help="names of functions")
    parser.add_argument("--most", type=float, default=1e8, help="clients, at most")
    options, _ = parser.parse_known_args()
    parts = ["cohorts", "parameters", "devices", "parts_of_a_round", "tree", "clients", "overhead"]
    chosen = parts if options.only is None else options.only
    if chosen == ["one_of_devices"]:
        one_of_devices()
        return
    bandwidth, operations = limits()
    if "cohorts" in chosen:
        cohorts(bandwidth, operations)
    if "parameters" in chosen:
        parameters(bandwidth)
    if "devices" in chosen:
        devices()
    if "parts_of_a_round" in chosen:
        parts_of_a_round()
    if "tree" in chosen:
        tree(bandwidth)
    if "clients" in chosen:
        print("\nClients, cohort 1,000, states on disk", flush=True)
        for clients in (10**3, 10**4, 10**5, 10**6, 10**7, 10**8):
            if clients <= options.most:
                enrolled.measured(clients, 1000 if clients >= 10**8 else 200)
    if "overhead" in chosen:
        overhead.main()


if __name__ == "__main__":
    main()
