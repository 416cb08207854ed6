"""Maximum likelihood of linear mixed models: `covey.marginal` in a dozen rounds against MixedLM of
statsmodels, and lmer of lme4 where R has it, on pooled rows, real data in their own units.

Each fit is a whole one, from the rows to the table of estimates and standard errors. Programs are
compiled before the clock starts, by a fit of the same kind; compiling takes longer than any of
these fits.
"""

import importlib
import importlib.util
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import covey
from benchmarks.timing import interleaved, report
from covey import models
from covey.data.federated import FederatedData
from covey.datasets.loaders import load

CASES = {
    "radon_us, intercept and slope": ("radon_us", ("floor_measure",)),
    "inst_eval, intercept": ("inst_eval", ()),
}
LMER = """
suppressMessages(library(lme4))
rows <- read.csv("{table}")
turns <- file("stdin", "r")
while (length(readLines(turns, 1)) > 0) {{
  fit <- suppressMessages(suppressWarnings(lmer({formula}, rows, REML = FALSE)))
  cat(as.numeric(logLik(fit)), "\\n")
  flush(stdout())
}}
"""


def complete(name: str) -> FederatedData:
    """The rows without missing values."""
    data = load(name)
    x, y = np.asarray(data.rows.x), np.asarray(data.rows.y)
    owner = np.repeat(np.arange(data.clients), data.counts("train"))
    there = np.isfinite(x).all(axis=1)
    return FederatedData.from_arrays(x[there], y[there], owner[there], features=data.features)


def by_sums(data: FederatedData, slopes: tuple[str, ...]):
    """(): a fit by sums over clients, with its table."""

    def fit() -> float:
        method = covey.marginal(models.mixed_linear(slopes=slopes))
        shared: Any = covey.run(method, data, progress=False).posterior.shared
        law = shared.law
        law.table()
        return law.log_likelihood

    return fit


def by_statsmodels(data: FederatedData, slopes: tuple[str, ...]):
    """(): the same model by MixedLM."""
    mixed = importlib.import_module("statsmodels.regression.mixed_linear_model")

    x, y = np.asarray(data.rows.x, np.float64), np.asarray(data.rows.y, np.float64)
    owner = np.repeat(np.arange(data.clients), data.counts("train"))
    one = np.ones((len(y), 1))
    columns = [(data.features or ()).index(slope) for slope in slopes]

    def fit() -> float:
        model = mixed.MixedLM(
            y, np.hstack([one, x]), owner, exog_re=np.hstack([one, x[:, columns]])
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(model.fit(reml=False).llf)

    return fit


def by_lme4(data: FederatedData, slopes: tuple[str, ...], folder: Path):
    """(): the same model by lmer, in an R process that waits for its turns; None without lme4."""
    if shutil.which("Rscript") is None:
        return None
    asked = subprocess.run(["Rscript", "-e", "library(lme4)"], capture_output=True, check=False)
    if asked.returncode:
        return None
    names = list(data.features or ())
    table = pd.DataFrame(np.asarray(data.rows.x, np.float64), columns=names)
    table["y"] = np.asarray(data.rows.y, np.float64)
    table["client"] = np.repeat(np.arange(data.clients), data.counts("train"))
    table.to_csv(folder / "rows.csv", index=False)
    own = "".join(f" + {slope}" for slope in slopes)
    formula = f"y ~ {' + '.join(names)} + (1{own} | client)"
    code = LMER.format(table=folder / "rows.csv", formula=formula)
    process = subprocess.Popen(
        ["Rscript", "-e", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def fit() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return fit


def compared(title: str, name: str, slopes: tuple[str, ...]) -> None:
    """One data set, fitted by all in turns."""
    data = complete(name)
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, Callable[[], object]] = {
            "covey": by_sums(data, slopes),
            "statsmodels": by_statsmodels(data, slopes),
        }
        lmer = by_lme4(data, slopes, Path(folder))
        if lmer is not None:
            contenders["lme4"] = lmer
        values: dict[str, Any] = {who: fit() for who, fit in contenders.items()}
        report(f"Maximum likelihood, {title}", interleaved(contenders, repeats=5), "statsmodels")
    print("  log-likelihood: " + ", ".join(f"{who} {value:.3f}" for who, value in values.items()))


def main() -> None:
    if importlib.util.find_spec("statsmodels") is None:
        print("\nMixed models: install statsmodels to compare with it")
        return
    for title, (name, slopes) in CASES.items():
        compared(title, name, slopes)


if __name__ == "__main__":
    main()
