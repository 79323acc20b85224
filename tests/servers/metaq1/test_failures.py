"""Commands of MetaQ 1.x that fail: the original's codes and texts, and none without an answer."""

from __future__ import annotations

import pytest

from metaq.errors import Reason
from metaq.wire.metaq1.refusals import CODE_OF
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings


@pytest.fixture
def client(tmp_path):
    with open_metaq1_server(tmp_path, metaq1=settings(max_transfer_size=4096)) as (_, server):
        yield TextClient(server)


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        (b"put test 3 1 0 1\r\nx", 500, "wrong partition 3"),
        (b"put test -2 1 0 1\r\nx", 500, "wrong partition -2"),
        (b"put nobody 0 1 0 1\r\nx", 500, "The server do not accept topic nobody"),
        (b"put test 0 1 0 5 1\r\nx", 500, "Checksum failure,message may be corrupted when transfering on networking."),
    ],
)
def test_a_put_that_fails_is_told_as_the_original_does(client, line, code, text) -> None:
    """With broker and partition before it; and nothing is stored."""
    topic, partition = line.split()[1:3]
    place = (
        f"Put message to [broker 'meta://10.0.0.5:8123'] [partition '{topic.decode()}-{int(partition)}'] failed.Detail:"
    )
    assert client.ask(line) == (code, (place + text).encode())
    assert client.ask(b"get test g 0 0 100 1\r\n")[0] == 404


def test_a_closed_partition_is_told_by_its_code(client) -> None:
    """403 for put and get; its offset is still answered."""
    client.put(b"hello")
    client.session._space.partitions.close_partitions("test", 0, 0)
    place = b"Put message to [broker 'meta://10.0.0.5:8123'] [partition 'test-0'] failed.Detail:"
    assert client.ask(b"put test 0 1 0 1\r\nx") == (403, place + b"partition[7-0] has been closed")
    assert client.ask(b"get test g 0 0 100 1\r\n") == (403, b"Partition[7-0] has been closed")
    assert client.ask(b"offset test g 0 7 1\r\n") == (200, b"0")


def test_sync_is_refused_to_all_who_are_no_slave(client) -> None:
    """503, as the original has it; whatever the length."""
    assert client.ask(b"sync test 0 5 0 7 3\r\nhello")[0] == 503
    client.feed(b"sync test 0 5000 0 7 4\r\n" + bytes(5000) + b"version 5\r\n")
    assert [(answer.code, answer.opaque) for answer in client.answers()] == [(503, 4), (200, 5)]


def test_every_reason_has_a_code_that_is_not_success() -> None:
    """A reason without one would be a command without an answer."""
    assert set(CODE_OF) == set(Reason)
    assert 200 not in CODE_OF.values()


def test_a_failure_nobody_expected_is_an_answer(client, monkeypatch) -> None:
    """And the connection goes on."""

    def fail(_item):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(client.session._space, "stats", fail)
    assert client.ask(b"stats  3\r\n") == (500, b"OSError: [Errno 5] Input/output error")
    assert client.ask(b"version 1\r\n")[0] == 200
