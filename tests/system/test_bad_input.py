"""Hostile peers at a real broker and name server: an error that says what is wrong, and nobody else notices."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import socket
import struct
import zlib
from collections import Counter
from pathlib import Path

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from metaq.wire import command, headers
from metaq.wire.codes import RequestCode, ResponseCode
from tests.support import PATIENCE, eventually, run_metaq

KNOWN = [b"known %d" % number for number in range(20)]
MEMORY_MAX = 100 << 20


@functools.cache  # a third of a second, which every worker would spend
def bomb() -> bytes:
    return zlib.compress(bytes(80 << 20))


@pytest.fixture(scope="module")
def server():
    with EmbeddedBroker() as running:
        with metaq.Producer(running.namesrv) as producer:
            for body in KNOWN:
                producer.send("known", body)
        yield running


@pytest.fixture
def bystander(server):
    """A producer that was connected before, works after, and finds the stored data as it was."""
    with metaq.Producer(server.namesrv, retries=0) as producer:
        before = producer.send("bystander", b"before")
        yield producer
        after = producer.send("bystander", b"after", queue=before.queue)
        assert after.offset == before.offset + 1
    with metaq.Reader(server.namesrv, "known", start="earliest", stop_at_end=True) as reader:
        assert Counter(message.body for message in reader) == Counter(KNOWN)
    assert server.alive
    # What was refused is let go of, on a busy machine a moment later.
    eventually(lambda: anonymous_bytes(server.pid) < MEMORY_MAX, what="memory let go of")


def anonymous_bytes(pid):
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def connect(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def ask(address, code, ext, body=b""):
    """Send one request and return its answer."""
    request = command.Command(code=int(code), opaque=7, ext=ext, body=body)
    with connect(address) as peer:
        peer.sendall(command.encode(request))
        size = int.from_bytes(read(peer, 4), "big")
        return command.decode(read(peer, size))


def read(peer, size):
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        assert more, "the connection was closed"
        data += more
    return data


def send_ext(**changes):
    known = {"producer_group": "g", "topic": "bad", "queue_id": 0, "sys_flag": 0, "born_ms": 1, "flag": 0}
    return headers.SendHeader(**{**known, **changes}).to_ext()


GARBAGE = {
    "random bytes": random.Random(1).randbytes(100_000),
    "a web browser": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "a frame of two gigabytes": struct.pack(">iI", 0x7FFFFFFF, 100) + bytes(1000),
    "a negative length": struct.pack(">iI", -5, 100) + bytes(1000),
    "a header longer than its frame": struct.pack(">iI", 20, 0x00FFFFFF) + bytes(16),
    "JSON that is none": struct.pack(">iI", 24, 20) + b'{"code":310,"extFi\xff\xfe',
    "JSON of a million brackets": struct.pack(">iI", 1_000_004, 1_000_000) + b"[" * 1_000_000,
    "another serialization": struct.pack(">iI", 24, (9 << 24) | 20) + bytes(20),
}


@pytest.mark.parametrize("protocol_server", ["broker", "namesrv"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_its_own_connection(server, bystander, protocol_server, garbage):
    """The connection is closed (or answered with an error); the log says why and from where."""
    with connect(getattr(server, protocol_server)) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(garbage)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass


@pytest.mark.parametrize("protocol_server", ["broker", "namesrv"])
def test_truncated_frame_waits_and_is_dropped(server, bystander, protocol_server):
    """Half a frame is kept while its peer is there, and forgotten when it leaves."""
    frame = command.encode(command.Command(code=int(RequestCode.SEND_MESSAGE_V2), ext=send_ext(), body=b"x" * 1000))
    with connect(getattr(server, protocol_server)) as peer:
        peer.sendall(frame[:-1])
    assert "bad" not in run_metaq("topic", "list", "-n", server.namesrv).stdout.split()


def test_memory_is_not_taken_on_a_promise(server, bystander):
    """A hundred peers announce 16 MiB each and send nothing of it."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            peer = stack.enter_context(connect(server.broker))
            peer.sendall(struct.pack(">iI", 16 << 20, 100) + bytes(5000))
        assert anonymous_bytes(server.pid) < MEMORY_MAX


@pytest.mark.parametrize("topic", ["../../escaped", "/etc/passwd", "a/b", "a.b", "", "t" * 128, "nul\x00"])
def test_topic_that_is_no_name_is_refused(server, bystander, topic):
    """Refused in words before a path is made of it."""
    answer = ask(server.broker, RequestCode.SEND_MESSAGE_V2, send_ext(topic=topic), b"x")
    assert answer.code != ResponseCode.SUCCESS
    assert "topic" in answer.remark
    assert not list(server.data.parent.glob("escaped"))
    assert {path.name for path in (server.data / "consumequeue").iterdir()} <= {"known", "bystander", "bomb"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.PULL_MESSAGE, {"queueId": "-1"}),
        (RequestCode.PULL_MESSAGE, {"queueId": "99999999999"}),
        (RequestCode.PULL_MESSAGE, {"queueOffset": "9" * 400_000}),
        (RequestCode.PULL_MESSAGE, {"topic": "nowhere"}),
    ],
    ids=["negative queue", "queue beyond int", "number of 400 000 digits", "unknown topic"],
)
def test_hostile_values_are_answered_with_their_name(server, bystander, code, ext):
    """An answer with a code and a text; the connection lives on."""
    known = headers.PullHeader(
        group="g", topic="known", queue_id=0, queue_offset=0, max_messages=1, sys_flag=4, subscription="*", suspend_ms=0
    ).to_ext()
    answer = ask(server.broker, code, known | ext)
    assert answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)
    assert answer.remark
    assert "Traceback" not in answer.remark


@pytest.mark.parametrize("offset", [-1, 10**6, 2**63 - 1])
def test_offset_out_of_range_is_told_where_the_queue_is(server, bystander, offset):
    """Code 21 (offset moved) with an offset inside the queue to go on from."""
    known = headers.PullHeader(
        group="g", topic="known", queue_id=0, queue_offset=offset, max_messages=1, sys_flag=4, subscription="*",
        suspend_ms=0,
    )  # fmt: skip
    answer = ask(server.broker, RequestCode.PULL_MESSAGE, known.to_ext())
    told = headers.PullReplyHeader.from_ext(answer.ext)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert told.min_offset <= told.next_offset <= told.max_offset


def test_oversized_body_is_refused_by_name(server, bystander):
    """Above maxMessageSize: MESSAGE_ILLEGAL, and nothing is stored."""
    answer = ask(server.broker, RequestCode.SEND_MESSAGE_V2, send_ext(), bytes((4 << 20) + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark


def test_compression_bomb_hurts_nobody(server, bystander):
    """80 MiB of zeros in 80 KB: stored as it came; readers refuse to expand it and say why."""
    assert ask(server.broker, RequestCode.SEND_MESSAGE_V2, send_ext(topic="bomb", sys_flag=1), bomb()).code == 0
    with (
        metaq.Reader(server.namesrv, "bomb", start="earliest", stop_at_end=True) as reader,
        pytest.raises(metaq.MetaqError, match=r"limit|above|large"),
    ):
        list(reader)
    dumped = run_metaq("store", "dump", str(server.data), "--topic", "bomb")
    assert len(dumped.stdout) < 4 * len(bomb()), "shown as it is stored"


def test_compressed_registration_bomb_is_refused_by_the_name_server(server, bystander):
    """The name server expands a registration within a limit only."""
    ext = headers.RegisterBrokerHeader(
        broker_name="bomber", broker_address="127.0.0.1:1", cluster="c", broker_id=0, compressed=True
    ).to_ext()
    answer = ask(server.namesrv, RequestCode.REGISTER_BROKER, ext, bomb())
    assert answer.code != ResponseCode.SUCCESS
    listed = json.loads(run_metaq("cluster", "-n", server.namesrv, "--json").stdout)
    assert "bomber" not in {broker["broker"] for broker in listed}
