"""A tiny run and a report of every section, for the tests of this folder."""

import numpy as np
import pandas as pd
import pytest

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.datasets.loaders import load
from covey.report.content import (
    Calibration,
    Content,
    Convergence,
    Draws,
    Errors,
    Fairness,
    NewSite,
    Privacy,
    Settings,
    SharedEffects,
    SiteEffects,
    Traffic,
)
from covey.runs.launch import run

SITES = ["Zürich", "<b>Bern</b>", "Genf & Lausanne"]


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A run of four rounds in a directory."""
    data = load("heart_disease").split(validation=0.2, test=0.2, seed=0).standardised()[0]
    return run(
        fedavg(models.logistic()),
        data,
        rounds=4,
        seed=0,
        evaluate_every=2,
        progress=False,
        name="<b>trial</b>",
        out=tmp_path_factory.mktemp("runs") / "trial",
    )


@pytest.fixture(scope="session")
def full():
    """A report with every section, of made-up values."""
    random = np.random.default_rng(0)

    def intervals(count, **columns):
        mean, sd = random.normal(size=count), random.uniform(0.1, 0.4, count)
        found = {"mean": mean, "sd": sd, "q05": mean - 1.64 * sd, "q95": mean + 1.64 * sd}
        return pd.DataFrame(columns | found)

    terms = ["age", "sex[T.male]", "chol <mg/dl>", "oldpeak"]
    names = ["age", "Intercept"]
    draws = [(n, c, d) for n in names for c in (1, 2) for d in range(1, 41)]
    trace = pd.DataFrame(draws, columns=["parameter", "chain", "draw"])
    edges = np.linspace(0.1, 0.9, 5)
    quantiles = {"q05": -1.0, "q25": -0.4, "q75": 0.5, "q95": 1.1}
    return Content(
        title="Heart <disease>",
        subtitle="three hospitals",
        facts=(("sites", "3"), ("rounds", "7")),
        sentences=("Three hospitals took part & none sent a row.",),
        cautions=("One chain is short.",),
        shared=SharedEffects(
            intervals(4, term=terms),
            intervals(2, term=["Intercept", "sd(Intercept)"]),
            "odds ratio",
            (("age", "9 (1 SD)"),),
            ("A ratio of 1 is no effect.",),
        ),
        sites=SiteEffects(
            intervals(3, client=SITES, term="Intercept"),
            "deviation",
            (("Intercept", 0.0),),
            pd.DataFrame(
                {
                    "client": SITES,
                    "term": "Intercept",
                    "alone": [1.5, np.nan, -1.0],
                    "together": [1.0, 0.1, -0.5],
                    "rows": [20, 3, 40],
                }
            ),
        ),
        new_site=NewSite(intervals(1, term=["Intercept"]), pd.DataFrame({"name": ["va"]})),
        calibration=Calibration(
            pd.DataFrame(
                {
                    "predicted": edges,
                    "observed": edges + 0.02,
                    "q05": edges - 0.1,
                    "q95": edges + 0.1,
                    "count": [10, 20, 30, 20, 10],
                }
            ),
            "predicted probability",
            "observed share",
            pd.DataFrame({"client": SITES, "rows": [20, 3, 40], "90 %": [0.9, 1.0, 0.85]}),
        ),
        errors=Errors(
            pd.DataFrame({"observed": ["no", "yes"], "no": [40, 5], "yes": [6, 30]}),
            pd.DataFrame({"predicted": edges, "mean": 0.01, **quantiles, "count": 18}),
            pd.DataFrame({"client": SITES, "sensitivity": [0.8, 0.9, 0.7]}),
        ),
        draws=Draws(
            pd.DataFrame({"parameter": np.repeat(names, 9), "value": 1.0, "density": 0.5}),
            trace.assign(value=random.normal(size=len(trace))),
            pd.DataFrame(
                {"parameter": names, "r_hat": [1.0, 1.2], "ess_bulk": 500.0, "ess_tail": 50.5}
            ),
            ("The chains disagree.",),
            poor=True,
        ),
        traffic=Traffic(
            pd.DataFrame({"part": ["gradient"], "shape": ["13"], "values": [13]}),
            pd.DataFrame({"message": ["rounds"], "times": [7], "bytes_up": [20937]}),
        ),
        privacy=Privacy(
            pd.DataFrame({"accountant": ["rdp"], "epsilon": [1.23456789]}),
            pd.DataFrame({"round": [1, 2], "rdp": [0.8, 1.23456789]}),
            2.0,
        ),
        fairness=Fairness(
            pd.DataFrame({"name": SITES, "train_rows": [20, 3, 40], "accuracy": [0.8, 0.7, 0.9]}),
            "accuracy",
            "test",
        ),
        convergence=Convergence(
            pd.DataFrame({"round": [1, 2, 3], "train_loss": [0.7, 0.5, np.nan], "bytes_up": 100})
        ),
        settings=Settings(
            pd.DataFrame({"setting": ["seed"], "value": ["0"]}), '[run]\nname = "<script>"\n'
        ),
    )
