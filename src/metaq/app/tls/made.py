"""A certificate made at the start, to try TLS out: nobody can verify it."""

from __future__ import annotations

import datetime as dt
import pathlib
import tempfile
from typing import Final

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError
from metaq.net.tls.contexts import Context, ServerFiles, server_context

DAYS: Final = 365


def made_context(clock: Clock = SYSTEM) -> Context:
    """Return a server's context with a new key and a certificate signed by itself. Raises ConfigError: no library for it."""
    try:
        made = _made(clock)
    except ImportError as error:
        raise ConfigError(
            f"tls.test.mode.enable=true makes a certificate with the library cryptography ({error}): install pymetaq[tls], or name "
            "files in tls.server.certPath and tls.server.keyPath"
        ) from None
    # OpenSSL takes a key from a file only; the folder can be read by this user alone, and is gone at once.
    with tempfile.TemporaryDirectory(prefix="metaq-tls-") as folder:
        path = pathlib.Path(folder) / "made.pem"
        path.write_bytes(made)
        return server_context(ServerFiles(str(path), str(path)))


def _made(clock: Clock) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metaq, test mode: not verifiable")])
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return made.public_bytes(encoding) + key.private_bytes(encoding, form, serialization.NoEncryption())
