"""Runs in the actors of a real Ray cluster: as a script, since functions whose shapes are checked
cannot be sent to other processes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import ray
from methods import MADE, METHODS, cohort_for
from problems import linear_gaussian

import covey
from called_threefry import use_called_threefry
from command_line import call, is_running, lines, write_config
from covey import models
from covey.config import user_code
from covey.core import cohort
from covey.data.federated import FederatedData
from covey.engines.cluster import Cluster
from covey.engines.ray import RayCrew
from covey.engines.simulate import Simulation

EVERY = MADE | METHODS
TIMES = ("slowest_actor", "slowest_seconds", "seconds")


def small(**options) -> FederatedData:
    return linear_gaussian(**options).data.split(validation=0.2, test=0.2, seed=3)


def assert_same_run(method, data, crew, rounds=5):
    options = {"seed": 7, "cohort": cohort_for(method, cohort.bernoulli(0.7))}
    whole, engine = Simulation(method, data, **options), Cluster(method, data, crew=crew, **options)
    expected, lines = whole.advance(whole.start(), rounds)
    state, found = engine.advance(engine.start(), rounds)
    counted = ("clients", "lost", "bits_up", "bytes_down")
    for one, other in zip(found, lines, strict=True):
        assert [one[key] for key in counted] == [other[key] for key in counted]
    assert_close(engine.snapshot(state), whole.snapshot(expected), 1e-4)
    assert_close(engine.evaluate(state, "test"), whole.evaluate(expected, "test"), 1e-3)


def assert_close(one, other, tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def actors() -> None:
    """1, 2 and 4 actors give the run of one machine."""
    data = small()
    scaffold, _ = user_code.load(str(Path(__file__).parents[1] / "examples/scaffold.py:scaffold"))
    for count in (4, 2, 1):
        crew = RayCrew(data, actors=count)
        for name in ("remembering", "fedavg"):
            assert_same_run(EVERY[name](), data, crew)
        if count == 2:  # a method from a file that no actor can import
            assert_same_run(scaffold(models.linear(), batch_size=None), data, crew)
        crew.close()


def every(*names: str) -> None:
    """Methods on two actors. Theirs are many programs: they compile as the tests' own do."""
    hook = "called_threefry.use_called_threefry"
    ray.init(
        log_to_driver=False, logging_level="error", runtime_env={"worker_process_setup_hook": hook}
    )
    use_called_threefry()
    data = small(sizes=(30,) * 4)  # of one capacity, so that little is compiled
    crew, wrong = RayCrew(data, actors=2), {}
    for name in names:
        try:
            assert_same_run(EVERY[name](), data, crew)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert not wrong, wrong


def killed() -> None:
    """SIGKILL of actors in the middle of rounds, three times: the same run to the last bit."""
    data = small()
    crew = RayCrew(data, actors=2)
    engine = Cluster(EVERY["remembering"](), data, crew=crew, seed=7, cohort=cohort.bernoulli(0.7))
    expected, before = engine.advance(engine.start(), 120)
    undisturbed = engine.snapshot(expected)
    state = engine.start()

    def kill():
        for count, block in enumerate((0, 1, 0)):
            while engine._at < 10 + 30 * count:
                time.sleep(0.001)
            starts = crew.starts[block]
            os.kill(crew.processes[block], signal.SIGKILL)
            while crew.starts[block] == starts:
                time.sleep(0.01)

    engine._reached = 0
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.warns(UserWarning, match="lost actor") as told:
        state, after = engine.advance(state, 120)
    killer.join()
    assert len(told) == 3
    for one, other in zip(before, after, strict=True):
        assert all(one[key] == other[key] for key in one if key not in TIMES)
    assert_close(engine.snapshot(state), undisturbed, 0)


def runs() -> None:
    """A run on disk, resumed with other actors; a posterior that asks; a configuration."""
    data, method, folder = small(), EVERY["remembering"](), Path(tempfile.mkdtemp())

    def run(rounds, **options):
        return covey.run(
            method, data, rounds=rounds, seed=3, evaluate_every=2, progress=False, **options
        )

    whole = run(6)
    run(2, engine="ray", actors=3, out=folder / "run")
    resumed = run(6, engine="ray", actors=2, out=folder / "run", resume=True)
    both = [name for name in whole.metrics.columns if name != "seconds"]
    np.testing.assert_allclose(resumed.metrics[both], whole.metrics[both], rtol=1e-4)
    assert "slowest_actor" in resumed.metrics
    x = np.zeros((2, 3), np.float32)
    means = [one.predict(x, client="site1", standardised=True).mean for one in (resumed, whole)]
    np.testing.assert_allclose(*means, rtol=1e-4)
    draws = [one.posterior.client("site1").draws(4, chains=1) for one in (resumed, whole)]
    assert_close(*draws, 1e-4)
    assert (folder / "run" / "report.html").exists()
    del resumed

    ml = covey.marginal(covey.models.mixed_linear(), estimate="ml")
    found = [
        covey.run(ml, data, seed=1, progress=False, **options).posterior.shared.summary()["mean"]
        for options in ({}, {"engine": "ray", "actors": 2})
    ]
    np.testing.assert_allclose(*found, rtol=1e-3)

    study = write_config(folder, 4)
    chosen = ("--set", "run.engine=ray", "--set", "run.actors=2")
    for name, options in (("ray", chosen), ("plain", ())):
        code, said = call("run", study, "--out", folder / name, *options)
        assert code == 0, said
    for one, other in zip(lines(folder / "ray"), lines(folder / "plain"), strict=True):
        assert one["clients"] == other["clients"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)


def swept() -> None:
    """A sweep on a cluster is the sweep of this machine, and nothing is done twice."""
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error", include_dashboard=False)
    folder = Path(tempfile.mkdtemp())
    study = write_config(folder, 4)
    given = ("sweep", study, "--set", "method.batch_size=4,8", "--out")
    command = (*given, folder / "there", "--address", "auto")
    code, said = call(*command)
    assert code == 0, said
    assert "2 of 2" in said
    code, said = call(*given, folder / "here", "--workers", 1)
    assert code == 0, said
    runs = [sorted((folder / name / "runs").iterdir()) for name in ("there", "here")]
    for one, other in zip(*runs, strict=True):
        assert one.name == other.name
        assert lines(one) == lines(other)
    tables = [pd.read_csv(folder / name / "table.csv") for name in ("there", "here")]
    pd.testing.assert_frame_equal(*tables)

    (runs[0][0] / "result.json").unlink()  # as if it had been killed at the very end
    before = {path: path.stat().st_mtime_ns for path in folder.glob("there/runs/*/*")}
    code, said = call(*command)
    assert code == 0, said
    assert "1 of 2 runs are done already" in said
    changed = [path for path, when in before.items() if path.stat().st_mtime_ns != when]
    assert {path.parent for path in changed} <= {runs[0][0]}
    assert lines(runs[0][0]) == lines(runs[1][0])
    code, said = call(*command, "--set", "run.engine=ray")
    assert code == 2
    assert "add --set run.engine=simulate" in said


def holders(out: Path) -> list[int]:
    """The processes that the locks of runs name."""
    texts = [lock.read_text() for lock in out.glob("runs/*/lock")]
    return [json.loads(text)["pid"] for text in texts if text.endswith("}")]


def sweep_killed() -> None:
    """kill -9 of a sweep on a cluster, and the same command again."""
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error", include_dashboard=False)
    folder = Path(tempfile.mkdtemp())
    out, address = folder / "sweep", ray.get_runtime_context().gcs_address
    given = ("sweep", write_config(folder, 400), "--set", "method.batch_size=4,8", "--seeds", 2)
    command = [sys.executable, "-m", "covey.cli", *given, "--out", out, "--address", address]
    command = list(map(str, command))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(out.glob("runs/*/result.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any(map(is_running, holders(out))):  # Ray ends the tasks, but not at once
        time.sleep(0.01)
    done = list(out.glob("runs/*/result.json"))
    files = [*done, *(path.with_name("metrics.jsonl") for path in done)]
    written = {path: path.stat().st_mtime_ns for path in files}
    assert 0 < len(done) < 4
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert f"{len(done)} of 4 runs are done already" in finished.stderr
    assert len(list(out.glob("runs/*/result.json"))) == 4
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())


def refused() -> None:
    """Memory-mapped rows, those that an actor cannot open, methods that cannot be sent, and more
    actors than there is room for.
    """
    folder = Path(tempfile.mkdtemp())
    small().save(folder / "rows")
    mapped = FederatedData.open(folder / "rows")
    crew = RayCrew(mapped, actors=2)
    assert_same_run(EVERY["fedavg"](), mapped, crew, rounds=2)
    lock = threading.Lock()
    bound = EVERY["fedavg"]()._replace(commit=lambda pending, sent: lock and pending)
    engine = Cluster(bound, mapped, crew=crew, seed=0)
    with pytest.raises(ValueError, match="cannot be sent to the actors: cannot pickle"):
        engine.advance(engine.start(), 1)
    crew.close()
    (folder / "rows" / "y.npy").unlink()
    with pytest.raises(ValueError, match=r"rows/y\.npy cannot be opened on node \S+: No such file"):
        RayCrew(mapped, actors=2)
    clients = {str(at): (np.zeros((2, 1), np.float32), np.zeros(2)) for at in range(40)}
    with pytest.raises(ValueError, match=r"30 actors need 30 CPUs and the cluster has \d"):
        RayCrew(FederatedData.from_clients(clients), actors=30)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    scenario, *names = sys.argv[1:]
    globals()[scenario](*names)
    ray.shutdown()
