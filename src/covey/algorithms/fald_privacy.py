"""The information about one row in a round of FA-LD with clipped gradients, for a ledger."""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

from covey.core.algorithm import Plan
from covey.kernels.langevin_chains import Langevin
from covey.privacy.mechanism import LangevinMechanism, Sampling, participation

# Theorem G.3 asks for z^2 >= 2 log(1.25 / delta_0), and delta_0 is below 1.
LEAST_NOISE = math.sqrt(2 * math.log(1.25))


class Clipping(NamedTuple):
    """Settings that decide, beside those of the Langevin steps, what a round reveals.

    Attributes:
        clip: Largest norm of one row's gradient (C).
        batch_size: Rows per minibatch; None takes all rows of the client.
        sampling: Scheme of the minibatches.
        correlation: Share of the noise that all clients have in common (rho).
    """

    clip: float
    batch_size: int | None
    sampling: Sampling
    correlation: float


def mechanism_of(steps: Langevin, clipping: Clipping) -> Callable[[Plan], LangevinMechanism]:
    """(plan) -> what a round reveals, as accountants take it."""

    def mechanism(plan):
        scheme, size = participation(plan.sampler)
        rows = plan.counts[plan.counts > 0]
        return LangevinMechanism(
            step_size=steps.step_size,
            temperature=steps.temperature,
            local_steps=steps.local_steps,
            chains=steps.chains,
            rows=tuple(rows.tolist()),
            scheme=scheme,
            cohort_size=min(size, len(rows)) if scheme == "uniform" and size is not None else size,
            **clipping._asdict(),
        )

    return mechanism


def check_noise(mechanism: LangevinMechanism) -> None:
    """An error where no noise hides a row, a warning where it is too little for any guarantee of
    the theorem.
    """
    noise = float(mechanism.noises.min())
    if not noise > 0:
        raise ValueError(
            f"fald: clip={mechanism.clip:g} asks for privacy, but with correlation="
            f"{mechanism.correlation:g} all noise is shared, and shared noise is public: it hides "
            "no row; choose a correlation below 1, or leave clip out"
        )
    if noise < LEAST_NOISE:
        permitted = mechanism.step_size * (noise / LEAST_NOISE) ** 2
        warnings.warn(
            f"fald: clip={mechanism.clip:g} asks for privacy, but the noise of a step is "
            f"{noise:.2g} times what one row can change, and below {LEAST_NOISE:.2g} the privacy "
            f"theorem holds for no delta; choose step_size below {permitted:.2g} (now "
            f"{mechanism.step_size:g}), a smaller clip or a larger batch_size",
            stacklevel=4,
        )
