"""The interface of a site's part in a study, for every kind of study."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from covey.core.algorithm import Algorithm
from covey.core.channel import Channel
from covey.data.federated import FederatedData

if TYPE_CHECKING:
    from covey.engines.site import Site


class Work(NamedTuple):
    """The needs of rounds at a site.

    Attributes:
        method: The method, prepared or not.
        channel: Codec of the uploads; None without one.
        data: The site's rows, as the data of one client.
    """

    method: Algorithm
    channel: Channel | None
    data: FederatedData


@runtime_checkable
class Part(Protocol):
    """A site's part in a study: the formula's (`fit_part`) or the configuration's (`run_part`).

    The steps follow each other, and each has what the server has sent for it. Contents are plain
    values from a message: nothing about them is certain.
    """

    def describe(self) -> dict[str, Any]:
        """The site's description of its table."""
        ...

    def agree(self, content: Any) -> dict[str, Any]:
        """The site's counts and sums of its rows, by the columns that all sites make."""
        ...

    def work(self, content: Any) -> Work:
        """The method on the site's rows, once the server has chosen the shared settings."""
        ...

    def decline(self, name: str, number: int, content: Any) -> str | None:
        """The reason not to answer a question; None where the study may ask it."""
        ...

    @property
    def most_answers(self) -> int | None:
        """Rounds and questions that the study needs at most; None where that is not known."""
        ...

    def write(self, content: Any, member: "Site", folder: Path) -> None:
        """Write the site's own results to a folder. Nothing of them is sent."""
        ...

    def remarks(self) -> Sequence[str]:
        """Remarks about the rows for the owner, in the audit log."""
        ...
