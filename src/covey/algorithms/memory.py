"""The clients' memories of FedEM: their rate, their start, and the advice when a run diverges."""

import math
import warnings
from typing import Literal

import jax
from jaxtyping import Array, Float, PyTree

MemoryInit = Literal["zero", "first"]
UNKNOWN = 0.5  # alpha where neither the user nor the engine says anything of the channel
LEARNT = 0.01  # a warm-up ends when this share of |h_i(S_0) - V_i|^2 is left, in expectation
_ROUNDING = 1e-6


def check_memory(name: str, rate: float | None, init: MemoryInit = "zero") -> None:
    """Raise a ValueError for a memory rate or a start of the memories that does not exist."""
    if rate is not None and not 0 <= rate <= 1:
        raise ValueError(
            f"{name}: memory_rate must be from 0 to 1, at most 1 / (1 + omega) of the channel; "
            f"got {rate:g}"
        )
    if init not in ("zero", "first"):
        raise ValueError(f'{name}: memory_init must be "zero" or "first", got {init!r}')
    if init == "first" and rate == 0:
        raise ValueError(f'{name}: memory_init="first" needs memories, and memory_rate=0 has none')


def memory_rate_for(rate: float | None, omega: float | None) -> float:
    """The rate alpha: the one that was given, or the largest that theory allows, 1 / (1 + omega).

    An engine that has not said what the channel's omega is gets `UNKNOWN`; for a run this happens
    only while shapes are traced, as `need_memory_rate` refuses a biased channel.
    """
    if rate is not None:
        return rate
    return UNKNOWN if omega is None else 1 / (1 + omega)


def need_memory_rate(name: str, rate: float | None, omega: float | None) -> None:
    """Check alpha against the bound omega of the channel, which is None for a biased channel.

    Warns where the rate that was given is above 1 / (1 + omega): the memories then grow without
    bound. A biased channel has no omega, so that the rate must be given.
    """
    if rate is None and omega is None:
        raise ValueError(
            f"{name}: the channel is biased and has no omega, so no memory_rate follows from it; "
            "give one, e.g. memory_rate=0.1, or use an unbiased channel (rand_k, dithering, "
            "natural, block_quantisation)"
        )
    if rate is not None and omega is not None and rate > (1 + _ROUNDING) / (1 + omega):
        warnings.warn(
            f"{name}: memory_rate={rate:g} is above 1 / (1 + omega) = {1 / (1 + omega):.3g} of "
            f"this channel (omega = {omega:.3g}), and the memories may grow without bound; leave "
            f"memory_rate out to use {1 / (1 + omega):.3g}",
            stacklevel=2,
        )


def warm_up_rounds(init: MemoryInit, rate: float) -> int:
    """Rounds in which the server waits at S_0 while the memories learn h_i(S_0).

    A memory that moves by rate * C(h_i - V_i) with rate = 1 / (1 + omega) loses a share of at
    least `rate` of E|h_i - V_i|^2 per round: one round at rate 1, and otherwise as many as leave
    `LEARNT` of it.
    """
    if init == "zero":
        return 0
    return 1 if rate == 1 else math.ceil(math.log(LEARNT) / math.log1p(-rate))


def remembered(memory: PyTree, sent: PyTree, rate: float | Float[Array, ""]) -> PyTree:
    """V_i + alpha C(Delta_i)."""
    return jax.tree.map(lambda v, c: v + rate * c, memory, sent)


def why_diverged(name: str, rate: float | Float[Array, ""]) -> str:
    """Advice for uploads that have stopped being finite."""
    if not float(rate):
        return (
            f"{name} has no memories, so that the noise of a lossy channel does not vanish; use "
            "fedem with its default memory_rate, or a smaller step_size"
        )
    return (
        f"the memories moved at memory_rate={float(rate):.3g}, and a channel with the bound omega "
        "allows at most 1 / (1 + omega): leave memory_rate out, or use a channel that loses less; "
        "if it was left out, make step_size smaller (a larger omega and fewer clients need that) "
        "and check the scale of the features"
    )
