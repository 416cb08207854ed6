"""The scaling that data keep, new rows on that scale, and float64."""

import jax
import numpy as np
import pandas as pd
import pytest

from covey.core.shard import Rows
from covey.data import FederatedData, Scaling

X = np.asarray([[40.0, 1.0, 0.5], [60.0, 3.0, 0.1], [50.0, 2.0, 0.9], [20.0, np.nan, 0.2]])
NAMES = ["age", "dose", "sex"]


def hospitals(features=NAMES):
    clients = {"bern": (X[:2], [0, 1]), "zug": (X[2:], [1, 0])}
    return FederatedData.from_clients(clients, features=features, allow_missing=True)


def test_data_keep_their_scaling_through_everything(tmp_path):
    data, scaling = hospitals().standardised()
    assert scaling.names == tuple(NAMES)
    data.save(tmp_path / "set")
    others = [
        data.split(0.0, 0.5, seed=1),
        data.limited(train_rows=1, seed=1),
        data.subset([1, 0]),
        *data.hold_out(["zug"]),
        data.pooled(),
        data.as_test(),
        FederatedData.open(tmp_path / "set"),
    ]
    for other in others:
        kept = other.scaling
        assert kept is not None
        assert np.array_equal(kept.mean, scaling.mean)
        assert np.array_equal(kept.scale, scaling.scale)
        assert kept.names == scaling.names
    assert hospitals().scaling is None


def test_a_scaling_can_be_undone_and_done_in_one_step():
    data, scaling = hospitals().standardised()
    back = scaling.invert(data.rows.x)
    observed = ~np.isnan(X)
    np.testing.assert_allclose(back[observed], X[observed], rtol=1e-6)
    assert back[3, 1] == pytest.approx(2.0)  # the training mean of what was missing
    again, second = data.limited(train_rows=1, seed=0).standardised()
    once = again.scaling
    assert once is not None
    new = np.asarray([[30.0, 5.0, 0.3]])
    np.testing.assert_allclose(once.apply(new), second.apply(scaling.apply(new)), rtol=1e-5)


def test_nothing_is_scaled_twice_or_by_another_scale():
    raw = hospitals()
    data, scaling = raw.standardised()
    with pytest.raises(ValueError, match="standardised already"):
        data.standardised(scaling=scaling)
    with pytest.raises(ValueError, match="in another order"):
        hospitals(["dose", "age", "sex"]).standardised(scaling=scaling)
    assert data.replaced_by(raw.standardised(scaling=scaling)[0]).scaling is scaling
    with pytest.raises(ValueError, match=r"pass data.standardised\(scaling=run.data.scaling\)"):
        data.replaced_by(raw)
    with pytest.raises(ValueError, match="those of the run were not"):
        raw.replaced_by(data)
    with pytest.raises(ValueError, match="standardised by other rows"):
        data.replaced_by(raw.subset([0]).standardised()[0])


@pytest.mark.parametrize("scaled", [False, True])
def test_new_rows_come_in_any_form(scaled, tmp_path):
    data, _ = hospitals().standardised() if scaled else (hospitals(), None)
    expected = data.rows.x[:2]
    frame = pd.DataFrame(X[:2], columns=NAMES).assign(name=["x", "y"])[
        ["name", "sex", "age", "dose"]
    ]
    frame.to_csv(tmp_path / "new.csv", index=False)
    given = [
        frame,
        str(tmp_path / "new.csv"),
        {name: frame[name].tolist() for name in frame.columns},
        X[:2].tolist(),
        X[:2],
        jax.numpy.asarray(X[:2]),
    ]
    for table in given:
        rows = data.rows_from(table)
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, expected, rtol=1e-6)
    one = data.rows_from({"age": 40.0, "dose": 1, "sex": 0.5})
    np.testing.assert_allclose(one, expected[:1], rtol=1e-6)
    assert data.rows_from([]).shape == (0, 3)
    assert np.array_equal(data.rows_from(expected, standardised=True), expected)


def test_a_missing_value_becomes_the_training_mean_or_is_refused():
    gap = [[40.0, np.nan, 0.5]]
    assert hospitals().standardised()[0].rows_from(gap)[0, 1] == 0
    message = r"1 missing \(NaN\) cells: 1 in column 'dose' \(the first in row 0 \(from 0\)\)"
    with pytest.raises(ValueError, match=message):
        hospitals().rows_from(gap)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"Age": [1], "sex": [2]},
            r"no column 'age' \(did you mean 'Age'\?\), 'dose'; its columns",
        ),
        ([[1.0, 2.0]], r"shape \(1, 2\); a row needs 3 values: age, dose, sex"),
        ([1.0, 2.0, 3.0], r"a list of one row, \[\[...\]\]"),
        ([[1.0, 2.0], [1.0]], "differ in length; a row needs 3 values"),
        ([[1.0, "old", 2.0]], r"'dose' of the table of new rows has 1 .* 'old' in row 0"),
        ({"age": [1], "dose": ["x"], "sex": [1]}, "'dose' of .* not numbers, the first is 'x'"),
        ({"age": [1, 2], "dose": [1], "sex": [1]}, "do not fit together"),
        ([[np.inf, 1.0, 1.0]], "1 infinite cells: 1 in column 'age'"),
    ],
)
def test_new_rows_that_do_not_fit(table, message):
    with pytest.raises(ValueError, match=message):
        hospitals().rows_from(table)


def test_new_rows_of_data_without_names():
    image = FederatedData.from_clients({"a": (np.zeros((2, 2, 2), np.uint8), [0, 1])})
    assert image.rows_from(np.full((1, 2, 2), 255)).dtype == np.uint8
    with pytest.raises(ValueError, match="must be whole numbers that fit in uint8"):
        image.rows_from(np.full((1, 2, 2), 0.5))
    with pytest.raises(ValueError, match=r"a row has the shape \(2, 2\)"):
        image.rows_from(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="no column names"):
        image.rows_from({"a": [1]})
    with pytest.raises(ValueError, match=r"rows_from needs rows of type Rows\(x, y\)"):
        FederatedData.from_rows({"word": np.arange(3)}, [3]).rows_from([[1]])


def test_float64_stays_where_jax_has_it(tmp_path):
    fine = np.asarray([[1.0 + 1e-12], [2.0], [1e300]])
    with jax.enable_x64(True):
        data = FederatedData.from_clients({"a": (fine, [0.1, 0.2, 0.3])})
        assert np.array_equal(data.rows.x, fine)
        assert (data.rows.y.dtype, data.spec.rows.x.dtype) == (np.float64, np.float64)
        assert data.shard(0, "train").rows.x.dtype == np.float64
        small = FederatedData.from_clients({"a": (fine[:2], [0.1, 0.2])})
        scaled, scaling = small.standardised()
        assert scaled.rows.x.dtype == np.float64
        np.testing.assert_allclose(scaling.invert(scaled.rows.x), fine[:2], rtol=1e-15)
        assert scaled.rows_from(fine[:2]).dtype == np.float64
        narrow = FederatedData.from_clients({"a": (fine[:2].astype(np.float32), [0, 1])}, classes=2)
        assert (narrow.rows.x.dtype, narrow.rows.y.dtype) == (np.float32, np.int32)
        small.save(tmp_path / "set")
        assert np.array_equal(FederatedData.open(tmp_path / "set").rows.x, fine[:2])
    again = FederatedData.open(tmp_path / "set")
    assert (again.rows.x.dtype, again.spec.rows.y.dtype) == (np.float32, np.float32)
    assert FederatedData.from_clients({"a": (fine[:2], [0.1, 0.2])}).rows.x.dtype == np.float32


def test_a_constant_column_is_constant_in_float64_too():
    with jax.enable_x64(True):
        x = np.full((30, 1), 12345.678)
        data = FederatedData.from_rows(Rows(x, np.arange(30.0)), [30])
        assert data.standardised()[1].scale.tolist() == [1]


def test_a_scaling_without_names_fits_every_column():
    scaling = Scaling(np.zeros(3), np.ones(3))
    assert hospitals().standardised(scaling=scaling)[0].scaling is scaling
