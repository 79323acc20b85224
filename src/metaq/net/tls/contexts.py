"""Certificates and keys: files, what OpenSSL makes of them, and whether a handshake with them works at all."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.net.tls.layer import in_words
from metaq.net.tls.pem import read_pem

EXPIRED: Final = 10
"""OpenSSL's number for a certificate that has expired."""
REVOKED: Final = 23
NO_LIST: Final = 3
LIST_EXPIRED: Final = 12
"""Its numbers for a certificate that is revoked, for one of whose issuer there is no list, and for a list whose time is over."""
Context: TypeAlias = ssl.SSLContext
Password: TypeAlias = Callable[[], str]
"""Tells the password of a key; a function, so that no text of a value shows it."""


class ServerFiles(Struct, frozen=True):
    """What a server shows, and whom it trusts. Paths."""

    cert: str
    key: str
    password: Password | None = None
    client_auth: str = "none"
    trust: str = ""
    """Certificates of those whose clients are let in; empty: the system's."""
    crl: str = ""
    """Lists of revoked certificates of clients."""


class ClientFiles(Struct, frozen=True):
    """What a client trusts, and what it shows. Paths; empty: nothing, and the system's certificates."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    password: Password | None = None
    verify: str = "full"
    """full: who issued the certificate, and for which host; ca: who issued it; none: nothing, so that anybody who gets
    between can read all."""
    crl: str = ""
    """Lists of revoked certificates of servers."""


def server_context(files: ServerFiles) -> ssl.SSLContext:
    """Return the context of a server. Raises ConfigError: file and reason."""
    context = _server(files)
    if files.client_auth != "none":
        context.verify_mode = ssl.CERT_REQUIRED if files.client_auth == "require" else ssl.CERT_OPTIONAL
        if files.trust:
            _trust(context, files.trust, "tls.server.trustCertPath")
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        if files.crl:
            check_revocation(context, files.crl, "tls.server.crlPath")
    return context


def _server(files: ServerFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that renegotiates makes the server work for nothing, again and again on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _show(context, files.cert, files.key, files.password)
    return context


def client_context(files: ClientFiles) -> ssl.SSLContext:
    """Return the context of a client. Raises ConfigError: file and reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = files.verify == "full"
    if files.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    elif files.ca:
        _trust(context, files.ca, "ca")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.crl and files.verify != "none":
        check_revocation(context, files.crl, "crl")
    if files.cert:
        _show(context, files.cert, files.key or files.cert, files.password)
    return context


def check_revocation(context: ssl.SSLContext, path: str, what: str) -> None:
    """Have the context accept no certificate that is revoked, or of whose issuer there is no list. Raises ConfigError.

    Args:
        path: file of the lists, one of each issuer, PEM.
        what: names the file in errors.
    """
    text = read_pem(path, what)
    if "-----BEGIN X509 CRL-----" not in text:
        raise ConfigError(
            f"{what} {path} has no -----BEGIN X509 CRL-----: it must be a PEM file with lists of revoked certificates"
        )
    if "CERTIFICATE-----" in text:
        # OpenSSL would trust them.
        raise ConfigError(f"{what} {path} has certificates beside the lists of revoked ones: take them out")
    _trust(context, path, what)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def prove(files: ServerFiles) -> str:
    """Make a handshake in memory with a server's certificate, as a client that trusts it. Returns when it expires.

    Finds what reading the files does not: a certificate that has expired or is not for servers, a key of a kind that TLS
    does not use. Raises ConfigError: file and reason; `Expired`.
    """
    server = _server(files)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cafile=files.cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for end in ends * 2:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        text = f"the certificate {files.cert} is of no use to a server: {error.verify_message}"
        raise (Expired if error.verify_code == EXPIRED else ConfigError)(text) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"no TLS client can use the certificate {files.cert} with its key ({in_words(error)}): take an RSA key, or one of "
            "the curves P-256, P-384, P-521 or Ed25519"
        ) from None
    shown = ends[0].getpeercert()
    return str(shown.get("notAfter", "")) if shown else ""


def expiry_ms(not_after: str) -> int:
    """Return when a certificate expires, of what `prove` has returned."""
    return int(ssl.cert_time_to_seconds(not_after) * 1000)


class Expired(ConfigError):
    """A certificate has expired."""


def _show(context: ssl.SSLContext, cert: str, key: str, password: Password | None) -> None:
    if "-----BEGIN CERTIFICATE-----" not in read_pem(cert, "the certificate"):
        raise ConfigError(f"the certificate {cert} has no -----BEGIN CERTIFICATE-----: it must be a PEM file")
    if "PRIVATE KEY-----" not in read_pem(key, "the key"):
        raise ConfigError(f"the key {key} has no -----BEGIN PRIVATE KEY-----: it must be a PEM file")
    try:
        # Always with a password: without one OpenSSL would ask for it at the terminal.
        context.load_cert_chain(cert, key, password if password is not None else "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificate {cert} with the key {key} cannot be used: {_why(error)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not that of the certificate"
        if error.reason in {"KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}:
            return "the key is of another kind than the certificate's"
        if error.reason == "BAD_DECRYPT":
            return "the password of the key is wrong"
        if "PEM lib" in str(error) or error.reason == "BAD_PASSWORD_READ":
            return "one of them is damaged, or the key is encrypted and its password is missing or wrong"
    return in_words(error)


def _trust(context: ssl.SSLContext, path: str, what: str) -> None:
    read_pem(path, what)
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} {path} cannot be used: {in_words(error)}") from None
