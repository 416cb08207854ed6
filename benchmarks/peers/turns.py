"""What every peer's script shares: the clients, and rounds in turns that the parent asks for."""

import sys
import time
from collections.abc import Callable

import numpy as np

CLIENTS, ROWS, FEATURES, STEP = 100, 32, 10, 0.1


def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and labels of 100 small clients, the same for every contender."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=FEATURES)
    found = []
    for _ in range(CLIENTS):
        x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
        found.append((x, (x @ truth > 0).astype(np.int32)))
    return found


def serve(rounds: Callable[[int], object]) -> None:
    """Run as many rounds as each line of the input says, and print the seconds of one."""
    say("READY")
    for line in sys.stdin:
        count = int(line)
        start = time.perf_counter()
        rounds(count)
        say(f"SECONDS {(time.perf_counter() - start) / count}")


def say(text: str) -> None:
    print(text, file=sys.__stdout__, flush=True)
