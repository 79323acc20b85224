"""What `metaq doctor` says of a server that takes TLS only, and of its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from metaq.admin.doctor.finding import NOTICE, OK, WRONG, Finding
from metaq.admin.doctor.port import Look
from metaq.admin.doctor.server import examine_broker
from metaq.app.broker import start_broker
from metaq.clock import SYSTEM
from metaq.model.acl.secret import Credentials, Secret
from metaq.net.tls.settings import TlsSettings
from metaq.options import BrokerOptions
from metaq.testing import EmbeddedBroker
from tests.broker.support import small_store
from tests.certificates import Authority, Issued
from tests.support import PATIENCE


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path)


def shows(issued: Issued) -> ssl.SSLContext:
    """The context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    return context


@pytest.fixture
def good(authority) -> ssl.SSLContext:
    return shows(authority.issue("server"))


@contextlib.contextmanager
def serving(context: ssl.SSLContext) -> Iterator[str]:
    """A server that takes TLS only, until the end. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    raw, _ = server.accept()
                except OSError:
                    return
                raw.settimeout(PATIENCE)
                with raw, contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as wrapped:
                    wrapped.recv(1)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def look(context: ssl.SSLContext, *, tls: bool = True, ca: object = None, crl: object = "") -> dict[str, Finding]:
    file = str(ca) if ca is not None else None
    wanted = TlsSettings(ca=file or "", crl=str(crl)) if tls else None
    with serving(context) as address:
        body = examine_broker(address, [], Look(SYSTEM, PATIENCE, wanted, file))
        return {finding.what: finding for finding in asyncio.run(asyncio.wait_for(body, PATIENCE))}


def test_plain_client_of_a_server_that_takes_tls_only(authority, good):
    """Known by its bytes; the certificate is looked at, too."""
    found = look(good, tls=False, ca=authority.cert)
    assert (found["protocol"].state, "takes TLS only: have the client use TLS" in found["protocol"].text) == (
        WRONG,
        True,
    )
    assert found["certificate"].state == OK


def test_good_certificate(authority, good):
    found = look(good, ca=authority.cert)
    assert {found[what].state for what in ("connection", "protocol", "certificate")} == {OK}
    assert "TLSv1.3" in found["certificate"].text


@pytest.mark.parametrize(
    ("host", "days", "known", "state", "text"),
    [
        ("127.0.0.1", -1, True, WRONG, "renew the certificate of the server"),
        ("127.0.0.1", 5, True, NOTICE, "renew it"),
        (
            "127.0.0.9",
            365,
            True,
            WRONG,
            "connect by a name that the certificate has, or have one made with 127.0.0.1 in it",
        ),
        ("127.0.0.1", 365, False, WRONG, "give the client the certificate of the authority"),
    ],
)
def test_certificate_that_is_not_good(authority, host, days, known, state, text):
    """Expired, about to expire, for another host, of an authority that nobody knows."""
    issued = authority.issue("server", hosts=(host,), days=(-30, days))
    found = look(shows(issued), ca=authority.cert if known else None)["certificate"]
    assert (found.state, text in found.text) == (state, True), found.text


def test_certificate_that_names_no_key_is_good_as_for_clients(tmp_path):
    """Python 3.13's usual context wants one that names its issuer's key; clients do not, as Java's do not."""
    plain = Authority(tmp_path, identifiers=False)
    assert look(shows(plain.issue("server")), ca=plain.cert)["certificate"].state == OK


def test_certificate_that_is_revoked(authority, tmp_path):
    """If the client has a list; one that is of no use is told, too."""
    issued = authority.issue("withdrawn")
    for crl, says in (
        (authority.revoke(issued), "certificate revoked: the server needs another certificate"),
        (Authority(tmp_path, "others").revoke(), "give the client a list of the issuer"),
        (authority.cert, "no -----BEGIN X509 CRL-----"),
    ):
        found = look(shows(issued), ca=authority.cert, crl=crl)["certificate"]
        assert (found.state, says in found.text) == (WRONG, True), found.text
    assert look(shows(issued), ca=authority.cert)["certificate"].state != WRONG


def test_file_of_authorities_that_cannot_be_read(good, tmp_path):
    found = look(good, ca=str(tmp_path / "none.pem"))["certificate"]
    assert (found.state, "none.pem cannot be read" in found.text) == (WRONG, True)


def test_broker_with_tls_and_accounts_is_examined_whole(authority):
    """Behind a good certificate the rest is asked, too: version, clock, route; and what an account is missing."""
    accounts = "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n"
    issued, ca = authority.issue("server"), str(authority.cert)
    options = {
        "tls.server.mode": "enforcing", "tls.server.certPath": issued.cert, "tls.server.keyPath": issued.key,
        "tls.client.trustCertPath": ca,
    }  # fmt: skip
    with EmbeddedBroker(options=options, accounts=accounts) as broker:
        look = Look(SYSTEM, PATIENCE, TlsSettings(ca=ca), ca)

        def found(credentials: Credentials | None) -> dict[str, Finding]:
            body = examine_broker(broker.broker, [], look, credentials)
            return {finding.what: finding for finding in asyncio.run(asyncio.wait_for(body, PATIENCE))}

        signed = found(Credentials("somebody", Secret("12345678")))
        assert {signed[what].state for what in ("certificate", "access", "clock")} == {OK}, signed
        assert found(None)["access"].state == WRONG


def test_client_wants_tls_and_the_broker_has_none(tmp_path):
    async def body() -> list[Finding]:
        broker = await start_broker(BrokerOptions(broker_name="a", listen_port=0), small_store(tmp_path / "data"))
        try:
            return await examine_broker(broker.address, [], Look(SYSTEM, PATIENCE, TlsSettings()))
        finally:
            await broker.close()

    found = {finding.what: finding for finding in asyncio.run(asyncio.wait_for(body(), PATIENCE))}
    assert (found["certificate"].state, "no TLS at" in found["certificate"].text) == (WRONG, True)
