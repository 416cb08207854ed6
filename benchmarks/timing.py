"""Interleaved timing: contenders take turns, so that whatever else the machine does falls on all of
them alike.
"""

import time
from collections.abc import Callable

import numpy as np


def interleaved(
    contenders: dict[str, Callable[[], object]], *, repeats: int
) -> dict[str, np.ndarray]:
    """Seconds of each call, by contender. Every contender is called once before the clock
    starts.
    """
    for contender in contenders.values():
        contender()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def report(title: str, seconds: dict[str, np.ndarray], base: str) -> None:
    """Medians, and how many times as fast as the base: the median of the ratios within a turn, with
    its range.
    """
    print(f"\n{title}")
    for name, values in seconds.items():
        ratios = seconds[base] / values
        spread = (
            f"{np.median(ratios):.2f}x (quartiles "
            f"{np.quantile(ratios, 0.25):.2f}-{np.quantile(ratios, 0.75):.2f})"
        )
        print(f"  {name:34s} {1e3 * np.median(values):9.2f} ms   {spread} {base}")
