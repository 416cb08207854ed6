"""`covey.fit` from tables to results: against pooled fits, and what a fit offers."""

import json

import numpy as np
import pandas as pd
import pytest

import covey
from covey.fitting.methods import check_method
from messy_hospitals import messy_hospitals
from pooled_fits import Pooled, gaussian, intercepts
from small_fits import FORMULA, clinics

TABLES = clinics()


@pytest.fixture(scope="module")
def fit():
    return covey.fit(FORMULA, TABLES, progress=False, seed=3)


@pytest.fixture(scope="module")
def smaller():
    return covey.fit("gain ~ dose + (1 | clinic)", TABLES, estimate="ml", progress=False)


def pooled(names, outcome):
    whole = pd.concat(TABLES.values())
    x = np.column_stack([(whole.sex == "m") if name == "sex" else whole[name] for name in names])
    client = np.repeat(np.arange(len(TABLES)), [len(one) for one in TABLES.values()])
    return Pooled(x.astype(float), whole[outcome].to_numpy(), client)


def test_maximum_likelihood_is_that_of_the_pooled_table(smaller):
    exact = gaussian(pooled(["dose"], "gain"), [])
    table = smaller.summary()
    np.testing.assert_allclose(table["mean"][:2], exact.beta, atol=1e-3 * exact.se.max())
    np.testing.assert_allclose(table["sd"][:2], exact.se, rtol=1e-3)
    found = table["mean"][["sd(Intercept)", "sigma"]]
    np.testing.assert_allclose(found, [exact.sd[0], exact.noise], rtol=1e-3)
    assert abs(smaller.diagnostics()["log_likelihood"] - exact.log_likelihood) < 1e-3


def test_summary_has_the_terms_of_the_formula(fit):
    table = fit.summary()
    assert list(table.index) == [
        "Intercept",
        "dose",
        "sex[T.m]",
        "sd(Intercept)",
        "sd(dose)",
        "cor(Intercept,dose)",
        "sigma",
    ]
    assert list(table.columns) == ["mean", "sd", "q05", "q95", "ess"]
    assert (table["q05"] < table["mean"]).all()
    assert (table["mean"] < table["q95"]).all()
    said = repr(table)
    for part in ("8 clinics, 160 rows", "rounds", "kB", "No row left a site", "k-hat"):
        assert part in said
    assert table.attrs["k_hat"] <= 0.7
    assert "No row left a site" in table._repr_html_()
    assert isinstance(table["mean"], pd.Series)
    assert fit.priors["dose"].startswith("normal(0, ")
    assert fit.priors["cor"] == "lkj(2)"


def test_the_posterior_mean_is_near_the_pooled_estimate(fit):
    """With weak priors they differ by much less than a standard error, here below a third."""
    exact = gaussian(pooled(["dose", "sex"], "gain"), [0])
    table = fit.summary()
    off = (table["mean"][:3] - exact.beta) / exact.se
    assert np.abs(off).max() < 0.33
    assert abs(table["mean"]["sigma"] / exact.noise - 1) < 0.05


def test_effects_and_coefficients_of_sites(fit):
    effects, own = fit.effects(), fit.coefficients()
    assert list(effects.columns) == ["client", "term", "mean", "sd", "q05", "q95"]
    assert len(effects) == 16
    assert set(effects.term) == {"Intercept", "dose"}
    shared = fit.summary()["mean"]
    both = own.merge(effects, on=["client", "term"])
    off = both.mean_x - both.mean_y - shared[both.term].to_numpy()
    # Independent draws of the shared parameters: four standard errors of their mean.
    error = fit.summary()["sd"][both.term].to_numpy() / np.sqrt(1000)
    assert (np.abs(off) < 4 * error).all()
    # A site's own regression, shrunk towards the others.
    alone = np.polyfit(TABLES["clinic0"].dose, TABLES["clinic0"].gain, 1)[0]
    slope = own[(own.client == "clinic0") & (own.term == "dose")]["mean"].item()
    assert min(alone, shared["dose"]) - 0.1 < slope < max(alone, shared["dose"]) + 0.1


def test_predictions_have_intervals_by_row(fit):
    new = pd.DataFrame({"sex": ["m", "f", "m"], "dose": ["1.0", "2.5", ""]}, index=[7, 8, 9])
    with pytest.warns(UserWarning, match="1 of 3 rows have missing values"):
        known = fit.predict(new, client="clinic0")
    assert list(known.columns) == ["mean", "q05", "q25", "q75", "q95"]
    assert known.index.tolist() == [7, 8, 9]
    assert known.loc[9].isna().all()
    unknown = fit.predict(new.iloc[:2])
    width = (unknown.q95 - unknown.q05) / (known.q95 - known.q05).iloc[:2]
    assert (width > 1.2).all()  # a new clinic's effects are not known
    with pytest.raises(ValueError, match="'sex' has the level 'x'"):
        fit.predict(new.assign(sex="x").iloc[:2])
    as_reference = fit.predict(new.assign(sex="x").iloc[:2], new_levels="reference")
    exact = fit.predict(new.assign(sex="f").iloc[:2])
    pd.testing.assert_frame_equal(as_reference, exact)
    with pytest.raises(ValueError, match="lacks the column 'dose'"):
        fit.predict(new[["sex"]])


def test_intervals_cover_the_training_rows(fit):
    """Rows are fitted, so that coverage is about nominal: within 4 binomial standard errors."""
    table = fit.fitted()
    assert list(table.columns[:3]) == ["client", "observed", "mean"]
    for low, high, nominal in (("q05", "q95", 0.9), ("q25", "q75", 0.5)):
        covered = table.observed.between(table[low], table[high]).mean()
        assert abs(covered - nominal) < 4 * np.sqrt(nominal * (1 - nominal) / len(table)) + 0.02


def test_a_new_site_with_many_five_and_no_rows(fit):
    table = TABLES["clinic0"]
    with pytest.warns(UserWarning, match="'clinic0' and 'many' have exactly the same rows"):
        many = fit.add_client("many", table)
    few, none = many.add_client("few", table.head(5)), many.add_client("none")
    assert "8 clinics, 160 rows" in repr(none.summary())  # of whom the shared terms know
    assert "many" not in fit.clients
    assert none.clients == [*TABLES, "many", "none"]
    sd = {
        name: one.effects().set_index(["client", "term"]).loc[(name, "dose"), "sd"]
        for name, one in {"many": many, "few": few, "none": none}.items()
    }
    assert sd["many"] < sd["few"] < sd["none"]
    # The same rows as a site of the fit have the same effects, within Monte Carlo error.
    both = many.effects().set_index(["client", "term"])
    off = both.loc["many"]["mean"] - both.loc["clinic0"]["mean"]
    assert (np.abs(off) < 5 * both.loc["clinic0"]["sd"] * np.sqrt(2 / 1000)).all()
    assert np.isfinite(few.predict(table.head(2), client="few")["mean"]).all()
    with pytest.raises(ValueError, match="there is a site 'clinic0' already"):
        fit.add_client("clinic0", table)
    with pytest.raises(ValueError, match="cannot be called"):
        fit.add_client("../x", table)


def test_a_fit_is_kept_and_loaded(fit, tmp_path):
    folder = fit.add_client("new", TABLES["clinic1"].head(4)).save(tmp_path / "run")
    names = {path.name for path in folder.iterdir()}
    assert {"summary.csv", "effects.csv", "fit.json", "posterior.nc", "config.toml"} <= names
    again = covey.load_fit(folder)
    np.testing.assert_allclose(again.summary(), fit.summary(), rtol=1e-12)
    assert repr(again.summary()).splitlines()[-1].startswith("Added without a refit: new")
    new = TABLES["clinic2"].head(3)
    for client in ("clinic2", "new", None):
        one = again.predict(new, client=client)
        if client != "new":
            np.testing.assert_allclose(one, fit.predict(new, client=client), rtol=1e-5)
    more = again.add_client("later", TABLES["clinic3"].head(5))
    direct = fit.add_client("later", TABLES["clinic3"].head(5))
    np.testing.assert_allclose(
        more.effects().tail(2)["mean"], direct.effects().tail(2)["mean"], rtol=1e-4
    )
    with pytest.raises(ValueError, match="has no rows"):
        again.fitted()
    assert len(covey.load_fit(folder, data=TABLES).fitted()) == 160
    text = json.loads((folder / "fit.json").read_text())
    (folder / "fit.json").write_text(json.dumps(text | {"format": 99, "covey": "9.9"}))
    with pytest.raises(ValueError, match=r"written by covey 9\.9 in format 99"):
        covey.load_fit(folder)


def test_draws_by_the_names_of_terms(fit, tmp_path):
    import xarray

    drawn = fit.posterior.shared.draws()
    assert list(drawn.columns) == list(fit.summary().index)
    assert abs(drawn["dose"].mean() - fit.summary()["mean"]["dose"]) < 0.05
    assert list(fit.posterior.client("clinic1").draws().columns) == ["Intercept", "dose"]
    with pytest.raises(ValueError, match="there is no site 'x'"):
        fit.posterior.client("x")
    with xarray.open_dataset(fit.posterior.to_netcdf(tmp_path / "p.nc")) as data:
        assert data["coefficients"].sel(term="dose").shape == (4, 250)
        assert data["effects"].sel(client="clinic1", effect="dose").shape == (4, 250)
        assert data.attrs["paired"] == 1
        slopes = data["coefficients"].sel(term="dose") + data["effects"].sel(effect="dose")
        deviations = data["effects"].sel(effect="dose").values.reshape(-1, 8)
    # A draw's values belong together: sums and differences have the posterior's deviations.
    own = fit.coefficients().set_index(["client", "term"])["sd"].xs("dose", level="term")
    np.testing.assert_allclose(
        slopes.std(("chain", "draw")).sel(client=list(own.index)), own, rtol=1e-4
    )
    # All sites deviate from the same shared slope, which is not known, so that they move together;
    # given it they are independent.
    one, other = deviations[:, 0], deviations[:, 1]
    assert np.corrcoef(one, other)[0, 1] > 4 / np.sqrt(len(one))
    given = slopes.values.reshape(-1, 8)
    assert abs(np.corrcoef(given[:, 0], given[:, 1])[0, 1]) < 0.3


def test_rows_may_name_their_sites(smaller):
    rows = pd.concat(
        [TABLES["clinic3"].head(2).assign(clinic="clinic3"), TABLES["clinic0"].head(1)]
    )
    rows["clinic"] = rows["clinic"].fillna("clinic0")
    found = smaller.predict(rows.iloc[[0, 2, 1]])
    own = [smaller.predict(TABLES["clinic3"].head(2), client="clinic3")]
    own.append(smaller.predict(TABLES["clinic0"].head(1), client="clinic0"))
    np.testing.assert_allclose(found["mean"], pd.concat(own)["mean"].iloc[[0, 2, 1]])
    with pytest.warns(UserWarning, match="clinic is elsewhere in 1 of the rows"):
        new = smaller.predict(rows.iloc[[0]].assign(clinic="elsewhere"))
    plain = smaller.predict(rows.iloc[[0]].drop(columns="clinic"))
    np.testing.assert_allclose(new, plain)
    with pytest.warns(UserWarning, match="client='clinic0' says otherwise"):
        other = smaller.predict(rows.head(1), client="clinic0")
    assert other["mean"].item() != found["mean"].iloc[0]


def test_a_new_site_in_other_units_is_warned_of(smaller):
    table = TABLES["clinic0"].assign(dose=lambda one: 1000 * (one.dose + 10))
    with pytest.warns(UserWarning, match="'dose' is about .* times as large at site 'new'"):
        found = smaller.add_client("new", table)
    assert "are its units the same" in found.notes[-1]


def test_a_new_site_may_have_a_number_as_its_name(smaller):
    found = smaller.add_client(7, clinics(1, 10, seed=9)["clinic0"])
    assert found.clients[-1] == "7"
    new = TABLES["clinic1"].head(2)
    pd.testing.assert_frame_equal(found.predict(new, client=7), found.predict(new, client="7"))


def test_what_a_method_warns_of_is_in_the_summary():
    random, tables = np.random.default_rng(0), {}
    for site in "abcd":
        x = random.normal(size=30)
        tables[site] = pd.DataFrame({"x": x, "ill": np.where(x > 0, "yes", "no")})
    with (
        pytest.warns(UserWarning, match="x run away"),
        pytest.warns(UserWarning, match=r"sd\(Intercept\) is estimated as 0"),
    ):
        found = covey.fit("ill ~ x + (1 | site)", tables, estimate="ml", progress=False)
    said = repr(found.summary())
    assert "the data are separated" in said
    assert "estimate='posterior'" in said
    assert "weights[" not in said
    assert "prior=" not in said


def test_nested_fits_are_compared_by_a_likelihood_ratio(smaller):
    larger = covey.fit("gain ~ dose + sex + (1 | clinic)", TABLES, estimate="ml", progress=False)
    table = larger.compare(smaller)
    big, small = (gaussian(pooled(names, "gain"), []) for names in (["dose", "sex"], ["dose"]))
    exact = 2 * (big.log_likelihood - small.log_likelihood)
    assert abs(table["chi2"]["this"] - exact) < 1e-2
    assert table["df"]["this"] == 1
    np.testing.assert_allclose(
        table["log_likelihood"], [big.log_likelihood, small.log_likelihood], atol=1e-2
    )
    assert table["chi2"].isna()["other"]


def test_fits_of_different_kinds_are_not_compared(fit, smaller):
    with pytest.raises(ValueError, match="of one kind"):
        fit.compare(smaller)


@pytest.mark.slow
def test_hospitals_with_words_and_gaps(tmp_path, data_dir):
    """Messy files, maximum likelihood against a pooled fit of the same design."""
    clean = messy_hospitals(tmp_path / "hospitals", data_dir, rows=100)
    fit = covey.fit(
        "disease ~ age + sex + chest_pain + (1 | hospital)",
        tmp_path / "hospitals",
        estimate="ml",
        progress=False,
    )
    whole = pd.concat(clean.values())
    pain = [(whole.cp == level) for level in ("non-anginal", "none", "typical")]
    rows = Pooled(
        np.column_stack([whole.age, whole.male, *pain]).astype(float),
        whole.disease.to_numpy(float),
        np.repeat(np.arange(4), [len(one) for one in clean.values()]),
    )
    exact = intercepts(rows, "logistic")
    table = fit.summary()
    assert list(table.index[2:6]) == [
        "sex[T.male]",
        "chest_pain[T.non-anginal]",
        "chest_pain[T.none]",
        "chest_pain[T.typical]",
    ]
    np.testing.assert_allclose(table["mean"][:6], exact.beta, atol=0.02 * exact.se.min())
    np.testing.assert_allclose(table["sd"][:6], exact.se, rtol=0.01)
    assert "The event is disease = 'yes'" in repr(table)
    assert fit.clients == ["cleveland", "hungarian", "switzerland", "va"]


@pytest.mark.parametrize(
    ("method", "estimate", "priors", "why"),
    [
        ("fedavg", "posterior", False, "method must be one of marginal, fedpop, fald"),
        ("marginal", "map", False, "estimate must be one of"),
        ("marginal", "ml", True, "priors are for estimate='posterior'"),
        ("fald", "posterior", False, "models without random effects"),
        ("fedpop", "ml", False, "is for method='marginal'"),
    ],
)
def test_methods_that_do_not_fit(fit, method, estimate, priors, why):
    with pytest.raises(ValueError, match=why):
        check_method(fit.design, method, estimate, has_priors=priors)


def test_a_random_slope_that_nobody_varies_in():
    tables = {name: one.assign(dose=float(len(name))) for name, one in TABLES.items()}
    tables["clinic0"]["dose"] = 3.0
    with pytest.raises(ValueError, match="a random slope of 'dose' cannot be fitted"):
        covey.fit(FORMULA, tables, progress=False)
