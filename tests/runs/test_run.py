"""Runs: their tables, and the same numbers however they are cut, stopped, resumed or watched."""

import errno
import os
import signal
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pandas as pd
import pytest
from methods import remembering
from problems import linear_gaussian

from covey import topology
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedem import fedem
from covey.algorithms.local import local
from covey.core import atomic_files, cohort
from covey.core.metrics import Calibration, Mean
from covey.data.federated import FederatedData
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation
from covey.models import gaussian_mixture, linear, logistic
from covey.runs.digest import data_digest
from covey.runs.evaluation import Evaluation
from covey.runs.interrupt import Stopped, StopRequest
from covey.runs.launch import run
from covey.runs.run import Run


def knobs(**changes: Any) -> dict[str, Any]:
    return {"rounds": 12, "seed": 3, "evaluate_every": 5, "progress": False} | changes


def numbers(done: Run) -> pd.DataFrame:
    """The metrics without the time they took."""
    return done.metrics.drop(columns="seconds")


def assert_same(one: Run, other: Run) -> None:
    pd.testing.assert_frame_equal(numbers(one), numbers(other), check_exact=True)
    for ours, theirs in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def whole(method, data) -> Run:
    """The run that nothing happened to."""
    return run(method, data, **knobs())


def test_metrics_have_one_line_a_round_and_evaluations_where_due(whole):
    table = whole.metrics
    assert len(table) == whole.round == 12
    evaluated = table.index[table["validation_accuracy"].notna()] + 1
    assert list(evaluated) == [5, 10, 12]  # each fifth, and the last
    assert table["train_loss"].notna().all()
    assert (table["clients"] == 5).all()
    assert all(kind.kind in "if" for kind in table.dtypes)


def test_clients_have_one_line_each(whole, data):
    table = whole.clients
    assert list(table["name"]) == [f"site{number}" for number in range(5)]
    np.testing.assert_array_equal(table["train_rows"], data.counts("train"))
    np.testing.assert_array_equal(table["test_rows"], data.counts("test"))
    pooled = np.average(table["accuracy"], weights=table["validation_rows"])
    np.testing.assert_allclose(pooled, whole.metrics["validation_accuracy"].iloc[-1], rtol=1e-6)


def test_evaluation_agrees_with_predictions(whole, data):
    found = whole.evaluate(split="test")
    correct = 0
    for index in range(data.clients):
        rows = data.shard(index, "test").rows
        predicted = np.argmax(
            whole.predict(rows.x, client=data.name_of(index)).log_probability, axis=-1
        )
        accuracy = float(np.mean(predicted == np.asarray(rows.y)))
        assert found.clients["accuracy"][index] == pytest.approx(accuracy, abs=1e-6)
        correct += int(np.sum(predicted == np.asarray(rows.y)))
    assert found.pooled["accuracy"] == pytest.approx(correct / data.counts("test").sum(), abs=1e-6)


def test_unseen_clients_are_adapted(method, data):
    known, unseen = data.hold_out(["site4"])
    done = run(method, known, rounds=3, seed=3, progress=False)
    assert "validation_accuracy" not in done.metrics
    assert len(done.clients) == 4  # evaluated now, as it was not before
    assert list(done.evaluate(unseen, split="test").clients["name"]) == ["site4"]
    x = unseen.shard(0, "test").rows.x
    assert done.predict(x, client="site4", data=unseen).log_probability.shape == (len(x), 2)
    with pytest.raises(ValueError, match="no client 'site4'"):
        done.predict(x, client="site4")


def test_everything_is_evaluated_once_after_the_last_round(method, data, tmp_path, monkeypatch):
    """Progress, `run.evaluation`, clients.parquet and the report share one evaluation; the unseen
    clients have one, which the report and `unseen_evaluation` share.
    """
    asked, evaluate = [], Simulation.evaluate

    def counted(self, state, split="validation", data=None, **options):
        asked.append((state.round, split, None if data is None else data.name_of(0)))
        return evaluate(self, state, split, data, **options)

    monkeypatch.setattr(Simulation, "evaluate", counted)
    known, unseen = data.hold_out(["site4"])
    out = tmp_path / "run"
    done = run(method, known, unseen=unseen, out=out, **knobs(rounds=6))
    assert len(done.clients) == 4
    assert list(done.unseen_evaluation.clients["name"]) == ["site4"]
    page = (out / "report.html").read_text("utf-8")
    assert "judged on their test rows: site4" in page
    assert asked == [(5, "validation", None), (6, "validation", None), (6, "test", "site4")]
    assert done.unseen_evaluation.pooled == done.evaluate(unseen).pooled
    before = done.unseen_evaluation
    assert done.advance(1).unseen_evaluation.round == 7 > before.round


@pytest.mark.parametrize(
    ("unseen", "told"),
    [
        (lambda data: data.pooled(), "no test rows to be judged on; split the data before"),
        (lambda data: data.standardised()[0], "unseen: these data were standardised and those"),
        (lambda data: linear_gaussian().data.split(test=0.2, seed=0), "unseen: the rows of these"),
    ],
)
def test_unseen_clients_that_cannot_be_judged_are_refused(method, data, unseen, told):
    raw = data.subset([0, 1, 2]).split(validation=0, test=0, seed=1)
    with pytest.raises(ValueError, match=told):
        run(method, data, unseen=unseen(raw), **knobs(rounds=1))


def test_a_run_without_unseen_clients_says_so(whole):
    with pytest.raises(ValueError, match=r"given no unseen clients: start it with covey.run\(.*"):
        _ = whole.unseen_evaluation


def test_a_method_without_a_posterior_says_so(whole):
    with pytest.raises(ValueError, match=r"fedavg has no posterior of the shared.*run\.predict"):
        _ = whole.posterior.shared
    with pytest.raises(ValueError, match="fedavg has no posterior of a client's own"):
        whole.posterior.client("site1")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"checkpoint_every": 3}, "give out="),
        ({"resume": True}, "give out="),
        ({"engine": "loop", "chunk": 2}, "not for 'loop'"),
    ],
)
def test_options_that_make_no_sense_are_refused(method, data, wrong, told):
    with pytest.raises(ValueError, match=told):
        run(method, data, **knobs(**wrong))


def test_a_part_without_rows_is_told_before_the_first_round(method, data, whole):
    unsplit = data.split(0.0, 0.0, seed=0)
    with pytest.raises(ValueError, match=r"no validation rows.*data\.split"):
        run(method, unsplit, **knobs())
    with pytest.raises(ValueError, match="no test rows"):
        whole.evaluate(unsplit)


def test_clients_with_other_columns_are_refused(method, data):
    names = tuple(f"column{index}" for index in range(data.rows.x.shape[1]))
    named, turned = (
        replace(data, spec=data.spec._replace(features=features))
        for features in (names, names[::-1])
    )
    done = run(method, named, **knobs(rounds=1, evaluate_every=None))
    for ask in (
        lambda: done.evaluate(turned),
        lambda: done.predict(data.rows.x[:1], client="site0", data=turned),
    ):
        with pytest.raises(ValueError, match="in another order"):
            ask()


@pytest.mark.parametrize("block", [1, pytest.param(64, marks=pytest.mark.slow)])
def test_numbers_do_not_depend_on_blocks(method, data, whole, monkeypatch, block):
    monkeypatch.setattr("covey.runs.advancing.next_length", lambda before, seconds: block)
    assert_same(whole, run(method, data, **knobs()))


def test_going_on_is_the_same_as_not_having_stopped(method, data, whole):
    done = run(method, data, **knobs(rounds=5))
    assert done.advance(7) is done
    assert_same(whole, done)


@pytest.mark.slow
def test_the_loop_runs_too(method, data, whole):
    done = run(method, data, **knobs(rounds=3, evaluate_every=None), engine="loop")
    np.testing.assert_allclose(
        done.metrics["train_loss"], whole.metrics["train_loss"][:3], rtol=1e-5
    )


def peers(**changes: Any) -> dict[str, Any]:
    between = {"engine": "peers", "topology": topology.complete(), "evaluate_every": None}
    return knobs(**between | changes)


@pytest.mark.slow
def test_peers_run_too(data):
    plain = fedavg(logistic(), client_optimizer=optax.sgd(0.05))
    table = run(plain, data, **peers(rounds=2)).metrics
    assert table["train_loss"].notna().sum() == 2
    with pytest.raises(ValueError, match="'loop' has a server"):
        run(plain, data, **peers(engine="loop"))


@pytest.mark.slow
def test_peers_go_on_after_a_stop_as_a_server_does(method, data, tmp_path):
    plain, settings = (
        fedavg(logistic(), client_optimizer=optax.sgd(0.05)),
        knobs(rounds=6, evaluate_every=None),
    )
    server = run(plain, data, **settings).metrics["train_loss"]
    between = peers(rounds=6, out=tmp_path / "run")
    assert len(run(plain, data, **between | {"rounds": 4}).metrics) == 4
    np.testing.assert_allclose(
        run(plain, data, **between, resume=True).metrics["train_loss"], server, rtol=1e-4
    )
    with pytest.raises(ValueError, match="not linear in the sum"):
        run(method, data, **between | {"out": None})


@pytest.fixture(scope="module")
def stored(method, data, tmp_path_factory) -> Path:
    """The directory of a finished run."""
    path = tmp_path_factory.mktemp("runs") / "study"
    run(method, data, **knobs(), out=path, checkpoint_every=4)
    return path


def test_a_run_on_disk_is_the_same_and_can_be_read(method, data, whole, stored):
    # finished: nothing is left to do
    done = run(method, data, **knobs(), out=stored, checkpoint_every=4, resume=True)
    assert_same(whole, done)
    assert done.name == "study"
    pd.testing.assert_frame_equal(pd.read_json(stored / "metrics.jsonl", lines=True), done.metrics)
    pd.testing.assert_frame_equal(
        pd.read_parquet(stored / "clients.parquet"), whole.clients, check_dtype=False
    )


def test_data_are_told_apart_by_their_rows_and_not_by_the_names_of_columns():
    x, y, owner = np.arange(6.0).reshape(3, 2), np.arange(3.0), [0, 0, 1]
    named = FederatedData.from_arrays(x, y, owner, features=["age", "dose"])
    # as of runs before
    assert (
        data_digest(named)
        == data_digest(FederatedData.from_arrays(x, y, owner))
        == "d475a0c97c19dd22"
    )
    assert data_digest(FederatedData.from_arrays(x[:, ::-1], y, owner)) != data_digest(named)


def test_other_data_and_seeds_are_not_resumed(method, data, stored):
    with pytest.raises(ValueError, match=r"run\.seed was 3 and is now 4"):
        run(method, data, **knobs(seed=4), out=stored, resume=True)
    with pytest.raises(ValueError, match="data_digest"):
        run(method, data.split(0.2, 0.2, seed=2), **knobs(), out=stored, resume=True)
    with pytest.raises(ValueError, match="already at round 12"):
        run(method, data, **knobs(rounds=5), out=stored, resume=True)


def test_a_run_that_another_has_overtaken_does_not_write(method, data, whole, tmp_path):
    first = run(method, data, **knobs(rounds=5), out=tmp_path / "run")
    assert_same(whole, run(method, data, **knobs(), out=tmp_path / "run", resume=True))
    with pytest.raises(ValueError, match="moved on to round 12"):
        first.advance(1)


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it and nothing is cleaned up."""


@pytest.mark.parametrize(
    "moment", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 11))]
)
def test_a_run_killed_at_any_write_resumes_to_the_same_numbers(
    method, data, whole, tmp_path, monkeypatch, moment
):
    """Die at the n-th time that something is forced to disk or moved into place."""
    left = moment

    def deadly(real):
        def step(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*arguments)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", deadly(os.fsync))
        patch.setattr(Path, "replace", deadly(Path.replace))
        with pytest.raises(Killed):
            run(method, data, **knobs(), out=tmp_path / "run", checkpoint_every=4)
    with pytest.warns(UserWarning, match="starts at round 0") if moment < 2 else nullcontext():
        done = run(method, data, **knobs(), out=tmp_path / "run", checkpoint_every=4, resume=True)
    assert_same(whole, done)
    assert not list((tmp_path / "run").rglob(f"*{atomic_files.SUFFIX}"))


def test_a_full_disk_stops_the_run_and_the_run_goes_on_later(
    method, data, whole, tmp_path, monkeypatch
):
    done = run(method, data, **knobs(rounds=5), out=tmp_path / "run")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        # the metrics are on disk already, the checkpoint is not
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match=r"disk is full.*round 5 is intact"):
            done.advance(5)
    assert done.round == 10  # ahead of the checkpoint, which is of round 5
    done.advance(12 - done.round)
    assert_same(whole, done)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 12


@pytest.fixture
def _hearing():
    """Ctrl-C as in the foreground, however the suite was started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_hearing")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_signals_are_heard_between_rounds(number, method, data, whole, tmp_path, monkeypatch):
    def stop_at_four(before, seconds):
        if threading.current_thread() is threading.main_thread():
            os.kill(os.getpid(), number)
        return 4

    with monkeypatch.context() as patch:
        patch.setattr("covey.runs.advancing.next_length", stop_at_four)
        with pytest.raises(
            KeyboardInterrupt, match=r"stopped after round 1 of 12: saved in .*resume=True"
        ):
            run(method, data, **knobs(), out=tmp_path / "run")
    assert_same(whole, run(method, data, **knobs(), out=tmp_path / "run", resume=True))


@pytest.mark.usefixtures("_hearing")
def test_a_second_ctrl_c_stops_at_once(capsys):
    with StopRequest() as stop:
        assert not stop.asked
        os.kill(os.getpid(), 2)
        assert stop.asked
        assert "once more stops at once" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), 2)
    with pytest.raises(KeyboardInterrupt):  # outside of a run Ctrl-C is itself again
        os.kill(os.getpid(), 2)


@pytest.mark.usefixtures("_hearing")
def test_a_second_signal_is_for_the_handler_that_a_program_has_set():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == []
        with pytest.raises(Stopped, match="stopped at once") as caught:
            os.kill(os.getpid(), signal.SIGINT)
    assert heard == [caught.value.number] == [signal.SIGINT]
    os.kill(os.getpid(), signal.SIGINT)  # and so is one after the run
    assert len(heard) == 2


def test_threads_leave_ctrl_c_alone():
    heard = []

    def work():
        with StopRequest() as stop:
            heard.append(stop.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]


@pytest.mark.parametrize(("clients", "rank"), [(3, 1), (10, 1), (20, 2), (100, 10)])
def test_bottom_decile_is_the_tenth_worst_of_a_hundred(data, clients, rank):
    accuracy = np.random.default_rng(0).permutation(clients) / clients
    total, count = jnp.asarray([*accuracy, 0.0]), jnp.asarray([1.0] * clients + [0.0])
    found = Evaluation(1, "test", data, {"accuracy": Mean(total, count)})
    # a client without rows is not the worst one
    assert found.bottom_decile == pytest.approx((rank - 1) / clients)


def test_pooled_calibration_merges_bins_and_does_not_average_clients(data):
    bins = Calibration(
        confidence=jnp.full((2, 1), 0.9),
        correct=jnp.asarray([[1.0], [0.8]]),
        count=jnp.ones((2, 1)),
    )
    found = Evaluation(1, "test", data, {"ece": bins})
    assert found.pooled["ece"] == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="no accuracy"):
        _ = found.bottom_decile


@pytest.mark.slow
def test_states_of_clients_lie_in_the_run_directory_and_resume(data, tmp_path):
    def alone():
        return local(logistic(), batch_size=16)

    common = {"seed": 4, "cohort": cohort.uniform(2), "storage": "host", "progress": False}
    straight = run(alone(), data, rounds=9, **common)
    run(alone(), data, rounds=5, out=tmp_path / "run", checkpoint_every=2, **common)
    names = {path.name for path in (tmp_path / "run" / "nodes").iterdir()}
    assert {"leaf0.bin", "leaf1.bin"} < names
    assert len(names) == 3  # and which slots the clients have, of the last checkpoint
    resumed = run(
        alone(), data, rounds=9, out=tmp_path / "run", checkpoint_every=2, resume=True, **common
    )
    pd.testing.assert_frame_equal(numbers(resumed), numbers(straight))
    pd.testing.assert_frame_equal(
        resumed.evaluate(split="validation").clients, straight.evaluate(split="validation").clients
    )


def test_a_client_that_diverges_is_named_once():
    """The others go on; its steps are too long for its rows alone."""
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    data = FederatedData.from_clients({"calm": (x, x[:, 0]), "wild": (1e4 * x, x[:, 0])})
    method = fedavg(linear(), client_optimizer=optax.sgd(0.1), batch_size=None, steps=30)
    with pytest.warns(
        UserWarning,
        match=r"round 1: 1 of the clients .* not finite .*; client 'wild' .* step size smaller",
    ) as told:
        done = run(method, data, rounds=6, seed=0)
    assert len(told) == 1
    assert list(done.metrics["diverged"]) == [1] * 6
    assert np.isfinite(done.metrics["train_loss"]).all()


def test_the_rounds_before_a_divergence_are_kept(tmp_path):
    too_fast = fedavg(linear(), client_optimizer=optax.sgd(2.0), batch_size=None)
    with pytest.raises(
        Diverged, match=r"round (\d+): none of the 5 uploads was finite; client"
    ) as told:
        run(
            too_fast,
            linear_gaussian().data,
            rounds=400,
            seed=0,
            out=tmp_path / "run",
            progress=False,
        )
    lines = pd.read_json(tmp_path / "run" / "metrics.jsonl", lines=True)
    assert lines["round"].tolist() == list(range(1, int(str(told.value).split()[1][:-1])))
    assert lines["train_loss"].max() > 1e10 * lines["train_loss"].iloc[0]


def test_a_fit_that_ends_worse_than_it_began_is_told():
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    data = FederatedData.from_clients({"a": (x, x[:, 0]), "b": (x, x[:, 1])})
    steep = fedavg(linear(), client_optimizer=optax.sgd(3.0), batch_size=None, steps=1)
    with pytest.warns(UserWarning, match=r"the training loss rose from .* to .* step size smaller"):
        run(steep, data, rounds=12, seed=0, progress=False)


def test_missing_values_are_named_where_a_model_cannot_use_them():
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    hole = x.copy()
    hole[3, 1] = np.nan
    data = FederatedData.from_clients(
        {"whole": (x, x[:, 0]), "holed": (hole, x[:, 0])},
        features=("age", "dose"),
        allow_missing=True,
    )
    with pytest.warns(UserWarning, match=r"client 'holed' has 1 missing value \(columns dose\)"):
        done = run(fedavg(linear()), data, rounds=2, seed=0, progress=False)
    assert done.participants == 1


@pytest.fixture
def _unchecked_types():
    """As for users: types are not checked at every call."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("_unchecked_types")
@pytest.mark.parametrize(
    ("wrong", "options", "told"),
    [
        (fedavg(logistic()), {"engine": "lop"}, "got 'lop'; did you mean 'loop'?"),
        (fedavg, {}, "fedavg is a factory of methods: call it with a model"),
        (logistic(), {}, r"a method such as covey.fedavg\(model\) is needed, got Model"),
    ],
)
def test_mistakes_in_python_are_told_in_words(data, wrong, options, told):
    with pytest.raises(ValueError, match=told):
        run(wrong, data, rounds=1, seed=0, **options)


@pytest.mark.usefixtures("_unchecked_types")
def test_what_is_no_method_or_no_data_is_told_in_words(method, data):
    with pytest.raises(ValueError, match=r"swapped: write covey.run\(method, data\)"):
        run(data, method, rounds=1)
    with pytest.raises(ValueError, match=r"data must be a covey.FederatedData.* got ndarray"):
        run(method, np.zeros((3, 2)), rounds=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'fedavg' has server=None: server must be a function"):
        run(method._replace(server=None), data, rounds=1)


def test_a_method_of_features_and_outcomes_says_that_it_needs_them():
    data = FederatedData.from_rows(np.ones((6, 2)), [3, 3])
    method = fedem(gaussian_mixture(components=2), step_size=0.5)
    with pytest.raises(ValueError, match=r"fedem needs rows of type Rows\(x, y\), got ndarray"):
        run(method, data, rounds=1, progress=False)


def test_a_run_from_python_has_a_report(method, data, tmp_path):
    run(method, data, rounds=2, seed=0, out=tmp_path / "run", evaluate_every=1, progress=False)
    assert "Configuration" in (tmp_path / "run" / "report.html").read_text()


def test_a_method_that_draws_has_a_posterior(data):
    done = run(remembering(), data, rounds=2, seed=0, progress=False)
    draws = done.posterior.client("site1").draws(4000, chains=1)[0]
    memory = np.asarray(done._state.nodes.state)[1]
    assert draws.shape == (4000, 3)
    assert np.all(np.abs(draws.mean(0) - memory) < 4 / np.sqrt(4000))
