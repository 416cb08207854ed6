"""Seconds per round between processes: Covey's messages against NVFlare's own averaging of the same
arrays, with a server and three sites over mutual TLS on this machine.

A round is the time between two messages at one site. The jobs take turns on the same processes.
"""

import os
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

SITES = ["a", "b", "c"]
ROUNDS, TURNS = 15, 2
SIZES = {"1 kB": 250, "1 MB": 250_000}
OWN = ("benchmarks.deploy_parts.CoveyAveraging", "benchmarks.deploy_parts.CoveyTraining")
PEER = ("benchmarks.deploy_parts.NvflareAveraging", "benchmarks.deploy_parts.NvflareTraining")


def main() -> None:
    from covey.deploy.nvflare import rules
    from covey.deploy.nvflare.jobs import POLLING
    from covey.deploy.nvflare.kit import read_kit
    from covey.deploy.nvflare.provision import make_kits
    from covey.deploy.nvflare.session import connected

    contenders = {
        "covey": (*OWN, POLLING),
        "NVFlare FedAvg, polling as covey": (*PEER, POLLING),
        "NVFlare FedAvg, its default polling": (*PEER, 2.0),
    }
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        make_kits(folder, SITES, host="localhost", port=port)
        rules.allow(folder / "server", OWN[0], PEER[0])
        for site in SITES:
            rules.allow(folder / "sites" / site, OWN[1], PEER[1])
        start_all(folder, stack)
        kit = read_kit(folder / "coordinator", "coordinator")
        with connected(kit) as coordinator:
            while set(coordinator.sites()) < set(SITES):
                time.sleep(0.2)
            for size, values in SIZES.items():
                measure(coordinator, folder, size, values, contenders)


def measure(coordinator, folder, size, values, contenders) -> None:
    """Print the median seconds per round of each contender."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(TURNS):
        for name, (controller, executor, polling) in contenders.items():
            if polling > 1 and turn:  # two seconds a round do not need to be seen twice
                continue
            seconds[name] += rounds(coordinator, folder, controller, executor, polling, values)
    print(f"\nSeconds per round between processes, three sites, {size} each way")
    for name, values_of in seconds.items():
        quartiles = np.quantile(values_of, [0.25, 0.5, 0.75])
        print(
            f"  {name:36s} median {quartiles[1]:.3f} s (quartiles {quartiles[0]:.3f}-"
            f"{quartiles[2]:.3f}, {len(values_of)} rounds)"
        )


def rounds(coordinator, folder, controller, executor, polling, values) -> list[float]:
    """Run one job; the times between its messages at one site."""
    from covey.deploy.nvflare.jobs import write_job

    note = folder / f"{SITES[0]}.txt"
    note.write_text("")
    task = "train" if executor == PEER[1] else None
    with tempfile.TemporaryDirectory() as place:
        job = write_job(
            Path(place),
            "benchmark",
            SITES,
            settings={"rounds": ROUNDS, "values": values},
            controller=controller,
            executor=executor,
            polling=polling,
        )
        if task is not None:
            config = job / "app" / "config" / "config_fed_client.json"
            config.write_text(config.read_text().replace('"covey"', f'"{task}"'))
        identity = coordinator.submit(job)
    while not coordinator.job(identity).over:
        time.sleep(0.5)
    times = [float(line) for line in note.read_text().split()]
    if len(times) != ROUNDS:
        raise SystemExit(f"{controller}: {len(times)} of {ROUNDS} rounds; see {folder}")
    return list(np.diff(times)[1:])  # without the first, in which processes get to know each other


def start_all(folder: Path, stack: ExitStack) -> None:
    """Start the server and the sites; they end with the stack."""
    from covey.deploy.nvflare import launch
    from covey.deploy.nvflare.kit import read_kit

    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    server = stack.enter_context(
        launch.running(read_kit(folder / "server", "server"), {"PYTHONPATH": path})
    )
    server.wait_until_listening()
    for site in SITES:
        environment = {"PYTHONPATH": path, launch.SITE_FILE: str(folder / f"{site}.txt")}
        stack.enter_context(launch.running(read_kit(folder / "sites" / site, "site"), environment))


if __name__ == "__main__":
    main()
