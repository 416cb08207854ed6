"""Which studies a site's owner has agreed to, by name and digest."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from covey.core import atomic_files
from covey.deploy.refusal import DeclinedError
from covey.deploy.study import Study

_SHOWN = 16  # characters of a digest in a sentence


class Entry(NamedTuple):
    """What is known of a study at a site.

    Attributes:
        digest: Digest of its configuration.
        state: "waiting" for the owner, or "approved".
        by: "owner", or "rule" where `approve = "listed"` let it in; "" while it waits.
        since: When it came to this state (UTC).
        words: What it is, in sentences.
    """

    digest: str
    state: Literal["waiting", "approved"]
    by: str
    since: str
    words: tuple[str, ...]


class Approvals:
    """The site's list of studies: `approvals.json` in its state folder.

    The process that answers messages and the owner's command write it, one at a time.
    """

    def __init__(self, folder: Path):
        self._path = folder / "approvals.json"
        self._lock = folder / "approvals.lock"

    def entries(self) -> dict[str, Entry]:
        """All studies by name."""
        if not self._path.exists():
            return {}
        try:
            content = json.loads(self._path.read_text("utf-8"))
            return {
                name: Entry(**(entry | {"words": tuple(entry["words"])}))
                for name, entry in content.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self._path} is damaged ({error}); remove it, and approve studies again"
            ) from None

    def admit(self, study: Study, *, rule: Literal["ask", "listed"]) -> bool:
        """Let an approved study in; note one that is new.

        Args:
            study: The study that came.
            rule: What the owner says of new studies.

        Returns:
            Whether it is new and the rule has approved it now.

        Raises:
            DeclinedError: It waits for the owner, or its name was approved with another
                configuration.
        """
        with self._held():
            entries = self.entries()
            known = entries.get(study.name)
            if known is not None and known.state == "approved":
                if known.digest == study.digest:
                    return False
                raise DeclinedError(
                    "study",
                    f"the study {study.name!r} was approved with the configuration "
                    f"{known.digest[:_SHOWN]}, and now comes with {study.digest[:_SHOWN]}; a "
                    "changed study needs another name",
                )
            if rule == "listed":
                self._write(entries | {study.name: _entry(study, "approved", "rule")})
                return True
            if known is None or known.digest != study.digest:
                self._write(entries | {study.name: _entry(study, "waiting", "")})
        raise DeclinedError(
            "approval",
            f"the study {study.name!r} ({study.digest[:_SHOWN]}) waits for the approval of the "
            f"site's owner: `covey site approve {study.name}` there",
        )

    def approve(self, name: str, *, digest: str | None = None) -> Entry:
        """Approve a study that waits.

        Args:
            name: Its name.
            digest: The beginning of its digest, to be sure. Default: whichever waits.

        Returns:
            The entry, as approved.

        Raises:
            ValueError: No study of this name and digest waits.
        """
        with self._held():
            entries = self.entries()
            entry = entries.get(name)
            if entry is None:
                waiting = [one for one, found in entries.items() if found.state == "waiting"]
                raise ValueError(
                    f"no study {name!r} has come to this site; waiting: "
                    f"{', '.join(waiting) or 'none'}"
                )
            if digest is not None and not (digest and entry.digest.startswith(digest)):
                raise ValueError(
                    f"the study {name!r} that came has the digest {entry.digest}, not {digest}...: "
                    "ask its coordinator which is meant"
                )
            if entry.state == "approved":
                return entry
            done = entry._replace(state="approved", by="owner", since=_now())
            self._write(entries | {name: done})
            return done

    def _write(self, entries: dict[str, Entry]) -> None:
        content = {name: entry._asdict() for name, entry in entries.items()}
        atomic_files.write(self._path, json.dumps(content, indent=1).encode())

    @contextmanager
    def _held(self) -> Iterator[None]:
        with atomic_files.explained(self._lock), self._lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _entry(study: Study, state: Literal["waiting", "approved"], by: str) -> Entry:
    return Entry(study.digest, state, by, _now(), tuple(study.words()))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
