"""Hundreds of consumers that pull 8 MiB each: who does not read costs next to nothing, and nobody else waits for those who do."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Self

import pytest

from metaq.testing import EmbeddedBroker
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from metaq.wire.record import encode_batch
from tests.support import PATIENCE, eventually
from tests.system.test_memory import LINUX, anonymous_bytes, watched

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
PULL_BYTES = 8 * MIB
PEERS = 120
SECONDS = PATIENCE


@pytest.fixture(scope="module", params=["uvloop recent", "asyncio recent", "uvloop old"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedBroker]:
    """A broker with 10 MiB in each of two queues, a few messages of each in turns."""
    loop, age = kind.split()
    options: dict[str, object] = {"mappedFileSizeConsumeQueue": 6_000_000, "mappedFileSizeCommitLog": 64 * MIB}
    if age == "old":
        options |= {"hotBytes": 0}
    environment = {"METAQ_UVLOOP": "1" if loop == "uvloop" else "0"}
    with EmbeddedBroker(options=options, environment=environment) as broker:
        with Peer(broker.broker) as peer:
            for _ in range(320):
                for queue_id in (0, 1):
                    entries = encode_batch([(0, b"m" * 4000, b"")] * 8)
                    header = headers.SendHeader(
                        producer_group="g", topic="flood", queue_id=queue_id, born_ms=1, batch=True,
                        default_topic="TBW102", default_topic_queues=4,
                    )  # fmt: skip
                    assert peer.ask(request(RequestCode.SEND_BATCH_MESSAGE, header, entries)).code == 0
        yield broker


class Peer:
    """A raw connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.raw = socket.create_connection((host, int(port)), SECONDS)
        self.reader = Connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def ask(self, command: Command) -> Command:
        self.raw.sendall(encode(command))
        while (answer := self.reader.next_command()) is None:
            data = self.raw.recv(256 * 1024)
            assert data, "closed instead of answered"
            self.reader.receive_data(data)
        return answer


def pull(bytes_max: int = PULL_BYTES) -> Command:
    header = headers.PullHeader(
        group="g", topic="flood", queue_id=0, queue_offset=0, max_messages=65_535, sys_flag=4, suspend_ms=0,
        subscription="*", expression_type="TAG", max_msg_bytes=bytes_max,
    )  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, header)


END = request(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic="flood", queue_id=0))


@LINUX
def test_unread_answers_cost_next_to_nothing(server: EmbeddedBroker) -> None:
    """A hundred of 8 MiB, three pulls each: 64 MiB at most, and who reads gets his."""
    with contextlib.ExitStack() as peers, Peer(server.broker) as reader, watched(server.pid) as seen:
        whole = reader.ask(pull())
        for _ in range(PEERS):
            peer = peers.enter_context(Peer(server.broker))
            peer.raw.sendall(encode(pull()) * 3)
        for _ in range(20):
            assert reader.ask(END).code == 0
        again = reader.ask(pull())
        assert (again.code, again.body) == (0, whole.body)
        assert len(whole.body) > PULL_BYTES - 5000
    assert max(seen) - seen[0] < 64 * MIB + 2 * PULL_BYTES
    eventually(lambda: anonymous_bytes(server.pid) < seen[0] + 80 * MIB, SECONDS)


def test_nobody_waits_for_the_long_answers_of_others(server: EmbeddedBroker) -> None:
    """While a hundred read 8 MiB each, a bystander's requests are answered many times, in between."""
    answered, done = [0], threading.Event()

    def ask() -> None:
        with Peer(server.broker) as peer:
            while not done.is_set():
                assert peer.ask(END).code == 0
                answered[0] += 1

    bystander = threading.Thread(target=ask)
    with contextlib.ExitStack() as peers, selectors.DefaultSelector() as ready:
        readers = [peers.enter_context(Peer(server.broker)) for _ in range(PEERS)]
        bystander.start()
        try:
            for peer in readers:
                peer.raw.sendall(encode(pull()))
            for peer in readers:
                ready.register(peer.raw, selectors.EVENT_READ, [0, 0])
            buffer, at_first, complete = bytearray(MIB), answered[0], list[int]()
            while ready.get_map():
                for key, _ in ready.select():
                    got = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                    assert got, "closed instead of answered"
                    if not key.data[1]:
                        key.data[1] = 4 + int.from_bytes(buffer[:4], "big")
                    key.data[0] += got
                    if key.data[0] == key.data[1]:
                        complete.append(key.data[1])
                        ready.unregister(key.fileobj)
            between = answered[0] - at_first
        finally:
            done.set()
            bystander.join()
    assert len(complete) == PEERS
    assert min(complete) > PULL_BYTES - 5000
    assert between > 50


def test_many_pulls_of_one_connection_are_all_answered(server: EmbeddedBroker) -> None:
    """In whatever order, each whole, and beside them what does not wait for them."""
    with Peer(server.broker) as peer:
        commands = [pull(), END, pull(), pull(300_000), END, pull(100_000), pull()]
        frames = []
        for number, command in enumerate(commands):
            command.opaque = number
            frames.append(encode(command))
        peer.raw.sendall(b"".join(frames))
        answers: dict[int, Command] = {}
        while len(answers) < len(commands):
            answer = peer.reader.next_command()
            if answer is None:
                data = peer.raw.recv(MIB)
                assert data, "closed instead of answered"
                peer.reader.receive_data(data)
            else:
                answers[answer.opaque] = answer
        assert {answer.code for answer in answers.values()} == {ResponseCode.SUCCESS}
        assert answers[0].body == answers[2].body == answers[6].body
        assert bytes(answers[0].body).startswith(answers[3].body)
        assert len(answers[3].body) > 290_000
        assert bytes(answers[3].body).startswith(answers[5].body)
