"""Runs and fits in MLflow; needs `pip install 'covey[mlflow]'`."""

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time_ns
from typing import TYPE_CHECKING, Any

from covey.core import toml_files
from covey.runs.digest import data_digest
from covey.runs.environment import versions
from covey.runs.run import Run

if TYPE_CHECKING:
    from covey.fitting.result import Fit

_BATCH = 500  # metrics per message; MLflow takes up to 1000
_FIT_METRICS = ("k_hat", "ess", "r_hat", "log_likelihood", "aic", "bic", "bytes_up", "bytes_down")


def log_to_mlflow(
    found: "Run | Fit",
    *,
    experiment: str = "covey",
    name: str | None = None,
    tracking_uri: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Log a run or a fit to MLflow: settings, metrics by round, and its files.

    Nothing of MLflow's global state is changed, and nothing is logged that the run directory would
    not hold: no row of a client.

    Args:
        found: What `covey.run` or `covey.fit` returned.
        experiment: MLflow experiment; it is made where it does not exist.
        name: Name of the MLflow run. Default: that of the run, or the formula of the fit.
        tracking_uri: Where to log, e.g. "http://127.0.0.1:5000". Default: MLflow's own default, the
            environment variable MLFLOW_TRACKING_URI.
        tags: Tags of the MLflow run, beside the versions and the digest of the data.

    Returns:
        The id of the MLflow run. Its parameters are the settings; its metrics those of every round,
        with the round as the step, and for a fit the diagnostics; its artifacts the report, and for
        a fit the folder that `covey.load_fit` reads.

    Raises:
        ModuleNotFoundError: MLflow is not installed.

    Example:
        >>> import covey
        >>> data, _ = covey.load("heart_disease").standardised()
        >>> run = covey.run(covey.fedavg(covey.models.logistic()), data, rounds=2, seed=1)
        >>> covey.log_to_mlflow(run, tracking_uri="http://127.0.0.1:5000")  # doctest: +SKIP
        '1f0a55f26e1b4c6a9a1b2d3c4e5f6a7b'
    """
    from covey.fitting.result import Fit

    mlflow = _mlflow()
    if not isinstance(found, (Run, Fit)):
        raise ValueError(
            f"log_to_mlflow takes what covey.run or covey.fit returned, got {type(found).__name__}"
        )
    client = mlflow.MlflowClient(tracking_uri=tracking_uri)
    known = client.get_experiment_by_name(experiment)
    where = client.create_experiment(experiment) if known is None else known.experiment_id
    title = name or (found.formula if isinstance(found, Fit) else found.name)
    begun = client.create_run(where, run_name=title, tags=_tags(found) | dict(tags or {}))
    at = begun.info.run_id
    status = "FAILED"
    try:
        _log_params(mlflow, client, at, _params(found))
        _log_metrics(mlflow, client, at, found)
        with TemporaryDirectory() as folder:
            _write_files(found, Path(folder))
            client.log_artifacts(at, folder)
        status = "FINISHED"
    finally:
        client.set_terminated(at, status=status)
    return at


def _mlflow() -> Any:
    try:
        import mlflow  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "log_to_mlflow needs MLflow: pip install 'covey[mlflow]'", name=missing.name
        ) from missing
    return mlflow


def _run_of(found: "Run | Fit") -> Run | None:
    return found if isinstance(found, Run) else found.run


def _tags(found: "Run | Fit") -> dict[str, str]:
    run, tags = _run_of(found), {f"version.{key}": str(value) for key, value in versions().items()}
    return tags if run is None else tags | {"data_digest": data_digest(run.data)}


def _params(found: "Run | Fit") -> dict[str, str]:
    if isinstance(found, Run):
        known = {"rounds": found.round, "seed": found.seed, "clients": found.data.clients}
        return _settings(found) | {"method": found.method.name} | _texts(known)
    design = found.design
    known = {
        "formula": found.formula,
        "family": found.family,
        "estimate": found.estimate,
        "method": found.method,
        "missing": design.missing,
        "weights": design.weights or "",
        "seed": found.seed,
        "sites": len(found.clients),
        "rows": found.used_rows,
        "priors": "; ".join(f"{term} ~ {prior}" for term, prior in found.priors.items()),
    }
    return _texts({key: value for key, value in known.items() if value != ""})


def _settings(run: Run) -> dict[str, str]:
    """What the configuration of a run says, by table and key."""
    if run.directory is None:
        return {}
    tables = toml_files.read(run.directory / "config.toml")
    return {
        f"{table}.{key}": str(value)
        for table, values in tables.items()
        if table != "environment"
        for key, value in values.items()
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


def _log_params(mlflow: Any, client: Any, at: str, params: Mapping[str, str]) -> None:
    made = [mlflow.entities.Param(key, value) for key, value in params.items()]
    client.log_batch(at, params=made)


def _log_metrics(mlflow: Any, client: Any, at: str, found: "Run | Fit") -> None:
    now = time_ns() // 1_000_000
    run, made = _run_of(found), []
    if run is not None:
        for line in run.metrics.to_dict("records"):
            step = int(line["round"])
            made += [(str(key), value, step) for key, value in line.items() if key != "round"]
    if not isinstance(found, Run):
        last, facts = found.traffic.get("rounds", 0), found.diagnostics()
        made += [(f"fit_{key}", facts[key], last) for key in _FIT_METRICS if key in facts]
    finite = [
        mlflow.entities.Metric(key, float(value), now, step)
        for key, value, step in made
        if value is not None and math.isfinite(value)
    ]
    for start in range(0, len(finite), _BATCH):
        client.log_batch(at, metrics=finite[start : start + _BATCH])


def _write_files(found: "Run | Fit", folder: Path) -> None:
    """The files of a run or a fit."""
    if not isinstance(found, Run):
        found.save(folder)
        found.report(folder / "report.html")
        return
    from covey.report import from_run

    found.metrics.to_csv(folder / "metrics.csv", index=False)
    settings = ""
    if found.directory is not None:
        settings = (found.directory / "config.toml").read_text("utf-8")
        (folder / "config.toml").write_text(settings, "utf-8")
    from_run.write(found, folder / "report.html", settings=settings)
