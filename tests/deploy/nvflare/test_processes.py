"""One server and three sites as processes over mutual TLS, some of them killed (SIGKILL)."""

import shutil
import socket
import ssl
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")

import psutil
from certificates import reissue

from covey.cli.deploying import order_of
from covey.deploy.nvflare import coordinate, events, jobs, progress, rules
from covey.deploy.nvflare.provision import make_kits
from covey.deploy.server import conduct
from covey.deploy.site import open_handler
from covey.engines.transport import MemoryTransport
from process_federation import PATIENCE, SITES, bounded, predictions, study_of, until

pytestmark = pytest.mark.processes


def test_everything_listens_on_the_loopback_interface_only(federation):
    listening = [
        connection.laddr.ip
        for process, _ in federation.processes.values()
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_killed_site_is_left_out_and_takes_part_again_when_it_is_back(federation):
    said, lines, killed = [], [], []

    def show(status):
        lines.append(progress.line(status))
        rounds = federation.rounds("site")
        if rounds > 3 and not killed:
            federation.kill("bern")
            killed.append(rounds)
        away = status is not None and "bern" in status["now"]["away"]
        if away and "bern" not in federation.processes:
            federation.start("bern")

    with federation.coordinator() as coordinator:
        order = order_of(study_of("site", 120), SITES, quorum=2, deadline=120.0, wait=60.0)
        outcome = coordinate.run(coordinator, order, show=bounded(show), say=said.append)
        assert outcome.how == "done", (outcome, said)
        with pytest.raises(ValueError, match="started no study 'other'; it has started site"):
            coordinate.resume(coordinator, "other", show=bounded(), say=said.append)
    assert any("bern came back" in text for text in said)
    assert any("away: bern" in line for line in lines)
    answered = {name: [one["round"] for one in federation.sent(name, "site")] for name in SITES}
    assert len(answered["bern"]) < len(answered["chur"])
    assert min(answered["bern"]) < killed[0] < max(answered["bern"])
    assert max(answered["bern"]) == 119
    for rounds in answered.values():
        assert len(rounds) == len(set(rounds))  # no round is answered twice


def test_a_killed_server_goes_on_from_its_last_checkpoint_to_the_same_result(federation, tmp_path):
    study, failed = study_of("server"), []

    def watched():
        with federation.coordinator() as coordinator:
            order = order_of(study, SITES, quorum=None, deadline=120.0, wait=60.0)
            try:
                coordinate.run(coordinator, order, show=bounded(), say=lambda text: None)
            except ValueError as error:
                failed.append(str(error))

    watcher = threading.Thread(target=watched, daemon=True)
    watcher.start()
    until(lambda: federation.rounds("server") > 3, "rounds")
    federation.kill("server")
    watcher.join(PATIENCE)
    assert len(failed) == 1
    assert "covey deploy resume" in failed[0]
    federation.start("server")
    with federation.coordinator() as coordinator:
        until(lambda: set(coordinator.sites()) == set(SITES), "sites to connect")
        outcome = coordinate.resume(coordinator, "server", show=bounded(), say=lambda text: None)
    assert outcome.how == "done", outcome
    assert federation.rounds("server") == 30

    for site in SITES:  # the same study, undisturbed
        shutil.copytree(
            federation.folder / "owners" / site,
            tmp_path / site,
            ignore=shutil.ignore_patterns("covey-site"),
        )
    handlers = {site: open_handler(tmp_path / site / "site.toml") for site in SITES}
    conduct(study, MemoryTransport(handlers), tmp_path / "run", sites=SITES, progress=False)
    for site in SITES:
        mine, other = federation.predictions(site, "server"), predictions(tmp_path / site, "server")
        numbers = mine.select_dtypes("number").columns
        np.testing.assert_allclose(mine[numbers], other[numbers], rtol=1e-4, atol=1e-5)


def test_a_job_that_carries_code_is_refused(federation, tmp_path):
    with federation.coordinator() as coordinator:
        job = jobs.write_job(tmp_path, "code", SITES, settings={})
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "evil.py").write_text("raise SystemExit")
        identity = coordinator.submit(job)
        until(lambda: coordinator.job(identity).over, "the job to end")
        assert coordinator.job(identity).state == "FINISHED:FAILED_TO_RUN"
        assert coordinator.deployment(identity) == ["server: BYOC not permitted"]


def test_a_payload_over_a_sites_cap_is_refused_and_shown(federation):
    rules.cap_messages(federation.kit("basel"), 100)
    seen = []
    try:
        with federation.coordinator() as coordinator:
            order = order_of(study_of("large", 2), SITES, quorum=None, deadline=60.0, wait=0.0)
            outcome = coordinate.run(coordinator, order, show=seen.append, say=seen.append)
    finally:
        rules.cap_messages(federation.kit("basel"), rules.MOST_BYTES)
    assert outcome.how == "failed"
    refusals = outcome.status["refusals"]
    assert {one["site"] for one in refusals} == {"basel"}
    assert "filters blocked a message" in refusals[0]["reason"]


def shake_hands(federation, kit: Path | None) -> bytes:
    """What the server says first to somebody with the certificate of a kit."""
    context = ssl.create_default_context(
        cafile=str(federation.kit("server") / "startup/rootCA.pem")
    )
    context.set_alpn_protocols(["h2"])
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    with (
        socket.create_connection(("localhost", federation.port), timeout=10.0) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.recv(1)


def test_wrong_and_expired_certificates_are_refused_logged_and_shown(federation, tmp_path):
    make_kits(tmp_path, ["basel"], host="localhost", port=federation.port)
    expired = tmp_path / "expired"
    shutil.copytree(federation.kit("basel"), expired)
    reissue(expired, federation.folder / "authority", -10, -1)
    assert shake_hands(federation, federation.kit("basel"))
    list(federation.follower.events())
    for kit in (tmp_path / "sites" / "basel", expired, None):
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            assert shake_hands(federation, kit)
    expected = {
        "a certificate of another authority",
        "an expired certificate",
        "a connection without a certificate",
    }

    def all_shown():
        list(federation.follower.events())
        return {one["reason"] for one in events.refusals(federation.kit("server"))} >= expected

    until(all_shown, "the refusals to be written")
