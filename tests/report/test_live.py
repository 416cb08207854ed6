"""A run that is going, in the browser and in the terminal."""

import os
import threading
from http.client import HTTPConnection
from io import StringIO

import pytest
from rich.console import Console

from command_line import call, write_config
from covey.report.from_files import content_of_files, read_state
from covey.report.serving import server_of
from covey.report.watching import watch
from html_pages import Reader
from run_files import hold, write


@pytest.fixture
def going(tmp_path):
    """A run of this process after four of ten rounds, with a row that is not yet whole."""
    write(tmp_path, 4, torn='{"round": 5, "cl')
    hold(tmp_path, os.getpid())
    return tmp_path


def test_the_state_of_a_run_from_its_files(going):
    state = read_state(going)
    assert (state.name, state.method, state.round) == (going.name, "fedavg", 4)
    assert state.running
    assert state.seconds_left == 12.0
    (going / "lock").write_text("")
    assert not read_state(going).running


def test_a_run_that_was_killed_is_not_going(tmp_path):
    write(tmp_path, 4)
    hold(tmp_path, 2**22 + 1)  # above the largest id of a process
    assert not read_state(tmp_path).running


def test_a_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        read_state(tmp_path)
    code, text = call("watch", tmp_path)
    assert code == 2
    assert "there is no config.toml in it" in text


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"[method\n", r"config\.toml is not valid TOML: .*line 1.*; correct that line"),
        (b"name = '\xff'", r"config\.toml is not UTF-8 text .*; save it as UTF-8"),
    ],
)
def test_a_broken_configuration_is_named(going, content, wrong):
    (going / "config.toml").write_bytes(content)
    with pytest.raises(ValueError, match=wrong):
        read_state(going)


def test_a_page_of_a_run_that_is_going(going):
    content = content_of_files(going)
    assert content.live == "4-running"
    assert content.sentences[0] == "The run is going: 4 of 10 rounds of fedavg are done."
    assert "12 s more" in content.sentences[1]
    assert "train loss 0.25" in content.sentences[2]
    assert len(content.convergence.metrics) == 4


def test_the_server_is_for_this_machine_only(going):
    with server_of(going) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def get(path, **headers):
            connection = HTTPConnection("127.0.0.1", server.server_address[1])
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        assert get("/state") == (200, "4-running")
        assert get("/state", Host="evil.example:80")[0] == 403
        assert get("/config.toml")[0] == get("/../config.toml")[0] == 404
        status, live = get("/")
        assert status == 200
        assert 'data-live="4-running"' in live
        (going / "report.html").write_text("finished")
        assert "Convergence over rounds" in get("/")[1]
        (going / "lock").write_text("")
        assert get("/") == (200, "finished")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_is_watched_until_it_ends(going, terminal):
    text = StringIO()

    def pause(seconds):
        write(going, 10)
        (going / "lock").write_text("")

    console = Console(file=text, force_terminal=terminal, width=100)
    state = watch(going, console, pause=pause)
    assert state.round == 10
    for line in ("round 4 of 10 of fedavg, 12 s left", "round 10 of 10 of fedavg, ended"):
        assert f"{going.name}: {line}" in text.getvalue()
    assert "sent by all sites" in text.getvalue()


def test_a_run_that_ended_early_is_said_to(tmp_path):
    write(tmp_path, 4)
    code, text = call("watch", tmp_path)
    assert code == 0
    assert "stopped before its end" in text


def test_the_report_of_a_run_from_python_is_made_of_its_files(done, tmp_path):
    path = tmp_path / "page.html"
    code, text = call("report", done._directory.path, "--out", path)
    assert code == 0
    assert "was started from Python" in text.replace("\n", " ")
    assert "Fairness across sites" in path.read_text("utf-8")
    code, text = call("report", done._directory.path, "--serve", "--out", path)
    assert code == 2
    assert "choose one" in text


@pytest.mark.slow
def test_the_report_of_a_configured_run_has_its_held_out_sites(tmp_path):
    """Written by `covey run`, and the same again by `covey report`."""
    config, out = write_config(tmp_path, 6), tmp_path / "run"
    assert call("run", config, "--out", out)[0] == 0
    first = Reader((out / "report.html").read_text("utf-8"))
    assert first.tables["held-out"].texts[0][0] == "b"
    code, _ = call("report", out, "--out", tmp_path / "again.html")
    assert code == 0
    again = Reader((tmp_path / "again.html").read_text("utf-8"))
    assert again.tables == first.tables
    code, text = call("report", out, "--data", tmp_path)
    assert code == 2
    assert "--data is for fits" in text
