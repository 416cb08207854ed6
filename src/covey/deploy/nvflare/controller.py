"""The server of a study as an NVFlare job: `covey.deploy.server.conduct` over tasks."""

import os
from pathlib import Path
from typing import Any

from covey.deploy.nvflare.launch import RUNS
from covey.deploy.nvflare.tasks import TaskController
from covey.deploy.nvflare.transport import TaskTransport, Waiting

# JAX and all that needs it is imported when the study is conducted: until NVFlare has made the
# controller, sites wait for the server's process.

_DOING = {
    "HELLO": "greeting the sites",
    "PREPARE": "telling what was prepared",
    "ROUND": "round {round}",
    "ACKNOWLEDGE": "acknowledging",
    "QUERY": "asking for a sum",
    "EVALUATE": "evaluating after round {round}",
    "STOP": "telling the result",
}


_STEPS = {
    "describe": "asking the sites about their tables",
    "agree": "agreeing on the design",
    "start": "starting the rounds",
    "result": "the sites write their own results",
}


class StudyController(TaskController):
    """Conducts a study. NVFlare makes it of a job's configuration.

    Args:
        study: The study, as its canonical text.
        sites: Names of all its sites, whether they are there or not.
        deadline: Seconds that an exchange waits for answers.
        quorum: Sites that must answer before a round is closed; None for everyone.
        least: Sites that must take part; None for all.
        wait: Seconds to wait for sites that are not there, or whose owner has yet to approve.
        resume: Whether to resume the study that the server's run directory holds.
    """

    def __init__(
        self,
        study: str,
        sites: list[str],
        deadline: float,
        quorum: int | None = None,
        least: int | None = None,
        wait: float = 0.0,
        resume: bool = False,
    ):
        super().__init__(describe=purpose)
        self._study, self._sites = study, sites
        self._options: dict[str, Any] = {
            "deadline": float(deadline),
            "quorum": quorum,
            "least": least,
            "patience": float(wait),
            "resume": resume,
        }

    def conduct(self, transport: TaskTransport, sites: list[str]) -> None:
        """Conduct the study in its run directory."""
        from covey.deploy import server
        from covey.deploy import study as studies
        from covey.engines.reception import NoQuorumError

        study = studies.from_json(self._study)
        folder = Path(os.environ[RUNS]) / study.name

        def tell(found: object) -> None:
            self.note = {"lines": [*repr(found).splitlines(), f"written to {folder}"]}

        try:
            server.conduct(
                study,
                transport,
                folder,
                sites=self._sites,
                found=tell,
                progress=False,
                **self._options,
            )
        except NoQuorumError as error:
            if transport.silent():
                raise Waiting(str(error)) from error
            raise  # sites that refuse would refuse again


def purpose(message: bytes) -> str:
    """The purpose of a message, in words.

    Args:
        message: A message of the server to a site.
    """
    from covey.core.protocol import Kind, open_envelope, unpack_text

    envelope, body = open_envelope(message)
    match unpack_text(body) if envelope.kind == Kind.HELLO else None:
        case {"step": str(step)} if step in _STEPS:
            return _STEPS[step]
    return _DOING[envelope.kind.name].format(round=envelope.round + 1)
