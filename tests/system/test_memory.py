"""A whole broker under producers that are faster than its disk: its memory stays flat, and every send has its answer."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import pytest

from metaq.testing import EmbeddedBroker
from metaq.testing.embedded import SMALL
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from metaq.wire.record import encode_batch
from tests.support import PATIENCE, ROOT, environment, eventually, process, read_line

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
UNFLUSHED_BYTES_MAX = 16 * MIB
OPTIONS = {**SMALL, "unflushedBytesMax": UNFLUSHED_BYTES_MAX, "syncFlushTimeout": 60_000}
SLOW_BYTES_PER_SECOND = 10 * MIB

MESSAGES_PER_SEND, BODY_BYTES = 8, 32 * 1024
SEND_BYTES = MESSAGES_PER_SEND * BODY_BYTES
BATCH = encode_batch([(0, b"m" * BODY_BYTES, b"")] * MESSAGES_PER_SEND)
EAGER, EAGER_SENDS = 3, 240
PATIENT, PATIENT_SENDS = 4, 30
SENDS = EAGER * EAGER_SENDS + PATIENT * PATIENT_SENDS  # 210 MiB
HELD_PULLS = 500
GROWTH_MAX = 40 * MIB
"""A fifth of what is sent; buffers of large frames, held pulls and what malloc keeps for the next ones take about 15."""

LINUX = pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="reads RssAnon from Linux's /proc")


@dataclass
class Server:
    pid: int
    address: str


@pytest.fixture
def server() -> Iterator[Server]:
    """A broker on whatever disk this machine has."""
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield Server(broker.pid, broker.broker)


@pytest.fixture
def slow_server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """A broker on a disk that takes `SLOW_BYTES_PER_SECOND` at most."""
    pairs = [f"{key}={value}" for key, value in OPTIONS.items()]
    command = [sys.executable, "-m", "tests.system.slow_disk", str(tmp_path), str(SLOW_BYTES_PER_SECOND), *pairs]
    with process(*command, cwd=ROOT, env=environment()) as child:
        words = dict(word.split("=", 1) for word in read_line(child, "ready").split() if "=" in word)
        yield Server(child.pid, words["broker"])


class Peer:
    """A raw connection whose requests are numbered by the caller."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._raw = socket.create_connection((host, int(port)), PATIENCE)
        self._raw.settimeout(PATIENCE)
        self._reader = Connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def write(self, command: Command, opaque: int = 0) -> None:
        command.opaque = opaque
        self._raw.sendall(encode(command))

    def read(self) -> Command:
        while (answer := self._reader.next_command()) is None:
            data = self._raw.recv(256 * 1024)
            assert data, "the broker closed the connection"
            self._reader.receive_data(data)
        return answer

    def ask(self, command: Command) -> Command:
        self.write(command)
        return self.read()


def batch(topic: str, body: bytes = BATCH) -> Command:
    header = headers.SendHeader(producer_group="g", topic=topic, queue_id=0, born_ms=1, batch=True)
    return request(RequestCode.SEND_BATCH_MESSAGE, header, body)


def eager(address: str) -> list[Command]:
    """Send everything, and look at no answer before the last is out."""
    with Peer(address) as peer:
        for opaque in range(EAGER_SENDS):
            peer.write(batch("flood"), opaque)
        answers = [peer.read() for _ in range(EAGER_SENDS)]
    assert sorted(answer.opaque for answer in answers) == list(range(EAGER_SENDS))
    return answers


def patient(address: str) -> list[Command]:
    """Wait for each answer before the next send."""
    with Peer(address) as peer:
        return [peer.ask(batch("flood")) for _ in range(PATIENT_SENDS)]


def max_offset(address: str, topic: str) -> int:
    with Peer(address) as peer:
        answer = peer.ask(request(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic=topic, queue_id=0)))
    return headers.OffsetReplyHeader.from_ext(answer.ext).offset


def hold(peer: Peer, offset: int) -> None:
    """Leave pulls behind at the end of a queue where nothing comes."""
    header = headers.PullHeader(
        group="waiting", topic="quiet", queue_id=0, queue_offset=offset, max_messages=32, suspend_ms=60_000,
        sys_flag=headers.PullHeader.SUSPEND | headers.PullHeader.SUBSCRIPTION, subscription="*", expression_type="TAG",
    )  # fmt: skip
    for opaque in range(HELD_PULLS):
        peer.write(request(RequestCode.PULL_MESSAGE, header), opaque)


def anonymous_bytes(pid: int) -> int:
    """Memory of a process apart from mapped files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


@contextlib.contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """What the process held, every 10 ms: grows while the block runs."""
    seen, done = [anonymous_bytes(pid)], threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            seen.append(anonymous_bytes(pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def stored(answers: list[Command]) -> list[Command]:
    """The answers that promise a batch; every other one must be SYSTEM_BUSY."""
    assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    return [answer for answer in answers if answer.code == ResponseCode.SUCCESS]


def flood(server: Server) -> list[Command]:
    """Peers of both kinds at once, among held pulls: memory stays flat. Returns all answers to the sends."""
    one = encode_batch([(0, b"one", b"")])
    with Peer(server.address) as consumer, ThreadPoolExecutor(EAGER + PATIENT) as pool:
        for topic in ("quiet", "flood"):  # made before: sends that wait for their topic have a limit of their own
            assert consumer.ask(batch(topic, one)).code == ResponseCode.SUCCESS
        hold(consumer, 1)
        with watched(server.pid) as seen:
            runs = [pool.submit(eager, server.address) for _ in range(EAGER)]
            runs += [pool.submit(patient, server.address) for _ in range(PATIENT)]
            answers = list(itertools.chain.from_iterable(run.result() for run in runs))
            with Peer(server.address) as other:  # the pulls were kept: one message answers them all
                eventually(lambda: other.ask(batch("quiet", one)).code == ResponseCode.SUCCESS)
            pulls = [consumer.read() for _ in range(HELD_PULLS)]
    assert {(pull.code, pull.opaque) for pull in pulls} == {
        (ResponseCode.SUCCESS, number) for number in range(HELD_PULLS)
    }
    assert max(seen) - seen[0] < GROWTH_MAX
    return answers


def assert_nothing_is_lost(server: Server, answers: list[Command]) -> None:
    """The queue holds exactly what was acknowledged, each batch where its answer says, behind the topic's first message."""
    assert len(answers) == SENDS
    offsets = [headers.SendReplyHeader.from_ext(answer.ext).queue_offset for answer in stored(answers)]
    assert sorted(offsets) == list(range(1, max_offset(server.address, "flood"), MESSAGES_PER_SEND))


@LINUX
def test_memory_is_flat_under_a_flood_of_sends(server: Server) -> None:
    """Three peers send 60 MiB each without reading an answer, four more wait for theirs: all are stored or refused."""
    assert_nothing_is_lost(server, flood(server))


@LINUX
def test_memory_is_flat_when_the_disk_is_slow(slow_server: Server) -> None:
    """What the disk cannot take is answered SYSTEM_BUSY: the log runs ahead of it by `unflushedBytesMax`, no further."""
    started = time.monotonic()
    answers = flood(slow_server)
    most = UNFLUSHED_BYTES_MAX + SLOW_BYTES_PER_SECOND * (time.monotonic() - started) + MIB  # one read event
    assert_nothing_is_lost(slow_server, answers)
    assert len(stored(answers)) * SEND_BYTES <= most  # a machine that sends no faster than the disk has nothing refused


def test_producers_that_wait_for_answers_take_the_pace_of_the_disk(slow_server: Server) -> None:
    """None of their sends is refused: from half of `unflushedBytesMax` on, the answers wait."""
    started = time.monotonic()
    with ThreadPoolExecutor(PATIENT) as pool:
        runs = [pool.submit(patient, slow_server.address) for _ in range(PATIENT)]
        answers = list(itertools.chain.from_iterable(run.result() for run in runs))
    seconds = time.monotonic() - started
    assert len(stored(answers)) == PATIENT * PATIENT_SENDS
    slack = UNFLUSHED_BYTES_MAX // 2
    assert seconds >= (PATIENT * PATIENT_SENDS * SEND_BYTES - slack - MIB) / SLOW_BYTES_PER_SECOND
