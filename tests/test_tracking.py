"""Runs and fits in MLflow: what a real file store holds afterwards is what was found."""

import math
import warnings

import numpy as np
import pytest

import covey
from small_fits import clinics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that MLflow imports
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: pip install 'covey[mlflow]'"
    )


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A client of a store of files, which asks nothing of a network."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    place = (tmp_path / "mlruns").as_uri()
    return place, mlflow.MlflowClient(tracking_uri=place)


def names_of(client, at):
    return {one.path for one in client.list_artifacts(at)}


def test_a_run_is_logged_by_round(store, tmp_path):
    place, client = store
    data = covey.load("eight_schools")
    method = covey.fedavg(covey.models.linear())
    run = covey.run(method, data, rounds=4, seed=1, out=tmp_path / "run", progress=False)
    at = covey.log_to_mlflow(run, experiment="study", tracking_uri=place, tags={"who": "me"})
    logged = client.get_run(at)
    assert logged.info.status == "FINISHED"
    assert logged.data.params["method"] == "fedavg"
    assert logged.data.params["run.seed"] == "1"
    assert logged.data.tags["who"] == "me"
    assert logged.data.tags["version.covey"] == covey.__version__
    for name in ("bits_up", "train_loss"):
        history = client.get_metric_history(at, name)
        assert [one.step for one in history] == [1, 2, 3, 4]
        np.testing.assert_array_equal([one.value for one in history], run.metrics[name])
    assert {"report.html", "metrics.csv", "config.toml"} <= names_of(client, at)
    # Another run goes to the same experiment.
    again = client.get_run(covey.log_to_mlflow(run, experiment="study", tracking_uri=place))
    assert again.info.experiment_id == logged.info.experiment_id
    assert mlflow.active_run() is None


def test_a_fit_is_logged_and_can_be_loaded_from_its_artifacts(store, tmp_path):
    place, client = store
    fit = covey.fit("gain ~ dose + (1 | clinic)", clinics(5, 20), estimate="ml", progress=False)
    at = covey.log_to_mlflow(fit, tracking_uri=place)
    data = client.get_run(at).data
    assert data.params["formula"] == "gain ~ dose + (1 | clinic)"
    assert math.isclose(data.metrics["fit_aic"], fit.diagnostics()["aic"])
    assert {"report.html", "summary.csv", "effects.csv", "fit.json"} <= names_of(client, at)
    folder = client.download_artifacts(at, "", str(tmp_path))
    again = covey.load_fit(folder)
    np.testing.assert_allclose(again.summary()["mean"], fit.summary()["mean"])


def test_a_store_that_fails_leaves_a_run_that_says_so(store, monkeypatch):
    place, client = store
    fit = covey.fit("gain ~ dose", clinics(3, 10), estimate="ml", progress=False)

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifacts", full)
    with pytest.raises(OSError, match="no space left"):
        covey.log_to_mlflow(fit, tracking_uri=place)
    where = client.get_experiment_by_name("covey").experiment_id
    assert [one.info.status for one in client.search_runs([where])] == ["FAILED"]


def test_other_things_are_refused(store):
    with pytest.raises(ValueError, match=r"takes what covey.run or covey.fit returned, got str"):
        covey.log_to_mlflow("runs/heart", tracking_uri=store[0])
