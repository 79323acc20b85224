"""Looks at a port from the client's side, for `metaq doctor`: what a host's name stands for, who answers, which certificate.

Blocking, each with a time-out of its own. Nothing here trusts what answers.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

from msgspec import Struct

from metaq.net.tls.contexts import ClientFiles, client_context

_GREETING_BYTES: Final = 4096


def look_up(host: str) -> list[str]:
    """Return the addresses of a host. Raises OSError: it has none."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r:.300} is no name of a host: {error}") from None
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def connect(host: str, port: int, timeout: float) -> None:
    """Connect and close. Raises OSError; TimeoutError: nobody answered."""
    socket.create_connection((host, port), timeout).close()


def greet(host: str, port: int, frame: bytes, timeout: float) -> bytes | None:
    """Send `frame` and return the first bytes of the answer, b"" if the connection is closed without one; None: there is none in
    time. Raises OSError."""
    with socket.create_connection((host, port), timeout) as raw:
        try:
            raw.sendall(frame)
            return raw.recv(_GREETING_BYTES)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""


class TlsLook(Struct, frozen=True):
    """What a TLS handshake has shown."""

    version: str = ""
    """`TLSv1.3` and so on; empty: there was no handshake."""
    fault: str = ""
    """Why the handshake failed, where it did."""
    untrusted: str = ""
    """Why the certificate is not believed; empty: it is."""
    code: int = 0
    """OpenSSL's number of that reason (X509_V_ERR_...)."""
    ends: float | None = None
    """When a believed certificate ends, seconds since 1970."""


def look_at_tls(host: str, port: int, timeout: float, ca: str | None = None, crl: str = "") -> TlsLook:
    """Shake hands by TLS, with the rules of our clients. Raises OSError: not even a connection; ConfigError: `ca` or `crl` cannot be used.

    Args: ca: file of certificates to believe in the place of the system's. crl: file of lists of revoked ones; empty: none.
    """
    context = client_context(ClientFiles(ca=ca or "", crl=crl))
    try:
        with (
            socket.create_connection((host, port), timeout) as raw,
            context.wrap_socket(raw, server_hostname=host) as wrapped,
        ):
            certificate = wrapped.getpeercert() or {}
            ends = certificate.get("notAfter")
            seconds = float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None
            return TlsLook(version=wrapped.version() or "TLS", ends=seconds)
    except ssl.SSLCertVerificationError as error:
        return TlsLook(version="TLS", untrusted=error.verify_message, code=error.verify_code)
    except ssl.SSLError as error:
        return TlsLook(fault=error.reason or str(error))
    except ConnectionError as error:
        return TlsLook(fault=error.strerror or str(error))
    except TimeoutError:
        return TlsLook(fault="no answer")


def speaks_tls(host: str, port: int, timeout: float) -> bool:
    """Return whether a TLS handshake succeeds there, whatever the certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host):
                return True
        except ssl.SSLError as error:
            # An alert is TLS, too: the server wants a certificate of the client, or another version.
            return "ALERT" in (error.reason or "")
    return False
