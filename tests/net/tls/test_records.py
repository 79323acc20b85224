"""Records of TLS, cut and joined everywhere, and every way of writing: what arrives is what was written."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import ssl
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.net.blocking import dial_blocking
from metaq.net.dialer import dial
from metaq.net.direct import dial_direct
from metaq.net.peer import Peer
from metaq.net.tls.client import ClientTls
from metaq.net.tls.contexts import ClientFiles, ServerFiles, client_context, server_context
from metaq.net.tls.layer import RECORDS_BYTES, TlsLayer
from metaq.net.tls.settings import TlsSettings
from tests.certificates import Authority
from tests.effort import repeats
from tests.net.test_layer import Pieces
from tests.net.test_now import Quiet
from tests.net.tls.support import LOOPS, Echo, connected, files, run, serving, trusting, until
from tests.support import PATIENCE


class Wire(asyncio.Transport):
    """The transport below: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.reading = True

    def write(self, data) -> None:
        self.out += data

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Sink:
    """A stream that takes `room` bytes at a time, and now and then stops for a while."""

    def __init__(self, room: int, stops: random.Random | None) -> None:
        self.buffer, self.got, self.stops = bytearray(room), bytearray(), stops
        self.transport = None
        self.has_ended = False

    def connection_made(self, transport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]
        if self.stops is not None and self.stops.random() < 0.3:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    def eof_received(self) -> bool:
        self.has_ended = True
        return True

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc) -> None: ...

    def close(self, why: str = "") -> None:
        raise AssertionError(why)


class Opened(TlsLayer):
    """A layer whose handshake is made by hand."""

    def shake(self, other: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        wire = Wire()
        self.connection_made(wire)
        for _ in range(3):
            for tls in (other, self.tls):
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                if outgoing.pending:
                    self._incoming.write(outgoing.read())
                if self._outgoing.pending:
                    incoming.write(self._outgoing.read())
        self._opened(wire)


@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
    st.lists(st.integers(1, 60_000), min_size=1, max_size=40),
    st.sampled_from([1, 100, 16_384, 20_000, 600_000]),
    st.booleans(),
    st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=repeats(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_records_may_be_cut_anywhere(authority, issued, writes, cuts, room, stops, version, chance) -> None:
    """Whatever the reads of the socket hold of them, whatever room the stream has, and however often it stops."""
    if room == 1:
        writes = [min(size, 300) for size in writes]

    async def act() -> None:
        sink = Sink(room, chance if stops else None)
        layer = Opened(sink, server_context(files(issued)))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        other = trusting(authority, version=version).wrap_bio(incoming, outgoing, server_hostname="localhost")
        layer.shake(other, incoming, outgoing)
        expected = bytearray()
        for number, size in enumerate(writes):
            data = bytes([number]) * size
            expected += data
            rest = memoryview(data)
            while rest:
                rest = rest[other.write(rest) :]
        with pytest.raises(ssl.SSLWantReadError):
            other.unwrap()  # the goodbye comes last
        wire, place = outgoing.read(), 0
        while place < len(wire):
            for _ in range(1000):
                if layer._below.reading:  # as a socket that is not read
                    break
                await asyncio.sleep(0)
            size = min(cuts[place % len(cuts)], RECORDS_BYTES, len(wire) - place)
            layer.get_buffer(-1)[:size] = wire[place : place + size]
            layer.buffer_updated(size)
            place += size
        for _ in range(10_000):
            if sink.has_ended:
                break
            await asyncio.sleep(0)
        assert sink.got == expected
        assert sink.has_ended
        sink.transport.write(expected)
        incoming.write(layer._below.out)
        got = bytearray()
        while len(got) < len(expected):
            got += other.read(1 << 20)
        assert got == expected

    asyncio.run(act())


@LOOPS
@pytest.mark.parametrize("seed", range(3))
def test_every_way_of_writing_is_encrypted_in_order(make_loop, seed, authority, issued) -> None:
    """Writes, those at once, long answers in pieces, gathered ones; read by a client that falls behind."""
    chance = random.Random(seed)

    async def act() -> None:
        async with serving(issued) as running:
            peers: list[Peer] = []
            running.make = lambda peer: peers.append(peer) or Quiet(peer)
            running.listener._make_session = running.make
            reader, writer = await connected(running, trusting(authority))
            other = await connected(running, trusting(authority))
            await until(lambda: len(peers) == 2)
            expected, got = bytearray(), bytearray()
            for number in range(200):
                data = b"%d," % number * chance.choice((1, 3, 40_000 if number % 20 == 0 else 10))
                expected += data
                way = chance.random()
                if way < 0.4:
                    peers[0].write_now(data)
                elif way < 0.8:
                    peers[0].write(data)
                else:
                    peers[0].write_from(data[:2], Pieces(data[2:]))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    for each in (writer, other[1]):
                        each.write(b"read both: the server is crowded")
                    await asyncio.sleep(0)
                if chance.random() < 0.2:
                    got += await reader.read(1 << 16)
            while len(got) < len(expected):
                got += await reader.read(1 << 20)
            assert got == expected
            writer.close()
            other[1].close()

    run(make_loop, act())


@LOOPS
def test_our_client_and_our_server_both_ways(make_loop, authority, issued) -> None:
    """Long data from both at a time; the client is not plain, so that nothing is written past its layer."""

    async def act() -> None:
        async with serving(issued) as running:
            made: list[Echo] = []

            def make(peer: Peer) -> Quiet:
                made.append(Counting(peer))
                return made[-1]

            tls = TlsSettings(ca=str(authority.cert)).open()
            peer = await dial(running.listener.address, make, PATIENCE, tls=tls)
            assert not peer.plain
            for _ in range(50):
                peer.write(bytes(200_000))
                await asyncio.sleep(0)
            await until(lambda: made[0].got == 10_000_000)
            peer.close("done")
            await until(lambda: running.listener.connections == 0)

    run(make_loop, act())


class Counting(Quiet):
    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.got = 0

    def data_received(self, data: memoryview) -> int:
        self.got += len(data)
        return len(data)


def test_a_blocking_stream_has_tls_too(authority, issued) -> None:
    """For threads without a loop, such as Spark's; a large answer is not waited for in the kernel."""

    async def act() -> None:
        async with serving(issued) as running:
            outcome: list[bytes] = []

            def talk() -> None:
                tls = TlsSettings(ca=str(authority.cert)).open()
                address = running.listener.address
                with dial_blocking(address, PATIENCE, lambda raw: tls.wrap(raw, "127.0.0.1", address)) as stream:
                    stream.send(bytes(range(256)) * 2000)
                    got = bytearray()
                    buffer = bytearray(100_000)
                    while len(got) < 512_000:
                        got += buffer[: stream.receive_into(buffer, 512_000 - len(got))]
                    outcome.append(bytes(got))

            await asyncio.to_thread(talk)
            assert outcome == [bytes(range(256)) * 2000]

    asyncio.run(act())
    assert not [thread for thread in threading.enumerate() if thread.name == "talk"]


@pytest.mark.parametrize(
    ("files_", "host", "says"),
    [
        ("other", "127.0.0.1", "unable to get local issuer certificate"),
        ("expired", "127.0.0.1", "certificate has expired"),
        ("elsewhere", "127.0.0.1", "IP address mismatch"),
        ("elsewhere", "localhost", "Hostname mismatch"),
    ],
)
def test_what_a_client_refuses(authority, issued, tmp_path, files_, host, says) -> None:
    """By default all of it; with tls_verify="ca" not the name; with "none" nothing."""
    shown = {
        "other": issued,
        "expired": authority.issue("expired-server", days=(-10, -1)),
        "elsewhere": authority.issue("elsewhere", hosts=("broker.example.com",)),
    }[files_]
    trust = "" if files_ == "other" else str(authority.cert)
    refused = {"other": {"full", "ca"}, "expired": {"full", "ca"}, "elsewhere": {"full"}}[files_]

    async def act() -> None:
        from metaq.errors import ConnectionFailed

        async with serving(shown) as running:
            address = f"{host}:{running.listener.port}"
            for verify in ("full", "ca", "none"):
                tls = TlsSettings(ca=trust, tls_verify=verify).open()
                if verify in refused:
                    with pytest.raises(ConnectionFailed, match=says):
                        await dial(address, Quiet, PATIENCE, tls=tls)
                    with pytest.raises(ConnectionFailed, match=says):
                        await asyncio.to_thread(
                            dial_blocking, address, PATIENCE, functools.partial(tls.wrap, host=host, address=address)
                        )
                else:
                    (await dial(address, Quiet, PATIENCE, tls=tls)).close("seen")
            await until(lambda: running.listener.connections == 0)

    asyncio.run(act())


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("good", ""),
        ("revoked", r"certificate revoked \(its issuer has withdrawn it"),
        ("no list of its issuer", r"unable to get certificate CRL \(crl= needs a list of the issuer"),
        ("old list", r"CRL has expired \(the list in crl= is too old"),
    ],
)
def test_a_client_with_a_list_refuses_revoked_servers(authority, issued, tmp_path, case, says) -> None:
    """In each kind of connection, with the name checked or not; and without the list none is refused."""
    others = Authority(tmp_path, "others")
    revoked = authority.issue("withdrawn")
    crl = {
        "good": lambda: authority.revoke(revoked),
        "revoked": lambda: authority.revoke(revoked),
        "no list of its issuer": others.revoke,
        "old list": lambda: authority.revoke(days=(-9, -2)),
    }[case]()

    async def act() -> None:
        from metaq.errors import ConnectionFailed

        async with serving(revoked if case == "revoked" else issued) as running:
            address = running.listener.address

            def block(tls: ClientTls) -> None:
                dial_blocking(address, PATIENCE, lambda raw: tls.wrap(raw, "127.0.0.1", address)).close()

            async def link(tls: ClientTls) -> None:
                host, port = address.split(":")
                stream = await dial_direct((host, int(port)), address, PATIENCE, SYSTEM, tls)
                assert stream is not None
                stream.close()

            for verify in ("full", "ca"):
                tls = TlsSettings(ca=str(authority.cert), tls_verify=verify, crl=str(crl)).open()
                ways = (
                    lambda tls=tls: dial(address, Quiet, PATIENCE, tls=tls),
                    lambda tls=tls: asyncio.to_thread(block, tls),
                    lambda tls=tls: link(tls),
                )
                for way in ways:
                    if not says:
                        await way()
                        continue
                    with pytest.raises(ConnectionFailed, match=says):
                        await way()
            (await dial(address, Quiet, PATIENCE, tls=TlsSettings(ca=str(authority.cert)).open())).close("seen")

    asyncio.run(act())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"nothing of the kind", "no -----BEGIN X509 CRL-----"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be used"),
        ("certificates", "has certificates beside the lists"),
    ],
)
def test_a_file_that_is_no_list_of_revoked_certificates(authority, issued, tmp_path, content, says) -> None:
    """It would check nothing, or have its certificates trusted. Of clients and of servers."""
    path = tmp_path / "list.pem"
    if content == "certificates":
        content = authority.revoke().read_bytes() + authority.cert.read_bytes()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^crl {path} .*{says}"):
        TlsSettings(ca=str(authority.cert), crl=str(path)).open()
    with pytest.raises(ConfigError, match=rf"^tls.server.crlPath {path} .*{says}"):
        server_context(ServerFiles(str(issued.cert), str(issued.key), None, "require", str(authority.cert), str(path)))


def test_a_client_that_hangs_in_the_handshake_gives_up(authority) -> None:
    """Against something that accepts and says nothing; its socket is closed."""

    async def act() -> None:
        from metaq.errors import ConnectionFailed

        gone = asyncio.Event()

        async def silent(reader, writer) -> None:
            await reader.read(-1)
            gone.set()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=r"within 0\.2 s"):
            await dial(address, Quiet, 0.2, tls=TlsSettings(ca=str(authority.cert)).open())
        await asyncio.wait_for(gone.wait(), PATIENCE)
        server.close()

    asyncio.run(act())


def test_only_tls_1_2_and_1_3_are_spoken(authority, issued) -> None:
    server = server_context(ServerFiles(str(issued.cert), str(issued.key)))
    client = client_context(ClientFiles(ca=str(authority.cert)))
    for context in (server, client):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
    assert client.check_hostname
    assert client.verify_mode is ssl.CERT_REQUIRED
