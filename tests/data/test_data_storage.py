"""Save and open."""

import json

import numpy as np
import pytest

from covey.core.shard import Rows
from covey.data import FederatedData


def example(names=("a", "bb", "ccc"), features=None):
    generator = np.random.default_rng(0)
    rows = Rows(generator.normal(size=(30, 4)), generator.integers(0, 3, 30))
    data = FederatedData.from_rows(
        rows, [5, 10, 15], ids=[4, 2, 9], names=names, features=features, classes=3
    )
    return data.split(0.2, 0.2, seed=1)


@pytest.mark.parametrize("memory_map", [True, False])
@pytest.mark.parametrize(
    ("names", "features"), [(("a", "bb", "ccc"), ("age", "sex", "cp", "größe")), (None, None)]
)
def test_what_is_opened_is_what_was_saved(tmp_path, memory_map, names, features):
    data = example(names, features)
    data.save(tmp_path / "deep" / "set")
    again = FederatedData.open(tmp_path / "deep" / "set", memory_map=memory_map)
    assert isinstance(again.rows.x, np.memmap) == memory_map
    for one, other in zip(
        (*data.rows, data.bounds, data.ids), (*again.rows, again.bounds, again.ids), strict=True
    ):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype
    assert again.spec == data.spec
    assert again.features == features
    assert [again.name_of(position) for position in range(3)] == [
        data.name_of(position) for position in range(3)
    ]
    assert again.position_of(data.name_of(2)) == 2
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["set"]


def test_opened_rows_work_like_others(tmp_path):
    data = example()
    data.save(tmp_path / "set")
    mapped = FederatedData.open(tmp_path / "set")
    assert isinstance(mapped.subset([1, 2]).rows.x, np.memmap)  # neighbours are a view of the file
    for one, other in (
        (data, mapped),
        (data.subset([2, 0]), mapped.subset([2, 0])),
        (data.pooled(), mapped.pooled()),
    ):
        assert np.array_equal(one.rows.x, other.rows.x)
        assert np.array_equal(one.bounds, other.bounds)
    assert np.array_equal(data.split(seed=3).rows.x, mapped.split(seed=3).rows.x)
    assert np.array_equal(data.standardised()[0].rows.x, mapped.standardised()[0].rows.x)
    assert np.array_equal(data.shard(1, "test").rows.x, mapped.shard(1, "test").rows.x)
    mapped.save(tmp_path / "copy")
    assert np.array_equal(FederatedData.open(tmp_path / "copy").rows.x, data.rows.x)


def test_an_existing_directory_is_not_overwritten(tmp_path):
    example().save(tmp_path / "set")
    with pytest.raises(ValueError, match="exists already"):
        example().save(tmp_path / "set")


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(json, "dumps", fail)
    with pytest.raises(OSError, match="disk full"):
        example().save(tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not a directory that FederatedData.save wrote"):
        FederatedData.open(tmp_path / "nothing")
    example().save(tmp_path / "set")
    about = tmp_path / "set" / "about.json"
    content = json.loads(about.read_text())
    about.write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(ValueError, match="this version of covey reads"):
        FederatedData.open(tmp_path / "set")
    about.write_text(json.dumps(content))
    np.save(tmp_path / "set" / "y.npy", np.zeros(29, np.int32))
    with pytest.raises(ValueError, match="do not fit together"):
        FederatedData.open(tmp_path / "set")


def test_only_supervised_rows_can_be_saved(tmp_path):
    with pytest.raises(ValueError, match=r"save needs rows of type Rows\(x, y\), got dict"):
        FederatedData.from_rows({"x": np.ones(3)}, [3]).save(tmp_path / "set")


def test_a_directory_of_before_columns_had_names_is_opened(tmp_path):
    example(features=list("abcd")).save(tmp_path / "set")
    about = json.loads((tmp_path / "set" / "about.json").read_text())
    del about["features"]
    (tmp_path / "set" / "about.json").write_text(json.dumps(about))
    assert FederatedData.open(tmp_path / "set").features is None


def test_names_that_do_not_fit_the_columns_are_refused(tmp_path):
    example(features=list("abcd")).save(tmp_path / "set")
    about = json.loads((tmp_path / "set" / "about.json").read_text())
    (tmp_path / "set" / "about.json").write_text(json.dumps(about | {"features": ["a", "b"]}))
    with pytest.raises(ValueError, match="2 names were given for 4 columns"):
        FederatedData.open(tmp_path / "set")
