"""`covey posterior` of a finished run."""

from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray
from rich.console import Console

from command_line import call, lines, write_config
from covey.cli.posteriors import _posteriors
from covey.report.tables import summary_table


@pytest.mark.slow
def test_the_posterior_of_a_finished_run(tmp_path):
    config, out = write_config(tmp_path, 2), tmp_path / "run"
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[run]")
    mixed = '[method]\nname = "fedpop"\nstep_size = 0.2\ndraws = 20\n\n'
    config.write_text(
        (text[:start] + mixed + text[end:]).replace(
            '"logistic"', '"mixed_logistic"\nslopes = ["x1"]'
        )
    )
    code, said = call("run", config, "--out", out, "--set", "model.slopes=['x1', 'z']")
    assert (code, len(said.strip().splitlines()), out.exists()) == (2, 1, False)
    assert "slopes has 'z', but the columns of these data are x0, x1" in said
    assert call("run", config, "--out", out)[0] == 0

    code, said = call(
        "posterior",
        out,
        "--client",
        "c",
        "--client",
        "a",
        "--out",
        tmp_path / "new" / "summary.csv",
    )
    assert code == 0, said
    assert "fedpop after 2 rounds" in said
    written = pd.read_csv(tmp_path / "new" / "summary.csv", index_col=["client", "parameter"])
    assert written.index.tolist() == [
        (client, name) for client in "ca" for name in ("intercept", "slopes[x1]")
    ]
    lower, upper = written.loc[("c", "slopes[x1]"), ["lower_90", "upper_90"]]
    assert f"{lower:.3g} to {upper:.3g}" in said
    assert "slopes[x1]" in said

    code, said = call(
        "posterior",
        out,
        "--held-out",
        "--draws",
        200,
        "--chains",
        2,
        "--out",
        tmp_path / "draws.nc",
    )
    assert code == 0, said
    draws = xarray.load_dataset(tmp_path / "draws.nc")["slopes"]
    assert (draws.shape, draws["client"].values.tolist(), draws["slope"].values.tolist()) == (
        (2, 200, 1, 1),
        ["b"],
        ["x1"],
    )
    assert len(lines(out)) == 2  # looking does not go on

    for arguments, told in (
        ((out, "--client", "z"), "no client 'z'"),
        ((out, "--out", "draws.txt"), "draws.txt: draws are written as .nc"),
        ((out, "--probability", 90), "between 0 and 1"),
        ((tmp_path,), "holds no run"),
    ):
        code, said = call("posterior", *arguments)
        assert (code, len(said.strip().splitlines())) == (2, 1)
        assert told in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the draws of")  # twenty of them
def test_clients_are_shown_where_the_shared_parameters_have_no_posterior(tmp_path):
    config, out = write_config(tmp_path, 1), tmp_path / "run"
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[run]")
    law = '{name = "energy", fewest_clients = 1, particles = 4, steps = 1}'
    mixed = f'[method]\nname = "fedpop"\nstep_size = 0.2\ndraws = 4\neffects = {law}\n\n'
    config.write_text((text[:start] + mixed + text[end:]).replace('"logistic"', '"mixed_logistic"'))
    assert call("run", config, "--out", out)[0] == 0
    code, said = call("posterior", out, "--draws", 20)
    assert code == 0, said
    assert "known up to a constant only" in " ".join(said.split())
    assert "clients: fedpop after 1 round" in said
    code, said = call("posterior", out, "--shared")
    assert (code, len(said.strip().splitlines())) == (2, 1)


def test_what_a_posterior_is_asked_of():
    """Clients where the shared parameters have none; an error where nothing else was wanted."""

    class Refused:
        @property
        def shared(self):
            raise ValueError("no density")

        def select(self, names, data):
            return names

    has = SimpleNamespace(posterior=SimpleNamespace(shared=object(), client=object()))
    done = SimpleNamespace(method=has, posterior=Refused())
    assert _posteriors(done, None, None, shared=False) == {"clients": None}
    assert _posteriors(done, None, ["a"], shared=False) == {"clients": ["a"]}
    with pytest.raises(ValueError, match="no density"):
        _posteriors(done, None, None, shared=True)


def test_names_of_a_summary_are_not_cut():
    text = StringIO()
    name = "slopes[heart_rate_at_rest]"
    index = pd.MultiIndex.from_tuples([("b", name)], names=["client", "parameter"])
    Console(file=text, width=60).print(
        *summary_table("a run", pd.DataFrame(np.ones((1, 8)), index=index), 0.9)
    )
    lines = [
        line.split("│")[2].strip() for line in text.getvalue().splitlines() if line.startswith("│")
    ]
    assert "".join(lines) == name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the draws of")  # ten of them
def test_the_posterior_of_what_all_share(tmp_path):
    config, out = write_config(tmp_path, 12), tmp_path / "run"
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[run]")
    sampled = '[method]\nname = "fald"\nstep_size = 0.01\nchains = 2\nburn_in = 2\nkeep = 4\n\n'
    config.write_text(text[:start] + sampled + text[end:])
    assert call("run", config, "--out", out)[0] == 0
    code, said = call("posterior", out, "--out", tmp_path / "draws.nc")
    assert code == 0, said
    assert "fald after 12 rounds" in said
    assert "weight[x1]" in said
    drawn = xarray.load_dataset(tmp_path / "draws.nc")["weight"]
    assert (drawn.shape, drawn["column"].values.tolist()) == ((2, 10, 2), ["x0", "x1"])
    thinned = tmp_path / "thinned.nc"
    code, said = call("posterior", out, "--draws", 5, "--chains", 2, "--out", thinned)
    assert code == 0, said
    np.testing.assert_array_equal(
        xarray.load_dataset(thinned)["weight"], drawn.isel(draw=slice(1, None, 2))
    )
    code, said = call("posterior", out, "--draws", 11)
    assert (code, len(said.strip().splitlines())) == (2, 1)
    assert "there are 10 draws per chain, and 11 were asked for" in said


@pytest.mark.slow
def test_a_run_without_draws_or_unfinished_has_no_posterior(tmp_path):
    config, out = write_config(tmp_path, 3), tmp_path / "run"
    assert call("run", config, "--out", out)[0] == 0
    assert "fedavg has no posterior of the shared parameters" in call("posterior", out)[1]
    (out / "config.toml").write_text(
        (out / "config.toml").read_text().replace("rounds = 3", "rounds = 9")
    )
    code, said = call("posterior", out)
    assert code == 2
    assert (
        f"is at round 3 of 9: finish it by `covey run {out}/config.toml --resume --out {out}`"
        in said
    )
    (out / "config.toml").write_text('[method]\nname = "fedavg"\n')
    assert "was started from Python" in call("posterior", out)[1]
