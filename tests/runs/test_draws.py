"""Draws that a run collects: all of them, in order, on disk, after a stop; and what is made of
them.
"""

import jax
import numpy as np
import pytest
from problems import logistic

from covey import models
from covey.algorithms.fald import fald
from covey.runs.launch import run

DATA = logistic().data
ROUNDS = 12
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def method():
    """One program for all tests: a ring of three, which a block of rounds would run over."""
    return fald(
        models.logistic(),
        step_size=2e-3,
        local_steps=2,
        prior=2.0,
        chains=2,
        jitter=0.5,
        burn_in=1,
        thinning=1,
        keep=3,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("draws") / "run"
    return run(
        method(), DATA, rounds=ROUNDS, seed=0, progress=False, out=out, checkpoint_every=4
    ), out


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_no_draw_is_lost_and_none_counts_twice(whole):
    done, out = whole
    draws = done.posterior.shared.draws()
    assert draws.weight.shape == (2, ROUNDS - 1, 3)
    np.testing.assert_array_equal(draws.weight[:, -1].T, done.state.theta.weight)
    assert len(np.unique(draws.bias)) == 2 * (ROUNDS - 1)
    names = sorted(path.name for path in (out / "draws").iterdir())
    assert names == [
        "000000000-000000003.draws",
        "000000003-000000007.draws",
        "000000007-000000011.draws",
    ]
    newest = jax.tree.map(
        lambda leaf: np.asarray(leaf)[np.arange(8, 11) % 3],
        done.method.posterior.shared.kept(done.state).draws,
    )
    np.testing.assert_array_equal(np.moveaxis(newest.weight, 0, 1), draws.weight[:, -3:])
    same(
        done.posterior.shared.draws(skip=2, every=3),
        jax.tree.map(lambda leaf: leaf[:, 2::3], draws),
    )


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_draws(whole, tmp_path):
    expected = whole[0].posterior.shared.draws()
    out, options = tmp_path / "run", {"seed": 0, "progress": False, "checkpoint_every": 4}
    run(method(), DATA, rounds=6, out=out, **options)
    # a chunk whose checkpoint was never written
    ahead = out / "draws" / "000000005-000000008.draws"
    ahead.write_bytes(b"not reached")
    resumed = run(method(), DATA, rounds=ROUNDS, out=out, resume=True, **options)
    same(resumed.posterior.shared.draws(), expected)
    assert not ahead.exists()
    first = out / "draws" / "000000000-000000003.draws"
    kept = first.read_bytes()
    first.write_bytes(kept[:-3] + b"abc")
    with pytest.raises(ValueError, match=r"000000000-000000003.draws is damaged"):
        resumed.posterior.shared.draws()
    first.unlink()
    with pytest.raises(
        ValueError, match="has draws 1 to 0 without a gap, but the checkpoint has made 11"
    ):
        run(method(), DATA, rounds=ROUNDS + 1, out=out, resume=True, **options)


def test_predictions_average_probabilities_over_draws(whole):
    done, _ = whole
    draws = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]).astype(float), done.posterior.shared.draws()
    )
    each = 1 / (1 + np.exp(-(X @ draws.weight.T + draws.bias)))
    np.testing.assert_allclose(done.posterior.shared.predict(X).mean[:, 1], each.mean(1), rtol=1e-4)
    # what the server keeps, and clients predict with
    newest = each.reshape(6, 2, ROUNDS - 1)[:, :, -3:].mean((1, 2))
    np.testing.assert_allclose(done.predict(X, client="site1").mean[:, 1], newest, rtol=1e-4)


def test_a_summary_has_the_diagnostics_of_all_chains(whole):
    done, _ = whole
    with pytest.warns(UserWarning, match="draws of 4 of 4 parameters are poor.* run more rounds"):
        table = done.posterior.shared.summary(probability=0.8)
    assert list(table.index) == ["weight[0]", "weight[1]", "weight[2]", "bias"]
    assert {"mean", "sd", "lower_80", "upper_80", "ess_bulk", "r_hat", "mcse_mean"} <= set(
        table.columns
    )
    draws = done.posterior.shared.draws()
    np.testing.assert_allclose(
        table["mean"], [*draws.weight.mean((0, 1)), draws.bias.mean()], rtol=1e-5
    )
    assert done.posterior.shared.trace()["posterior"]["weight"].dims[:2] == ("chain", "draw")


def test_chains_take_the_arguments_of_a_law(whole):
    """`count` draws per chain are thinned from those kept, up to the newest; none is drawn anew."""
    posterior = whole[0].posterior.shared
    every = posterior.draws()
    some = posterior.draws(4, chains=1)
    same(some, jax.tree.map(lambda leaf: leaf[:1, [1, 4, 7, 10]], every))
    same(posterior.draws(3, skip=2, every=3), jax.tree.map(lambda leaf: leaf[:, 2::3], every))
    assert dict(posterior.trace(4, chains=1)["posterior"].sizes)["draw"] == 4
    with (
        pytest.warns(UserWarning, match="the draws of 4 of 4 parameters are poor"),
        pytest.warns(UserWarning, match="R-hat is NaN: it compares chains, and there is one"),
    ):
        table = posterior.summary(count=11, chains=1)
    np.testing.assert_allclose(table.loc["bias", "mean"], every.bias[0].mean(), rtol=1e-5)
    for arguments, told in (
        ({"count": 12}, "there are 11 draws per chain, and 12 were asked for: chains are not"),
        ({"count": 9, "skip": 2, "every": 3}, "there are 3 draws per chain, and 9 were asked"),
        ({"chains": 3}, "has walked 2 chains, and 3 were asked for: .* give the method chains=3"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"every": 0}, "every must be at least 1, got 0"),
    ):
        for ask in (posterior.draws, posterior.trace, posterior.summary):
            with pytest.raises(ValueError, match=told):
                ask(**arguments)


def test_predictions_average_over_as_many_draws_as_asked_for(whole):
    """Evenly spaced over all chains, not those of one."""
    posterior = whole[0].posterior.shared
    draws = jax.tree.map(lambda leaf: leaf[:, [10]].astype(float), posterior.draws())
    each = 1 / (1 + np.exp(-(np.tensordot(draws.weight, X.T, 1) + draws.bias[..., None])))
    np.testing.assert_allclose(posterior.predict(X, count=2).mean[:, 1], each.mean((0, 1)), 1e-4)
    np.testing.assert_array_equal(posterior.predict(X, count=22).mean, posterior.predict(X).mean)
    with pytest.raises(ValueError, match="there are 22 draws of all chains, and 23 were asked for"):
        posterior.predict(X, count=23)


def test_new_rows_are_scaled_as_the_training_rows_were(whole):
    done, _ = whole
    scaled, _ = DATA.standardised()
    posterior = done.posterior
    posterior._data = scaled
    raw = posterior.shared.predict(X).mean
    expected = done.posterior.shared.predict(scaled.rows_from(X)).mean
    np.testing.assert_allclose(raw, expected, rtol=1e-5)
    np.testing.assert_array_equal(
        posterior.shared.predict(X, standardised=True).mean, done.posterior.shared.predict(X).mean
    )
    with pytest.raises(ValueError, match="the new rows have shape"):
        posterior.shared.predict(X[:, :2])


def test_what_there_is_not_is_named(whole):
    done, _ = whole
    with pytest.raises(
        ValueError, match=r"fald has no posterior of a client's own .* see run.posterior.shared"
    ):
        done.posterior.client("site1")
    with pytest.raises(ValueError, match="there are 11 draws per chain so far, and 11 were to be"):
        done.posterior.shared.draws(skip=11)


def test_numbers_are_predicted_by_mean_and_variance_of_the_mixture():
    members = models.Normal(np.array([[1.0], [4.0], [9.0]]), np.array([[1.0], [2.0], [5.0]]))
    found = models.mixture_of(
        jax.tree.map(jax.numpy.asarray, members), jax.numpy.array([1.0, 3.0, 0.0])
    )
    np.testing.assert_allclose(found.mean, [3.25], rtol=1e-6)
    np.testing.assert_allclose(
        found.variance, [0.25 * 1 + 0.75 * 4 + 0.25 * 2.25**2 + 0.75 * 0.75**2], rtol=1e-6
    )
    counts = models.mixture_of(
        models.Poisson(jax.numpy.log(jax.numpy.array([[2.0], [6.0]]))), jax.numpy.array([3.0, 1.0])
    )
    np.testing.assert_allclose(counts.mean, [3.0], rtol=1e-5)
