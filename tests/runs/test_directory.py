"""The run directory under everything that can go wrong on a disk."""

import errno
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.core import atomic_files
from covey.runs import checkpoint, toml
from covey.runs.checkpoint import Checkpoint, Header
from covey.runs.directory import BusyError, RunDirectory

SETTINGS = {
    "method": {"name": "fedavg", "batch_size": 8},
    "run": {"rounds": 10, "seed": 1},
    "environment": {"data_digest": "a"},
}


def started(path: Path, rounds: int = 0) -> RunDirectory:
    """A directory with a run of some rounds, checkpointed after each."""
    directory = RunDirectory(path)
    with directory.held():
        directory.begin(SETTINGS)
        for number in range(1, rounds + 1):
            directory.append([{"round": number, "loss": 1 / number}])
            directory.save(number, "fedavg", bytes([number]) * 100)
    return directory


def changed(**keys: object) -> dict:
    tables = {name: dict(table) for name, table in SETTINGS.items()}
    for path, value in keys.items():
        table, key = path.split("__")
        tables[table][key] = value
    return tables


keys = st.text(min_size=1, max_size=5)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(keys, values, max_size=4))
def test_toml_reads_back_what_was_written(table):
    assert tomllib.loads(toml.text_of({"some-table": table})) == {"some-table": table}


def test_newest_two_checkpoints_are_kept(tmp_path):
    started(tmp_path / "run", rounds=5)
    assert checkpoint.rounds(tmp_path / "run" / "checkpoints") == [4, 5]
    found = checkpoint.newest(tmp_path / "run" / "checkpoints", at_most=100)
    assert found is not None
    assert (found.header.round, found.header.method, found.body) == (5, "fedavg", bytes([5]) * 100)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_of_a_checkpoint_is_noticed(tmp_path_factory, index, change):
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoint.save(folder, Checkpoint(Header(3, "fedavg", "abc"), b"state" * 20))
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[index % len(data)] ^= change
    path.write_bytes(data)
    with pytest.raises(checkpoint.DamagedError):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"", lambda data: data[:40] + b"?" + data[41:]]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    directory = started(tmp_path / "run", rounds=5)
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    with directory.held():
        with pytest.warns(
            UserWarning, match=r"000000005\.checkpoint is damaged.*the checkpoint before"
        ):
            found = directory.resume(SETTINGS)
        assert found is not None
        assert found.header.round == 4
        assert len(directory.cut_metrics(4)) == 4
        assert directory.newest_round() == 4


def test_no_readable_checkpoint_is_an_error(tmp_path):
    directory = started(tmp_path / "run", rounds=2)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.write_bytes(b"")
    with (
        directory.held(),
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="no checkpoint"),
    ):
        directory.resume(SETTINGS)


@pytest.mark.parametrize(
    "tail", [b'{"round": 6, "lo', b'{"round": 6, "loss": 0.1}\n{"rou', b"\x00\x00\x00", b""]
)
def test_a_torn_last_line_and_lines_past_the_checkpoint_are_cut(tmp_path, tail):
    directory = started(tmp_path / "run", rounds=5)
    metrics = tmp_path / "run" / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + tail)
    with directory.held():
        assert [record["round"] for record in directory.cut_metrics(5)] == [1, 2, 3, 4, 5]
        assert metrics.read_bytes() == whole
        assert [record["round"] for record in directory.cut_metrics(3)] == [1, 2, 3]
    assert metrics.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])


def test_metrics_that_lack_rounds_are_an_error(tmp_path):
    directory = started(tmp_path / "run", rounds=5)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"round": 1}\n')
    with (
        directory.held(),
        pytest.raises(ValueError, match="1 whole line, and the checkpoint is of round 5"),
    ):
        directory.cut_metrics(5)


def test_metrics_cut_in_the_middle_lead_back_to_a_checkpoint_that_fits(tmp_path):
    """Checkpoints of rounds 4 and 5, and metrics of which the fifth line was torn."""
    directory = started(tmp_path / "run", rounds=5)
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-4])
    with (
        directory.held(),
        pytest.warns(UserWarning, match=r"is of round 5, and metrics are whole up to round 4 only"),
    ):
        found = directory.resume(SETTINGS)
    assert found is not None
    assert found.header.round == 4


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", [(atomic_files, "sync"), (Path, "replace")])
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, step):
    directory = started(tmp_path / "run", rounds=3)
    with directory.held():
        directory.resume(SETTINGS)
        directory.append([{"round": 4, "loss": 0.25}])
        with monkeypatch.context() as patch:
            patch.setattr(*step, full_disk)
            with pytest.raises(
                OSError, match=r"the disk is full.*make room and resume.*round 3 is intact"
            ) as error:
                directory.save(4, "fedavg", b"new" * 100)
        assert error.value.errno == errno.ENOSPC
        names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
        assert names == {"000000002.checkpoint", "000000003.checkpoint"}
        found = directory.resume(SETTINGS)
    assert found is not None
    assert found.header.round == 3


def test_a_crash_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    atomic_files.write(path, b"old")
    # what a kill leaves behind
    (tmp_path / ("file" + atomic_files.SUFFIX)).write_bytes(b"half of the n")
    assert path.read_bytes() == b"old"
    atomic_files.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_new_run_needs_an_empty_directory(tmp_path):
    directory = started(tmp_path / "run", rounds=1)
    with (
        directory.held(),
        pytest.raises(ValueError, match=r"already holds a run.*--resume.*another --out"),
    ):
        directory.begin(SETTINGS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    other = RunDirectory(tmp_path / "other")
    with other.held(), pytest.raises(ValueError, match=r"already holds thesis\.tex"):
        other.begin(SETTINGS)
    with other.held(), pytest.raises(ValueError, match="not a run to resume"):
        other.resume(SETTINGS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run__seed": 2}, r"run\.seed was 1 and is now 2"),
        ({"method__batch_size": 16}, r"method\.batch_size was 8 and is now 16"),
        ({"method__epochs": 2}, r"method\.epochs was '\(not set\)' and is now 2"),
        ({"environment__data_digest": "b"}, r"environment\.data_digest was 'a' and is now 'b'"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, told):
    directory = started(tmp_path / "run", rounds=1)
    with directory.held(), pytest.raises(ValueError, match=told):
        directory.resume(changed(**change))


def test_resuming_may_ask_for_more_rounds_and_clears_what_a_kill_left(tmp_path):
    directory = started(tmp_path / "run", rounds=1)
    killed = tmp_path / "run" / "checkpoints" / f"000000002.checkpoint{atomic_files.SUFFIX}"
    killed.write_bytes(b"half of a check")
    with directory.held():
        assert directory.resume(changed(run__rounds=99)) is not None
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]["rounds"] == 99
    assert not killed.exists()


def test_resuming_nothing_starts_and_says_so(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with directory.held(), pytest.warns(UserWarning, match="starts at round 0"):
        assert directory.resume(SETTINGS) is None


HOLDER = """
import sys
from pathlib import Path
from covey.runs.directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()  # until it is killed
"""


def test_a_second_process_is_refused_and_told_who_was_first(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(BusyError, match=f"in use by process {holder.pid} on "),
            RunDirectory(tmp_path / "run").held(),
        ):
            pass
        assert json.loads((tmp_path / "run" / "lock").read_text())["pid"] == holder.pid
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    with RunDirectory(tmp_path / "run").held():  # the lock died with the process
        pass
