"""Loaders: bundled tables, and small made files of the public formats."""

import gzip
import json
import struct

import numpy as np
import pytest

from covey.datasets import LOADERS, images, load
from covey.datasets.shakespeare import VOCABULARY, encode


def test_unknown_names_and_options_are_explained():
    with pytest.raises(ValueError, match="no data set 'radom'; did you mean 'radon'"):
        load("radom")
    with pytest.raises(
        ValueError,
        match=r"'mnist' has no option 'writers'; its options are: split, by, partition, clients",
    ):
        load("mnist", writers=3)
    with pytest.raises(ValueError, match="its options are: client, features, outcome"):
        load("heart_disease", seed=3)


def test_every_loader_describes_itself_in_a_line():
    for name, loader in LOADERS.items():
        assert all(loader[1:]), name
        assert "\n" not in loader.description
        assert loader.description[0].isdigit() or loader.description.startswith(
            "clients by partition"
        )


def test_heart_disease_is_bundled(monkeypatch):
    monkeypatch.delenv("COVEY_DATA_DIR", raising=False)
    data = load("heart_disease")
    assert [data.name_of(position) for position in range(4)] == [
        "cleveland",
        "hungarian",
        "switzerland",
        "va",
    ]
    assert data.counts("train").tolist() == [303, 294, 123, 200]
    assert (data.rows.x.shape, data.spec.classes) == ((920, 13), 2)
    gaps = [int(np.isnan(data.shard(client, "train").rows.x).sum()) for client in range(4)]
    # 6, 782, 273 and 698 cells are empty; cholesterol 0 adds 123 and 49, blood pressure 0 one more
    assert gaps == [6, 782, 273 + 123, 698 + 49 + 1]
    names = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal"
    assert data.features == tuple(names.split())
    assert data.rows.x[0].tolist() == pytest.approx(
        [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    )
    assert data.rows.y[:3].tolist() == [0, 1, 1]
    scaled, _ = data.split(seed=0).standardised()
    assert np.isfinite(scaled.rows.x).all()


def test_eight_schools_are_bundled(monkeypatch):
    monkeypatch.delenv("COVEY_DATA_DIR", raising=False)
    data = load("eight_schools")
    assert [data.name_of(position) for position in range(8)] == list("ABCDEFGH")
    assert data.rows.y.tolist() == [28, 8, -3, 7, -1, 1, 18, 12]
    assert data.rows.x[:, 0].tolist() == [15, 10, 16, 11, 9, 11, 10, 18]


def test_columns_of_a_table_are_chosen():
    """Names in any case; `column=value` is an indicator, as an outcome one of two classes."""
    data = load("heart_disease", client="SEX", features=["chol", "cp=4"], outcome="target")
    assert (data.clients, data.features, data.spec.classes) == (2, ("chol", "cp=4"), 2)
    assert data.counts("train").tolist() == [194, 726]
    assert set(np.unique(data.rows.x[:, 1])) == {0, 1}
    assert np.isnan(data.rows.x[:, 0]).sum() == 30 + 172  # empty, or 0
    sick = load("heart_disease", features=["age"], outcome="cp=4")
    assert (sick.spec.classes, sick.rows.y.dtype) == (2, np.int32)
    with pytest.warns(UserWarning, match="202 of 920 rows have no outcome 'chol'"):
        level = load("heart_disease", features=["age"], outcome="chol")
    assert (len(level.rows.y), level.spec.classes) == (718, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client": "centre"}, "no column 'centre' .did you mean 'center'"),
        ({"features": ["age", "cp=9"]}, "'cp' has no value '9'; its values are 1, 2, 3, 4"),
        ({"features": ["age", "target"]}, "outcome 'target' is also in `features`"),
        ({"features": "age"}, "features is a list of columns, got 'age'"),
    ],
)
def test_columns_that_cannot_be_chosen(options, message):
    with pytest.raises(ValueError, match=message):
        load("heart_disease", **options)


def test_broods_are_clients_or_nested_in_locations(data_dir):
    broods = load("grouseticks", client="brood", features=["cHEIGHT", "YEAR=96", "YEAR=97"])
    assert (broods.clients, len(broods.rows.y)) == (118, 403)
    nested = load("grouseticks", features=["cHEIGHT", "BROOD"])
    assert nested.clients == 63
    assert len(np.unique(nested.rows.x[:, 1])) == 118
    herds = load("cbpp")
    assert np.all(herds.rows.y <= herds.rows.x[:, herds.features.index("size")])


def test_radon_of_the_united_states(data_dir):
    data = load("radon_us")
    assert (data.clients, len(data.rows.y), data.ids[0], data.ids[-1]) == (386, 12573, 1, 386)
    assert np.isnan(data.rows.x[:, 0]).sum() == 284
    assert set(np.unique(data.rows.x[:, 0][~np.isnan(data.rows.x[:, 0])])) == {0, 1, 2, 3}


def write_idx(path, values):
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes()))


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_DATA_DIR", str(tmp_path))
    return tmp_path


def test_emnist_files_are_turned_upright(made):
    generator = np.random.default_rng(0)
    upright, label = (
        generator.integers(0, 256, (8, 28, 28), dtype=np.uint8),
        np.asarray([1, 26, 3, 4, 5, 6, 7, 8], np.uint8),
    )
    (made / "emnist").mkdir()
    write_idx(
        made / "emnist" / "emnist-letters-train-images-idx3-ubyte.gz", upright.transpose(0, 2, 1)
    )
    write_idx(made / "emnist" / "emnist-letters-train-labels-idx1-ubyte.gz", label)
    data = load("emnist", subset="letters", by="label")
    assert data.spec.classes == 26
    order = np.argsort(label)
    assert np.array_equal(data.rows.x[..., 0], upright[order])
    assert (
        data.rows.y.tolist() == (label[order] - 1).tolist()
    )  # letters are numbered from 1 in the file
    with pytest.raises(
        ValueError, match="EMNIST has byclass, bymerge, balanced, letters, digits, mnist"
    ):
        load("emnist", subset="digit")


def test_other_emnist_labels_start_at_zero(made):
    (made / "emnist").mkdir()
    write_idx(
        made / "emnist" / "emnist-byclass-test-images-idx3-ubyte.gz",
        np.zeros((3, 28, 28), np.uint8),
    )
    write_idx(
        made / "emnist" / "emnist-byclass-test-labels-idx1-ubyte.gz",
        np.asarray([0, 61, 7], np.uint8),
    )
    data = load("emnist", split="test", partition="iid", clients=3, seed=0)
    assert sorted(data.rows.y.tolist()) == [0, 7, 61]
    with pytest.raises(ValueError, match="only the test split of emnist-byclass"):
        load("emnist", split="all", partition="iid", clients=3, seed=0)


def test_damaged_idx_files_are_refused(made):
    (made / "emnist").mkdir()
    images_file = made / "emnist" / "emnist-mnist-train-images-idx3-ubyte.gz"
    write_idx(made / "emnist" / "emnist-mnist-train-labels-idx1-ubyte.gz", np.zeros(3, np.uint8))
    images_file.write_bytes(gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 3, 28, 28) + b"\0" * 100))
    with pytest.raises(ValueError, match="was cut short"):
        load("emnist", subset="mnist", partition="iid", clients=3, seed=0)
    images_file.write_bytes(gzip.compress(b"PK\3\4 and more"))
    with pytest.raises(ValueError, match="not an IDX file"):
        load("emnist", subset="mnist", partition="iid", clients=3, seed=0)


def leaf_file(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    count = [len(rows["y"]) for rows in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": count, "user_data": users}))


def leaf_rows(labels, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 784))
    return pixels, {"x": (pixels / 255).tolist(), "y": labels}


@pytest.mark.parametrize("divided", [False, True])
def test_femnist_files_of_leaf(made, divided):
    first, one = leaf_rows([3, 61], 0)
    second, two = leaf_rows([5], 1)
    third, three = leaf_rows([7], 2)
    folder = made / "femnist" / ("train" if divided else "")
    leaf_file(folder / "all_data_0.json", {"f1": one})
    leaf_file(folder / "all_data_1.json", {"f0": two, "f1": three})
    data = load("femnist")
    assert [data.name_of(position) for position in range(2)] == ["f0", "f1"]
    assert data.rows.y.tolist() == [5, 3, 61, 7]
    assert np.array_equal(data.rows.x.reshape(4, 784), np.concatenate([second, first, third]))
    assert data.spec.classes == 62
    if divided:
        leaf_file(made / "femnist" / "test" / "all_data_0.json", {"f0": three})
        assert load("femnist", split="test").rows.y.tolist() == [7]
        assert load("femnist", split="all").counts("train").tolist() == [2, 3]


def test_leaf_rows_must_fit_together(made):
    leaf_file(made / "femnist" / "a.json", {"f1": {"x": [[0.0] * 783], "y": [1]}})
    with pytest.raises(
        ValueError, match=r"a\.json: writer 'f1' has 1 labels and pixels of shape \(1, 783\)"
    ):
        load("femnist")


@pytest.fixture
def digits(monkeypatch):
    """An image set of 40 tiny images with labels 0..3, as `load_images` sees it."""
    rows = {"x": np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1), "y": np.arange(40) % 4}
    return images.ImageSet("tiny", 4, lambda split: dict(rows), lambda split: dict(rows))


def test_partitions_need_exactly_their_options(digits):
    data = images.load_images(digits, partition="classes", clients=4, classes=2, seed=0)
    assert all(len(np.unique(data.shard(client, "train").rows.y)) == 2 for client in range(4))
    assert (
        images.load_images(digits, partition="quantity", clients=4, alpha=0.5, seed=0).clients == 4
    )
    assert (
        images.load_images(digits, partition="dirichlet", clients=4, alpha=1, seed=0).clients == 4
    )
    with pytest.raises(
        ValueError, match="'iid' needs clients, seed, and nothing else; got clients"
    ):
        images.load_images(digits, partition="iid", clients=4)
    with pytest.raises(
        ValueError, match="'iid' needs clients, seed, and nothing else; got clients, alpha, seed"
    ):
        images.load_images(digits, partition="iid", clients=4, seed=0, alpha=1.0)
    with pytest.raises(
        ValueError, match="no partition 'pachinko'; choose one of iid, dirichlet, quantity, classes"
    ):
        images.load_images(digits, partition="pachinko", clients=4, alpha=1.0, beta=1.0, seed=0)


def test_clients_are_by_group_or_by_partition(digits):
    assert images.load_images(digits, by="label").counts("train").tolist() == [10] * 4
    with pytest.raises(ValueError, match="set tiny does not say who made an image: choose a p"):
        images.load_images(digits)
    with pytest.raises(ValueError, match="both given"):
        images.load_images(digits, by="label", partition="iid", clients=2, seed=0)
    with pytest.raises(ValueError, match="cannot be divided by 'writer'; `by` can be label"):
        images.load_images(digits, by="writer")
    with pytest.raises(ValueError, match="takes its clients from the data; leave out seed"):
        images.load_images(digits, by="label", seed=1)


def test_decoding_undoes_the_coding():
    rgb = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    channels = rgb.transpose(0, 3, 1, 2).copy()
    channels[:, 0] -= channels[:, 1]
    channels[:, 2] -= channels[:, 1]
    across = np.diff(channels, axis=3, prepend=np.uint8(0))
    coded = np.diff(across, axis=2, prepend=np.uint8(0))
    assert np.array_equal(images.decoded(coded), rgb)


def test_characters_have_leafs_codes():
    assert len(VOCABULARY) == 80
    assert encode("\n !A}").tolist() == [0, 1, 2, VOCABULARY.index("A"), 79]
    assert encode("@é€").tolist() == [80, 80, 80]


@pytest.mark.parametrize("options", [{"min_characters": 80}, {"window": 0}, {"stride": 0}])
def test_shakespeare_options_are_checked(options):
    with pytest.raises(
        ValueError,
        match="window and stride must be at least 1 and min_characters more than the window",
    ):
        load("shakespeare", **options)
