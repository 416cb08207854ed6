"""Clients in the actors of a real Ray cluster on this machine; see `tests/on_ray.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from methods import MADE, METHODS

TESTS = Path(__file__).parents[1]


def on_ray(*arguments: str) -> None:
    pytest.importorskip("ray")
    source = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), str(TESTS.parent)])
    done = subprocess.run(
        [sys.executable, str(TESTS / "on_ray.py"), *arguments],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_any_number_of_actors_gives_the_run_of_one_machine():
    on_ray("actors")


@pytest.mark.slow
def test_every_method():
    on_ray("every", *MADE, *METHODS)


@pytest.mark.processes
def test_actors_that_are_killed_three_times():
    on_ray("killed")


@pytest.mark.slow
def test_runs_on_disk_posteriors_that_ask_and_configurations():
    on_ray("runs")


@pytest.mark.slow
def test_what_is_refused():
    on_ray("refused")


@pytest.mark.slow
def test_a_sweep_on_a_cluster_is_that_of_one_machine():
    on_ray("swept")


@pytest.mark.slow
def test_a_killed_sweep_on_a_cluster_goes_on():
    on_ray("sweep_killed")
