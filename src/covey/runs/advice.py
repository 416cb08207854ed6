"""Advice of a run: about a client that cannot continue, and about a fit that gets worse."""

import warnings
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core.algorithm import Algorithm, Message
from covey.data.federated import FederatedData
from covey.data.roster import Roster
from covey.runs.directory import Record

FEW_WAITS = 5  # rounds in a row without a client that cannot answer, or never has
MOST_WAITS = 50  # rounds in a row in which some client was missing
_FEWEST_LOSSES = 5  # rounds; before, a loss says little


def diagnosed(method: Algorithm, down: Message, data: FederatedData | Roster, client: int) -> str:
    """The likely reason why a client's values are not finite, and a remedy."""
    position = data.position_of(client)
    who = f"client {data.name_of(position)!r}"
    if isinstance(data, Roster):
        return f"{who} is one: its owner can look at its rows, for extreme or missing values"
    shard = data.shard(position, "train")
    if missing := _missing(shard.rows, data.features):
        return (
            f"{who} has {missing}, which {method.name} with this model cannot use: fill "
            "the cells in, drop the rows, or choose a model for missing values"
        )
    if method.hooks.diagnose is not None:
        return f"{who}: {method.hooks.diagnose(down, shard)}"
    return (
        f"{who} is one: make the client's step size smaller, check the scale of the features, "
        "or use a preconditioned kernel"
    )


def missing_clients(
    waited: int, records: Sequence[Record], seen: np.ndarray, data: FederatedData | Roster
) -> str | None:
    """The reason why a method that needs all clients waits in vain; None while waiting may help.

    Args:
        waited: Rounds in a row in which the method has waited.
        records: The metrics of all rounds.
        seen: By client: whether it has ever taken part.
        data: The clients and their names.

    Returns:
        The text: a client sends values that are not finite, has never answered, or some client was
        missing in each of many rounds.
    """
    if waited < FEW_WAITS:
        return None
    last = records[-FEW_WAITS:]
    if all(record.get("diverged") for record in last):
        who = data.name_of(data.position_of(int(last[-1]["diverged_id"] or 0)))
        why = f"client {who!r} sent values that are not finite"
    elif not seen.all():
        silent = [repr(data.name_of(int(at))) for at in np.flatnonzero(~seen)]
        some = ", ".join(silent[:5]) + (", ..." if len(silent) > 5 else "")
        why = f"client {some} has never answered"
    elif waited >= MOST_WAITS:
        why = "the messages of some client were lost, not always of the same one"
    else:
        return None
    return (
        f"it needs all clients in every round, and in {waited} rounds in a row {why}. Nothing was "
        "learned in them: repair the client and continue with run.advance(20) or `covey run "
        "--resume`, or leave it out (data.hold_out, or [data] hold_out in a configuration)"
    )


def warn_of_a_rise(records: Sequence[Record]) -> None:
    """Warn where the loss is worse than it was in the first round."""
    losses = [record["train_loss"] for record in records if "train_loss" in record]
    if len(losses) < _FEWEST_LOSSES:
        return
    first, last = losses[0], losses[-1]
    if first is not None and (last is None or last > first + max(abs(first), 1.0)):
        warnings.warn(
            f"the training loss rose from {first:.4g} to "
            f"{'a value that is not finite' if last is None else f'{last:.4g}'} in "
            f"{len(records)} rounds: the fit is worse than its start; make the step size "
            "smaller, and check that it is above 0",
            stacklevel=4,
        )


def _missing(rows: PyTree, features: tuple[str, ...] | None) -> str:
    """The count of missing cells in some rows, with their columns; empty where none is missing."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(rows)]
    empty = [np.isnan(leaf) for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
    count = sum(int(where.sum()) for where in empty)
    if not count:
        return ""
    columns = np.flatnonzero(empty[0].any(0)) if empty[0].ndim == 2 else []
    names = [str(at) if features is None else features[at] for at in columns]
    where = f" (columns {', '.join(names[:5])})" if names else ""
    return f"{count} missing value{'s' if count > 1 else ''}{where}"
