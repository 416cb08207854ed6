"""Lines of NVFlare and gRPC as events; the lines are from consoles of NVFlare 2.9.0."""

from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")

from covey.deploy.nvflare.events import Event, Follower, refusals
from covey.deploy.nvflare.kit import Kit

HANDSHAKE = (
    "I1117 19:51:10.446704   21037 ssl_transport_security.cc:2563] Handshake failed with error "
    "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
)
MANAGER = "2026-11-17 19:48:23,119 - ClientManager - INFO - "
SERVER = {
    MANAGER + "Client: New client b-1@192.0.2.2 joined. Sent token.  Total clients: 1": Event(
        "b-1 joined"
    ),
    MANAGER + "Client: New admin coordinator@covey.org@192.0.2.2 joined.": None,
    HANDSHAKE + "CERTIFICATE_VERIFY_FAILED: certificate has expired": Event(
        "an expired certificate", refused=True
    ),
    HANDSHAKE + "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate": Event(
        "a certificate of another authority", refused=True
    ),
    HANDSHAKE + "PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate": Event(
        "a connection without a certificate", refused=True
    ),
}


def kit(folder: Path) -> Kit:
    return Kit(folder, "server", "localhost", "covey", "localhost", 1)


def test_lines_of_a_console_are_events_and_refusals_are_kept(tmp_path):
    own = kit(tmp_path)
    own.console.write_text("an earlier run\n")
    follower = Follower(own)
    with own.console.open("a") as console:
        for line in SERVER:
            console.write(line + "\n")
    assert list(follower.events()) == [event for event in SERVER.values() if event]
    assert list(follower.events()) == []
    kept = refusals(tmp_path)
    assert [(one["reason"], one["count"]) for one in kept] == [
        ("an expired certificate", 1),
        ("a certificate of another authority", 1),
        ("a connection without a certificate", 1),
    ]


def test_a_line_in_two_pieces_is_one_event(tmp_path):
    own = kit(tmp_path)
    follower = Follower(own)
    line, cut = MANAGER + "Client: New client a@10.0.0.1 joined. Sent token.\n", 60
    own.console.write_text(line[:cut])
    assert list(follower.events()) == []
    with own.console.open("a") as console:
        console.write(line[cut:])
    assert list(follower.events()) == [Event("a joined")]
