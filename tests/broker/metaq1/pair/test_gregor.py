"""The slave of a synchronous pair, at its text server: what the original answered when it was recorded, and where ours differs."""

from __future__ import annotations

import pytest

from metaq.broker.metaq1.pair.gregor import KNOWN_MAX
from metaq.broker.requests import Send
from metaq.errors import Refused
from metaq.model.metaq1.partition import born_id
from metaq.wire.metaq1.commands import ResultLine
from metaq.wire.metaq1.frame import checksum, frames
from tests.broker.metaq1.pair.support import Slave, frames_of, open_slave
from tests.broker.support import BORN_HOST

HELLO = checksum(b"hello")
PLACE = "Put message to [broker 'meta://10.0.0.5:8123'] [partition '{}'] failed.Detail:"


@pytest.fixture
def slave(tmp_path, clock):
    with open_slave(tmp_path, clock, {"test": 2}, max_transfer_size=4096) as made:
        yield made


def ask(slave: Slave, line: str, body: bytes = b"hello") -> tuple[int, str]:
    answer = slave.ask(slave.client(), line.encode() + b"\r\n" + body)
    assert isinstance(answer, ResultLine)
    return answer.code, answer.body.decode()


def test_the_recorded_conversation_goes_as_recorded(slave) -> None:
    for line, answer in [
        (f"sync test 0 5 0 12345678901234 {HELLO} 1", (200, "12345678901234 0 0")),
        ("sync test 0 5 0 12345678901235 2", (200, "12345678901235 0 25")),
        (
            "sync test 0 5 0 12345678901236 77 4",
            (500, PLACE.format("test-0") + "Checksum failure,message may be corrupted when transfering on networking."),
        ),
        (f"sync test 9 5 0 12345678901236 {HELLO} 5", (500, PLACE.format("test-9") + "wrong partition 9")),
        (f"sync test -1 5 0 12345678901236 {HELLO} 6", (500, PLACE.format("test--1") + "wrong partition -1")),
        (
            f"sync nope 0 5 0 12345678901236 {HELLO} 7",
            (500, PLACE.format("nope-0") + "The server do not accept topic nope"),
        ),
        (f"sync _metaq_slave_status_test 0 5 0 12345678901236 {HELLO} 8", (200, "12345678901236 0 0")),
        (f"sync test 0 5 0 -7 {HELLO} 9", (200, "-7 0 50")),
    ]:
        assert ask(slave, line) == answer
    assert ask(slave, "sync test 1 0 0 5 0 15", b"") == (200, "5 1 0")
    found = list(frames(frames_of(slave.client())))
    assert [one.message_id for one in found] == [12345678901234, 12345678901235, -7]
    for line in (
        "transaction TX:10.0.0.5-1-1:1 10.0.0.5-1-1 BEGIN 13",
        "transaction XID:7:6731:6231:uqA 10.0.0.5-1-1 BEGIN 13",
    ):
        assert ask(slave, line, b"") == (500, "Unsupported beginTransaction")
    assert ask(slave, "transaction null 10.0.0.5-1-1 RECOVER uqA 14", b"") == (
        500,
        "Unsupported getPreparedTransactions",
    )


def test_a_message_that_comes_once_more_is_stored_once(slave) -> None:
    """The original stores it twice, and all later messages lie elsewhere than at the master."""
    for _ in range(2):
        assert ask(slave, f"sync test 0 5 0 77 {HELLO} 1") == (200, "77 0 0")
    assert ask(slave, f"sync test 0 5 0 78 {HELLO} 1") == (200, "78 0 25")
    # Another message of that id is another message.
    assert ask(slave, "sync test 0 5 0 77 1", b"other") == (200, "77 0 50")
    assert KNOWN_MAX > 2


def test_it_takes_no_puts(slave) -> None:
    code, text = ask(slave, f"put test 0 5 0 {HELLO} 10")
    assert code == 500
    assert "takes messages from its master alone" in text
    assert frames_of(slave.client()) == b""


def test_it_takes_nothing_from_other_protocols(slave) -> None:
    send = Send(topic="test", queue_id=0, body=b"x", properties="", flag=0, sys_flag=0, born_ms=1, born_host=BORN_HOST)
    with pytest.raises(Refused, match="its master alone"):
        slave.broker.sends.send(send)


def test_a_message_longer_than_a_get_returns_is_stored(slave) -> None:
    """A master has such ones of RocketMQ's clients: without them, all that follows would lie elsewhere."""
    body = bytes(10_000)
    assert ask(slave, f"sync test 0 {len(body)} 0 5 1", body) == (200, "5 0 0")
    assert len(frames_of(slave.client())) == 20 + len(body)


def test_a_message_longer_than_the_store_takes_is_refused_and_the_connection_goes_on(slave) -> None:
    client = slave.client()
    size = (1 << 20) + 4096
    client.feed(b"sync test 0 %d 0 5 1\r\n" % size)
    client.feed(bytes(size) + b"version 2\r\n")
    first, second = client.answers()
    assert (first.code, second.code) == (500, 200)


def test_a_cut_sync_waits_for_the_rest(slave) -> None:
    client = slave.client()
    client.feed(b"sync test 0 5 0 7 3\r\nhel")
    assert client.answers() == []
    client.feed(b"lo")
    (answer,) = client.answers()
    assert answer.code == 200


@pytest.mark.parametrize("line", [b"sync test 0 5 0 1\r\nhello", b"sync test 0 5 0 1 1 1 1\r\nhello"])
def test_a_malformed_sync_ends_the_connection(slave, line) -> None:
    client = slave.client()
    client.feed(line)
    assert client.peer.closed


def test_ids_go_on_behind_those_of_the_master(slave, clock) -> None:
    """When it leads, its ids must not be those of messages that the master put, whose clock may be ahead."""
    ahead = born_id(clock.now_ms() + 60_000, 7, 5)
    ask(slave, f"sync test 0 5 0 {ahead} {HELLO} 1")
    assert slave.broker.metaq1.partitions.ids.take() > ahead


@pytest.mark.parametrize("message_id", [-(1 << 60), (1 << 62) | 5, (1 << 61), 3])
def test_ids_that_say_no_time_move_none(slave, clock, message_id) -> None:
    ask(slave, f"sync test 0 5 0 {message_id} {HELLO} 1")
    assert slave.broker.metaq1.partitions.ids.take() < born_id(clock.now_ms() + 60_000, 7, 0)


def test_it_shows_the_topic_of_tests_to_nobody(slave) -> None:
    ask(slave, f"sync _metaq_slave_status_test 0 5 0 12345678901236 {HELLO} 8")
    assert "_metaq_slave_status_test" not in slave.broker.metaq1.partitions.published()
