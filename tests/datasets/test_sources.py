"""Where files come from, and that they are what they should be. `datasets` is a small stand-in: no
network.
"""

import gzip
import struct
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from covey.datasets import load, sources
from covey.datasets.shakespeare import encode


class FakeTable:
    """The few methods of `datasets.Dataset` that are used."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return (
            self.columns[key]
            if isinstance(key, str)
            else {name: values[key] for name, values in self.columns.items()}
        )


class FakeHub(ModuleType):
    """A stand-in for the package `datasets`, which remembers what it was asked."""

    def __init__(self, tables):
        super().__init__("datasets")
        self.tables, self.asked = tables, []

    def load_dataset(self, repository, configuration=None, *, split):
        self.asked.append((repository, configuration, split))
        return FakeTable(self.tables[repository, split])


@pytest.fixture
def places(tmp_path, monkeypatch):
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("COVEY_DATA_DIR", str(data))
    monkeypatch.setenv("COVEY_CACHE_DIR", str(cache))
    for module in ("datasets", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    return SimpleNamespace(data=data, cache=cache)


def pictures(rows, *shape, seed=0):
    return list(np.random.default_rng(seed).integers(0, 256, (rows, *shape), dtype=np.uint8))


def use(monkeypatch, tables):
    hub = FakeHub(tables)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    return hub


def test_a_missing_data_set_says_what_to_do(places):
    with pytest.raises(
        ValueError,
        match=r"'mnist' was not found.*COVEY_DATA_DIR.*mnist/mnist\.npz.*'covey\[datasets\]'",
    ):
        load("mnist", partition="iid", clients=2, seed=0)
    with pytest.raises(
        ValueError,
        match=r"emnist/emnist-letters-train-images-idx3-ubyte\.gz.*pip install 'covey\[datasets\]'",
    ):
        load("emnist", subset="letters", partition="iid", clients=2, seed=0)
    with pytest.raises(
        ValueError, match=r"radon_mn\.csv was not found.*set COVEY_DATA_DIR.*rstanarm"
    ):
        load("radon")


def test_a_data_directory_that_is_none_is_refused(places, monkeypatch):
    monkeypatch.setenv("COVEY_DATA_DIR", str(places.data / "nowhere"))
    with pytest.raises(ValueError, match="is not a directory"):
        load("mnist", partition="iid", clients=2, seed=0)


def test_a_known_file_with_other_contents_is_refused(places):
    path = places.data / "mnist" / "mnist.npz"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(
        ValueError, match=r"mnist\.npz is damaged or is another file: its SHA-256 is not 4c21aaa"
    ):
        load("mnist", partition="iid", clients=2, seed=0)


def test_public_images_are_fetched_once_and_checked_later(places, monkeypatch):
    image, label = pictures(12, 28, 28), np.arange(12) % 10
    hub = use(monkeypatch, {("ylecun/mnist", "train"): {"image": image, "label": label.tolist()}})
    options = {"partition": "iid", "clients": 3, "seed": 0}
    first = load("mnist", **options)
    again = load("mnist", **options)
    assert hub.asked == [("ylecun/mnist", None, "train")]
    assert first.rows.x.shape == (12, 28, 28, 1)
    assert np.array_equal(first.rows.x, again.rows.x)
    assert {row.tobytes() for row in first.rows.x} == {row.tobytes() for row in image}
    assert sorted(first.rows.y.tolist()) == sorted(label.tolist())
    assert sorted(path.name for path in places.cache.iterdir()) == [
        "mnist-train.npz",
        "mnist-train.npz.sha256",
    ]

    stored = places.cache / "mnist-train.npz"
    stored.write_bytes(stored.read_bytes()[:-7] + b"changed")
    with pytest.raises(
        ValueError, match=r"mnist-train\.npz is damaged.*delete it, it will be fetched again"
    ):
        load("mnist", **options)
    stored.unlink()
    load("mnist", **options)
    assert len(hub.asked) == 2
    (places.cache / "mnist-train.npz.sha256").unlink()
    with pytest.raises(
        ValueError, match=r"mnist-train\.npz has no record of its SHA-256; delete it"
    ):
        load("mnist", **options)


def test_a_fetch_that_fails_leaves_no_file(places):
    def fail():
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        sources.cached("anything", fail)
    assert not places.cache.exists() or not list(places.cache.iterdir())


def test_writers_are_not_in_the_public_mnist(places, monkeypatch):
    use(
        monkeypatch,
        {("ylecun/mnist", "train"): {"image": pictures(4, 28, 28), "label": [0, 1, 2, 3]}},
    )
    with pytest.raises(ValueError, match=r"does not say the writer of an image.*COVEY_DATA_DIR"):
        load("mnist")
    assert load("mnist", by="digit").clients == 4


def test_both_parts_together(places, monkeypatch):
    tables = {
        ("uoft-cs/cifar100", split): {
            "img": pictures(rows, 32, 32, 3, seed=rows),
            "fine_label": [position % 4 for position in range(rows)],
            "coarse_label": [position % 4 // 2 for position in range(rows)],
        }
        for split, rows in (("train", 16), ("test", 8))
    }
    hub = use(monkeypatch, tables)
    data = load(
        "cifar100", split="all", partition="pachinko", clients=4, alpha=0.5, beta=5.0, seed=1
    )
    assert data.counts("train").tolist() == [6] * 4
    assert hub.asked == [("uoft-cs/cifar100", None, "train"), ("uoft-cs/cifar100", None, "test")]
    assert load("cifar100", split="test", by="coarse").counts("train").tolist() == [4, 4]


def test_svhn_is_asked_for_its_cropped_digits(places, monkeypatch):
    hub = use(
        monkeypatch,
        {
            ("ufldl-stanford/svhn", "test"): {
                "image": pictures(6, 32, 32, 3),
                "label": [0, 1, 2, 3, 4, 9],
            }
        },
    )
    assert load("svhn", partition="iid", clients=2, seed=0).rows.x.shape == (6, 32, 32, 3)
    assert hub.asked == [("ufldl-stanford/svhn", "cropped_digits", "test")]


def test_emnist_files_come_from_the_hub(places, monkeypatch, tmp_path):
    upright = np.stack(pictures(3, 28, 28))
    content = {
        "images-idx3": upright.transpose(0, 2, 1),
        "labels-idx1": np.asarray([9, 0, 4], np.uint8),
    }
    asked = []

    def download(repository, file, *, repo_type):
        asked.append((repository, repo_type))
        values = next(values for key, values in content.items() if key in file)
        path = tmp_path / file
        path.write_bytes(
            gzip.compress(
                struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
                + values.tobytes()
            )
        )
        return str(path)

    hub = ModuleType("huggingface_hub")
    monkeypatch.setattr(hub, "hf_hub_download", download, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    data = load("emnist", subset="digits", by="label")
    assert asked == [("Royc30ne/emnist-digits", "dataset")] * 2
    assert data.rows.y.tolist() == [0, 4, 9]
    assert np.array_equal(data.rows.x[..., 0], upright[[1, 2, 0]])
    assert np.array_equal(load("emnist", subset="digits", by="label").rows.x, data.rows.x)
    assert len(asked) == 2


def test_femnist_from_the_public_source_has_its_writers(places, monkeypatch):
    table = {
        "image": pictures(5, 28, 28),
        "character": [0, 61, 3, 4, 5],
        "writer_id": ["f01", "f00", "f01", "f00", "f01"],
    }
    use(monkeypatch, {("flwrlabs/femnist", "train"): table})
    for _ in range(2):  # fetched, then from the cache
        data = load("femnist")
        assert [data.name_of(position) for position in range(2)] == ["f00", "f01"]
        assert data.rows.y.tolist() == [61, 4, 0, 3, 5]
        assert np.array_equal(data.rows.x[0, ..., 0], table["image"][1])
    with pytest.raises(ValueError, match="the public FEMNIST has no test rows; take"):
        load("femnist", split="test")


def test_shakespeare_is_put_together_from_its_windows(places, monkeypatch):
    speech = {
        "HAM": "To be, or not to be: that is the question. " * 3,
        "OPH": "My lord, I have remembrances of yours, " * 3,
    }
    rows = [
        (role, text[at : at + 80], text[at + 80])
        for role, text in speech.items()
        for at in range(len(text) - 80)
    ]
    columns = dict(zip(("character_id", "x", "y"), map(list, zip(*rows, strict=True)), strict=True))
    use(monkeypatch, {("flwrlabs/shakespeare", "train"): columns})
    for _ in range(2):
        data = load("shakespeare", min_characters=100, stride=7)
        assert [data.name_of(position) for position in range(2)] == ["HAM", "OPH"]
        assert data.counts("train").tolist() == [
            len(range(0, len(text) - 80, 7)) for text in speech.values()
        ]
        assert np.array_equal(data.rows.x[0], encode(speech["HAM"][:80]))
        assert data.rows.y[1] == encode(speech["HAM"])[87]
    columns["x"][3] = "?" * 80
    (places.cache / "shakespeare.npz").unlink()
    with pytest.raises(ValueError, match="'HAM' do not follow each other"):
        load("shakespeare", min_characters=100)


def test_the_users_cache_directory_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("COVEY_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.cache_directory() == tmp_path / "covey"
