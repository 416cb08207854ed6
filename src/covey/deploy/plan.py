"""What a server does in a study, whatever kind of study it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from covey.core.algorithm import Algorithm, Message
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.privacy.ledger import Budget
from covey.runs import toml
from covey.runs.schedule import RunOptions

if TYPE_CHECKING:
    from covey.fitting.result import Fit
    from covey.runs.run import Run


class BadAnswerError(ValueError):
    """A site has said what cannot be.

    Attributes:
        site: The site.
        why: What it said, to follow its name in a sentence.
    """

    def __init__(self, site: str, why: str):
        super().__init__(f"site {site!r} {why}")
        self.site, self.why = site, why


class Program(NamedTuple):
    """What the server runs.

    Attributes:
        method: The method, prepared or not.
        cohort: Who takes part in a round; None for everyone.
        channel: What uploads pass through; None where nothing changes them.
        privacy: The privacy budget that the server keeps, if any.
        rounds: Rounds in all; None until the method has settled.
        options: What is due between rounds.
        settings: What `config.toml` records.
    """

    method: Algorithm
    cohort: Scheme | None
    channel: Channel | None
    privacy: Budget | None
    rounds: int | None
    options: RunOptions
    settings: toml.Tables


class Outcome(NamedTuple):
    """What a study has found.

    Attributes:
        found: The fit of a formula, or the run of a method.
        down: What sites predict with.
        content: What all sites get beside it, as plain values.
    """

    found: "Fit | Run"
    down: Message
    content: Any


@runtime_checkable
class Plan(Protocol):
    """A server's part in a study: the formula's (`fit_plan`) or the configuration's (`run_plan`).

    The steps follow each other. What sites have said is plain values from messages: nothing about
    it is certain.
    """

    def agree(self, said: Mapping[str, Any]) -> Any:
        """What all sites make their rows by, from their descriptions, as plain values.

        Raises:
            ValueError: Sites do not fit together; the message names site and column.
        """
        ...

    def share(self, said: Mapping[str, Any]) -> Any:
        """What rounds need beside shapes, from counts and sums of all sites, as plain values."""
        ...

    def program(self, *, progress: bool) -> Program:
        """The method, once everything is agreed on."""
        ...

    def outcome(self, run: "Run", folder: Path) -> Outcome:
        """What was found, written to the run directory."""
        ...
