"""Certificates that are out of their time."""

import datetime
import json

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization


def reissue(kit, authority, begins, ends):
    """Sign the certificate of a kit again, for other days."""
    state = json.loads((authority / "covey" / "state" / "cert.json").read_text())
    key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    path = kit / "startup" / "client.crt"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    new = (
        x509.CertificateBuilder(extensions=list(old.extensions))
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=ends))
    )
    path.write_bytes(new.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
