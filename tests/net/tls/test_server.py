"""Plain text and TLS on one port, handshakes of every kind, and who may make others wait."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct

import pytest

from metaq.errors import ConnectionFailed
from metaq.net.budget import ListenLimits
from metaq.net.dialer import dial
from metaq.net.tls.contexts import server_context
from metaq.net.tls.server import Mode
from metaq.wire.command import LENGTH_BYTES, frame_bytes
from tests.certificates import FOR_CLIENTS, FOR_SERVERS, Authority
from tests.net.tls.support import LOOPS, Echo, connected, echoed, files, run, serving, trusting, until
from tests.support import PATIENCE

VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])


async def ended(reader: asyncio.StreamReader) -> None:
    """The other side ends the connection, in whatever way."""
    try:
        while await asyncio.wait_for(reader.read(4096), PATIENCE):
            pass
    except (OSError, ssl.SSLError):
        pass


@LOOPS
@VERSIONS
def test_one_port_takes_plain_text_and_tls(make_loop, version, authority, issued) -> None:
    """A plain connection is as plain as without TLS: fast paths may go past the loop. Long data come whole."""

    async def act() -> None:
        async with serving(issued) as running:
            plain = await connected(running, None)
            await echoed(*plain, b"plain" * 50_000)
            secret = await connected(running, trusting(authority, version=version))
            assert secret[1].get_extra_info("ssl_object").version() == version.name.replace("TLSv1_", "TLSv1.")
            for size in (1, 16_384, 16_385, 3_000_000):
                await echoed(*secret, bytes(range(250)) * (size // 250) + b"x" * (size % 250))
            assert [session.peer.plain for session in running.sessions] == [True, False]
            assert running.listener.connections == 2
            for _, writer in (plain, secret):
                writer.close()
            await until(lambda: running.listener.connections == 0)
            assert running.tls.under_way == 0

    run(make_loop, act())


@LOOPS
def test_the_first_byte_may_come_alone_and_the_rest_byte_by_byte(make_loop, authority, issued) -> None:
    """0x16, then nothing for a while, then the handshake in single bytes: only the end of the time-out ends it."""

    async def act() -> None:
        async with serving(issued) as running:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
            reader, writer = await connected(running, None)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        writer.write(bytes([byte]))
                        await writer.drain()
                        await asyncio.sleep(0)
                    incoming.write(await reader.read(1 << 16))
            tls.write(b"hello")
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            got = b""
            while got != b"hello":
                incoming.write(await reader.read(1 << 16))
                try:
                    got += tls.read(100)
                except ssl.SSLWantReadError:
                    continue
            writer.close()

    run(make_loop, act())


@LOOPS
def test_a_plain_client_is_closed_by_an_enforcing_port(make_loop, authority, issued, caplog) -> None:
    async def act() -> None:
        async with serving(issued, Mode.ENFORCING) as running:
            reader, writer = await connected(running, None)
            writer.write(b"\0\0\0\x10 a frame")
            await ended(reader)
            writer.close()
            assert not running.sessions
            await echoed(*await connected(running, trusting(authority)), b"with TLS")
            await until(lambda: running.listener.connections == 1)

    with caplog.at_level(logging.INFO):
        run(make_loop, act())
    assert "tls.server.mode=enforcing" in caplog.text


def test_a_tls_client_at_a_port_without_tls_is_told_why_in_the_log(caplog) -> None:
    """Its hello is a frame of 369 MB to the remoting protocol, whose sessions say what it really is."""

    class Frames(Echo):
        def data_received(self, data: memoryview) -> int:
            assert frame_bytes(data, 0, len(data), 1 << 24) == LENGTH_BYTES, "it raises"
            return len(data)

    async def act() -> None:
        from metaq.net.listener import listen
        from metaq.net.tls.settings import TlsSettings

        listener = await listen("127.0.0.1", 0, Frames)
        with pytest.raises(
            ConnectionFailed, match=r"closed the connection in the TLS handshake; does this port take TLS\?"
        ):
            await dial(listener.address, Echo, PATIENCE, tls=TlsSettings().open())
        await listener.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(act())
    assert "the peer opened with TLS, and this port speaks plain text only" in caplog.text


@LOOPS
def test_who_stops_in_the_handshake_is_ended_by_the_time_out_and_nobody_waits_for_it(
    make_loop, authority, issued
) -> None:
    """Others connect, TLS or not, while a hundred stand there with a byte, or half a hello, or nothing."""
    hello = client_hello(authority)

    async def act() -> None:
        async with serving(issued, seconds=1.0) as running:
            stopped = [await connected(running, None) for _ in range(90)]
            for number, (_, writer) in enumerate(stopped):
                writer.write(hello[: (0, 1, len(hello) // 2, len(hello))[number % 4]])
            await until(lambda: running.tls.under_way > 10)
            others = [await connected(running, context) for context in (trusting(authority), None)]
            for pair in others:
                await echoed(*pair, b"others")
            for number, (reader, _) in enumerate(stopped):
                if number % 4:  # who sends nothing may be a plain client: the limit of idle connections is for that
                    await ended(reader)
            await until(lambda: running.listener.connections == len(others) + len(stopped[::4]))
            assert running.tls.under_way == 0
            for _, writer in stopped + others:
                writer.close()

    run(make_loop, act())


def client_hello(authority: Authority) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@LOOPS
def test_above_the_limit_the_handshake_that_began_first_ends(make_loop, authority, issued) -> None:
    """So whoever makes one at once gets in, whatever number of others stand there."""
    hello = client_hello(authority)

    async def act() -> None:
        async with serving(issued, most=5) as running:
            stopped = [await connected(running, None) for _ in range(8)]
            for number, (_, writer) in enumerate(stopped):
                writer.write(hello[:10])
                await until(lambda number=number: running.tls.under_way == min(number + 1, 5))
                await asyncio.sleep(0)
            for reader, _ in stopped[:3]:
                await ended(reader)
            await echoed(*await connected(running, trusting(authority)), b"in")
            assert running.tls.under_way <= 5
            for _, writer in stopped:
                writer.close()

    run(make_loop, act())


@LOOPS
def test_an_endless_handshake_is_cut(make_loop, issued, caplog) -> None:
    """Records of a handshake that never end would be kept for as long as the time-out lets them."""

    async def act() -> None:
        async with serving(issued) as running:
            reader, writer = await connected(running, None)
            record = b"\x16\x03\x01" + struct.pack(">H", 16_000)
            writer.write(
                record + b"\x01\x00\xff\xff" + bytes(15_996)
            )  # a hello of 64 KiB, and then more than was promised
            for _ in range(20):
                writer.write(record + bytes(16_000))
            await ended(reader)
            writer.close()
            await until(lambda: running.listener.connections == 0)

    with caplog.at_level(logging.INFO):
        run(make_loop, act())
    assert "handshake" in caplog.text


@LOOPS
def test_connections_under_way_count_among_the_listeners(make_loop, authority, issued) -> None:
    """From the first moment on: not first when their handshake is over."""

    async def act() -> None:
        async with serving(issued, limits=ListenLimits(connections_max=3)) as running:
            held = [await connected(running, None) for _ in range(3)]
            held[0][1].write(b"\x16")
            await until(lambda: running.listener.connections == 3)
            reader, writer = await connected(running, None)
            await ended(reader)
            writer.close()
            for _, each in held:
                each.close()
            await until(lambda: running.listener.connections == 0)
            await echoed(*await connected(running, trusting(authority)), b"room again")

    run(make_loop, act())


def test_renegotiation_is_refused_and_ends_the_connection(authority, issued, caplog) -> None:
    """TLS 1.2 only; 1.3 has none. The client is openssl's own: Python's cannot ask for it."""

    async def act() -> None:
        async with serving(issued) as running:
            client = await asyncio.create_subprocess_exec(
                "openssl", "s_client", "-tls1_2", "-connect", running.listener.address,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            assert client.stdin is not None
            client.stdin.write(b"before\n")
            await until(lambda: bool(running.sessions) and running.sessions[0].got == 7)
            client.stdin.write(b"R\n")
            await client.wait()
            await until(lambda: running.listener.connections == 0)

    with caplog.at_level(logging.INFO):
        run(asyncio.new_event_loop, act())
    assert "it wants to renegotiate TLS, which is refused" in caplog.text


@LOOPS
@VERSIONS
def test_new_certificates_are_for_new_connections(make_loop, version, authority, issued) -> None:
    """Those that are open go on, under load, with what they have."""
    later = authority.issue("later", kind="rsa")

    async def act() -> None:
        async with serving(issued) as running:
            context = trusting(authority, version=version)
            open_before = [await connected(running, context) for _ in range(5)]
            goes_on = True

            async def load(pair) -> int:
                rounds = 0
                while goes_on:
                    await echoed(*pair, b"load" * 1000)
                    rounds += 1
                return rounds

            loads = [asyncio.create_task(load(pair)) for pair in open_before]
            await until(lambda: len(running.sessions) == 5)
            for number in range(6):
                running.tls.exchange(server_context(files((issued, later)[number % 2])))
                reader, writer = await connected(running, context)
                shown = writer.get_extra_info("ssl_object").getpeercert()["subject"][0][0][1]
                assert shown == ("server", "later")[number % 2]
                await echoed(reader, writer, b"new")
                writer.close()
            goes_on = False
            assert all(rounds > 0 for rounds in await asyncio.gather(*loads))

    run(make_loop, act())


@LOOPS
@pytest.mark.parametrize("shown", ["none", "good", "foreign", "expired", "revoked", "of a server"])
@VERSIONS
def test_whom_a_port_that_wants_certificates_lets_in(
    make_loop, version, shown, authority, issued, tmp_path, caplog
) -> None:
    foreign = Authority(tmp_path, "foreign")
    revoked = authority.issue("revoked")
    clients = {
        "none": None,
        "good": authority.issue("good", usage=FOR_CLIENTS),
        "foreign": foreign.issue("foreign-client"),
        "expired": authority.issue("expired", days=(-10, -1)),
        "revoked": revoked,
        "of a server": authority.issue("of-a-server", usage=FOR_SERVERS),
    }
    more = {"client_auth": "require", "trust": str(authority.cert), "crl": str(authority.revoke(revoked))}

    async def act() -> None:
        async with serving(issued, **more) as running:
            context = trusting(authority, shows=clients[shown], version=version)
            if shown == "good":
                await echoed(*await connected(running, context), b"in")
                return
            try:  # TLS 1.3: the client's side of the handshake is over before the server has judged
                reader, writer = await connected(running, context)
            except (ssl.SSLError, OSError):
                pass
            else:
                writer.write(b"let me in")
                await ended(reader)
                writer.close()
            await until(lambda: running.listener.connections == 0)
            assert not running.sessions

    with caplog.at_level(logging.INFO):
        run(make_loop, act())
    why = {"none": "shown no certificate", "foreign": "unable to get", "expired": "expired", "revoked": "revoked"}
    assert why.get(shown, "") in caplog.text


@LOOPS
@pytest.mark.parametrize("way", ["reset", "no goodbye", "goodbye", "in a record"])
def test_a_connection_may_end_anywhere(make_loop, way, authority, issued) -> None:
    """A reset, an end without a goodbye, a goodbye, an end inside a record: nothing is left of it, and no other is harmed."""

    async def act() -> None:
        async with serving(issued) as running:
            reader, writer = await connected(running, trusting(authority))
            await echoed(reader, writer, b"x" * 100_000)
            if way == "reset":
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            elif way == "no goodbye":
                writer.transport.abort()
            elif way == "goodbye":
                writer.close()
            else:
                writer.write(b"y" * 3_000_000)
                await asyncio.sleep(0)
                writer.transport.abort()
            await until(lambda: running.listener.connections == 0)
            await echoed(*await connected(running, trusting(authority)), b"others")

    run(make_loop, act())


@LOOPS
def test_what_is_no_tls_behind_the_first_byte_ends_with_a_reason(make_loop, issued, caplog) -> None:
    async def act() -> None:
        async with serving(issued) as running:
            for garbage in (b"\x16" * 500, b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\x16\x03\x01\x00\x04abcd"):
                reader, writer = await connected(running, None)
                writer.write(garbage)
                await ended(reader)
                writer.close()
            await until(lambda: running.listener.connections == 0)
            assert running.tls.under_way == 0

    with caplog.at_level(logging.INFO):
        run(make_loop, act())
    assert caplog.text.count("its TLS handshake failed") == 3


@LOOPS
def test_a_server_that_stops_ends_handshakes_too(make_loop, authority, issued) -> None:
    async def act() -> None:
        async with serving(issued) as running:
            pairs = [await connected(running, None) for _ in range(3)]
            for size, (_, writer) in enumerate(pairs):
                writer.write(client_hello(authority)[: size * 50])
            await until(lambda: running.listener.connections == 3)
            await running.listener.close()
            for reader, writer in pairs:
                await ended(reader)
                writer.close()

    run(make_loop, act())
