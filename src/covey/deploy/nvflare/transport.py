"""Messages to sites and their answers, with the state of each site: answered, late or away.

A site that missed several exchanges in a row is away: nobody waits for it until it asks for work
again. NVFlare is not imported here; the controller posts messages and delivers answers.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_CHECK = 0.2  # seconds between looks at the clock and at the request to stop
_MOST_REFUSALS = 100  # that are remembered


class Stopped(Exception):  # noqa: N818  # not an error: somebody asked for it
    """The study was asked to stop."""


class Waiting(Exception):  # noqa: N818
    """The study cannot continue before a silent site is back."""


@dataclass
class Progress:
    """One exchange: the sites asked, the seconds until each answer, the bytes sent."""

    exchange: int = 0
    doing: str = ""
    asked: list[str] = field(default_factory=list)
    answered: dict[str, float] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0


class TaskTransport:
    """Exchanges one message with every site, in the time given.

    Args:
        post: Sends a message to a site, without waiting.
        withdraw: Takes back the messages that nobody answered.
        stopped: Whether the study was asked to stop, before the next exchange.
        aborted: Whether it must stop at once.
        patience: Exchanges in a row that a site may miss before it is away.
        pickup: Seconds that a site that missed the exchange before has to fetch its message.
        describe: Function that states the purpose of a message. Default: its number.
    """

    def __init__(
        self,
        post: Callable[[str, bytes], None],
        withdraw: Callable[[], None],
        stopped: Callable[[], bool],
        aborted: Callable[[], bool],
        *,
        patience: int = 2,
        pickup: float = 5.0,
        describe: Callable[[bytes], str] | None = None,
    ):
        self._post, self._withdraw = post, withdraw
        self._stopped, self._aborted = stopped, aborted
        self._patience, self._pickup, self._describe = patience, pickup, describe
        self._changed = threading.Condition()
        self._answers: dict[str, bytes] = {}
        self._closed: set[str] = set()  # answered or refused, in this exchange
        self._gone: set[str] = set()  # lost in this exchange
        self._missed: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self._away: set[str] = set()
        self._there: set[str] | None = None
        self._progress = Progress()
        self._started = time.monotonic()
        self._totals = {"exchanges": 0, "bytes_down": 0, "bytes_up": 0, "late": 0}
        self._refusals: list[dict[str, Any]] = []

    def exchange(
        self, messages: Mapping[str, bytes], *, deadline: float, quorum: int
    ) -> dict[str, bytes]:
        """Send a message to each site and collect the answers.

        Waits until every site that is not away has answered, or the deadline has passed. Sites that
        are away are asked as well where the others are fewer than the quorum.

        Args:
            messages: The message for each site, by name.
            deadline: Seconds to wait.
            quorum: Answers that the caller needs.

        Returns:
            The answers in time, by site.

        Raises:
            Stopped: the study was asked to stop.
        """
        if self._stopped():
            raise Stopped("the study was asked to stop")
        asked = self._open(messages, quorum)
        start = time.monotonic()
        try:
            for site in asked:
                self._post(site, messages[site])
            with self._changed:
                while self._awaited(asked, start) and time.monotonic() < start + deadline:
                    if self._aborted():
                        raise Stopped("the study was aborted")
                    left = start + deadline - time.monotonic()
                    self._changed.wait(max(0.0, min(_CHECK, left)))
        finally:
            self._withdraw()
        return self._close(asked)

    def expect(self, sites: Collection[str]) -> None:
        """Say which sites are there: others are away until they ask for work."""
        self._there = set(sites)

    def deliver(self, site: str, answer: bytes) -> None:
        """An answer has come. A site's second answer, and one nobody waits for, are late. A refusal
        by the site itself is kept for people to see.
        """
        why = _why_refused(answer)
        with self._changed:
            told = {(one["site"], one["reason"]) for one in self._refusals}
            if why is not None and (site, why) not in told:  # a site that waits says so often
                self._note(site, why)
            if site not in self._progress.asked or site in self._closed:
                self._totals["late"] += 1
                return
            self._answers[site] = answer
            self._closed.add(site)
            self._progress.answered[site] = time.monotonic() - self._started
            self._progress.bytes_up += len(answer)
            self._totals["bytes_up"] += len(answer)
            self._changed.notify_all()

    def _note(self, site: str, reason: str) -> None:
        self._refusals.append({"time": time.time(), "site": site, "reason": reason})
        del self._refusals[:-_MOST_REFUSALS]

    def refuse(self, site: str, reason: str) -> None:
        """A site has refused its message, or its answer was refused."""
        with self._changed:
            self._note(site, reason)
            self._closed.add(site)
            self._changed.notify_all()

    def lose(self, site: str) -> None:
        """A site is gone: nobody waits for it until it asks for work again."""
        with self._changed:
            self._away.add(site)
            self._gone.add(site)
            self._changed.notify_all()

    def count_late(self) -> None:
        """An answer has come to a message that was withdrawn."""
        with self._changed:
            self._totals["late"] += 1

    def saw(self, site: str) -> None:
        """A site asks for work: it is there, and takes part from the next exchange on."""
        self._seen[site] = time.monotonic()
        if site in self._away:
            with self._changed:
                self._away.discard(site)
                self._gone.discard(site)
                self._missed[site] = 0

    def silent(self) -> list[str]:
        """Sites that gave no answer to the last message, nor a refusal."""
        with self._changed:
            return sorted({*self._progress.late, *self._progress.away})

    def status(self) -> dict[str, Any]:
        """The state of the study, as plain values."""
        with self._changed:
            now = asdict(self._progress)
            if self._progress.seconds == 0.0:
                now["late"] = [s for s in self._progress.asked if s not in self._closed]
                now["seconds"] = time.monotonic() - self._started
            return {"now": now, "totals": dict(self._totals), "refusals": list(self._refusals)}

    def _open(self, messages: Mapping[str, bytes], quorum: int) -> list[str]:
        with self._changed:
            if self._there is not None:
                self._away |= set(messages) - self._there - set(self._seen)
            asked = [site for site in messages if site not in self._away]
            if len(asked) < quorum:
                asked = list(messages)
            down = sum(len(messages[site]) for site in asked)
            number, some = self._totals["exchanges"] + 1, next(iter(messages.values()), b"")
            self._answers, self._closed, self._gone = {}, set(), set()
            self._totals["exchanges"] += 1
            self._totals["bytes_down"] += down
            self._started = time.monotonic()
            self._progress = Progress(
                exchange=number,
                doing=self._describe(some) if self._describe else f"message {number}",
                asked=asked,
                away=sorted(self._away & set(messages)),
                bytes_down=down,
            )
        return asked

    def _awaited(self, asked: list[str], start: float) -> list[str]:
        """Sites that may still answer. One that missed the exchange before and does not even fetch
        its message is not waited for.
        """
        overdue = time.monotonic() > start + self._pickup
        return [
            site
            for site in asked
            if site not in self._closed
            and site not in self._gone
            and not (overdue and self._missed.get(site) and self._seen.get(site, 0.0) < start)
        ]

    def _close(self, asked: list[str]) -> dict[str, bytes]:
        with self._changed:
            for site in asked:
                heard = site in self._closed
                self._missed[site] = 0 if heard else self._missed.get(site, 0) + 1
                if heard:
                    self._away.discard(site)
                elif self._missed[site] >= self._patience:
                    self._away.add(site)
            self._progress.late = [site for site in asked if site not in self._closed]
            self._progress.seconds = time.monotonic() - self._started
            answers, self._answers = self._answers, {}
        return answers


def _why_refused(answer: bytes) -> str | None:
    """The words of a refusal; None for another answer, whatever is wrong with it."""
    from covey.core import protocol  # imports JAX, which the study has done by now
    from covey.core.wire import WireError

    try:
        envelope, body = protocol.open_envelope(answer)
        is_refusal = envelope.kind == protocol.Kind.REFUSAL
        return protocol.unpack_refusal(body).text if is_refusal else None
    except WireError:
        return None
