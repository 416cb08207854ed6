"""A run on disk: `runs/NAME/` with `config.toml`, `metrics.jsonl`, `checkpoints/`,
`clients.parquet` and `lock`.

The order of writing makes it safe against a crash at any moment: the metrics of a round are on disk
before its checkpoint is, so a resumed run finds every round up to the checkpoint and cuts off the
later ones. The lock is the kernel's and dies with the process that holds it; the text in it
names that process.
"""

import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from covey.core import atomic_files, toml_files
from covey.runs import checkpoint, toml

if TYPE_CHECKING:
    import pandas as pd

# The metrics of one round; None where one is not finite.
Record: TypeAlias = dict[str, int | float | None]

# What may change when a run is resumed; none of it changes the metrics of a round.
_FREE = ("run.rounds", "run.checkpoint_every", "run.name", "run.actors", "run.address")
_MISSING = "(not set)"
LOCK = "lock"
_BESIDE = (LOCK, "study")  # what may be in a directory before its run; `study` is a server's


class BusyError(OSError):
    """Another process holds the run directory."""


class RunDirectory:
    """The files of one run. All but the constructor and `held` are for the process that holds the
    lock.
    """

    def __init__(self, path: Path):
        self.path = path
        self._checkpoints = path / "checkpoints"
        self._metrics = path / "metrics.jsonl"
        self._config = path / "config.toml"
        self._digest = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            BusyError: another process holds it; the message names that process.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(self._busy(file)) from None
            owner = {
                "pid": os.getpid(),
                "host": gethostname(),
                "started": datetime.now().isoformat(" ", "seconds"),
            }
            file.truncate(0)
            file.write(json.dumps(owner).encode())
            file.flush()
            yield
            file.truncate(0)

    def begin(self, settings: toml.Tables) -> None:
        """Start a new run here.

        Raises:
            ValueError: something is here already.
        """
        if others := self._contents():
            what = "a run" if self._config.exists() else f"{', '.join(others[:3])}"
            raise ValueError(
                f"{self.path} already holds {what}: continue it with --resume (resume=True), or "
                "choose another --out (out=)"
            )
        self._write_settings(settings)

    def resume(self, settings: toml.Tables) -> checkpoint.Checkpoint | None:
        """Resume the run here: its newest checkpoint, or None where it has not written one yet.

        Raises:
            ValueError: it was started with other settings; the message names them.
        """
        for leftover in [
            *self.path.glob(f"*{atomic_files.SUFFIX}"),
            *self._checkpoints.glob(f"*{atomic_files.SUFFIX}"),
        ]:
            leftover.unlink()
        if not self._config.exists():
            if others := self._contents():
                raise ValueError(
                    f"{self.path} holds {', '.join(others[:3])} but no config.toml: it is not a "
                    "run to resume"
                )
            warnings.warn(f"{self.path} holds no run yet: it starts at round 0", stacklevel=2)
            self._write_settings(settings)
            return None
        self._compare(toml_files.read(self._config), settings)
        self._write_settings(settings)
        found = checkpoint.newest(self._checkpoints, at_most=self._whole_lines())
        if found is not None and found.header.digest != self._digest:
            raise ValueError(
                f"the checkpoints in {self.path} are of another configuration than its config.toml"
            )
        checkpoint.discard_after(self._checkpoints, found.header.round if found else 0)
        return found

    def settings_text(self) -> str:
        """The text of `config.toml`."""
        return self._config.read_text("utf-8")

    def report_is_current(self) -> bool:
        """Whether `report.html` is no older than the newest checkpoint."""
        report = self.path / "report.html"
        if not report.exists():
            return False
        written = [path.stat().st_mtime_ns for path in self._checkpoints.glob("*")]
        return report.stat().st_mtime_ns >= max(written, default=0)

    def newest_round(self) -> int:
        """The round of the newest checkpoint; 0 without one."""
        return max(checkpoint.rounds(self._checkpoints), default=0)

    def save(
        self, round_: int, method: str, body: bytes, privacy: Mapping[str, float] | None = None
    ) -> None:
        """Write the checkpoint of a round, with the totals of a privacy ledger, once the metrics up
        to it are on disk.

        Raises:
            OSError: e.g. on a full disk; the checkpoints before are as they were.
        """
        header = checkpoint.Header(round_, method, self._digest, privacy)
        try:
            with atomic_files.explained(self._metrics), self._metrics.open("ab") as file:
                atomic_files.sync(file)
            self._checkpoints.mkdir(exist_ok=True)
            checkpoint.save(self._checkpoints, checkpoint.Checkpoint(header, body))
        except OSError as error:
            before = self.newest_round()
            survivor = (
                f"the checkpoint of round {before} is intact"
                if before
                else "there is no earlier checkpoint"
            )
            raise OSError(error.errno, f"{error.strerror}; {survivor}", error.filename) from error

    def append(self, records: Sequence[Record]) -> None:
        """Add one row per round to `metrics.jsonl`."""
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        with atomic_files.explained(self._metrics), self._metrics.open("ab") as file:
            file.write(lines.encode())

    def cut_metrics(self, rounds: int) -> list[Record]:
        """The first `rounds` rows of `metrics.jsonl`; later rows are cut off the file."""
        kept: list[Record] = []
        if not self._metrics.exists():
            self._metrics.touch()
        with atomic_files.explained(self._metrics), self._metrics.open("r+b") as file:
            end = 0
            for line, record in _rows(file):
                if len(kept) == rounds:
                    break
                kept.append(record)
                end += len(line)
            if len(kept) < rounds:
                whole = f"{len(kept)} whole line{'s' * (len(kept) != 1)}"
                raise ValueError(
                    f"{self._metrics} has {whole}, and the checkpoint is of round {rounds}: "
                    "put the file back, or start again in another directory"
                )
            file.truncate(end)
            atomic_files.sync(file)
        return kept

    def _whole_lines(self) -> int:
        """Rows of `metrics.jsonl` before the first that is damaged."""
        if not self._metrics.exists():
            return 0
        with self._metrics.open("rb") as file:
            return sum(1 for _ in _rows(file))

    def write_clients(self, clients: "pd.DataFrame") -> None:
        """Replace `clients.parquet`."""
        atomic_files.write(self.path / "clients.parquet", clients.to_parquet(index=False))

    def _contents(self) -> list[str]:
        return sorted(
            path.name
            for path in self.path.iterdir()
            if path.name not in _BESIDE and path.suffix != atomic_files.SUFFIX
        )

    def _busy(self, file: BinaryIO) -> str:
        file.seek(0)
        try:
            owner = json.loads(file.read())
            who = f"process {owner['pid']} on {owner['host']}, since {owner['started']}"
        except ValueError:  # it has the lock and has not yet written its name
            who = "another process"
        return f"{self.path} is in use by {who}: wait for it, stop it, or choose another directory"

    def _write_settings(self, settings: toml.Tables) -> None:
        self._digest = _digest(_binding(settings))
        atomic_files.write(self._config, toml.text_of(settings).encode())

    def _compare(self, before: toml.Tables, now: toml.Tables) -> None:
        old, new = _binding(before), _binding(now)
        differences = [
            f"{key} was {old.get(key, _MISSING)!r} and is now {new.get(key, _MISSING)!r}"
            for key in sorted(old.keys() | new.keys())
            if old.get(key, _MISSING) != new.get(key, _MISSING)
        ]
        files = [
            f"{table}.name ({old.get(f'{table}.name')})"
            for table in (key.partition(".")[2].removesuffix("_digest") for key in old)
            if ".py:" in str(name := old.get(f"{table}.name"))
            and table != "data"
            and name == new.get(f"{table}.name")
            and old.get(f"environment.{table}_digest") != new.get(f"environment.{table}_digest")
        ]
        if len(files) == len(differences) > 0:
            raise ValueError(
                f"{self.path} cannot be resumed: the file of {' and of '.join(files)} has changed "
                "since the run began. Put it back as it was, or start a new run in another "
                "directory (--out)."
            )
        if differences:
            raise ValueError(
                f"{self.path} cannot be resumed with other settings: {'; '.join(differences)}. "
                "Resume with those it was started with, or start a new run in another directory."
            )
        old_versions, new_versions = (
            toml.flat(tables.get("environment", {})) for tables in (before, now)
        )
        changed = [
            f"{key} {old_versions[key]} -> {value}"
            for key, value in new_versions.items()
            if key in old_versions and old_versions[key] != value and not key.endswith("_digest")
        ]
        if changed:
            warnings.warn(
                f"resumed in another environment ({', '.join(changed)}): last digits may differ",
                stacklevel=3,
            )


def _binding(settings: toml.Tables) -> dict[str, toml.Value]:
    """The settings that decide a run's results; other versions are left to a warning."""
    return {
        key: value
        for key, value in toml.flat(settings).items()
        if key not in _FREE and (not key.startswith("environment.") or key.endswith("_digest"))
    }


def _digest(settings: Mapping[str, toml.Value]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _rows(file: BinaryIO) -> Iterator[tuple[bytes, Record]]:
    """Lines with their records, up to the first line that was torn."""
    for line in file:
        record = _read(line)
        if record is None:
            return
        yield line, record


def _read(line: bytes) -> Record | None:
    """A line's record, or None where the line was torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None
