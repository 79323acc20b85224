"""What `metaq doctor` says of a server that takes TLS only, and of its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import pathlib
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
from tests.support import PATIENCE

x509 = pytest.importorskip("cryptography.x509", reason="cryptography makes the certificates")


class Authority:
    """Signs certificates of servers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._key = self._new_key()
        self._certificate = self._sign("authority", self._key, None, ends_days=365)
        self.file = str(folder / "ca.pem")
        pathlib.Path(self.file).write_bytes(self._pem(self._certificate))

    def server(self, host: str = "127.0.0.1", ends_days: float = 365) -> ssl.SSLContext:
        """Return the context of a server whose certificate is for `host` and ends so many days from now."""
        from cryptography.hazmat.primitives import serialization as form

        key = self._new_key()
        chain, private = self._folder / "server.pem", self._folder / "server.key"
        chain.write_bytes(self._pem(self._sign("server", key, host, ends_days)))
        private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, private)
        return context

    def _new_key(self):
        from cryptography.hazmat.primitives.asymmetric import ec

        return ec.generate_private_key(ec.SECP256R1())

    def _pem(self, certificate) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return certificate.public_bytes(Encoding.PEM)

    def _sign(self, name: str, key, host: str | None, ends_days: float):
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        def named(text: str):
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=30))
            .not_valid_after(now + dt.timedelta(days=ends_days))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
            builder = builder.add_extension(alternative, critical=False)
        return builder.sign(self._key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path)


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


def look(context: ssl.SSLContext, *, tls: bool = True, ca: str | None = None) -> dict[str, Finding]:
    with serving(context) as address:
        body = examine_broker(address, [], Look(SYSTEM, PATIENCE, TlsSettings(ca=ca or "") if tls else None, ca))
        return {finding.what: finding for finding in asyncio.run(asyncio.wait_for(body, PATIENCE))}


def test_plain_client_of_a_server_that_takes_tls_only(authority):
    """Known by its bytes; the certificate is looked at, too."""
    found = look(authority.server(), tls=False, ca=authority.file)
    assert (found["protocol"].state, "takes TLS only: have the client use TLS" in found["protocol"].text) == (
        WRONG,
        True,
    )
    assert found["certificate"].state == OK


def test_good_certificate(authority):
    found = look(authority.server(), ca=authority.file)
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
    found = look(authority.server(host, days), ca=authority.file if known else None)["certificate"]
    assert (found.state, text in found.text) == (state, True), found.text


def test_file_of_authorities_that_cannot_be_read(authority, tmp_path):
    found = look(authority.server(), ca=str(tmp_path / "none.pem"))["certificate"]
    assert (found.state, "none.pem cannot be read" in found.text) == (WRONG, True)


def test_broker_with_tls_and_accounts_is_examined_whole(authority, tmp_path):
    """Behind a good certificate the rest is asked, too: version, clock, route; and what an account is missing."""
    accounts = "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n"
    authority.server()
    options = {
        "tls.server.mode": "enforcing", "tls.server.certPath": tmp_path / "server.pem",
        "tls.server.keyPath": tmp_path / "server.key", "tls.client.trustCertPath": authority.file,
    }  # fmt: skip
    with EmbeddedBroker(options=options, accounts=accounts) as broker:
        look = Look(SYSTEM, PATIENCE, TlsSettings(ca=authority.file), authority.file)

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
