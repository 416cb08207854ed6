"""The site's audit log: one line of JSON for every message that was sent and for every refusal.

A line is on disk before the message leaves. What cannot be logged is not sent.
"""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from covey.core.atomic_files import explained

Event: TypeAlias = Literal["sent", "refused", "approved", "withdrawn", "started", "result"]


class AuditLog:
    """The audit log of a site, readable by its owner alone.

    Example:
        >>> import tempfile
        >>> log = AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl")
        >>> log.write("sent", study="heart", kind="round", round=3, bytes=812, what="an upload")
        >>> [(line["event"], line["study"], line["bytes"]) for line in log.lines()]
        [('sent', 'heart', 812)]
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, event: Event, *, study: str, what: str, **more: str | int | None) -> None:
        """Append a line, and force it to disk.

        Args:
            event: The kind of event.
            study: The study's name, as far as it is known.
            what: The same in words.
            more: Kind, round, bytes and the like; None is left out.

        Raises:
            OSError: It could not be written, e.g. on a full disk.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        content: dict[str, Any] = {"time": now, "event": event, "study": study}
        content |= {key: value for key, value in more.items() if value is not None}
        line = json.dumps(content | {"what": what}) + "\n"
        with explained(self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                torn = not _ends_whole(handle)  # a line that a full disk or a crash cut short
                data = (("\n" if torn else "") + line).encode()
                if os.write(handle, data) != len(data):
                    raise OSError(28, "the disk is full", str(self.path))
                os.fsync(handle)
            finally:
                os.close(handle)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines, oldest first; lines that were cut short are left out."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def _ends_whole(handle: int) -> bool:
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"
