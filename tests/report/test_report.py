"""Pages that open without a network, figures that show what they should, and a demo that tells the
truth.
"""

import re
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from problems import linear_gaussian
from rich.console import Console

from covey import demo, models
from covey.algorithms.fedavg import fedavg
from covey.datasets.tables import HEART_DISEASE
from covey.report import page
from covey.report.figures import curves, spread
from covey.runs.launch import run


@pytest.fixture(scope="module")
def done():
    data = demo.load("heart_disease").split(validation=0.2, test=0.2, seed=0).standardised()[0]
    return run(
        fedavg(models.logistic()),
        data,
        rounds=4,
        seed=0,
        evaluate_every=2,
        progress=False,
        name="<b>trial</b>",
    )


def test_a_page_is_whole_and_needs_nothing_from_outside(done, tmp_path):
    page.write(done, tmp_path / "report.html", settings='[run]\nname = "<script>"\n')
    text = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"""<(script|link|img)\b[^>]*(src|href)=["']?https?:""", text)
    assert "&lt;b&gt;trial&lt;/b&gt;: fedavg, 4 clients, 4 rounds" in text
    assert "&lt;script&gt;" in text
    assert "calibration, validation rows: error" in text
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        assert f"<td>{hospital}</td>" in text


def test_a_run_on_numbers_has_a_page_without_calibration(tmp_path):
    data = linear_gaussian().data.split(validation=0.2, test=0.2, seed=0)
    page.write(
        run(fedavg(models.linear()), data, rounds=1, seed=0, evaluate_every=1, progress=False),
        tmp_path / "report.html",
    )
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "nll of each client" in text
    assert "calibration" not in text.partition("</script>")[2].rpartition("Clients")[0].replace(
        "colorscale", ""
    )


def test_curves_show_measures_and_not_bookkeeping(done):
    figure = curves(done.metrics, title="by round")
    shown = {annotation.text for annotation in figure.layout.annotations}
    assert {"train loss", "validation accuracy", "bits up"} <= shown
    assert not shown & {"clients", "seconds", "round", "lost"}
    (bits,) = [
        trace
        for trace, note in zip(figure.data, figure.layout.annotations, strict=True)
        if note.text == "bits up"
    ]
    np.testing.assert_array_equal(bits.y, done.metrics["bits_up"].cumsum())
    (accuracy,) = [
        t
        for t, note in zip(figure.data, figure.layout.annotations, strict=True)
        if note.text == "validation accuracy"
    ]
    assert list(accuracy.x) == [2, 4]


def test_clients_are_ordered_from_the_worst(done):
    (bars,) = spread(done.clients, "accuracy", title="").data
    assert list(bars.y) == sorted(done.clients["accuracy"])


@pytest.mark.parametrize("splits", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_demo_says_what_it_found(tmp_path, monkeypatch, splits):
    monkeypatch.setattr(demo, "SPLITS", splits)
    monkeypatch.setattr(demo, "ROUNDS", 20)
    if splits == 1:
        monkeypatch.setattr(demo, "FIRST", (0,))
    text = StringIO()
    demo.main(tmp_path, Console(file=text, width=100))
    lines = pd.read_csv(tmp_path / "results.csv")
    assert len(lines) == splits * 4 * 4
    assert set(lines["method"]) == {"local", "federated", "mixed effects", "pooled"}
    assert "va*" in set(lines["hospital"])
    means = lines.groupby(["hospital", "method"])["accuracy"].mean()
    for hospital, method in (("cleveland", "federated"), ("va*", "local")):
        assert f"{means[hospital, method]:.3f}" in text.getvalue()
    assert means["cleveland", "federated"] > 0.7
    assert means["switzerland", "mixed effects"] > means["switzerland", "federated"]
    assert (tmp_path / "figure.html").stat().st_size > 1e6
    # What the mixed model says of hospitals: nearly every patient of Switzerland is ill; an
    # interval narrows with patients.
    effects = pd.read_csv(tmp_path / "effects.csv").set_index("name")
    assert effects.loc["switzerland", "low"] > effects.loc["cleveland", "high"]
    new = effects[effects.index.str.startswith("va, ")]
    assert (np.diff(new["high"] - new["low"]) < 0).all()
    assert (effects[effects["kind"] == "shared"].index == list(HEART_DISEASE.features)).all()
    assert effects.loc["ca", "low"] > 0  # vessels narrowed
    # 14 numbers down, 14 and a weight up, 3 hospitals, 20 rounds, 32 bits each
    assert f"sent {29 * 3 * 20 * 4 / 1e3:.0f} kB" in text.getvalue()
