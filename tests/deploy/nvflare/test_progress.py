from covey.deploy.nvflare import progress
from covey.deploy.nvflare.controller import purpose
from covey.engines.connection import Connection, greet


def status(**now):
    filled = {
        "exchange": 3,
        "doing": "round 3",
        "asked": ["a", "b"],
        "answered": {"a": 0.12},
        "late": ["b"],
        "away": [],
        "bytes_down": 10,
        "bytes_up": 5,
        "seconds": 1.26,
    }
    totals = {"exchanges": 3, "bytes_down": 3_000_000, "bytes_up": 1500, "late": 0}
    return {"now": filled | now, "totals": totals, "refusals": [], "note": {}, "outcome": None}


def test_a_line_says_who_answered_who_is_late_how_long_and_how_much():
    line = progress.line(status(away=["c"]))
    assert line == (
        "round 3; answered: a 0.1 s; waiting for b; away: c; 1.3 s; 3 MB down, 1.5 kB up in all"
    )


def test_a_study_without_status_is_starting():
    assert "starting" in progress.line(None)
    assert "first message" in progress.line(status(exchange=0))


def test_events_are_who_leaves_who_returns_and_what_is_refused():
    before, gone = status(), status(away=["b"])
    assert list(progress.events(before, gone)) == [
        "b has not answered and is left out until it is back"
    ]
    assert list(progress.events(gone, before)) == ["b takes part again"]
    refused = status() | {"refusals": [{"site": "a", "reason": "no", "time": 0.0}]}
    assert list(progress.events(before, refused)) == ["a: no"]
    assert list(progress.events(refused, refused)) == []
    assert list(progress.events(before, None)) == []


def test_what_a_study_has_found_is_said_once_and_before_it_ends():
    before, found = status(), status() | {"note": {"lines": ["a table", "written to runs/heart"]}}
    assert list(progress.events(before, found)) == ["a table", "written to runs/heart"]
    assert list(progress.events(None, found)) == ["a table", "written to runs/heart"]
    assert list(progress.events(found, found)) == []


class Silent:
    """A transport that keeps what it is given."""

    def exchange(self, messages, **_):
        self.messages = list(messages.values())
        return {}


def test_a_message_says_what_it_is_for():
    silent = Silent()
    connection = Connection(silent, study="heart", digest="0" * 64, attempts=1)
    for question, said in (
        ({"step": "result", "content": 1}, "the sites write their own results"),
        ({"step": "another"}, "greeting the sites"),
        (None, "greeting the sites"),
    ):
        greet(connection, ["a"], question)
        assert purpose(silent.messages[0]) == said
