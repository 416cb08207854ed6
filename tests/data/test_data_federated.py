"""FederatedData: what is whose, and what moving clients about must leave alone."""

from inspect import unwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.core.shard import Rows, all_rows
from covey.data import SPLITS, FederatedData


def ragged(counts, *, ids=None, names=None, classes=None):
    """Rows that say whose they are: x = (id of the client, number of the row within it), y = a
    number of their own.
    """
    identity = np.arange(len(counts)) if ids is None else np.asarray(ids)
    owner = np.repeat(identity, counts)
    number = np.concatenate([np.arange(count) for count in counts])
    y = np.arange(len(owner)) if classes is None else number % classes
    return FederatedData.from_rows(
        Rows(np.stack([owner, number], 1).astype(np.float32), y),
        counts,
        ids=identity,
        names=names,
        classes=classes,
    )


def rows_of(data, position, split):
    start, count = data.starts(split)[position], data.counts(split)[position]
    return jax.tree.map(lambda leaf: leaf[start : start + count], data.rows)


def all_of(data, position):
    return np.concatenate([rows_of(data, position, split).x for split in SPLITS])


def as_set(x):
    return {tuple(row) for row in np.asarray(x).tolist()}


def test_from_arrays_sorts_stably_by_client_and_keeps_integer_labels_as_ids():
    client = np.asarray([70, 3, 70, 3, 9])
    data = FederatedData.from_arrays(np.arange(5.0)[:, None], [0, 1, 2, 3, 4], client)
    assert data.ids.tolist() == [3, 9, 70]
    assert data.names is None
    assert data.rows.x[:, 0].tolist() == [1, 3, 4, 0, 2]
    assert data.counts("train").tolist() == [2, 1, 2]
    assert data.counts("test").tolist() == [0, 0, 0]
    assert data.name_of(2) == "70"
    assert data.position_of("70") == data.position_of(70) == 2


def test_from_arrays_names_clients_by_their_text_labels():
    data = FederatedData.from_arrays(
        np.zeros((3, 1)), np.zeros(3), np.asarray(["zug", "bern", "zug"])
    )
    assert [data.name_of(position) for position in range(2)] == ["bern", "zug"]
    assert data.ids.tolist() == [0, 1]
    assert data.position_of("zug") == data.position_of(1) == 1


def test_types_are_those_of_the_engines():
    image = FederatedData.from_arrays(
        np.zeros((4, 2, 2), np.uint8),
        np.asarray([0, 1, 2, 1], np.int64),
        np.zeros(4, int),
        classes=3,
    )
    assert (image.rows.x.dtype, image.rows.y.dtype) == (np.uint8, np.int32)
    assert image.spec.rows.x.shape == (2, 2)
    assert image.spec.classes == 3
    table = FederatedData.from_arrays(np.zeros((4, 2)), np.asarray([0, 1, 2, 1]), np.zeros(4, int))
    assert (table.rows.x.dtype, table.rows.y.dtype) == (np.float32, np.float32)
    codes = FederatedData.from_arrays(np.zeros((4, 2), np.int64), np.zeros(4), np.zeros(4, int))
    assert codes.rows.x.dtype == np.int32


def test_right_types_are_not_copied():
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, np.float32)
    data = FederatedData.from_arrays(x, y, [0, 0, 1, 1, 2, 2])
    assert np.shares_memory(data.rows.x, x)
    assert np.shares_memory(data.subset([1, 2]).rows.x, x)
    assert not np.shares_memory(data.subset([0, 2]).rows.x, x)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    test=st.floats(0, 0.97),
    of_the_rest=st.floats(0, 0.97),
    seed=st.integers(0, 2**63),
)
def test_a_split_divides_each_clients_rows(counts, test, of_the_rest, seed):
    data, validation = ragged(counts), of_the_rest * (1 - test)
    parted = data.split(validation, test, seed=seed)
    assert np.array_equal(parted.bounds[:, 0], data.bounds[:, 0])
    assert np.all(np.diff(parted.bounds, axis=1) >= 0)
    for position, count in enumerate(counts):
        assert as_set(all_of(parted, position)) == as_set(all_of(data, position))
        assert parted.counts("train")[position] >= min(count, 1)
        wanted = min(int(np.floor(count * test + 0.5)), max(count - 1, 0))
        assert parted.counts("test")[position] == wanted
        assert parted.counts("validation")[position] == min(
            int(np.floor(count * validation + 0.5)), max(count - 1, 0) - wanted
        )
    # features and outcome travel together
    assert as_set(np.c_[parted.rows.x, parted.rows.y]) == as_set(np.c_[data.rows.x, data.rows.y])


def test_a_clients_split_does_not_depend_on_the_others():
    data = ragged([30, 5, 17, 40], ids=[9, 2, 2**31 - 1, 100])
    together = data.split(0.2, 0.3, seed=5)
    alone = data.subset([2]).split(0.2, 0.3, seed=5)
    mixed = data.subset([3, 2]).split(0.2, 0.3, seed=5)
    for split in SPLITS:
        assert np.array_equal(rows_of(together, 2, split).x, rows_of(alone, 0, split).x)
        assert np.array_equal(rows_of(together, 2, split).x, rows_of(mixed, 1, split).x)


def test_splits_of_seeds_and_of_ids_differ():
    one, other = ragged([40], ids=[1]), ragged([40], ids=[2])
    order = one.split(seed=1).rows.x[:, 1].tolist()
    assert order != one.split(seed=2).rows.x[:, 1].tolist()
    assert order != other.split(seed=1).rows.x[:, 1].tolist()
    assert order == one.split(seed=1).rows.x[:, 1].tolist()


def test_every_row_is_equally_likely_to_be_a_test_row():
    # 4,000 clients of 10 rows, 2 of them tests: each row number is a test row 800 times on average,
    # with variance 640.
    parted = ragged([10] * 4000).split(0.2, 0.2, seed=11)
    index = np.concatenate([rows_of(parted, client, "test").x[:, 1] for client in range(4000)])
    times = np.bincount(index.astype(int), minlength=10)
    assert np.all(np.abs(times - 800) < 4.5 * np.sqrt(640))
    # and pairs of neighbours are together as often as chance says, 1/45 of the clients
    pair = index.reshape(-1, 2)
    neighbours = np.sum(np.abs(pair[:, 0] - pair[:, 1]) == 1)
    assert abs(neighbours - 4000 * 9 / 45) < 4.5 * np.sqrt(4000 * 0.2 * 0.8)


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.2), (0.2, -0.1), (0.5, 0.5)])
def test_a_split_refuses_bad_fractions(validation, test):
    with pytest.raises(ValueError, match="less than 1"):
        ragged([5]).split(validation, test, seed=0)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    most=st.integers(0, 30),
    few=st.integers(0, 30),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**63),
)
def test_limits_drop_training_rows_and_nothing_else(counts, most, few, share, seed):
    data = ragged(counts).split(0.1, 0.3, seed=seed)
    few = min(few, most)
    small = data.limited(train_rows=most, few_rows=few, few_share=share, seed=seed)
    sizes, before = small.counts("train"), data.counts("train")
    is_few = sizes != np.minimum(before, most)
    assert np.array_equal(sizes[is_few], np.minimum(before, few)[is_few])
    assert is_few.sum() <= int(np.floor(share * len(counts) + 0.5))
    for position in range(len(counts)):
        assert as_set(rows_of(small, position, "train").x) <= as_set(
            rows_of(data, position, "train").x
        )
        assert len(as_set(rows_of(small, position, "train").x)) == sizes[position]
        for split in ("validation", "test"):
            assert np.array_equal(
                rows_of(small, position, split).x, rows_of(data, position, split).x
            )
    assert len(small.rows.y) == small.bounds[-1, 3]
    assert as_set(np.c_[small.rows.x, small.rows.y]) <= as_set(np.c_[data.rows.x, data.rows.y])


def test_few_rows_are_for_a_share_of_the_clients():
    data = ragged([20] * 1000)
    small = data.limited(train_rows=15, few_rows=5, few_share=0.3, seed=2)
    assert dict(zip(*np.unique(small.counts("train"), return_counts=True), strict=True)) == {
        5: 300,
        15: 700,
    }
    only = data.limited(few_rows=5, few_share=0.1, seed=2)
    assert np.bincount(only.counts("train"))[[5, 20]].tolist() == [100, 900]
    assert np.all(
        small.counts("train")[only.counts("train") == 5] == 5
    )  # a larger share has more clients, not others
    # Which are few is drawn: of the first half there are 150 on average, with hypergeometric
    # variance 52.6.
    assert abs(np.sum(small.counts("train")[:500] == 5) - 150) < 4.5 * np.sqrt(52.6)
    assert not np.array_equal(
        small.counts("train"),
        data.limited(train_rows=15, few_rows=5, few_share=0.3, seed=3).counts("train"),
    )
    # Fewer rows are some of the more; every row of a client is as likely to stay, 250 times with
    # variance 187.5.
    fewer = data.limited(train_rows=5, seed=2)
    assert as_set(fewer.rows.x) < as_set(data.limited(train_rows=6, seed=2).rows.x)
    times = np.bincount(fewer.rows.x[:, 1].astype(int), minlength=20)
    assert np.all(np.abs(times - 250) < 4.5 * np.sqrt(187.5))


def test_a_limit_after_a_split_of_the_same_seed_is_still_fair():
    # By the same tickets twice, the first row of each client would stay twice as often as the
    # others.
    kept = ragged([4] * 4000).split(0.0, 0.0, seed=7).limited(train_rows=1, seed=7)
    times = np.bincount(kept.rows.x[:, 1].astype(int), minlength=4)
    assert np.all(np.abs(times - 1000) < 4.5 * np.sqrt(4000 * 0.25 * 0.75))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "give train_rows, or few_rows and few_share"),
        ({"train_rows": -1}, "train_rows must be at least 0, got -1"),
        ({"few_rows": -1, "few_share": 0.5}, "few_rows must be at least 0, got -1"),
        ({"few_rows": 3}, r"goes with a few_share in \(0, 1\], got few_rows=3, few_share=0.0"),
        ({"train_rows": 3, "few_share": 0.5}, "got few_rows=None, few_share=0.5"),
        ({"few_rows": 3, "few_share": 1.5}, "got few_rows=3, few_share=1.5"),
        (
            {"few_rows": 4, "few_share": 0.5, "train_rows": 3},
            "few_rows=4 is more than train_rows=3",
        ),
    ],
)
def test_limits_that_are_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        ragged([5]).limited(**limits, seed=0)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_subset_keeps_ids_names_parts_and_rows(data):
    counts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    chosen = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, unique=True))
    whole = ragged(
        counts,
        ids=7 * np.arange(len(counts)) + 3,
        names=[f"n{position}" for position in range(len(counts))],
    )
    whole = whole.split(0.25, 0.25, seed=3)
    split = whole.subset(chosen)
    assert split.clients == len(chosen)
    assert split.bounds[0, 0] == 0
    assert split.bounds[-1, 3] == len(split.rows.y)
    assert np.array_equal(split.bounds[1:, 0], split.bounds[:-1, 3])
    for new, old in enumerate(chosen):
        assert split.ids[new] == whole.ids[old]
        assert split.name_of(new) == whole.name_of(old)
        for each in SPLITS:
            assert np.array_equal(rows_of(split, new, each).x, rows_of(whole, old, each).x)
            assert np.array_equal(rows_of(split, new, each).y, rows_of(whole, old, each).y)


@pytest.mark.parametrize("positions", [[], [0, 0], [-1], [3], [True, False, True], [[0]], [0.0]])
def test_a_subset_refuses_what_are_not_positions(positions):
    with pytest.raises(ValueError, match="positions"):
        ragged([1, 2, 3]).subset(positions)


def test_hold_out_divides_the_clients():
    data = ragged([1, 2, 3, 4], ids=[5, 6, 7, 8], names=["a", "b", "c", "d"])
    rest, out = data.hold_out(["d", 6])
    assert (rest.ids.tolist(), out.ids.tolist()) == ([5, 7], [6, 8])
    assert out.name_of(0) == "b"
    with pytest.raises(ValueError, match="no client 'x'"):
        data.hold_out(["x"])
    with pytest.raises(ValueError, match="at least one client and not all"):
        data.hold_out(["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="at least one client and not all"):
        data.hold_out([])


def test_a_name_that_is_no_id_is_not_found():
    with pytest.raises(ValueError, match="no client 'north'"):
        ragged([1, 2]).position_of("north")
    with pytest.raises(ValueError, match="no client 2"):
        ragged([1, 2]).position_of(2)


def test_pooled_rows_stay_in_their_parts():
    data = ragged([9, 3, 20]).split(0.3, 0.2, seed=2)
    pooled = data.pooled()
    assert (pooled.clients, pooled.ids.tolist(), pooled.name_of(0)) == (1, [0], "pooled")
    for split in SPLITS:
        every = np.concatenate([rows_of(data, client, split).x for client in range(3)])
        assert np.array_equal(rows_of(pooled, 0, split).x, every)


def test_a_shard_holds_the_clients_own_rows_and_no_others():
    data = ragged([4, 6]).split(0.0, 0.5, seed=1)
    shard = data.shard(1, "test")
    assert (int(shard.start), int(shard.count), shard.capacity) == (0, 3, 3)
    assert isinstance(shard.rows.x, jax.Array)
    assert np.array_equal(shard.rows.x, rows_of(data, 1, "test").x)


def test_an_empty_part_is_a_shard_that_can_be_used():
    shard = ragged([4]).shard(0, "validation")
    assert (int(shard.count), shard.capacity) == (0, 1)
    batch = jax.jit(all_rows)(shard)
    assert batch.rows.x.shape == (1, 2)
    assert not jnp.any(batch.mask)


def test_an_unknown_part_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no split 'dev'.*train, validation, test"):
        unwrap(FederatedData.counts)(ragged([2]), "dev")


def test_any_tree_of_arrays_can_be_rows():
    data = FederatedData.from_rows({"word": np.arange(5), "weight": np.ones((5, 2))}, [2, 3])
    assert data.rows["weight"].dtype == np.float32
    assert data.split(0, 0.5, seed=0).counts("test").tolist() == [1, 2]
    assert data.shard(1, "train").rows["word"].tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match=r"Rows\(x, y\)"):
        data.standardised()


def test_rows_in_a_part_are_those_of_its_clients_in_turn():
    data = FederatedData.from_clients(
        {name: (np.arange(n)[:, None] + 10 * n, np.zeros(n)) for name, n in (("a", 6), ("b", 9))}
    )
    data = data.split(0.3, 0.3, seed=0)
    for split in ("train", "validation", "test"):
        each = [data.rows_of(position, split).x for position in range(2)]
        np.testing.assert_array_equal(data.rows_in(split).x, np.concatenate(each))


def test_data_are_shown_in_one_short_line():
    data = ragged([30, 0, 20], classes=3)
    shown = "FederatedData(3 clients; rows: 50 train; 2 features; 3 classes)"
    assert repr(data) == shown
    parts = repr(data.split(validation=0.1, test=0.2, seed=0))
    assert "rows: 35 train, 5 validation, 10 test;" in parts
    assert repr(FederatedData.from_rows(np.zeros((4, 2)), [4])) == (
        "FederatedData(1 client; rows: 4 train)"
    )
