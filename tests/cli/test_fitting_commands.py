"""`covey fit`, `predict`, `add-client` and `compare` on a folder of CSV files."""

import pandas as pd
import pytest

from command_line import call
from small_fits import clinics


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinics")
    (folder / "data").mkdir()
    for name, table in clinics(5, 20).items():
        table.to_csv(folder / "data" / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def fitted(workspace):
    code, said = call(
        "fit",
        "gain ~ dose + (1 | clinic)",
        "--data",
        workspace / "data",
        "--estimate",
        "ml",
        "--out",
        workspace / "run",
    )
    assert code == 0, said
    return workspace / "run", said


def test_fit_prints_the_terms_and_what_left_the_sites(fitted):
    _, said = fitted
    for part in (
        "Intercept",
        "sd(Intercept)",
        "sigma",
        "5 clinics, 100 rows",
        "No row left a site",
    ):
        assert part in said


def test_predict_writes_one_row_per_row(fitted, workspace):
    run, _ = fitted
    new = workspace / "new.csv"
    pd.DataFrame({"dose": [1.0, 2.0]}).to_csv(new, index=False)
    code, said = call("predict", run, new, "--client", "clinic1", "--out", workspace / "out.csv")
    assert code == 0, said
    assert list(pd.read_csv(workspace / "out.csv").columns) == ["mean", "q05", "q25", "q75", "q95"]
    code, said = call("predict", run, new)
    assert (code, len(said.splitlines())) == (0, 3)
    code, said = call("predict", run, new, "--client", "clinic9")
    assert code == 2
    assert "there is no site 'clinic9'" in said


def test_add_client_and_compare(fitted, workspace):
    run, _ = fitted
    new = workspace / "late.csv"
    clinics(1, 5, seed=9)["clinic0"].to_csv(new, index=False)
    code, said = call("add-client", run, new, "--out", workspace / "run2")
    assert code == 0, said
    assert "late added" in said
    assert "late" in set(pd.read_csv(workspace / "run2" / "effects.csv").client)
    code, said = call("compare", run, workspace / "run2")
    assert code == 0, said
    assert "log_likelihood" in said


def test_the_posterior_of_a_fit_is_a_file_of_it(fitted):
    run, _ = fitted
    code, said = call("posterior", run)
    said = " ".join(said.split())
    assert code == 2
    assert "is a fit of a formula: its draws are in" in said
    assert "covey.load_fit(" in said
    assert (run / "posterior.nc").exists()


def test_mistakes_are_told_in_lines_without_a_trace(workspace):
    code, said = call(
        "fit", "gain ~ doze + (1 | clinic)", "--data", workspace / "data", "--out", "x"
    )
    assert code == 2
    assert "did you mean 'dose'" in said
    assert "Traceback" not in said
    code, said = call(
        "fit", "gain ~ dose + (1 | clinic", "--data", workspace / "data", "--out", "x"
    )
    assert code == 2
    assert "this ( is not closed" in said
    code, said = call("predict", workspace, workspace / "data" / "clinic0.csv")
    assert code == 2
    assert "holds no fit" in said
