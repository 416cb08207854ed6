"""What an engine reports of a round, in plain numbers, and the error when a round leads nowhere."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from covey.core.algorithm import Info


class Diverged(ValueError):
    """Every client of a round returned numbers that are not finite."""


class Counts(NamedTuple):
    """Clients of a round by what became of them.

    contacted: in the cohort.
    clients: their uploads are in the aggregate.
    lost_down, lost_up, late, repeated: see `core.faults`.
    diverged: sent numbers that are not finite, and were left out.
    diverged_id: the id of one of these, or -1.
    """

    contacted: Int[Array, "*rounds"]
    clients: Int[Array, "*rounds"]
    lost_down: Int[Array, "*rounds"]
    lost_up: Int[Array, "*rounds"]
    late: Int[Array, "*rounds"]
    repeated: Int[Array, "*rounds"]
    diverged: Int[Array, "*rounds"]
    diverged_id: Int[Array, "*rounds"]


class Record(NamedTuple):
    """Counts, the mean of the clients' info, and the server's info."""

    counts: Counts
    client: Info
    server: Info


class Sizes(NamedTuple):
    """Bits of one broadcast and of one upload, as they are sent."""

    down: int
    up: int


def as_dict(round_: int, record: Record, sizes: Sizes) -> dict[str, float | int]:
    """One line of the metrics. Raises `Diverged` where nothing usable came back."""
    counts = Counts(*(int(value) for value in record.counts))
    if counts.diverged and not counts.clients:
        raise Diverged(
            f"round {round_}: all {counts.diverged} uploads had numbers that are not finite (client {counts.diverged_id} among "
            "them); make the client's step size smaller, or check the scale of the features"
        )
    sent_up = counts.clients + counts.diverged + counts.lost_up + counts.late + counts.repeated
    line: dict[str, float | int] = {
        "round": round_,
        "clients": counts.clients,
        "lost": counts.lost_down + counts.lost_up,
        "late": counts.late,
        "diverged": counts.diverged,
        "bits_down": sizes.down * (counts.contacted + counts.repeated),
        "bits_up": sizes.up * sent_up,
    }
    if counts.diverged:
        line["diverged_id"] = counts.diverged_id
    for info in (record.client, record.server):
        line |= {name: _number(value) for name, value in zip(info._fields, info, strict=True)}
    return line


def mean_or_nan(total: Float[Array, ""], count: Int[Array, ""]) -> Float[Array, ""]:
    """A mean that says NaN of nothing, rather than zero."""
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)


def _number(value) -> float:
    return float(np.asarray(value))
