"""Events at a server or a site, read from the console of its process.

NVFlare and gRPC write who joins, who leaves and whose certificate is refused as lines of text.
These patterns are of NVFlare 2.9; a test looks for them in a real console.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from covey.deploy.nvflare.kit import Kit

REFUSALS = "refusals.jsonl"


class Event(NamedTuple):
    """Something that happened, as a sentence. `refused` where somebody was turned away."""

    text: str
    refused: bool = False


_SERVER = [
    (r"New client (?P<site>[\w-]+)@\S+ joined", "{site} joined", False),
    (r"Remove the dead Client\. Name: (?P<site>[\w-]+)", "{site} is gone", False),
    (r"Client Name:(?P<site>[\w-]+) left", "{site} left", False),
    (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", "an expired certificate", True),
    (
        r"CERTIFICATE_VERIFY_FAILED: certificate is not yet valid",
        "a certificate that is not valid yet: is a clock wrong?",
        True,
    ),
    (r"CERTIFICATE_VERIFY_FAILED", "a certificate of another authority", True),
    (r"PEER_DID_NOT_RETURN_A_CERTIFICATE", "a connection without a certificate", True),
    (r"failed to verify client identity", "a site under another name than its certificate's", True),
    (r"BYOC not permitted", "a job that carries code", True),
    (r"is not in allow_list", "a job that names a class that is not allowed", True),
]
_SITE = [
    (r"Successfully registered client:(?P<site>[\w-]+)", "{site} is connected", False),
    (r"certificate has expired", "the server's certificate has expired", True),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is of another authority: are all kits of one folder?",
        True,
    ),
    (
        r"ALERT_(CERTIFICATE|BAD|UNKNOWN_CA)|CERTIFICATE_REQUIRED",
        "the server refused this site's certificate",
        True,
    ),
    (r"BYOC not permitted", "a job that carries code", True),
    (r"is not in allow_list", "a job that names a class that is not allowed", True),
    (r"a message of \d+ bytes; the site allows \d+", "a message over the site's cap", True),
]
_PATTERNS = {
    "server": [(re.compile(pattern), text, refused) for pattern, text, refused in _SERVER],
    "site": [(re.compile(pattern), text, refused) for pattern, text, refused in _SITE],
}


class Follower:
    """Reads new lines of a kit's console, and keeps refusals in a file of the kit."""

    def __init__(self, kit: Kit):
        self._kit, self._patterns = kit, _PATTERNS[kit.kind]
        self._at = kit.console.stat().st_size if kit.console.exists() else 0
        self._rest = ""

    def events(self) -> Iterator[Event]:
        """Events since the last call."""
        if not self._kit.console.exists():
            return
        with self._kit.console.open("rb") as console:
            console.seek(self._at)
            added = console.read()
        self._at += len(added)
        *lines, self._rest = (self._rest + added.decode("utf-8", "replace")).split("\n")
        for line in lines:
            event = self._event(line)
            if event is not None:
                if event.refused:
                    _keep(self._kit, event.text)
                yield event

    def _event(self, line: str) -> Event | None:
        for pattern, text, refused in self._patterns:
            if match := pattern.search(line):
                return Event(text.format(**match.groupdict()), refused)
        return None


def refusals(folder: Path) -> list[dict[str, Any]]:
    """The refusals of a kit: each reason once, with its count and the time of the last."""
    path = folder / REFUSALS
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    counts = Counter(line["reason"] for line in lines)
    last = {line["reason"]: line["time"] for line in lines}
    return [{"reason": one, "count": counts[one], "time": last[one]} for one in counts]


def _keep(kit: Kit, reason: str) -> None:
    with (kit.folder / REFUSALS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), "reason": reason}) + "\n")
