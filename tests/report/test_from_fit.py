"""The report of a fit says what the fit says, in the terms of its formula."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import covey
from command_line import call
from covey.fitting.combination import combine
from covey.fitting.description import describe
from covey.fitting.formula import parse
from covey.fitting.methods import Found
from covey.fitting.prediction import Draws
from covey.fitting.priors import LogPrior
from covey.fitting.result import Fit
from covey.fitting.tables import Table
from covey.fitting.terms import Terms
from covey.report import page
from covey.report.from_fit import content_of_fit
from covey.report.sections import sections_of
from html_pages import Reader, check_tables

SITES = ("bern", "chur", "zug")


def fitted(formula, tables, means, *, k_hat=0.3, estimate="posterior", family=None):
    """A fit of made-up draws around given means, without a run."""
    parsed = parse(formula)
    read = {name: Table(name, frame) for name, frame in tables.items()}
    design = combine([describe(table, parsed) for table in read.values()], parsed, family=family)
    terms, random = Terms.of(design), np.random.default_rng(0)
    draws = np.array(means) + 0.05 * random.standard_normal((400, len(means)))
    table = pd.DataFrame(
        {
            "mean": draws.mean(0),
            "sd": draws.std(0),
            "q05": np.quantile(draws, 0.05, axis=0),
            "q95": np.quantile(draws, 0.95, axis=0),
            "ess": 300.0,
        },
        index=pd.Index(terms.names, name="term"),
    )
    effects = {
        site: Draws(draws, at + 0.1 * random.standard_normal((400, len(terms.effects))))
        for site, at in zip(tables, (-1.0, 0.0, 1.0), strict=True)
    }
    return Fit(
        design=design,
        estimate=estimate,
        method="marginal",
        priors={"age": "normal(0, 1)"},
        prior=LogPrior((), ()),
        found=Found(table, draws, {"k_hat": k_hat, "ess": 300.0, "settled": True}),
        seed=0,
        tables=read,
        site_draws_=effects if terms.effects else {},
        stored={
            "traffic": {"rounds": 7, "questions": 1, "bytes_up": 1500, "bytes_down": 900},
            "record": {"messages": [{"message": "rounds", "times": 7, "bytes_up": 4500}]},
        },
    )


@pytest.fixture(scope="module")
def hospitals():
    """Three hospitals of 60 patients, with intercepts of -1, 0 and 1 beside the shared one."""
    random, tables = np.random.default_rng(3), {}
    for site, at in zip(SITES, (-1.0, 0.0, 1.0), strict=True):
        age = random.normal(60, 10, 60)
        chance = 1 / (1 + np.exp(-(0.5 + at + 0.08 * (age - 60))))
        ill = np.where(random.uniform(size=60) < chance, "yes", "no")
        tables[site] = pd.DataFrame({"age": age - 60, "ill": ill, "days": age * 0 + 2.0})
    return tables


@pytest.fixture(scope="module")
def logistic(hospitals):
    return fitted("ill ~ age + (1 | site)", hospitals, [0.5, 0.08, 1.0])


@pytest.fixture(scope="module")
def content(logistic):
    return content_of_fit(logistic)


def test_every_number_of_the_page_is_that_of_the_fit(content, logistic):
    read = Reader(page.render(content))
    check_tables(read, sections_of(content))
    summary = logistic.summary()
    shown = dict(
        zip(
            ["term", *read.tables["shared"].columns[1:]],
            read.tables["shared"].values[0],
            strict=True,
        )
    )
    assert float(shown["odds ratio"]) == np.exp(summary.loc["age", "mean"])
    assert float(shown["odds ratio 95 %"]) == np.exp(summary.loc["age", "q95"])
    pd.testing.assert_frame_equal(content.sites.effects, logistic.effects())
    variation = content.shared.variation.set_index("term")
    assert list(variation.index) == ["Intercept", "sd(Intercept)"]
    assert (variation["q05"] == summary["q05"].drop("age")).all()


def test_a_logistic_fit_has_all_sections_but_a_run(content):
    assert [section.key for section in sections_of(content)] == [
        "shared",
        "sites",
        "new-site",
        "calibration",
        "errors",
        "posterior",
        "traffic",
        "fairness",
        "settings",
    ]
    assert content.title == "ill in 3 sites"
    assert content.subtitle == "logistic regression, posterior: ill ~ age + (1 | site)"
    assert "3 sites with 180 rows took part: bern, chur and zug." in content.sentences
    assert any("lowest at bern and highest at zug" in one for one in content.sentences)
    assert dict(content.settings.values.to_numpy())["prior of age"] == "normal(0, 1)"


def test_alone_is_the_sites_own_maximum_around_the_shared_coefficients(
    content, hospitals, logistic
):
    alone = content.sites.alone.set_index("client")["alone"]
    mean = logistic.summary()["mean"]
    for site, frame in hospitals.items():
        eta = mean["Intercept"] + alone[site] + mean["age"] * frame["age"]
        expected = (1 / (1 + np.exp(-eta))).sum()
        assert expected == pytest.approx((frame["ill"] == "yes").sum(), abs=1e-6)
    together = content.sites.alone.set_index("client")["together"]
    assert (together == logistic.effects().set_index("client")["mean"]).all()


def test_a_new_site_is_a_mixture_over_the_draws(content, logistic):
    """Probability 0.9 of the mixture lies inside, and the interval is as wide to both sides."""
    (row,) = content.new_site.effects.to_dict("records")
    sd = logistic.posterior.shared.draws()["sd(Intercept)"]
    inside = norm.cdf(row["q95"] / sd) - norm.cdf(row["q05"] / sd)
    assert inside.mean() == pytest.approx(0.9, abs=1e-9)
    assert row["q05"] == pytest.approx(-row["q95"])
    assert (
        f"a factor of {np.exp(row['q05']):.3g} to {np.exp(row['q95']):.3g}"
        in (content.new_site.sentences[0])
    )


def test_calibration_and_confusion_count_the_rows(content, logistic):
    rows = logistic.fitted()
    bins = content.calibration.bins
    assert bins["count"].sum() == 180
    assert bins["count"].min() >= 10
    assert (bins["observed"] * bins["count"]).sum() == pytest.approx(rows["observed"].sum())
    confusion = content.errors.confusion.set_index("observed")
    called = rows["mean"] > 0.5
    assert (
        confusion.loc["ill = yes", "predicted ill = no"]
        == ((rows["observed"] == 1) & ~called).sum()
    )
    assert (
        confusion.loc["ill = no", "predicted ill = yes"] == ((rows["observed"] == 0) & called).sum()
    )
    assert confusion.to_numpy().sum() == 180
    of_chur = rows[rows["client"] == "chur"]
    right = of_chur["observed"] == (of_chur["mean"] > 0.5)
    measures = content.errors.measures.set_index("client").loc["chur"]
    assert measures["sensitivity"] == right[of_chur["observed"] == 1].mean()
    fairness = content.fairness.clients.set_index("name").loc["chur"]
    assert fairness["accuracy"] == right.mean()
    assert fairness["brier"] == ((of_chur["mean"] - of_chur["observed"]) ** 2).mean()


def test_no_row_is_in_the_page(content, hospitals):
    text = page.render(content)
    for frame in hospitals.values():
        assert not any(repr(value)[:12] in text for value in frame["age"].to_list())


def test_a_site_that_was_added_is_held_out(hospitals, logistic):
    """Its rows are judged apart: as those of a new site, and with its own effects."""
    known = dict(logistic.site_draws())
    added = replace(logistic, site_draws_=known, added={"zug": known.pop("zug")})
    content = content_of_fit(added)
    assert "2 sites with 120 rows took part: bern and chur." in content.sentences
    assert ("rows used", "120") in content.facts
    assert content.calibration.bins["count"].sum() == 120
    assert list(content.fairness.clients["name"]) == ["bern", "chur"]
    new, own = content.new_site.measures.to_dict("records")
    frame = hospitals["zug"]
    for row, predicted in (
        (new, added.predict(frame)["mean"]),
        (own, added.predict(frame, client="zug")["mean"]),
    ):
        ill = (frame["ill"] == "yes").astype(float)
        assert (row["name"], row["rows"]) == ("zug", 60)
        assert row["brier"] == pytest.approx(((predicted - ill) ** 2).mean())
    assert own["brier"] < new["brier"]
    assert "zug as a new site (accuracy" in content.new_site.sentences[0]
    assert content.new_site.sentences[0] in content.sentences


def test_units_are_standard_deviations_and_levels(hospitals):
    tables = {
        site: frame.assign(
            sex=np.resize(["f", "m"], 60), stage=np.resize([1, 2, 3], 60), dose=np.arange(60.0)
        )
        for site, frame in hospitals.items()
    }
    formula = "ill ~ scale(age) + sex + C(stage) + sex:dose + (1 | site)"
    fit = fitted(formula, tables, np.full(8, 0.1))
    shared = content_of_fit(fit).shared
    units = dict(shared.units)
    sd = np.concatenate([frame["age"] for frame in tables.values()]).std(ddof=1)
    assert units == {
        "scale(age)": f"{sd:.3g} (1 SD)",
        "sex[T.m]": "m against f",
        "C(stage)[T.2]": "2 against 1",
        "C(stage)[T.3]": "3 against 1",
    }
    assert [shared.label(term) for term in shared.coefficients["term"]] == [
        f"age, per {sd:.3g}",
        "sex: m",
        "stage: 2",
        "stage: 3",
        "sex: f and dose",
        "sex: m and dose",
    ]


def test_an_unreliable_posterior_is_a_caution(hospitals):
    fit = fitted("ill ~ age + (1 | site)", hospitals, [0.5, 0.08, 1.0], k_hat=0.9)
    content = content_of_fit(fit)
    assert content.draws.poor
    assert any("NOT reliable" in caution for caution in content.cautions)
    assert not any("NOT reliable" in sentence for sentence in content.sentences)


def test_a_gaussian_fit_has_residuals_and_coverage(hospitals):
    random = np.random.default_rng(5)
    tables = {
        site: frame.assign(gain=2 + at + 0.1 * frame["age"] + random.normal(size=60))
        for (site, frame), at in zip(hospitals.items(), (-1, 0, 1), strict=True)
    }
    fit = fitted("gain ~ age + (1 | site)", tables, [2.0, 0.1, 1.0, 1.0])
    content = content_of_fit(fit)
    rows = fit.fitted()
    assert content.shared.scale == "coefficient"
    residual = rows["observed"] - rows["mean"]
    bins = content.errors.residuals
    assert (bins["mean"] * bins["count"]).sum() == pytest.approx(residual.sum())
    coverage = content.calibration.coverage.set_index("client")["90 %"]
    assert coverage["all sites"] == rows["observed"].between(rows["q05"], rows["q95"]).mean()
    # 180 outcomes of a model that holds: 0.9 within three standard errors
    assert coverage["all sites"] == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 180))
    assert content.errors.confusion is None
    assert content.fairness.measure == "rmse"
    assert sections_of(content)[4].title == "Residuals"


def test_counts_have_rate_ratios_and_an_offset(hospitals):
    random = np.random.default_rng(6)
    tables = {
        site: frame.assign(falls=random.poisson(2 * np.exp(0.3 + at), size=60))
        for (site, frame), at in zip(hospitals.items(), (-1, 0, 1), strict=True)
    }
    formula = "falls ~ age + offset(log(days)) + (1 | site)"
    fit = fitted(formula, tables, [0.3, 0.0, 1.0], family="poisson")
    content = content_of_fit(fit)
    assert content.shared.scale == "rate ratio"
    alone = content.sites.alone.set_index("client")["alone"]
    mean, frame = fit.summary()["mean"], tables["zug"]
    rate = np.exp(mean["Intercept"] + alone["zug"] + mean["age"] * frame["age"]) * frame["days"]
    assert rate.sum() == pytest.approx(frame["falls"].sum())
    assert content.errors.residuals["count"].sum() == 180


def test_maximum_likelihood_has_no_draws(hospitals):
    fit = fitted("ill ~ age + (1 | site)", hospitals, [0.5, 0.08, 1.0], estimate="ml")
    content = content_of_fit(fit)
    assert content.draws is None
    assert any("Wald" in sentence for sentence in content.shared.sentences)


def test_a_fit_without_tables_or_effects_leaves_sections_out(hospitals):
    fit = fitted("ill ~ age", hospitals, [0.5, 0.08])
    fit.tables = None
    content = content_of_fit(fit)
    assert content.sites is content.new_site is content.calibration is content.errors is None
    assert content.shared is not None


@pytest.mark.slow
def test_a_fit_in_a_folder_has_its_report(hospitals, tmp_path):
    for site, frame in hospitals.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        frame.to_csv(tmp_path / "data" / f"{site}.csv", index=False)
    folder, formula = tmp_path / "fit", "ill ~ age + (1 | site)"
    fit = covey.fit(formula, tmp_path / "data", estimate="ml", out=folder, progress=False)
    read = Reader((folder / "report.html").read_text("utf-8"))
    assert (1, "ill in 3 sites") in read.headings
    check_tables(read, sections_of(content_of_fit(fit)))
    saved = pd.read_csv(folder / "summary.csv").set_index("term")
    shown = [float(value) for value in read.tables["variation"].values[0][1:]]
    np.testing.assert_allclose(shown, saved.loc["Intercept", ["mean", "sd", "q05", "q95"]])
    code, text = call("report", folder, "--out", tmp_path / "again.html")
    assert code == 0, text
    again = Reader((tmp_path / "again.html").read_text("utf-8"))
    assert again.headings == read.headings
    for name in ("shared", "sites", "messages", "metrics", "calibration", "site-rows"):
        assert again.tables[name].texts == read.tables[name].texts, name


@pytest.mark.slow
def test_the_report_follows_the_folder(hospitals, tmp_path):
    """A site that was added is in it, tables that have changed or gone are told."""
    for site, frame in hospitals.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        frame.to_csv(tmp_path / "data" / f"{site}.csv", index=False)
    folder, formula = tmp_path / "fit", "ill ~ age + (1 | site)"
    covey.fit(formula, tmp_path / "data", estimate="ml", out=folder, progress=False)
    hospitals["zug"].head(20).to_csv(tmp_path / "late.csv", index=False)
    assert call("add-client", folder, tmp_path / "late.csv")[0] == 0
    code, text = call("report", folder)
    assert code == 0, text
    read = Reader((folder / "report.html").read_text("utf-8"))
    assert "late" in [row[0] for row in read.tables["sites"].texts]
    assert [row[0] for row in read.tables["held-out"].texts] == ["late", "late"]
    (tmp_path / "data" / "new.csv").write_text("age,ill\n1,yes\n")
    with pytest.warns(UserWarning, match="does not know the site new, which the data have"):
        assert call("report", folder)[0] == 0
    (tmp_path / "data" / "new.csv").unlink()
    hospitals["zug"].head(9).to_csv(tmp_path / "data" / "zug.csv", index=False)
    code, text = call("report", folder)
    assert code == 2
    assert "the rows of 'zug' are not those that were fitted" in text
    (tmp_path / "data").rename(tmp_path / "gone")
    code, text = call("report", folder, "--out", tmp_path / "page.html")
    assert code == 0
    assert "is not there any more" in text
    titles = [title for _, title in Reader((tmp_path / "page.html").read_text("utf-8")).headings]
    assert "Sites" in titles
    assert "Predictive calibration" not in titles
