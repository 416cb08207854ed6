"""The transport of messages between a server and its sites: bytes out, bytes back."""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

Handler: TypeAlias = Callable[[bytes], bytes]  # a site: a message in, its answer out


@runtime_checkable
class Transport(Protocol):
    """Carries messages to sites and brings their answers back."""

    def exchange(
        self, messages: Mapping[str, bytes], *, deadline: float, quorum: int
    ) -> Mapping[str, bytes]:
        """Send a message to each of some sites and wait for answers.

        Args:
            messages: The message for each site, by its name.
            deadline: Seconds to wait at most.
            quorum: Answers that are enough: a transport may, and need not, return once it has so
                many, and must not return with fewer before the deadline unless all who can still
                answer have.

        Returns:
            One answer per site that answered in time. The name is the one that the transport knows
            the sender by, e.g. from its certificate, whatever the message claims. An answer may be
            late, of an earlier exchange: the receiver finds that out.
        """
        ...


class Mishaps(NamedTuple):
    """Probabilities of faults of each message in memory, independently.

    Attributes:
        lose_down: The message is lost on its way to the site.
        lose_up: The answer is lost.
        repeat: The message arrives twice.
        delay: The answer arrives at the next exchange with this site, in place of its answer then.
    """

    lose_down: float = 0.0
    lose_up: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0


class MemoryTransport:
    """A server and its sites in one process, with a seeded plan of faults.

    Args:
        handlers: The sites by name.
        mishaps: Probabilities of lost, repeated and late messages. Default: all arrive.
        seed: Seed of the mishaps.

    Example:
        >>> sites = MemoryTransport({"va": lambda message: message[::-1]})
        >>> sites.exchange({"va": b"abc"}, deadline=1.0, quorum=1)
        {'va': b'cba'}
        >>> sites.killed.add("va")
        >>> sites.exchange({"va": b"abc"}, deadline=1.0, quorum=1)
        {}
    """

    def __init__(
        self, handlers: Mapping[str, Handler], mishaps: Mishaps | None = None, seed: int = 0
    ):
        self.handlers = dict(handlers)
        self.mishaps = Mishaps() if mishaps is None else mishaps
        self.killed: set[str] = set()
        self.late: dict[str, bytes] = {}
        self._random = random.Random(seed)  # noqa: S311  (faults for tests, nothing secret)

    def exchange(
        self, messages: Mapping[str, bytes], *, deadline: float, quorum: int
    ) -> dict[str, bytes]:
        """Hand each message to its site at once; the deadline has no meaning here."""
        found = {name: self._one(name, message) for name, message in messages.items()}
        return {name: answer for name, answer in found.items() if answer is not None}

    def _one(self, name: str, message: bytes) -> bytes | None:
        late = self.late.pop(name, None)
        if name in self.killed or name not in self.handlers or self._happens("lose_down"):
            return late
        answer = self.handlers[name](message)
        if self._happens("repeat"):
            answer = self.handlers[name](message)
        if self._happens("lose_up"):
            return late
        if self._happens("delay"):
            self.late[name] = answer
            return late
        return answer if late is None else late

    def _happens(self, what: str) -> bool:
        return self._random.random() < getattr(self.mishaps, what)
