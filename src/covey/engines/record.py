"""An engine's report of a round, and the error for a round without usable uploads."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from covey.core.algorithm import Info

Line: TypeAlias = dict[str, float | int]
# The count of one round inside jit, those of many rounds stacked, or an integer on the host.
Whole: TypeAlias = int | Int[Array | np.ndarray, "*rounds"] | np.integer


class Diverged(ValueError):  # noqa: N818  (a name for the state of a run)
    """Every client of a round returned values that are not finite.

    lines: the metrics of the rounds before it.
    client_id: one of these clients.
    """

    def __init__(self, message: str, lines: Sequence[Line] = (), client_id: int = -1):
        super().__init__(message)
        self.lines, self.client_id = lines, client_id


class Counts(NamedTuple):
    """Counts of a round's clients, by the fate of their messages.

    contacted: in the cohort.
    clients: their uploads are in the aggregate.
    lost_down, lost_up, late, repeated: see `core.faults`.
    diverged: sent values that are not finite, and were left out.
    diverged_id: the id of one of these, or -1.
    """

    contacted: Whole
    clients: Whole
    lost_down: Whole
    lost_up: Whole
    late: Whole
    repeated: Whole
    diverged: Whole
    diverged_id: Whole


class Record(NamedTuple):
    """Counts, the mean of the clients' info, the server's info, and the bytes of an upload that
    this round did not use and nobody sent.
    """

    counts: Counts
    client: Info
    server: Info
    unsent: Whole = 0


class Sizes(NamedTuple):
    """Sizes of one broadcast and of one upload.

    Attributes:
        down, up: Bits of the values: the broadcast's arrays, the upload as the channel encodes it,
            with all entries that a round may use.
        down_message, up_message: Bytes of whole messages, with headers, infos and checksums.
    """

    down: int
    up: int
    down_message: int
    up_message: int


def as_line(round_: int, record: Record, sizes: Sizes) -> Line:
    """One line of the metrics; rounds are counted from 1. Raises `Diverged` where nothing usable
    came back.
    """
    count = {name: int(value) for name, value in zip(Counts._fields, record.counts, strict=True)}
    if count["diverged"] and not count["clients"]:
        raise Diverged(
            f"round {round_}: none of the {count['diverged']} uploads was finite",
            client_id=count["diverged_id"],
        )
    sent_down = count["contacted"] + count["repeated"]
    sent_up = sum(count[name] for name in ("clients", "diverged", "lost_up", "late", "repeated"))
    line: Line = {
        "round": round_,
        "clients": count["clients"],
        "lost": count["lost_down"] + count["lost_up"],
        "late": count["late"],
        "diverged": count["diverged"],
        "bits_down": sizes.down * sent_down,
        "bits_up": (sizes.up - 8 * int(record.unsent)) * sent_up,
        "bytes_down": sizes.down_message * sent_down,
        "bytes_up": (sizes.up_message - int(record.unsent)) * sent_up,
    }
    if count["diverged"]:
        line["diverged_id"] = count["diverged_id"]
    for info in (record.client, record.server):
        line |= {
            name: float(np.asarray(value)) for name, value in zip(info._fields, info, strict=True)
        }
    return line


def as_lines(
    first: int, count: int, records: Record, sizes: Sizes, before: Sequence[Line] = ()
) -> list[Line]:
    """Lines of stacked records of the rounds after round `first`; `before` are earlier lines, for
    `Diverged` to keep.
    """
    lines: list[Line] = []
    for index in range(count):
        one = jax.tree.map(lambda leaf, at=index: leaf[at], records)
        try:
            lines.append(as_line(first + index + 1, one, sizes))
        except Diverged as error:
            error.lines = [*before, *lines]
            raise
    return lines


def mean_or_nan(total: Float[Array, ""], count: Whole) -> Float[Array, ""]:
    """A mean that is NaN, not zero, where nothing is counted."""
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)
