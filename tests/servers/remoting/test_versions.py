"""The version in answers: 409, in every one of every server, whatever was asked and however it ends.

Clients choose by it what they may ask: a Java consumer refuses all filters but tags at a broker that says less than 232.
"""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.wire import hot
from metaq.wire.codes import RequestCode
from metaq.wire.command import SerializeType, encode, reply, request
from metaq.wire.connection import Connection
from metaq.wire.files import KV_CONFIG
from metaq.wire.record import encode_batch
from tests.broker.support import MemoryFile
from tests.servers.support import Client, pull_header, send_header

CODES = (*RequestCode, 4711)


@pytest.mark.parametrize("serialize", SerializeType)
def test_a_broker_answers_every_code_with_409(server, clock, serialize):
    """Nearly all are refused here, for they say nothing: a refusal is an answer too. One way or another all are answered
    but those that nobody answers."""
    silent = set()
    for code in CODES:
        client = Client(server, serialize)
        client.feed(client.frame(code, version=3))
        clock.advance(60.0)
        server.tick()
        answers = [command for command in client.received() if command.is_response]
        assert {command.version for command in answers} <= {409}, code
        if not answers:
            silent.add(code)
    assert len(silent) < 5, silent


@pytest.mark.parametrize("serialize", SerializeType)
def test_the_fast_path_answers_with_409(server, serialize):
    """Sends, batches and pulls that find something, which the compiled extension answers."""
    client = Client(server, serialize)
    assert client.send("T").version == 409
    for _ in range(3):
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, send_header("T", 0), b"x", version=3)
        assert (answer.code, answer.version) == (0, 409)
    batch = client.ask(
        RequestCode.SEND_BATCH_MESSAGE, send_header("T", 0, batch=True), encode_batch([(0, b"x", b"")]), version=3
    )
    assert (batch.code, batch.version) == (0, 409)
    client.beat("G", {"T": "*"})
    client.feed(client.frame(RequestCode.PULL_MESSAGE, pull_header("T", 0, 0), version=3))
    [pulled] = client.received()
    assert (pulled.code, len(pulled.body) > 0, pulled.version) == (0, True, 409)


@pytest.mark.parametrize("binary", [False, True])
def test_a_pull_that_was_held_is_answered_with_409(binary):
    head = hot.pull_reply(1, binary, 0, "FOUND", 0, 5, 0, 5, 0)
    connection = Connection()
    connection.receive_data(head)
    assert connection.next_command().version == 409


@pytest.mark.parametrize("serialize", SerializeType)
def test_a_name_server_answers_every_code_with_409(serialize):
    server = NamesrvServer(
        NameService(NamesrvOptions(), FakeClock(), KvTable(TableFile(MemoryFile(), KV_CONFIG), FakeClock()))
    )
    silent = set()
    for code in CODES:
        client = Client(server, serialize)
        client.feed(client.frame(code, version=3))
        answers = [command for command in client.received() if command.is_response]
        assert {command.version for command in answers} <= {409}, code
        if not answers:
            silent.add(code)
    assert len(silent) < 5, silent


def test_a_client_of_ours_answers_a_broker_with_409():
    """What brokers ask (326, 220): the same."""
    client = Connection()
    asked = request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    client.receive_data(encode(reply(asked)))
    assert client.next_command().version == 409
