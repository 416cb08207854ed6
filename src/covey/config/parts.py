"""Keys of tables beyond the options of a factory: splits of the data, and the parts of an upload
that a channel is for.
"""

from collections.abc import Sequence
from typing import Any

from covey.channel import masked
from covey.config.options import Factory, options_of
from covey.core.channel import Channel
from covey.data.federated import FederatedData


def prepare(
    data: FederatedData,
    *,
    validation: float = 0.0,
    test: float = 0.0,
    split_seed: int | None = None,
    train_rows: int | None = None,
    few_rows: int | None = None,
    few_share: float = 0.0,
    standardise: bool = False,
    keep: Sequence[str] = (),
    hold_out: Sequence[str | int] = (),
    seed: int,
) -> tuple[FederatedData, FederatedData | None]:
    """Split each client's rows, limit them, hold clients out, and standardise features by the
    training rows of the others.

    Without fractions the data keep the parts they came with. At most `train_rows` training rows
    per client are kept, and at most `few_rows` for a share `few_share` of the clients. Both are
    drawn from `split_seed`, by default the run's seed. Columns in `keep` are not standardised.
    """
    drawn_from = seed if split_seed is None else split_seed
    if validation or test:
        data = data.split(validation, test, seed=drawn_from)
    if train_rows is not None or few_rows is not None or few_share:
        data = data.limited(
            train_rows=train_rows, few_rows=few_rows, few_share=few_share, seed=drawn_from
        )
    data, unseen = data.hold_out(hold_out) if hold_out else (data, None)
    if keep and not standardise:
        raise ValueError("data.keep is for data.standardise = true: nothing else is scaled")
    if standardise:
        data, scaling = data.standardised(keep=keep)
        unseen = None if unseen is None else unseen.standardised(scaling=scaling)[0]
    return data, unseen


def channel_of(factory: Factory, *, part: str | list[str] | None = None, **options: Any) -> Channel:
    """A channel for all of an upload, or for the parts named."""
    whole = factory(**options)
    return whole if part is None else masked(part, whole)


PREPARATION = options_of(prepare, without=("data", "seed"))
PART = {"part": options_of(channel_of)["part"]}
