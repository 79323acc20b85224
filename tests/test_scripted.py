"""The scripted cluster itself: what a script says is what becomes of a request, and everything else is a real broker's."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from msgspec import structs

from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, reply, request
from metaq.wire.connection import Connection
from metaq.wire.headers import OffsetReplyHeader, QueueHeader
from tests.scripted import Fate, Later, ScriptedCluster
from tests.support import PATIENCE

MAX, MIN = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path) as running:
        running.put("orders", 1, [b"x"] * 3)
        yield running


class Client:
    """A connection through the proxy of the broker, which the name server names."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        self.connection = Connection()

    def post(self, code: int, opaque: int) -> None:
        header = QueueHeader(topic="orders", queue_id=1)
        self.socket.sendall(encode(structs.replace(request(code, header), opaque=opaque)))

    def answer(self) -> Command | None:
        """The next answer; None at the connection's end."""
        while (command := self.connection.next_command()) is None:
            data = self.socket.recv(65536)
            if not data:
                return None
            self.connection.receive_data(data)
        return command


@pytest.fixture
def client(cluster):
    made = Client(cluster.broker)
    with made.socket:
        yield made


def offset(answer: Command | None) -> int:
    assert answer is not None
    return OffsetReplyHeader.from_ext(answer.ext).offset


def test_without_a_script_the_real_broker_answers_and_requests_are_counted(cluster, client):
    """The test's own puts and questions are not among them."""
    for opaque in range(2):
        client.post(MAX, opaque)
        assert offset(client.answer()) == 3
    assert cluster.count(MAX) == 2
    assert cluster.count(RequestCode.SEND_MESSAGE_V2) == 0


def test_a_request_may_be_lost_answered_exchanged_or_overtaken(cluster, client):
    """Each by what the script returns."""
    go_on = threading.Event()

    def script(asked: Command):
        match asked.opaque:
            case 1:
                return Fate.LOSE
            case 2:
                return reply(asked, ResponseCode.SYSTEM_BUSY, remark="busy")
            case 3:
                return structs.replace(asked, code=int(MIN))
            case 4:
                return Later(go_on)
            case 5:
                return encode(reply(asked, ResponseCode.SYSTEM_ERROR))
        return None

    cluster.script = script
    for opaque in range(1, 7):
        client.post(MAX, opaque)
    answers = [client.answer() for _ in range(4)]
    go_on.set()
    answers.append(client.answer())
    got = {answer.opaque: answer for answer in answers}
    assert answers[-1].opaque == 4
    assert got.keys() == {2, 3, 4, 5, 6}
    assert [got[opaque].code for opaque in (2, 5)] == [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR]
    assert [offset(got[opaque]) for opaque in (3, 4, 6)] == [0, 3, 3]


def test_a_script_may_hang_up_before_and_after_the_broker(cluster, client):
    """On the request's way, and on the answer's."""
    cluster.answer_script = lambda answer: Fate.HANG_UP
    client.post(MAX, 1)
    assert client.answer() is None
    cluster.script, cluster.answer_script = lambda asked: Fate.HANG_UP, lambda answer: None
    with Client(cluster.broker).socket as second, contextlib.suppress(OSError):
        second.sendall(encode(request(MAX)))
        assert second.recv(100) == b""


def test_an_error_in_a_script_fails_the_test(tmp_path):
    """It would be taken for a fault of the network otherwise."""
    cluster = ScriptedCluster(tmp_path)
    with pytest.raises(ZeroDivisionError), cluster:
        cluster.put("orders", 1, [b"x"])
        cluster.script = lambda asked: 1 // 0
        client = Client(cluster.broker)
        with client.socket:
            client.post(MAX, 1)
            assert client.answer() is None


def test_messages_expire_file_by_file(cluster):
    """What was put before a new log file goes, what was put into it stays."""
    cluster.new_log_file()
    cluster.put("orders", 1, [b"y"] * 2)
    cluster.expire("orders", 1, 3)
    assert list(cluster.starts("orders").values())[1] == 3
    assert list(cluster.ends("orders").values())[1] == 5
