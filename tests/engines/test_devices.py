"""Chunks on four devices of a process give the run of one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from methods import METHODS
from problems import linear_gaussian

from covey.engines.programs import round_parts
from covey.engines.round import Tally, empty_tally, merged
from covey.engines.setup import setup_of
from covey.engines.simulate import Simulation, _Resident

TESTS = Path(__file__).parents[1]
TOLERANCE = 1e-4
QUICK = ("remembering", "fedavg")


def on_four_devices(storage: str, sizes: str, *names: str) -> dict:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    source = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    done = subprocess.run(
        [sys.executable, str(TESTS / "spread.py"), storage, sizes, *names],
        # with the partitioner that users have
        env=os.environ
        | {"XLA_FLAGS": flags, "PYTHONPATH": source, "JAX_USE_SHARDY_PARTITIONER": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_same(found: dict) -> None:
    wrong = {
        name: walk
        for name, walk in found.items()
        if not (walk["same_clients"] and walk["same_seen"] and walk["apart"] <= TOLERANCE)
        or walk["measures_apart"] > 10 * TOLERANCE
    }
    assert not wrong


@pytest.mark.processes
def test_two_methods():
    found = on_four_devices("device", "alike", *QUICK)
    assert list(found) == [*QUICK]
    assert len({*found["remembering"]["clients"]}) > 1  # cohorts that differ
    assert_same(found)


@pytest.mark.slow
def test_every_method():
    assert_same(on_four_devices("device", "unequal", *METHODS))


@pytest.mark.slow
def test_rows_on_the_host():
    names = ("remembering", "forgetting", "fedavg", "scaffold")
    assert_same(on_four_devices("host", "unequal", *names))


def test_one_device_has_the_programs_it_always_had():
    data = linear_gaussian().data
    engine = Simulation(METHODS["fedavg"](), data, seed=0)
    assert type(engine.driver) is _Resident
    assert engine.devices == jax.local_devices()


def test_tallies_are_summed_as_a_tree():
    setup = setup_of(
        METHODS["fedavg"](), linear_gaussian().data, seed=0, cohort=None, channel=None, faults=None
    )
    empty = empty_tally(round_parts(setup).shapes)
    tallies = [
        empty._replace(
            aggregate=empty.aggregate._replace(count=empty.aggregate.count + 10.0**at),
            diverged_id=empty.diverged_id + at,
        )
        for at in range(5)
    ]
    total = merged(tallies)
    assert isinstance(total, Tally)
    assert float(total.aggregate.count) == 11111.0
    assert int(total.diverged_id) == 3  # ids are not summed
