"""A broker whose process may map no more memory: it tells its clients so, and goes on when it may again."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import socket
import sys
from collections.abc import Iterator

import pytest

from metaq.testing import EmbeddedBroker
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from tests.support import PATIENCE, eventually

MIB = 1024 * 1024
REFUSED = {ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets the limit of another process with prlimit")


@pytest.fixture
def server() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker
        assert broker.alive, broker.log_tail()
        resource.prlimit(broker.pid, resource.RLIMIT_AS, UNLIMITED)


class Peer:
    """A raw connection that asks one thing after another."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._raw = socket.create_connection((host, int(port)), PATIENCE)
        self._raw.settimeout(PATIENCE)
        self._reader = Connection()
        self.close = self._raw.close

    def ask(self, *commands: Command) -> list[Command]:
        """The answers to one burst."""
        for number, command in enumerate(commands):
            command.opaque = number
        self._raw.sendall(b"".join(map(encode, commands)))
        answers = list[Command]()
        while len(answers) < len(commands):
            while (answer := self._reader.next_command()) is not None:
                answers.append(answer)
            if len(answers) < len(commands):
                data = self._raw.recv(256 * 1024)
                if not data:
                    raise ConnectionError("closed instead of answered")
                self._reader.receive_data(data)
        assert sorted(answer.opaque for answer in answers) == list(range(len(commands)))
        return answers


def send(topic: str, body: bytes) -> Command:
    header = headers.SendHeader(producer_group="g", topic=topic, queue_id=0, born_ms=1)
    return request(RequestCode.SEND_MESSAGE_V2, header, body)


def limit_memory(server: EmbeddedBroker, more: int) -> None:
    """From now on the server may map `more` bytes beyond what it has."""
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    now = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSize"))
    resource.prlimit(server.pid, resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))


def end_of(peer: Peer, topic: str) -> int:
    (answer,) = peer.ask(request(RequestCode.GET_MAX_OFFSET, headers.QueueHeader(topic=topic, queue_id=0)))
    assert answer.code == 0, answer.remark
    return headers.OffsetReplyHeader.from_ext(answer.ext).offset


def test_sends_that_need_a_new_file_are_refused_with_the_remedy(server: EmbeddedBroker) -> None:
    """The next log file cannot be mapped: every send is answered over the same connection, later ones are stored."""
    peer, bystander = Peer(server.broker), Peer(server.broker)
    with contextlib.closing(peer), contextlib.closing(bystander):
        for one in (peer, bystander):
            assert one.ask(send("full", b"first"))[0].code == 0
        limit_memory(server, 12 * MIB)
        answers = [answer for _ in range(40) for answer in peer.ask(*(send("full", b"x" * 100_000) for _ in range(10)))]
        stored = [answer for answer in answers if answer.code == 0]
        refused = [answer for answer in answers if answer.code != 0]
        assert {answer.code for answer in refused} <= REFUSED
        assert any("memory" in answer.remark for answer in refused)
        assert end_of(bystander, "full") == len(stored) + 2
        resource.prlimit(server.pid, resource.RLIMIT_AS, UNLIMITED)
        eventually(lambda: peer.ask(send("full", b"after"))[0].code == 0)
        assert end_of(bystander, "full") == len(stored) + 3
    assert server.log.read_text().count("Traceback") < 10


def test_broker_without_any_memory_survives_and_says_little(server: EmbeddedBroker) -> None:
    """New topics and large frames where nothing can be had: afterwards it serves as before."""
    limit_memory(server, MIB // 2)
    for number in range(40):
        with contextlib.suppress(ConnectionError), contextlib.closing(Peer(server.broker)) as peer:
            answers = peer.ask(*(send(f"topic{number}-{place}", b"x" * 900_000 * place) for place in range(1, 4)))
            assert {answer.code for answer in answers} <= REFUSED | {0}
    resource.prlimit(server.pid, resource.RLIMIT_AS, UNLIMITED)
    with contextlib.closing(Peer(server.broker)) as peer:
        eventually(lambda: peer.ask(send("after", b"x"))[0].code == 0)
    log = server.log.read_text()
    assert log.count("Traceback") < 30, log[-3000:]
