"""A server's port: its name, the connection, which protocol is spoken there, and its TLS certificate."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from metaq.address import split_address
from metaq.admin.doctor.finding import NOTICE, OK, WRONG, Finding
from metaq.client.conversation.administration import Identify
from metaq.clock import Clock
from metaq.errors import ConfigError
from metaq.net import probe
from metaq.net.tls.contexts import LIST_EXPIRED, NO_LIST, REVOKED
from metaq.net.tls.settings import TlsSettings
from metaq.wire.command import encode

CERTIFICATE_SECONDS: Final = 14 * 86_400
"""A certificate that ends sooner is worth a notice."""
_TLS_ALERT: Final = b"\x15\x03"
_EXPIRED, _NOT_YET, _WRONG_HOST = 10, 9, (62, 64)
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _CERT_NOT_YET_VALID, and _HOSTNAME_MISMATCH with _IP_ADDRESS_MISMATCH."""


class Look(Struct, frozen=True):
    """How to look: time-out of each step in seconds, and the client's TLS, if it wants any."""

    clock: Clock
    timeout: float = 5.0
    tls: TlsSettings | None = None
    ca: str | None = None
    """Authorities by which a certificate is judged, also for a client that wants no TLS."""


async def look_at_port(address: str, what: str, usual_port: int, look: Look) -> tuple[list[Finding], bool]:
    """Return what is found, and whether RocketMQ's protocol is spoken there in the way that the client wants, plain or with TLS.

    Args:
        address: `host:port`. Raises ConfigError: it is none.
        what: "broker" or "name server".
        usual_port: its default port.
    """
    host, port = split_address(address)
    return await asyncio.to_thread(_look, host, port, what, usual_port, look)


def _look(host: str, port: int, what: str, usual_port: int, look: Look) -> tuple[list[Finding], bool]:
    try:
        found = probe.look_up(host)
    except OSError as error:
        text = f"{host} is not known here ({error.strerror or error}): correct the name, enter it in DNS or /etc/hosts, or use an IP address"
        return [Finding("name", WRONG, text)], False
    findings = [Finding("name", OK, f"{host} is {', '.join(found)}")] if found != [host] else []
    try:
        probe.connect(host, port, look.timeout)
    except TimeoutError:
        text = (
            f"{host}:{port} does not answer within {look.timeout:g} s: a firewall drops it, or the address leads nowhere from here; "
            "open the port, or use the address for your network"
        )
        return [*findings, Finding("connection", WRONG, text)], False
    except OSError as error:
        text = (
            f"{host}:{port}: {error.strerror or error}: start the {what}, or correct the port ({usual_port} by default); if it runs, it "
            "listens on another address (bindAddress)"
        )
        return [*findings, Finding("connection", WRONG, text)], False
    findings.append(Finding("connection", OK, f"{host}:{port} takes connections"))
    protocol, plain = _protocol(host, port, what, usual_port, look)
    findings.append(protocol)
    if look.tls is None and plain:
        return findings, True
    certificate = _certificate(host, port, look)
    usable = look.tls is not None and all(one.state != WRONG for one in (protocol, *certificate))
    return [*findings, *certificate], usable


def _protocol(host: str, port: int, what: str, usual_port: int, look: Look) -> tuple[Finding, bool]:
    frame = encode(Identify().request())
    try:
        answer = probe.greet(host, port, frame, look.timeout)
    except OSError as error:
        return Finding(
            "protocol", WRONG, f"the connection broke: {error.strerror or error}: look into the log of the {what}"
        ), False
    if answer is not None and len(answer) >= 8 and answer[:1] == b"\0":  # a length of 24 bits, then a header's
        return Finding("protocol", OK, "RocketMQ's protocol, not encrypted"), True
    tls = answer is not None and answer.startswith(_TLS_ALERT)
    if tls or (not answer and probe.speaks_tls(host, port, look.timeout)):
        state = OK if look.tls else WRONG
        remedy = "" if look.tls else ": have the client use TLS, or set tls.server.mode=permissive at the server"
        return Finding("protocol", state, f"the server takes TLS only{remedy}"), False
    if not answer:
        said = "says nothing" if answer is None else "closes the connection at once"
        text = (
            f"{host}:{port} {said}: that is no {what}'s port, such as {usual_port}; a broker's port + 1 is for slaves"
        )
        return Finding("protocol", WRONG, text), False
    text = f"{host}:{port} answers {answer[:40]!r}, which is another protocol: use the port of the {what}, {usual_port} by default"
    return Finding("protocol", WRONG, text), False


def _certificate(host: str, port: int, look: Look) -> list[Finding]:
    try:
        seen = probe.look_at_tls(host, port, look.timeout, look.ca, look.tls.crl if look.tls is not None else "")
    except OSError as error:
        return [Finding("certificate", WRONG, f"{host}:{port} cannot be reached: {error.strerror or error}")]
    except ConfigError as error:
        return [Finding("certificate", WRONG, str(error))]
    if seen.fault:
        if look.tls is None:
            return []  # no TLS there, and none wanted
        text = f"no TLS at {host}:{port} ({seen.fault}): set tls.server.mode=permissive or enforcing there, or have the client go without"
        return [Finding("certificate", WRONG, text)]
    if seen.untrusted:
        return [Finding("certificate", WRONG, f"{seen.untrusted}: {_remedy(seen.code, host)}")]
    left = (seen.ends or 0) - look.clock.now_ms() / 1000
    if seen.ends is not None and left < CERTIFICATE_SECONDS:
        return [Finding("certificate", NOTICE, f"it ends in {left / 86_400:.0f} days: renew it")]
    return [Finding("certificate", OK, f"{seen.version}, and the certificate is good for {host}")]


def _remedy(code: int, host: str) -> str:
    if code == _EXPIRED:
        return "renew the certificate of the server, or correct the clock of this machine"
    if code == _NOT_YET:
        return "correct the clock of this machine"
    if code == REVOKED:
        return "the server needs another certificate: the list of its issuer says that this one is not to be trusted"
    if code in {NO_LIST, LIST_EXPIRED}:
        return "give the client a list of the issuer of the server's certificate that is new enough (METAQ_TLS_CRL)"
    if code in _WRONG_HOST:
        return f"connect by a name that the certificate has, or have one made with {host} in it"
    return "give the client the certificate of the authority that has signed it (--ca FILE)"
