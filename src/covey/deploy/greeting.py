"""Greetings: the steps in which a server and its sites agree before the first round.

Each step is one JSON message to all sites and one JSON answer of each. "describe" brings every
site's description of its table, "agree" sends what all make their rows by and brings counts and
sums, "start" sends what rounds need, "result" what all share in the end.
"""

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from covey.core.protocol import Refusal
from covey.deploy.status import StatusFile
from covey.deploy.study import Study
from covey.engines.connection import Connection, greet

_PAUSE = 5.0  # seconds between greetings while sites wait for their owners


class StudyRefusedError(ValueError):
    """Too few sites take part; the message names the others and says why they do not."""


class Greeter:
    """Greets the sites of a study.

    Args:
        connection: The connection to the sites.
        study: The study.
        server: The identity of this server, by which sites tell two servers apart.
        status: Record of the study's status, which is updated.
        patience: Seconds to keep asking sites that do not answer, or whose owner has not approved
            the study yet.
    """

    def __init__(
        self,
        connection: Connection,
        study: Study,
        server: str,
        status: StatusFile,
        *,
        patience: float,
    ):
        self._connection, self._study, self._server = connection, study, server
        self._status, self._patience = status, patience

    def ask(
        self, step: str, sites: Sequence[str], content: Any, *, least: int | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Take a step with some sites.

        Args:
            step: The step.
            sites: Names of the sites to ask.
            content: The content to send them.
            least: Sites that must answer. Default: all.

        Returns:
            What each site says, and why others say nothing, by name.

        Raises:
            StudyRefusedError: Fewer sites answer than must.
        """
        about = {"step": step, "server": self._server, "version": version("covey")}
        question = about | {"content": content}
        needed = len(sites) if least is None else least
        said: dict[str, Any] = {}
        begun = time.monotonic()
        while True:
            silent = self._once([name for name in sites if name not in said], question, said)
            if not silent or time.monotonic() - begun >= self._patience:
                break
            self._status.set("waiting", _listed(silent))
            time.sleep(min(_PAUSE, self._patience))
        if len(said) < needed:
            raise StudyRefusedError(
                f"{len(said)} of {len(sites)} sites take part in {self._study.name!r}, and "
                f"{needed} must; {_listed(silent)}"
            )
        return said, silent

    def _once(self, sites: list[str], question: Any, said: dict[str, Any]) -> dict[str, str]:
        """Ask once, and add the answers to `said`; the reasons of the others."""
        answers = greet(self._connection, sites, question)
        why = dict.fromkeys(sites, "no answer in time")
        for name, answer in answers.items():
            if isinstance(answer, Refusal):
                why[name] = answer.text
            else:
                said[name] = answer
                del why[name]
        return why


def _listed(silent: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in silent.items())
