"""The studies that a site's owner has approved, by name and digest."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from covey.core import atomic_files
from covey.deploy.plain_values import checked
from covey.deploy.policy import most_answers
from covey.deploy.refusal import DeclinedError
from covey.deploy.study import Study

_SHOWN = 16  # characters of a digest in a sentence


class Entry(NamedTuple):
    """The record of a study at a site.

    Attributes:
        digest: Digest of its configuration.
        state: "waiting" for the owner, "approved", or "withdrawn" by the owner.
        by: "owner", or "rule" where `approve = "listed"` let it in; "" while it waits.
        since: When it came to this state (UTC).
        words: Its description, in sentences.
    """

    digest: str
    state: Literal["waiting", "approved", "withdrawn"]
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
        """All studies by name.

        Raises:
            ValueError: The file is damaged; the message says what to do.
        """
        if not self._path.exists():
            return {}
        try:
            content = json.loads(self._path.read_text("utf-8"))
            if not isinstance(content, dict):
                raise ValueError("it holds no table of studies")
            return {name: checked(Entry, entry) for name, entry in content.items()}
        except ValueError as error:
            raise ValueError(
                f"{self._path} is damaged ({error}); put a copy of it back, or remove it and "
                "approve the studies again"
            ) from None

    def admit(self, study: Study, *, rule: Literal["ask", "listed"]) -> bool:
        """Let an approved study in; note one that is new.

        Args:
            study: The study that came.
            rule: The owner's rule for new studies.

        Returns:
            Whether it is new and the rule has approved it now.

        Raises:
            DeclinedError: It waits for the owner, or its name was approved with another
                configuration; or the list is damaged, and nothing is let in.
        """
        with self._held():
            try:
                entries = self.entries()
            except ValueError as error:
                raise _damaged(error) from None
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
            if known is not None and known.state == "withdrawn":
                raise _withdrawn(study.name)
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

    def find(self, name: str, *, digest: str | None = None) -> Entry:
        """A study that has come, as its owner is to read it before approving.

        Args:
            name: Its name.
            digest: The beginning of its digest, as the coordinator has told it. Default: any.

        Raises:
            ValueError: No study of this name and digest has come.
        """
        entries = self.entries()
        entry = entries.get(name)
        if entry is None:
            waiting = [one for one, found in entries.items() if found.state == "waiting"]
            raise ValueError(
                f"no study {name!r} has come to this site; waiting: {', '.join(waiting) or 'none'}"
            )
        if digest is not None and not (digest and entry.digest.startswith(digest)):
            raise ValueError(
                f"the study {name!r} that came has the digest {entry.digest}, not {digest}...: "
                "ask its coordinator which is meant"
            )
        return entry

    def approve(self, name: str, *, digest: str) -> Entry:
        """Approve a study that waits.

        Args:
            name: Its name.
            digest: Its whole digest, as it was shown to the owner: a study that has changed since
                then is not approved.

        Returns:
            The entry, as approved.

        Raises:
            ValueError: No study of this name has come, or it has another digest now.
        """
        with self._held():
            entries = self.entries()
            entry = self.find(name)
            if entry.digest != digest:
                raise ValueError(
                    f"the study {name!r} has changed since it was shown: its digest was {digest} "
                    f"and is now {entry.digest}. Nothing is approved; read it again, and ask its "
                    "coordinator which is meant"
                )
            if entry.state == "approved":
                return entry
            done = entry._replace(state="approved", by="owner", since=_now())
            self._write(entries | {name: done})
            return done

    def withdraw(self, name: str) -> Entry:
        """Take back the approval of a study, whether it has begun or not.

        Args:
            name: Its name.

        Returns:
            The entry, as withdrawn. `approve` lets the study continue.

        Raises:
            ValueError: No study of this name has come.
        """
        with self._held():
            done = self.find(name)._replace(state="withdrawn", by="owner", since=_now())
            self._write(self.entries() | {name: done})
            return done

    def need(self, name: str, digest: str) -> None:
        """A refusal of a study that is not approved, or no longer.

        Args:
            name: Its name.
            digest: Its digest.
        """
        try:
            known = self.entries().get(name)
        except ValueError as error:
            raise _damaged(error) from None
        if known is not None and known.state == "withdrawn":
            raise _withdrawn(name)
        if known is None or (known.state, known.digest) != ("approved", digest):
            raise DeclinedError(
                "approval", f"the study {name!r} ({digest[:_SHOWN]}) is not approved at this site"
            )

    def _write(self, entries: dict[str, Entry]) -> None:
        content = {name: entry._asdict() for name, entry in entries.items()}
        text = json.dumps(content, indent=1)
        atomic_files.write(self._path, text.encode(), private=True)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with atomic_files.explained(self._lock), self._lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _entry(study: Study, state: Literal["waiting", "approved"], by: str) -> Entry:
    asked = most_answers(study, with_metrics=True)[1]
    words = (*study.words(), f"It asks for {asked}; limits.most_rounds counts them.")
    return Entry(study.digest, state, by, _now(), words)


def _withdrawn(name: str) -> DeclinedError:
    return DeclinedError(
        "approval", f"the site's owner has withdrawn the approval of the study {name!r}"
    )


def _damaged(error: ValueError) -> DeclinedError:
    why = "the site's list of approved studies is damaged; its owner has to restore it"
    return DeclinedError("approval", why, str(error))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
