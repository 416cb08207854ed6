"""Warnings that an experiment expects, because what they warn of is what it measures."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def biases_of_fald() -> Iterator[None]:
    """FA-LD with the paper's settings: clients that drift apart, noise that few clients average."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fald: clients drift apart")
        warnings.filterwarnings("ignore", message=r"fald: \d+ of \d+ clients take part")
        warnings.filterwarnings("ignore", message="the training loss rose")
        yield
