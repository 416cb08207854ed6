"""The pauses of a run.

Rounds run in blocks that end where something is due (an evaluation, a checkpoint, the end) and
otherwise grow to about half a second, so that the progress moves and Ctrl-C is heard. No result
depends on the ends of blocks.
"""

from typing import NamedTuple

from covey.data.federated import Split

MOST_ROUNDS = 20_000  # of a run that is to end by itself
_BLOCK_SECONDS = 0.5
_CHECKPOINT_SECONDS = 60.0  # between checkpoints where their distance in rounds is not given


class RunOptions(NamedTuple):
    """Evaluations, checkpoints and progress between rounds; see `covey.run`."""

    evaluate_every: int | None
    split: Split
    checkpoint_every: int | None
    progress: bool

    def next_due(self, round_: int) -> int:
        """The first round after this one with an evaluation or a checkpoint."""
        due = [
            (round_ // every + 1) * every
            for every in (self.evaluate_every, self.checkpoint_every)
            if every
        ]
        return min(due, default=round_ + MOST_ROUNDS)

    def is_late(self, seconds: float) -> bool:
        """Whether a checkpoint is due, given the seconds since the last one."""
        return self.checkpoint_every is None and seconds > _CHECKPOINT_SECONDS


def next_check(round_: int) -> int:
    """The first round after this one in which a run without a number of rounds checks whether it
    has settled: each of the first 64, later every thirty-second part. It does not depend on time.
    """
    check = 1
    while check <= round_:
        check += max(1, check // 32)
    return check


def next_length(block: int, seconds: float) -> int:
    """Twice as many rounds after a short block, half as many after a long one."""
    if seconds < _BLOCK_SECONDS / 2:
        return 2 * block
    return max(block // 2, 1) if seconds > 2 * _BLOCK_SECONDS else block
