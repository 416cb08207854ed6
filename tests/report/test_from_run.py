"""The report of a run says what the run says."""

import numpy as np
import pandas as pd
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.fald import fald
from covey.algorithms.fedavg import fedavg
from covey.privacy.ledger import Budget
from covey.report import from_run, page
from covey.report.from_run import content_of, share_interval
from covey.report.sections import sections_of
from covey.runs.launch import run
from html_pages import Reader, check_tables


@pytest.fixture(scope="module")
def content(done):
    text = '[model]\nname = "logistic"\n\n[environment]\njax = "0.10"\ndata_digest = "b48"\n'
    return content_of(done, settings=text)


@pytest.fixture(scope="module")
def chains():
    """A short run that draws, of two columns."""
    data = linear_gaussian().data
    method = fald(models.linear(), step_size=1e-3, local_steps=1, burn_in=10, chains=2)
    return run(method, data, rounds=60, seed=0, progress=False)


def test_the_tables_are_those_of_the_run(content, done):
    pd.testing.assert_frame_equal(content.convergence.metrics, done.metrics)
    pd.testing.assert_frame_equal(content.fairness.clients, done.clients.drop(columns="client"))
    (rounds,) = content.traffic.messages.to_dict("records")
    assert rounds["times"] == 4
    assert rounds["bytes_up"] == done.metrics["bytes_up"].sum()
    assert rounds["bytes_up_per_site"] == done.metrics["bytes_up"].sum() / 4
    assert content.traffic.parts["values"].sum() == 14  # 13 columns and an intercept
    settings = content.settings.values.set_index("setting")["value"]
    assert settings["data_digest"] == "b48"
    assert settings["seed"] == "0"


def test_the_page_of_a_run_shows_these_tables(content, done):
    read = Reader(page.render(content))
    check_tables(read, sections_of(content))
    np.testing.assert_array_equal(
        [float(row[1]) for row in read.tables["metrics"].values], done.metrics["train_loss"]
    )


def test_calibration_is_in_bins_of_many_rows(content, done):
    bins, table = content.calibration.bins, done.evaluation.reliability()
    assert bins["count"].min() >= 10
    assert bins["count"].sum() == table["count"].sum()
    right = (table["accuracy"] * table["count"]).sum()
    assert (bins["observed"] * bins["count"]).sum() == pytest.approx(right)
    assert ((bins["q05"] < bins["observed"]) & (bins["observed"] < bins["q95"])).all()
    error = done.evaluation.calibration_errors.pooled
    assert f"differ by {error:.3f} on average" in content.calibration.sentences[0]


def test_the_interval_of_a_share_covers_it():
    """Over all outcomes of 30 rows, an interval of probability 0.9 covers about that often."""
    from scipy.stats import binom

    hits = np.arange(31)
    low, high = share_interval(hits, np.full(31, 30))
    covered = [
        binom.pmf(hits, 30, share)[(low <= share) & (share <= high)].sum()
        for share in np.linspace(0.1, 0.9, 33)
    ]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)


def test_the_summary_names_sites_and_the_worst_served(content, done):
    text = " ".join(content.sentences)
    assert "4 sites with 430" not in text
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        assert hospital in text
    worst = done.clients.sort_values("accuracy")["name"].iloc[0]
    assert f"({worst}, served worst)" in text


def test_a_method_without_a_posterior_has_no_such_sections(content):
    assert content.shared is content.sites is content.draws is content.privacy is None
    assert [section.key for section in sections_of(content)] == [
        "calibration",
        "traffic",
        "fairness",
        "convergence",
        "settings",
    ]


def test_a_run_that_was_not_evaluated_has_no_fairness():
    data = linear_gaussian().data
    done = run(fedavg(models.linear()), data, rounds=1, seed=0, progress=False)
    content = content_of(done)
    assert content.fairness is content.calibration is None
    assert content.convergence is not None


def test_chains_become_a_forest_with_the_numbers_of_the_summary(chains):
    found = content_of(chains)
    with pytest.warns(UserWarning, match="the draws of"):
        table = chains.posterior.shared.summary()
    both = pd.concat([found.shared.coefficients, found.shared.variation])
    np.testing.assert_array_equal(np.sort(both["mean"]), np.sort(table["mean"]))
    np.testing.assert_array_equal(np.sort(both["q05"]), np.sort(table["lower_90"]))
    assert found.shared.scale == "coefficient"
    assert set(found.draws.trace["chain"]) == {1, 2}
    assert found.draws.poor
    assert any("effective draws down to" in caution for caution in found.cautions)
    assert found.draws.sentences[0] in found.cautions


def test_an_unfinished_run_is_not_asked_for_its_posterior(chains, monkeypatch):
    monkeypatch.setattr(type(chains), "posterior", property(lambda self: 1 / 0))
    assert content_of(chains, finished=False).shared is None


def test_too_few_draws_are_a_caution_and_no_error():
    method = fald(models.linear(), step_size=1e-3, local_steps=1, burn_in=10)
    done = run(method, linear_gaussian().data, rounds=12, seed=0, progress=False)
    content = content_of(done)
    assert content.shared is None
    (caution,) = content.cautions
    assert caution == "The run has kept 2 draws per chain, too few for a table of effects."


def test_a_privacy_budget_has_a_section():
    data = linear_gaussian().data
    method = fald(models.linear(), step_size=1e-5, local_steps=1, burn_in=1, clip=1.0)
    budget = Budget(delta=1e-5, epsilon=50.0, accountants=("rdp",))
    done = run(method, data, rounds=3, seed=0, privacy=budget, progress=False)
    privacy = content_of(done, finished=False).privacy
    spent = done.ledger.spent(3)["rdp"]
    assert privacy.spent.to_dict("records") == [{"accountant": "rdp", "epsilon": spent}]
    np.testing.assert_array_equal(privacy.by_round["rdp"], done.metrics["epsilon_rdp"])
    assert f"epsilon {spent:.4g} at delta 1e-05" in privacy.sentences[0]
    assert f"allows {done.ledger.left(3)} more rounds" in privacy.sentences[1]


def test_a_run_with_a_directory_writes_its_report_once(done, tmp_path):
    """Opening a finished run again does not draw its posterior again for the same page."""
    directory = done._directory
    report = directory.path / "report.html"
    assert "Fairness across sites" in report.read_text("utf-8")
    assert directory.report_is_current()
    newest = max((directory.path / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    later = report.stat().st_mtime_ns + 10**9
    import os

    os.utime(newest, ns=(later, later))
    assert not directory.report_is_current()


def test_held_out_sites_are_judged(done, monkeypatch):
    unseen = done.data.subset([1])
    monkeypatch.setattr(done, "unseen", unseen)
    content = content_of(done)
    assert content_of(done, finished=False).new_site is None
    measures = content.new_site.measures
    pd.testing.assert_frame_equal(
        measures, done.evaluate(unseen, split="test").clients.drop(columns="client")
    )
    assert "hungarian" in content.new_site.sentences[0]


def test_odds_ratios_are_for_two_labels_and_rate_ratios_for_counts(done):
    assert from_run._family(done, "") == "bernoulli"
    data = linear_gaussian().data

    class Other:
        pass

    other = Other()
    other.data = data
    assert from_run._family(other, '[model]\nname = "mixed_poisson"\n') == "poisson"
    assert from_run._family(other, '[model]\nname = "mixed_negative_binomial"\n') == (
        "negative_binomial"
    )
    assert from_run._family(other, "") == "gaussian"
