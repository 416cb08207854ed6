"""Z-scores from federated sums, against scikit-learn and numpy on the pooled training rows."""

from inspect import unwrap

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from covey.data import FederatedData, Scaling, values


def skewed(seed=0, rows=400):
    generator = np.random.default_rng(seed)
    x = generator.gamma(2.0, 3.0, (rows, 4)) + np.asarray([0, 100, -5, 2000])
    return x, generator.normal(size=rows), generator.integers(0, 7, rows)


def test_scores_are_those_of_the_pooled_training_rows(monkeypatch):
    monkeypatch.setattr(
        values, "_BLOCK_BYTES", 300
    )  # many blocks, whose borders are not those of clients
    x, y, client = skewed()
    data = FederatedData.from_arrays(x, y, client).split(0.3, 0.2, seed=1)
    scaled, scaling = data.standardised()
    pooled = data.pooled()
    train = pooled.rows.x[: pooled.counts("train")[0]].astype(np.float64)
    oracle = StandardScaler().fit(train)
    np.testing.assert_allclose(scaling.mean, np.asarray(oracle.mean_), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, np.asarray(oracle.scale_), rtol=1e-8)
    np.testing.assert_allclose(
        scaled.rows.x,
        np.asarray(oracle.transform(data.rows.x.astype(np.float64))),
        rtol=1e-5,
        atol=1e-5,
    )
    assert np.array_equal(scaled.rows.y, data.rows.y)
    assert np.array_equal(scaled.bounds, data.bounds)


def test_missing_values_become_the_training_mean():
    x, y, client = skewed(1)
    gaps = np.random.default_rng(2).random(x.shape) < 0.2
    x[gaps] = np.nan
    data = FederatedData.from_arrays(x, y, client, allow_missing=True)
    scaled, scaling = data.standardised()
    np.testing.assert_allclose(scaling.mean, np.nanmean(x, 0), rtol=1e-6)
    np.testing.assert_allclose(scaling.scale, np.nanstd(x, 0), rtol=1e-5)
    order = np.argsort(client, kind="stable")
    assert np.all(scaled.rows.x[gaps[order]] == 0)
    assert np.isfinite(scaled.rows.x).all()


def test_constant_columns_get_scale_one():
    x = np.ones((30, 3)) * [0.1, 0.0, 12345.678]
    scaled, scaling = FederatedData.from_arrays(x, np.zeros(30), np.arange(30) % 3).standardised()
    assert scaling.scale.tolist() == [1, 1, 1]
    np.testing.assert_allclose(scaled.rows.x, 0, atol=1e-7)


def test_a_small_spread_far_from_zero_is_not_taken_for_constant():
    x = 1e6 + np.arange(40.0)[:, None] % 2
    _, scaling = FederatedData.from_arrays(x, np.zeros(40), np.zeros(40, int)).standardised()
    assert scaling.scale[0] == pytest.approx(0.5, rel=1e-3)


def test_a_held_out_client_goes_on_the_same_scale():
    x, y, client = skewed(3)
    rest, out = FederatedData.from_arrays(x, y, client).hold_out([4])
    _, scaling = rest.standardised()
    scaled, same = out.standardised(scaling=scaling)
    assert same is scaling
    np.testing.assert_allclose(
        scaled.rows.x, (out.rows.x - scaling.mean) / scaling.scale, rtol=1e-5, atol=1e-5
    )
    assert abs(scaled.rows.x.mean(0)).max() > 1e-3  # not on a scale of its own


def test_images_become_floats():
    image = np.random.default_rng(0).integers(0, 256, (20, 3, 3), dtype=np.uint8)
    scaled, _ = FederatedData.from_arrays(image, np.zeros(20), np.arange(20) % 2).standardised()
    assert scaled.rows.x.dtype == np.float32
    assert scaled.spec.rows.x.dtype == np.float32


def test_a_column_that_nobody_observed_is_refused():
    x = np.ones((6, 3))
    x[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"feature \[1\] has no observed value"):
        FederatedData.from_arrays(
            x, np.zeros(6), np.arange(6) % 2, allow_missing=True
        ).standardised()
    named = FederatedData.from_arrays(
        x, np.zeros(6), np.arange(6) % 2, features=["age", "dose", "sex"], allow_missing=True
    )
    with pytest.raises(ValueError, match="feature 'dose' has no observed value"):
        named.standardised()


def test_a_scaling_of_other_features_is_refused():
    _, scaling = FederatedData.from_arrays(
        np.ones((6, 3)), np.zeros(6), np.zeros(6, int)
    ).standardised()
    with pytest.raises(
        ValueError, match=r"shape \(2,\) were given to a scaling of features of shape \(3,\)"
    ):
        unwrap(Scaling.apply)(scaling, np.ones((4, 2)))


def made(x, features=("age", "size"), **options):
    clients = {"a": (np.asarray(x, float), np.zeros(len(x)))}
    return FederatedData.from_clients(clients, features=features, **options)


def test_columns_can_be_kept_as_they_are(tmp_path):
    data, scaling = made([[40, 14], [60, 12]]).standardised(keep=["size"])
    assert data.rows.x.tolist() == [[-1, 14], [1, 12]]
    assert data.spec.standardised == (0,)
    assert scaling.kept == (1,)
    assert data.rows_from({"age": [70], "size": [3]}).tolist() == [[2, 3]]
    assert data.subset([0]).spec.standardised == (0,)
    other, _ = made([[50, 9]]).standardised(scaling=scaling)
    assert other.rows.x.tolist() == [[0, 9]]
    data.save(tmp_path / "set")
    opened = FederatedData.open(tmp_path / "set")
    assert (opened.scaling.kept, opened.spec.standardised) == ((1,), (0,))
    twice, both = data.standardised(keep=[1])
    assert twice.scaling.kept == both.kept == (1,)
    assert made([[40, 14]]).spec.standardised == ()


def test_columns_that_cannot_be_kept():
    data = made([[40, 14], [60, np.nan]], allow_missing=True)
    with pytest.raises(ValueError, match=r"'size' stays as it is .* missing in 1 rows"):
        data.standardised(keep=["size"])
    with pytest.raises(ValueError, match=r"keep has 'sise', but .* did you mean 'size'"):
        data.standardised(keep=["sise"])
    with pytest.raises(ValueError, match=r"keep is a list of columns .* got 'size'"):
        data.standardised(keep="size")
    scaling = made([[40, 14], [60, 12]]).standardised()[1]
    with pytest.raises(ValueError, match="a given scaling keeps its own columns"):
        data.standardised(scaling=scaling, keep=["size"])
    kept = made([[40, 14], [60, 12]]).standardised(keep=["size"])[0]
    with pytest.raises(ValueError, match="'size' stays as it is"):
        kept.rows_from({"age": [70], "size": [None]})
