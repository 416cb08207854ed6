"""Who is asked, who is waited for, who is left out and taken in again; threads stand for sites."""

import math
import threading

import pytest

from covey.core import protocol
from covey.core.protocol import Kind
from covey.deploy.nvflare.transport import Stopped, TaskTransport

SITES = ("a", "b", "c")


class Sites:
    """Sites that answer after a while, or not at all."""

    def __init__(self, **options):
        self.silent: set[str] = set()
        self.posted: list[str] = []
        self.stop, self.abort = threading.Event(), threading.Event()
        self.transport = TaskTransport(
            self.post, self.withdraw, self.stop.is_set, self.abort.is_set, **options
        )
        self.withdrawn = 0

    def post(self, site: str, message: bytes) -> None:
        self.posted.append(site)
        if site not in self.silent:
            self.transport.saw(site)
            threading.Thread(target=self.transport.deliver, args=(site, message[::-1])).start()

    def withdraw(self) -> None:
        self.withdrawn += 1

    def ask(self, deadline: float = 0.3, quorum: int = 1) -> dict[str, bytes]:
        self.posted = []
        messages = {site: site.encode() + b"12" for site in SITES}
        # An exchange that would wait for a deadline that never comes fails instead: `Stopped`.
        forever = threading.Timer(60.0, self.abort.set) if deadline == math.inf else None
        if forever is not None:
            forever.start()
        try:
            return self.transport.exchange(messages, deadline=deadline, quorum=quorum)
        finally:
            if forever is not None:
                forever.cancel()


def test_each_site_gets_its_own_message_and_the_answers_come_by_site():
    sites = Sites()
    assert sites.ask(deadline=10.0) == {"a": b"21a", "b": b"21b", "c": b"21c"}
    status = sites.transport.status()
    assert status["totals"] == {"exchanges": 1, "bytes_down": 9, "bytes_up": 9, "late": 0}
    assert sorted(status["now"]["answered"]) == list(SITES)
    assert status["now"]["doing"] == "message 1"
    assert status["now"]["late"] == []


def test_an_exchange_ends_at_its_deadline_without_the_silent_site():
    sites = Sites()
    sites.silent = {"b"}
    assert set(sites.ask()) == {"a", "c"}
    assert sites.transport.status()["now"]["late"] == ["b"]
    assert sites.withdrawn == 1


def test_after_two_missed_exchanges_nobody_waits_for_a_site_until_it_asks_for_work():
    sites = Sites(patience=2)
    sites.silent = {"b"}
    sites.ask(), sites.ask()
    assert set(sites.ask(deadline=math.inf)) == {"a", "c"}
    assert "b" not in sites.posted
    assert sites.transport.status()["now"]["away"] == ["b"]
    sites.silent = set()
    sites.transport.saw("b")
    assert set(sites.ask(deadline=math.inf)) == set(SITES)
    assert sites.transport.status()["now"]["away"] == []


def test_one_missed_exchange_is_forgiven_by_an_answer():
    sites = Sites(patience=2)
    for silent in ({"b"}, set(), {"b"}, set()):
        sites.silent = silent
        sites.ask(deadline=math.inf if not silent else 0.2)
        assert "b" in sites.posted


def test_a_site_that_missed_an_exchange_and_does_not_fetch_its_message_is_not_waited_for():
    sites = Sites(patience=5, pickup=0.1)
    sites.silent = {"b"}
    sites.ask()
    assert set(sites.ask(deadline=math.inf)) == {"a", "c"}


def test_sites_that_are_away_are_asked_where_the_others_are_below_the_quorum():
    sites = Sites(patience=1)
    sites.silent = {"b"}
    sites.ask()
    sites.ask(quorum=2)
    assert "b" not in sites.posted
    sites.ask(quorum=3)
    assert "b" in sites.posted


def test_late_and_repeated_answers_are_counted_and_change_nothing():
    sites = Sites()
    assert sites.ask(deadline=10.0)["a"] == b"21a"
    sites.transport.deliver("a", b"again")
    sites.transport.deliver("stranger", b"hello")
    sites.transport.count_late()
    assert sites.transport.status()["totals"]["late"] == 3
    assert sites.ask(deadline=10.0)["a"] == b"21a"


def test_a_refusal_is_not_waited_for_and_is_remembered():
    sites = Sites()
    sites.silent = {"b"}
    threading.Timer(0.1, sites.transport.refuse, ("b", "too large")).start()
    assert set(sites.ask(deadline=math.inf)) == {"a", "c"}
    status = sites.transport.status()
    assert [(one["site"], one["reason"]) for one in status["refusals"]] == [("b", "too large")]
    assert status["now"]["late"] == []
    assert "b" not in status["now"]["answered"]


def test_a_site_that_is_gone_is_not_waited_for_until_it_asks_for_work():
    sites = Sites()
    sites.silent = {"b"}
    threading.Timer(0.1, sites.transport.lose, ("b",)).start()
    assert set(sites.ask(deadline=math.inf)) == {"a", "c"}
    assert set(sites.ask(deadline=math.inf)) == {"a", "c"}
    assert "b" not in sites.posted
    sites.silent = set()
    sites.transport.saw("b")
    assert set(sites.ask(deadline=math.inf)) == set(SITES)


def test_sites_without_a_process_for_the_job_are_away():
    sites = Sites()
    sites.transport.expect(["a", "c"])
    sites.silent = {"b"}
    assert set(sites.ask(deadline=math.inf)) == {"a", "c"}
    assert sites.posted == ["a", "c"]


def test_a_study_that_is_asked_to_stop_finishes_its_exchange():
    sites = Sites()
    sites.silent = {"b"}
    threading.Timer(0.1, sites.stop.set).start()
    assert set(sites.ask(deadline=0.5)) == {"a", "c"}
    with pytest.raises(Stopped, match="asked to stop"):
        sites.ask()
    assert sites.posted == []


def test_a_study_that_is_aborted_withdraws_its_messages():
    sites = Sites()
    sites.silent = set(SITES)
    threading.Timer(0.1, sites.abort.set).start()
    with pytest.raises(Stopped, match="aborted"):
        sites.ask(deadline=math.inf)
    assert sites.withdrawn == 1


def test_what_sites_refuse_is_in_the_status_with_site_and_reason():
    """What `covey deploy status` shows while a study goes on without the site."""
    refusal = protocol.Refusal(protocol.Reason.DECLINED, "the method 'fald' is not allowed at a")
    envelope = protocol.Envelope(Kind.REFUSAL, "", "", 0, 0, "", "", answers=b"12345678")
    reply = protocol.seal(envelope, protocol.pack_refusal(refusal))
    sites = Sites()
    sites.silent = {"a"}
    for _ in range(2):
        threading.Timer(0.05, sites.transport.deliver, args=("a", reply)).start()
        assert sites.ask(deadline=10.0, quorum=3)["a"] == reply
    [shown] = sites.transport.status()["refusals"]
    assert (shown["site"], shown["reason"]) == ("a", refusal.text)
