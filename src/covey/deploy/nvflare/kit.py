"""A kit on disk: whose it is, where its server is, and whether its certificate is good."""

import datetime
import json
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

_FILES = {"server": "fed_server.json", "site": "fed_client.json", "coordinator": "fed_admin.json"}


class Kit(NamedTuple):
    """Credentials of one participant. `kind` is server, site or coordinator."""

    folder: Path
    kind: str
    name: str
    organisation: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """The server's host and port."""
        return f"{self.host}:{self.port}"

    @property
    def console(self) -> Path:
        """The file with the output of the process."""
        return self.folder / "console.txt"


def read_kit(folder: Path, kind: str) -> Kit:
    """Read a kit and check its certificate.

    Args:
        folder: The kit, as `covey deploy init` made it.
        kind: Expected kind: server, site or coordinator.

    Returns:
        The kit.

    Raises:
        ValueError: there is no such kit, it is of another kind, or its certificate is not good.
    """
    startup = folder / "startup"
    if not (startup / _FILES[kind]).is_file():
        raise ValueError(_missing(folder, kind))
    read = json.loads((startup / _FILES[kind]).read_text("utf-8"))
    certificate = _checked_certificate(startup, kind)
    host, port = _address(read, kind)
    return Kit(
        folder.resolve(),
        kind,
        _attribute(certificate, NameOID.COMMON_NAME),
        _attribute(certificate, NameOID.ORGANIZATION_NAME),
        host,
        port,
    )


def _missing(folder: Path, kind: str) -> str:
    if not folder.is_dir():
        return f"{folder}: there is no kit; `covey deploy init --sites a,b` makes kits"
    others = [other for other, name in _FILES.items() if (folder / "startup" / name).is_file()]
    if others:
        return f"{folder}: this is the kit of a {others[0]}; the kit of a {kind} is needed"
    inside = sorted(folder.glob(f"**/startup/{_FILES[kind]}"))
    hint = f"; did you mean {inside[0].parents[1]}?" if inside else ""
    return f"{folder}: this is not the kit of a {kind}{hint}"


def _address(read: dict[str, Any], kind: str) -> tuple[str, int]:
    if kind == "coordinator":
        return read["admin"]["host"], int(read["admin"]["port"])
    host, _, port = read["servers"][0]["service"]["target"].rpartition(":")
    return host, int(port)


def _checked_certificate(startup: Path, kind: str) -> x509.Certificate:
    path = startup / ("server.crt" if kind == "server" else "client.crt")
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        authority = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{path}: the certificate cannot be read ({error})") from None
    now = datetime.datetime.now(datetime.UTC)
    for name, one in (("certificate", certificate), ("authority's certificate", authority)):
        if now > one.not_valid_after_utc:
            raise ValueError(
                f"{path}: the {name} expired on {one.not_valid_after_utc:%d %B %Y}; ask the "
                "coordinator for a new kit"
            )
        if now < one.not_valid_before_utc:
            raise ValueError(
                f"{path}: the {name} is valid from {one.not_valid_before_utc:%d %B %Y %H:%M} UTC, "
                f"and this machine's clock says {now:%d %B %Y %H:%M} UTC; is the clock right?"
            )
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise ValueError(
            f"{path}: the certificate is not signed by the authority in the kit; ask the "
            "coordinator for a new kit"
        ) from None
    return certificate


def _attribute(certificate: x509.Certificate, name: x509.ObjectIdentifier) -> str:
    return str(certificate.subject.get_attributes_for_oid(name)[0].value)
