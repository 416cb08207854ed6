"""Draws of known laws, seen through ArviZ."""

import re
from dataclasses import replace

import arviz_base
import numpy as np
import pytest
import xarray
from methods import remembering
from problems import linear_gaussian

from covey.core import cohort
from covey.core.shard import Axis
from covey.inference.drawing import SHARED_ROUNDS
from covey.inference.trace import as_tree, netcdf, summarise
from covey.runs.launch import run

DRAWS, CHAINS = 500, 4


@pytest.fixture(scope="module")
def done():
    """Some took part and remember something of their own; the posterior of each is N(memory, 1) in
    three dimensions.
    """
    return run(
        remembering(),
        linear_gaussian().data,
        rounds=2,
        seed=3,
        cohort=cohort.uniform(3),
        progress=False,
    )


@pytest.fixture(scope="module")
def tree(done):
    return done.posterior.clients.trace(DRAWS)


def chains(seed, *, shape=(2, CHAINS, DRAWS), memory=0.0, offset=0.0):
    """Autoregressive chains of variance one: x' = memory x + sqrt(1 - memory^2) e."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=shape)
    x = np.empty(shape)
    x[..., 0] = noise[..., 0]
    for at in range(1, shape[-1]):
        x[..., at] = memory * x[..., at - 1] + np.sqrt(1 - memory**2) * noise[..., at]
    return x + offset * np.arange(shape[1])[:, None]


def test_a_trace_holds_each_clients_draws_under_its_name(done, tree):
    posterior = tree["posterior"]
    assert posterior["parameters"].dims == ("chain", "draw", "client", "parameters_dim_0")
    assert posterior["client"].values.tolist() == ["site0", "site1", "site2", "site3", "site4"]
    expected = {"method": "remembering", "round": 2, "seed": 3}
    assert {key: posterior.attrs[key] for key in expected} == expected
    assert re.match(r"\d+\.\d+", posterior.attrs["covey_version"])
    for client in (
        "site4",
        "site1",
    ):  # of different sizes, and so drawn in another order than asked for
        ours = posterior["parameters"].sel(client=client, chain=2).values
        np.testing.assert_allclose(
            ours, done.posterior.client(client).draws(DRAWS, chains=3)[2], rtol=1e-6
        )
    assert np.all(
        posterior["parameters"].isel(chain=0).values != posterior["parameters"].isel(chain=1).values
    )
    assert set(np.asarray(done._state.seen)) == {True, False}
    nodes = np.asarray(done._state.nodes.state)
    for client in np.flatnonzero(done._state.seen):
        mean = posterior["parameters"].isel(client=client).mean(("chain", "draw")).values
        assert np.all(np.abs(mean - nodes[client]) < 4 / np.sqrt(CHAINS * DRAWS))


def test_one_client_has_no_dimension_of_its_own_and_an_order_is_kept(done, tree):
    alone = done.posterior.client("site3").trace(DRAWS)["posterior"]
    assert alone["parameters"].shape == (CHAINS, DRAWS, 3)
    assert alone.attrs["client"] == "site3"
    np.testing.assert_allclose(
        alone["parameters"], tree["posterior"]["parameters"].sel(client="site3"), rtol=1e-6
    )
    two = done.posterior.select([3, "site0"]).trace(DRAWS)["posterior"]
    assert two["client"].values.tolist() == ["site3", "site0"]
    np.testing.assert_allclose(two["parameters"][:, :, 0], alone["parameters"], rtol=1e-6)


def test_clients_never_seen_have_traces_too(done):
    other = linear_gaussian(seed=5, sizes=(9, 14)).data
    found = done.posterior.select(data=other).trace(8, chains=2)["posterior"]
    assert found["client"].values.tolist() == ["site0", "site1"]
    np.testing.assert_allclose(
        found["parameters"].sel(client="site1", chain=1),
        done.posterior.client("site1", data=other).draws(8, chains=2)[1],
        rtol=1e-6,
    )


def test_the_summary_is_that_of_the_law(done, tree):
    """N(memory, 1): the errors of 2,000 independent draws are known."""
    table = done.posterior.select(["site2", "site0"]).summary(count=DRAWS, probability=0.8)
    assert list(table.columns) == [
        "mean",
        "sd",
        "lower_80",
        "upper_80",
        "ess_bulk",
        "ess_tail",
        "r_hat",
        "mcse_mean",
    ]
    assert table.index.tolist()[:4] == [("site2", f"parameters[{k}]") for k in range(3)] + [
        ("site0", "parameters[0]")
    ]
    values = tree["posterior"]["parameters"].sel(client=["site2", "site0"]).values.astype(float)
    by_line = values.reshape(CHAINS * DRAWS, -1)
    np.testing.assert_allclose(table["mean"], by_line.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        table[["lower_80", "upper_80"]].T,
        np.quantile(by_line, [0.1, 0.9], axis=0),
        rtol=1e-4,
        atol=1e-5,
    )
    width = table["upper_80"] - table["lower_80"]
    # A tenth and a nine-tenth quantile of a normal have the variance p (1 - p) / (n density^2),
    # density 0.1755.
    assert np.all(np.abs(width - 2 * 1.28155) < 4 * np.sqrt(2 * 0.1 * 0.9 / 2000) / 0.1755)
    assert table["r_hat"].max() < 1.02
    assert table["ess_bulk"].min() > 1500
    np.testing.assert_allclose(table["mcse_mean"], table["sd"] / np.sqrt(2000), rtol=0.2)
    one = done.posterior.client("site2").summary(count=DRAWS, probability=0.8)
    assert one.index.tolist() == [f"parameters[{k}]" for k in range(3)]
    np.testing.assert_allclose(one, table.loc["site2"], rtol=1e-4, atol=1e-6)


def test_named_and_nested_draws_are_named_by_their_path():
    draws = {"intercept": chains(0), "own": {"slopes": np.stack([chains(1), chains(2) + 5], -1)}}
    table = summarise(as_tree(draws, ["a", "b"], {}, {}))
    assert table.loc["b"].index.tolist() == ["intercept", "own.slopes[0]", "own.slopes[1]"]
    np.testing.assert_allclose(table.loc[("b", "own.slopes[1]"), "mean"], chains(2)[1].mean() + 5)
    matrix = as_tree(np.zeros((1, 2, 4, 2, 2)) + np.arange(4.0).reshape(2, 2), None, {}, {})
    assert summarise(matrix)["mean"].to_dict() == {
        f"parameters[{i}, {j}]": 2 * i + j for i in (0, 1) for j in (0, 1)
    }


def test_labels_become_coordinates():
    draws = {"intercept": chains(0), "own": {"slopes": np.stack([chains(1), chains(2) + 5], -1)}}
    axes = {
        "own.slopes": Axis("slope", ("age", "dose")),
        "weights": Axis("column", ("not", "drawn")),
    }
    tree = as_tree(draws, ["a", "b"], {}, axes)
    slopes = tree["posterior"]["own.slopes"]
    assert slopes.dims == ("chain", "draw", "client", "slope")
    np.testing.assert_array_equal(slopes.sel(client="b", slope="dose"), chains(2)[1] + 5)
    assert summarise(tree).loc["b"].index.tolist() == [
        "intercept",
        "own.slopes[age]",
        "own.slopes[dose]",
    ]
    by_class = np.zeros((1, 2, 4, 2, 3)) + np.arange(6.0).reshape(2, 3)
    table = summarise(
        as_tree({"weight": by_class}, None, {}, {"weight": Axis("column", ("age", "dose"))})
    )
    assert table["mean"].to_dict() == {
        f"weight[{n}, {k}]": 3 * i + k for i, n in enumerate(("age", "dose")) for k in range(3)
    }


def test_autocorrelation_costs_effective_draws():
    """A chain x' = r x + e has n (1 - r) / (1 + r) effective draws."""
    table = summarise(
        as_tree({"x": chains(0, shape=(3, 4, 4000), memory=0.6)}, list("abc"), {}, {})
    )
    np.testing.assert_allclose(table["ess_bulk"], 16000 * 0.4 / 1.6, rtol=0.15)


@pytest.mark.parametrize(
    ("draws", "told"),
    [
        (
            chains(0, offset=0.5),
            r"2 of 2 parameters are poor, the first of a x \(R-hat up to 1\.[1-9].*more rounds",
        ),
        (chains(0, shape=(2, 4, 100), memory=0.95), r"effective draws down to \d\d?\)"),
        (
            np.where(np.arange(2)[:, None, None] == 0, np.nan, chains(0)),
            r"1 of 2 parameters .* a x \(1 with draws that are not finite\)",
        ),
    ],
)
def test_poor_draws_are_told(draws, told):
    with pytest.warns(UserWarning, match=told):
        summarise(as_tree({"x": draws}, ["a", "b"], {}, {}))


@pytest.mark.parametrize(
    ("shape", "unknown", "told"),
    [
        ((1, 1, 500), {"r_hat"}, "R-hat is NaN: it compares chains, and there is one; .* chains=4"),
        ((1, 4, 3), {"r_hat", "ess_bulk", "ess_tail", "mcse_mean"}, "at least 4 draws per chain"),
        (
            (1, 1, 1),
            {"sd", "r_hat", "ess_bulk", "ess_tail", "mcse_mean"},
            "draws per chain, got 1; (take|run) more",
        ),
    ],
)
@pytest.mark.parametrize("attributes", [{}, SHARED_ROUNDS])
def test_what_cannot_be_known_is_nan_and_the_reason_is_told(shape, unknown, told, attributes):
    with pytest.warns(UserWarning, match=told) as warned:
        table = summarise(as_tree({"x": chains(0, shape=shape)}, None, attributes, {}))
    assert len(warned) == 1  # what is unknown is not called poor
    assert set(table.columns[table.isna().any()]) == unknown


def test_a_number_that_never_changes_is_not_poor():
    table = summarise(as_tree({"x": np.ones((1, 2, 50))}, None, {}, {}))
    assert table.loc["x", "sd"] == 0


def test_draws_come_back_from_netcdf(tmp_path):
    tree = as_tree(
        {"x": chains(0).astype(np.float32)},
        ["Zürich", "Genève"],
        {"seed": 2**40, "method": "m"},
        {},
    )
    (tmp_path / "posterior.nc").write_bytes(netcdf(tree))
    back = arviz_base.convert_to_datatree(xarray.load_dataset(tmp_path / "posterior.nc"))[
        "posterior"
    ]
    np.testing.assert_array_equal(back["x"], tree["posterior"]["x"])
    assert back["client"].values.tolist() == ["Zürich", "Genève"]
    assert back.attrs["seed"] == str(2**40)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"chains": 0}, "chains must be at least 1, got 0"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"probability": 90.0}, "between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused(done, arguments, told):
    with pytest.raises(ValueError, match=told):
        done.posterior.clients.summary(**arguments)


@pytest.mark.parametrize(
    ("clients", "told"), [([], "no clients were named"), (["site9"], "no client 'site9'")]
)
def test_clients_that_are_not_there_are_refused(done, clients, told):
    with pytest.raises(ValueError, match=told):
        done.posterior.select(clients)


def test_a_posterior_that_a_method_has_not_names_what_it_has(done):
    with pytest.raises(ValueError, match=r"no posterior of the shared.*posterior.client"):
        done.posterior.shared  # noqa: B018


def test_many_clients_are_drawn_together(done, tree, monkeypatch):
    """A call a chunk, of three clients here, and not a call a client and chain: calls are what
    makes many clients slow.
    """
    evaluation, asked = done._engine.evaluator, []
    drawn = evaluation._drawn
    monkeypatch.setattr(evaluation, "_drawn", lambda root, t, down, ids, *rest, **options: (
        asked.append(len(ids)), drawn(root, t, down, ids, *rest, **options)
    )[1])  # fmt: skip
    xarray.testing.assert_equal(
        done.posterior.clients.trace(DRAWS)["posterior"]["parameters"],
        tree["posterior"]["parameters"],
    )
    seen = np.asarray(done._state.seen)
    assert asked == [3] * (-(-seen.sum() // 3) + -(-(~seen).sum() // 3))


def test_clients_with_other_columns_have_no_draws(done):
    data = done.data
    names = tuple(f"column{place}" for place in range(data.rows.x.shape[1]))
    named, turned = (
        replace(data, spec=data.spec._replace(features=features))
        for features in (names, names[::-1])
    )
    posterior = done.posterior
    posterior._data = named
    for clients in (["site0"], None):
        with pytest.raises(ValueError, match="in another order"):
            posterior.select(clients, data=turned)
