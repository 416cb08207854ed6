"""The store of a site's memory: one SQLite file per study, one transaction per message."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from covey.core.protocol import Stamp
from covey.engines.site_memory import Answered, Memory

_FORMAT = "covey site 1"
_TABLES = """
CREATE TABLE owner (format TEXT, study TEXT, digest TEXT, site TEXT);
CREATE TABLE memory (
    epoch INTEGER, current_epoch INTEGER, current_round INTEGER, pending INTEGER,
    prepared BLOB, prepared_in INTEGER, published BLOB, finished INTEGER
);
CREATE TABLE answered (epoch INTEGER, round INTEGER, token BLOB, reply BLOB, node BLOB);
CREATE TABLE nodes (epoch INTEGER, round INTEGER, node BLOB, PRIMARY KEY (epoch, round));
"""


class StoreError(OSError):
    """A store that cannot be opened, read or written."""


@runtime_checkable
class Store(Protocol):
    """Keeps a site's memory."""

    def load(self) -> Memory:
        """The memory as it was saved last."""
        ...

    def save(self, memory: Memory) -> None:
        """Keep a new memory: all of it or, where this raises, nothing.

        Raises:
            StoreError: It could not be kept, e.g. because the disk is full.
        """
        ...


class MemoryStore:
    """A store for as long as the process lives."""

    def __init__(self, memory: Memory | None = None):
        self._memory = Memory() if memory is None else memory

    def load(self) -> Memory:
        """The memory as it was saved last."""
        return self._memory

    def save(self, memory: Memory) -> None:
        """Keep a new memory."""
        self._memory = memory


class SqliteStore:
    """A store on disk, for one study and one process at a time. Only its owner can read the file.

    Args:
        path: The file; it is made where there is none.
        study: Name of the study.
        digest: Digest of its configuration.
        site: Name of the site.

    Raises:
        StoreError: The file is of another study, configuration or site, is damaged, or is in use
            by another process.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "heart.sqlite"
        >>> with SqliteStore(path, study="heart", digest="ab" * 32, site="va") as store:
        ...     store.save(store.load()._replace(epoch=7))
        >>> with SqliteStore(path, study="heart", digest="ab" * 32, site="va") as store:
        ...     store.load().epoch
        7
    """

    def __init__(self, path: Path, *, study: str, digest: str, site: str):
        self.path, self._owner = path, (_FORMAT, study, digest, site)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._explained():
                self._open()
        except BaseException:
            self._database.close()
            raise

    def load(self) -> Memory:
        """The memory as it was saved last."""
        with self._explained():
            return self._read()

    def save(self, memory: Memory) -> None:
        """Keep a new memory, in one transaction that is on disk when this returns."""
        with self._explained(), self._transaction() as database:
            self._write(database, memory)

    def close(self) -> None:
        """Let another process open the file."""
        self._database.close()

    def __enter__(self) -> "SqliteStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        database = self._database
        database.execute("PRAGMA busy_timeout = 0")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA synchronous = FULL")
        with self._transaction():  # takes the lock, and with this mode keeps it
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not tables:
                for statement in filter(str.strip, _TABLES.split(";")):
                    database.execute(statement)
                database.execute("INSERT INTO owner VALUES (?, ?, ?, ?)", self._owner)
                self._write(database, Memory())
        found = database.execute("SELECT * FROM owner").fetchone()
        if found != self._owner:
            raise StoreError(
                f"{self.path} belongs to {_described(found)}, not to {_described(self._owner)}: "
                "give each study a store of its own"
            )

    def _read(self) -> Memory:
        database = self._database
        row = database.execute("SELECT * FROM memory").fetchone()
        if row is None:
            raise StoreError(f"{self.path} is damaged: it holds no memory")
        epoch, current_epoch, current_round, pending, *rest = row
        answered = database.execute("SELECT * FROM answered").fetchone()
        nodes = database.execute("SELECT epoch, round, node FROM nodes").fetchall()
        return Memory(
            epoch,
            Stamp(current_epoch, current_round),
            MappingProxyType({Stamp(at, round_): node for at, round_, node in nodes}),
            None if answered is None else Answered(Stamp(*answered[:2]), *answered[2:]),
            bool(pending),
            *rest,
        )

    def _write(self, database: sqlite3.Connection, memory: Memory) -> None:
        database.execute("DELETE FROM memory")
        database.execute(
            "INSERT INTO memory VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                memory.epoch,
                *memory.current,
                memory.pending,
                memory.prepared,
                memory.prepared_in,
                memory.published,
                memory.finished,
            ),
        )
        database.execute("DELETE FROM answered")
        if memory.answered is not None:
            last = memory.answered
            row = (*last.stamp, last.token, last.reply, last.node)
            database.execute("INSERT INTO answered VALUES (?, ?, ?, ?, ?)", row)
        held = {Stamp(*row) for row in database.execute("SELECT epoch, round FROM nodes")}
        for stamp in held - memory.nodes.keys():
            database.execute("DELETE FROM nodes WHERE epoch = ? AND round = ?", stamp)
        for stamp in memory.nodes.keys() - held:  # a node never changes: a stamp names one
            row = (*stamp, memory.nodes[stamp])
            database.execute("INSERT INTO nodes VALUES (?, ?, ?)", row)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN EXCLUSIVE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise StoreError(f"{self.path} is in use by another process") from error
            raise StoreError(f"{self.path} cannot be used: {error}") from error


def _described(owner: tuple[str, ...] | None) -> str:
    if owner is None or owner[0] != _FORMAT:
        return "another version of Covey"
    _, study, digest, site = owner
    return f"site {site!r} in study {study!r} with configuration {digest[:12]}"
