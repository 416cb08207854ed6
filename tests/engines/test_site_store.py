"""A site's memory on disk: all of a message or nothing of it."""

import sqlite3
import stat
import subprocess
import sys

import pytest

from covey.core.protocol import NEVER, Stamp
from covey.engines.site_memory import Answered, Memory
from covey.engines.site_store import SqliteStore, StoreError

OWNER = {"study": "heart", "digest": "ab" * 32, "site": "va"}
FULL = Memory(
    epoch=2**61,
    current=Stamp(3, 5),
    nodes={Stamp(3, 5): b"node", Stamp(1, 0): b"\0older"},
    answered=Answered(Stamp(3, 6), b"token", b"reply", b"pending"),
    pending=True,
    prepared=b"found",
    prepared_in=3,
    published=b"law",
    finished=6,
)


def test_what_is_saved_is_there_after_a_restart(tmp_path):
    path = tmp_path / "deep" / "heart.sqlite"
    with SqliteStore(path, **OWNER) as store:
        assert store.load() == Memory()
        store.save(FULL)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with SqliteStore(path, **OWNER) as store:
        assert store.load() == FULL
        less = FULL._replace(
            nodes={Stamp(3, 6): b"new"}, current=NEVER, answered=None, pending=False
        )
        store.save(less)
        assert store.load() == less
        store.save(less._replace(answered=FULL.answered._replace(node=None)))
        assert store.load().answered.node is None


def test_a_process_that_is_killed_loses_nothing_that_it_answered(tmp_path):
    """And nothing of a transaction that it had not ended."""
    path = tmp_path / "heart.sqlite"
    code = f"""
import os, signal
from pathlib import Path
from covey.engines.site_store import SqliteStore
store = SqliteStore(Path({str(path)!r}), study="heart", digest="ab" * 32, site="va")
store.save(store.load()._replace(epoch=1))
with store._transaction() as database:
    store._write(database, store.load()._replace(epoch=2))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with SqliteStore(path, **OWNER) as store:
        assert store.load().epoch == 1


def test_one_process_at_a_time(tmp_path):
    with (
        SqliteStore(tmp_path / "heart.sqlite", **OWNER),
        pytest.raises(StoreError, match="in use by another process"),
    ):
        SqliteStore(tmp_path / "heart.sqlite", **OWNER)


@pytest.mark.parametrize("field", ["study", "digest", "site"])
def test_a_store_of_others_is_refused(tmp_path, field):
    SqliteStore(tmp_path / "heart.sqlite", **OWNER).close()
    with pytest.raises(StoreError, match="belongs to site 'va' in study 'heart'"):
        SqliteStore(tmp_path / "heart.sqlite", **{**OWNER, field: "cd" * 32})


def test_files_that_are_no_store(tmp_path):
    (tmp_path / "text").write_text("no database " * 1000)
    with pytest.raises(StoreError, match="cannot be used: file is not a database"):
        SqliteStore(tmp_path / "text", **OWNER)
    with sqlite3.connect(tmp_path / "other") as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    with pytest.raises(StoreError, match="no such table"):
        SqliteStore(tmp_path / "other", **OWNER)


def test_a_full_disk_changes_nothing(tmp_path):
    with SqliteStore(tmp_path / "heart.sqlite", **OWNER) as store:
        store.save(FULL)
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        large = FULL._replace(nodes={**FULL.nodes, Stamp(3, 7): bytes(100_000)}, epoch=2**61 + 1)
        with pytest.raises(StoreError, match="full"):
            store.save(large)
        assert store.load() == FULL
