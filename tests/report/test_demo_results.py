"""A demo that tells the truth."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from covey import demo
from covey.datasets.tables import HEART_DISEASE


def test_the_demo_shows_its_results(tmp_path, monkeypatch):
    """Of two hospitals and made-up numbers: the best of each is marked."""
    lines = pd.DataFrame(
        [
            (0, hospital, method, 30, 0.5 + index / 10, 0.4, 0.1)
            for hospital in ("cleveland", "va*")
            for index, method in enumerate(demo.METHODS)
        ],
        columns=["split", "hospital", "method", "test_rows", *demo.MEASURES],
    )
    effects = pd.DataFrame(
        {"estimate": [0.5, -1.0], "low": [0.25, -2.0], "high": [0.75, 0.0]}, index=["age", "ca"]
    )
    monkeypatch.setattr(demo, "compare", lambda console: demo.Outcome(lines, 80_000))
    monkeypatch.setattr(demo, "find", lambda: demo.Findings(effects, effects[:1]))
    text = StringIO()
    demo.main(tmp_path, Console(file=text, width=100, force_terminal=True, highlight=False))
    assert "\x1b[1;32m0.800 ± nan" in text.getvalue()
    assert "0.50 (0.25, 0.75)" in text.getvalue()
    assert "sent 10 kB" in text.getvalue()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "results.csv"), lines)
    assert list(pd.read_csv(tmp_path / "effects.csv")["name"]) == ["age", "ca", "age"]
    assert (tmp_path / "figure.html").stat().st_size > 1e6


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 2])
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
