"""The interface of a server's part in a study, for every kind of study."""

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
    """A site has given an impossible answer.

    Attributes:
        site: The site.
        why: The mistake, to follow its name in a sentence.
    """

    def __init__(self, site: str, why: str):
        super().__init__(f"site {site!r} {why}")
        self.site, self.why = site, why


class Program(NamedTuple):
    """The run of the server.

    Attributes:
        method: The method, prepared or not.
        cohort: Sampler of the sites of a round; None for all sites.
        channel: Codec of the uploads; None without one.
        privacy: The privacy budget that the server keeps, if any.
        rounds: Rounds in all; None until the method has settled.
        options: Evaluations, checkpoints and progress between rounds.
        settings: Settings to record in `config.toml`.
    """

    method: Algorithm
    cohort: Scheme | None
    channel: Channel | None
    privacy: Budget | None
    rounds: int | None
    options: RunOptions
    settings: toml.Tables


class Outcome(NamedTuple):
    """The result of a study.

    Attributes:
        found: The fit of a formula, or the run of a method.
        down: The state that sites predict with.
        content: The other values that all sites get, as plain values.
    """

    found: "Fit | Run"
    down: Message
    content: Any


@runtime_checkable
class Plan(Protocol):
    """A server's part in a study: the formula's (`fit_plan`) or the configuration's (`run_plan`).

    The steps follow each other. The answers of sites are plain values from messages: nothing
    about them is certain.
    """

    def agree(self, said: Mapping[str, Any]) -> Any:
        """The design by which all sites make their rows, from their descriptions, as plain values.

        Raises:
            ValueError: Sites do not fit together; the message names site and column.
        """
        ...

    def share(self, said: Mapping[str, Any]) -> Any:
        """The settings of rounds, from counts and sums of all sites, as plain values."""
        ...

    def program(self, *, progress: bool) -> Program:
        """The method, once everything is agreed on."""
        ...

    def outcome(self, run: "Run", folder: Path) -> Outcome:
        """The result, written to the run directory."""
        ...
