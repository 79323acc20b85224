"""Peers that do harm to a running `metaq up`: each is cut off or held back, and everybody else goes on working."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from tests.support import PATIENCE, eventually

MIB = 1024 * 1024
LIMITS = {"unansweredBytesMax": 8 * MIB, "halfReadBytesMax": 32 * MIB, "connectionsMax": 60}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=LIMITS) as broker:
        yield broker


def connect(address: str, receive_bytes: int = 0) -> socket.socket:
    """`receive_bytes`: what the peer's kernel takes before it is read, 0 for its own choice."""
    host, _, port = address.rpartition(":")
    raw = socket.socket()
    if receive_bytes:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.settimeout(PATIENCE)
    raw.connect((host, int(port)))
    return raw


def ask(raw: socket.socket, command: Command) -> Command:
    """Send one request and wait for one answer."""
    raw.sendall(encode(command))
    reader = Connection()
    while (answer := reader.next_command()) is None:
        data = raw.recv(65536)
        assert data, "closed instead of answered"
        reader.receive_data(data)
    return answer


def is_closed(raw: socket.socket) -> bool:
    """Whether the server closes the connection (within the socket's time-out) without a byte."""
    with contextlib.suppress(ConnectionResetError):
        return raw.recv(1) == b""
    return True


def anonymous_bytes(broker: EmbeddedBroker) -> int:
    """Memory that the server has taken, apart from mapped files."""
    status = pathlib.Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


@pytest.fixture
def witness(server: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[None]:
    """A producer that sends before, and after what the test does, over one connection; the topic holds just that."""
    with metaq.Producer(server.namesrv) as producer:
        before = producer.send("witness", request.node.name.encode())
        queue = before.queue
        yield
        after = producer.send("witness", b"after", queue=queue)
    assert after.offset == before.offset + 1


GARBAGE = {
    "random": (b"\x07\x93garbage" * 50, "limit"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "speaks HTTP"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "opened with TLS"),
    "above the limit": (
        (16 * MIB - 3).to_bytes(4, "big") + b"\x00\x00\x00\x10",
        "16777217 bytes, the limit is 16777216",
    ),
    "wrong JSON": (b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{", "not JSON"),
}


@pytest.mark.parametrize(("garbage", "says"), GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("protocol_server", ["broker", "namesrv"])
def test_garbage_is_cut_off(
    server: EmbeddedBroker, witness: None, protocol_server: str, garbage: bytes, says: str
) -> None:
    """On both ports: the connection is closed, and the log says whose and why."""
    with connect(getattr(server, protocol_server)) as raw:
        port = raw.getsockname()[1]
        raw.sendall(garbage)
        assert is_closed(raw)
    line = f"closing the connection of 127.0.0.1:{port}: "
    eventually(lambda: line in server.log.read_text())
    assert says in server.log.read_text().split(line)[1].splitlines()[0]


def test_truncated_frame_disturbs_nobody(server: EmbeddedBroker, witness: None) -> None:
    """A peer that leaves in the middle of a send has stored nothing."""
    header = headers.SendHeader(producer_group="g", topic="witness", queue_id=0, born_ms=1)
    frame = encode(request(RequestCode.SEND_MESSAGE_V2, header, b"x" * 1000))
    with connect(server.broker) as raw:
        raw.sendall(frame[:-1])


def test_promised_frames_take_no_memory(server: EmbeddedBroker, witness: None) -> None:
    """Forty peers that announce 16 MiB each, and send a hundred bytes, cost next to nothing."""
    before = anonymous_bytes(server)
    with contextlib.ExitStack() as peers:
        for _ in range(40):
            raw = peers.enter_context(connect(server.broker))
            raw.sendall((16 * MIB - 4).to_bytes(4, "big") + b"\x00\x00\x00\x02{}" + bytes(100))
        with connect(server.broker) as other:
            assert ask(other, Command(99_999)).code == 3
        assert anonymous_bytes(server) - before < 8 * MIB


def test_unfinished_frames_are_bounded_together(server: EmbeddedBroker, witness: None) -> None:
    """Peers that send 15 of 16 MiB each: above the limit the greediest are closed, and memory stays bounded."""
    before = anonymous_bytes(server)
    with contextlib.ExitStack() as peers:
        for _ in range(8):
            raw = peers.enter_context(connect(server.broker))
            with contextlib.suppress(ConnectionError):  # some are closed while they still send
                raw.sendall((16 * MIB - 4).to_bytes(4, "big") + b"\x00\x00\x00\x02{}" + bytes(15 * MIB))
        eventually(lambda: "of an unfinished frame when all peers together held" in server.log.read_text())
        assert anonymous_bytes(server) - before < 64 * MIB


def test_peer_that_does_not_read_is_not_served(server: EmbeddedBroker, witness: None) -> None:
    """Ten thousand pulls of large messages, and nobody reads the answers: memory stays flat."""
    with metaq.Producer(server.namesrv) as producer:
        queue = producer.send("large", os.urandom(200_000)).queue
    header = headers.PullHeader(
        group="slow", topic="large", queue_id=queue.queue_id, queue_offset=0, max_messages=32, sys_flag=4,
        subscription="*", expression_type="TAG",
    )  # fmt: skip
    pull = encode(request(RequestCode.PULL_MESSAGE, header))
    before = anonymous_bytes(server)
    with connect(server.broker) as raw:
        raw.settimeout(1)
        with contextlib.suppress(TimeoutError, ConnectionError):
            raw.sendall(pull * 10_000)
        with connect(server.broker) as other:
            assert ask(other, Command(99_999)).code == 3
        assert anonymous_bytes(server) - before < 32 * MIB


def test_peers_that_do_not_read_are_bounded_together(witness: None) -> None:
    """Forty peers with thirty unread answers of 250 KB each: they stay below the limit, or the one with the most is closed."""
    limit = 6 * MIB
    with EmbeddedBroker(options={"unansweredBytesMaxTotal": limit}) as server, contextlib.ExitStack() as peers:
        with metaq.Producer(server.namesrv) as producer:
            queue = producer.send("large", os.urandom(250_000)).queue
        header = headers.PullHeader(
            group="slow", topic="large", queue_id=queue.queue_id, queue_offset=0, max_messages=32, sys_flag=4,
            subscription="*", expression_type="TAG",
        )  # fmt: skip
        pull = encode(request(RequestCode.PULL_MESSAGE, header))
        before, raws = anonymous_bytes(server), list[socket.socket]()
        for _ in range(40):
            raws.append(peers.enter_context(connect(server.broker, receive_bytes=16 * 1024)))
            with contextlib.suppress(ConnectionError):
                raws[-1].sendall(pull * 30)
        with connect(server.broker) as other:
            for _ in range(20):
                assert ask(other, Command(99_999)).code == 3
            eventually(lambda: "when all peers together left" in server.log.read_text())
            assert ask(other, Command(99_999)).code == 3
        assert anonymous_bytes(server) - before < limit + 32 * MIB


def test_connections_above_the_limit_are_refused(server: EmbeddedBroker, witness: None) -> None:
    """Who is connected goes on working, and places that become free can be taken."""
    with contextlib.ExitStack() as peers:
        raws = [peers.enter_context(connect(server.broker)) for _ in range(70)]
        assert is_closed(raws[-1])
        assert ask(raws[0], Command(99_999)).code == 3
    eventually(lambda: _served(server))


def _served(server: EmbeddedBroker) -> bool:
    with connect(server.broker) as raw, contextlib.suppress(AssertionError, ConnectionError):
        return ask(raw, Command(99_999)).code == 3
    return False


@pytest.mark.parametrize("topic", ["../../etc/passwd", "a/b", "a b", "", "x" * 128, "ünïcode"])
def test_topic_that_is_no_name_is_answered(server: EmbeddedBroker, witness: None, topic: str) -> None:
    """The connection stays, the folder holds nothing new, the text quotes the rule."""
    folders = sorted(path.name for path in (server.data / "consumequeue").iterdir())
    header = headers.SendHeader(producer_group="g", topic=topic, queue_id=0, born_ms=1)
    with connect(server.broker) as raw:
        answer = ask(raw, request(RequestCode.SEND_MESSAGE_V2, header, b"x"))
        assert answer.code == 1
        assert "topic name" in answer.remark
        assert ask(raw, Command(99_999)).code == 3
    assert sorted(path.name for path in (server.data / "consumequeue").iterdir()) == folders
