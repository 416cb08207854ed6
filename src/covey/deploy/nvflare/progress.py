"""The progress of a study, as text for a console."""

from collections.abc import Iterable
from typing import Any

from covey.report.units import in_bytes


def line(status: dict[str, Any] | None) -> str:
    """The present exchange: round, who answered, who is late or away, seconds, bytes."""
    if status is None:
        return "the study's processes are starting or ending"
    now, totals = status["now"], status["totals"]
    if not now["exchange"]:
        return "waiting for the first message"
    answered = ", ".join(
        f"{site} {seconds:.1f} s" for site, seconds in sorted(now["answered"].items())
    )
    parts = [
        now["doing"],
        f"answered: {answered or 'nobody yet'}",
        f"waiting for {', '.join(now['late'])}" if now["late"] else "",
        f"away: {', '.join(now['away'])}" if now["away"] else "",
        f"{now['seconds']:.1f} s",
        f"{in_bytes(totals['bytes_down'])} down, {in_bytes(totals['bytes_up'])} up in all",
    ]
    return "; ".join(part for part in parts if part)


def events(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Iterable[str]:
    """Events between two statuses, for lines that stay on the console."""
    if after is None:
        return
    if not (before or {}).get("note"):
        yield from after.get("note", {}).get("lines", [])
    were = set(before["now"]["away"]) if before else set()
    are = set(after["now"]["away"])
    for site in sorted(are - were):
        yield f"{site} has not answered and is left out until it is back"
    for site in sorted(were - are & set(after["now"]["asked"])):
        yield f"{site} takes part again"
    known = len(before["refusals"]) if before else 0
    for refusal in after["refusals"][known:]:
        yield f"{refusal['site']}: {refusal['reason']}"
