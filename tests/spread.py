"""Methods on four devices and on one, side by side: run as a script, in a process that has four."""

import json
import sys
import warnings

import jax
import numpy as np
from methods import MADE, METHODS, cohort_for
from problems import linear_gaussian

from called_threefry import use_called_threefry
from covey.core import cohort, wire
from covey.engines.simulate import Simulation

DEVICES, ROUNDS = 4, 5
SIZES = {
    "alike": (26, 32, 28, 30, 25),  # of one capacity, so that little is compiled
    "unequal": (7, 40, 12, 90, 25),
}
EVERY = MADE | METHODS


def walked(name: str, storage: str, sizes: str) -> dict:
    """What differs between a run on all devices and one on the first."""
    data = linear_gaussian(sizes=SIZES[sizes]).data.split(validation=0.2, test=0.2, seed=3)
    runs, method = [], EVERY[name]()  # one method: what does not depend on devices is shared
    for devices in (None, jax.local_devices()[:1]):
        scheme = cohort_for(method, cohort.bernoulli(0.7))
        engine = Simulation(
            method, data, seed=7, cohort=scheme, chunk=1, storage=storage, devices=devices
        )
        state, lines = engine.advance(engine.start(), 2)
        stored = wire.unpack(wire.pack(engine.snapshot(state)), engine.snapshot_like())
        state, more = engine.advance(engine.restore(stored), ROUNDS - 2)
        measures = jax.device_get(engine.evaluate(state, "test"))
        runs.append((lines + more, jax.device_get(engine.snapshot(state)), measures, engine))
    (many, snapshot, measures, spread), (one, expected, few, _) = runs
    assert len(spread.devices) == DEVICES
    return {
        "clients": [line["clients"] for line in many],
        "same_clients": all(
            a[key] == b[key] for a, b in zip(many, one, strict=True) for key in a if key in COUNTS
        ),
        "same_seen": bool(np.array_equal(snapshot.seen, expected.seen)),
        "apart": max(map(apart, jax.tree.leaves(snapshot), jax.tree.leaves(expected))),
        "measures_apart": max(map(apart, jax.tree.leaves(measures), jax.tree.leaves(few))),
    }


COUNTS = ("round", "clients", "lost", "late", "diverged", "bits_up", "bytes_down")


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to values above one."""
    a, b = np.asarray(one, float), np.asarray(other, float)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    gap = np.abs(a - b) / np.maximum(np.abs(b), 1)
    return float(np.max(np.where(a == b, 0, gap), initial=0, where=~np.isnan(a)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    use_called_threefry()
    storage, sizes, *names = sys.argv[1:]
    sys.stdout.write(json.dumps({name: walked(name, storage, sizes) for name in names}))
