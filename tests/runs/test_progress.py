"""The progress display, on a clock of our own."""

import io
from threading import Event

import pytest
from rich.console import Console

from covey.report.units import duration, in_bytes
from covey.runs.progress import Display


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Heard(io.StringIO):
    """A stream that tells when something is written to it."""

    def __init__(self):
        super().__init__()
        self.heard = Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        self.heard.set()
        return written


def display(terminal: bool = False, last: int = 100) -> tuple[Display, Clock, io.StringIO]:
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, force_terminal=terminal, width=160)
    return Display("study", last, console=console, clock=clock), clock, stream


def test_short_work_shows_nothing():
    shown, clock, stream = display()
    with shown:
        for number in range(1, 11):
            clock.now = 0.19 * number
            shown.update(number, [{"train_loss": 0.5}])
    assert stream.getvalue() == ""


def test_plain_lines_are_rare_and_complete():
    shown, clock, stream = display()
    with shown:
        for number in range(1, 61):
            clock.now = 10 + 0.25 * number  # compiling took ten seconds, then four rounds a second
            shown.update(
                number,
                [
                    {
                        "train_loss": 1 / number,
                        "bits_up": 6000,
                        "bits_down": 2000,
                        "validation_accuracy": 0.75,
                    }
                ],
            )
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3  # at 10.25, 15.25 and 20.25 seconds
    assert lines[-1] == (
        "study: round 41/100, 4 rounds/s, 15 s left, validation_accuracy 0.75, train_loss 0.02439, "
        "41 kB sent"
    )
    assert "left" not in lines[0]  # the first block says nothing about the speed


def test_values_that_are_missing_keep_the_newest():
    shown, clock, stream = display()
    with shown:
        shown.update(1, [{"validation_nll": 0.25}, {"train_loss": None}])
        clock.now = 3.0
        shown.update(2, [{"train_loss": 2.0}])
    assert "validation_nll 0.25, train_loss 2" in stream.getvalue()


def test_a_terminal_gets_a_live_line():
    shown, clock, stream = display(terminal=True)
    with shown:
        shown.update(1, [])
        clock.now = 4.0
        shown.update(41, [{"train_loss": 0.125}])
        clock.now = 8.0
        shown.update(81, [{"train_loss": 0.0625}])
    assert "81/100" in stream.getvalue()
    assert "10 rounds/s, 2 s left, train_loss 0.0625" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (61.0, "1 min 1 s"),
        (3599.0, "59 min 59 s"),
        (7384.0, "2 h 3 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("bits", "text"), [(80.0, "10 B"), (8000.0, "1 kB"), (8e9, "1 GB"), (8e15, "1e+03 TB")]
)
def test_size(bits, text):
    assert in_bytes(bits / 8) == text


def test_a_long_compilation_is_told():
    text = Heard()
    with Display("study", 10, console=Console(file=text, width=100), quiet=0.0):
        assert text.heard.wait(300)  # no round is done yet
    assert text.getvalue() == "study: compiling\n"


def test_a_short_one_is_not():
    text = io.StringIO()
    with Display("study", 10, console=Console(file=text, width=100), quiet=300.0) as display:
        display.update(1, [])
    assert text.getvalue() == ""
