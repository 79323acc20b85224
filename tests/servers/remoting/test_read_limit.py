"""What clients get of a SYNC_MASTER's messages while its slaves lack some of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from metaq.broker.requests import FILTER, HOLD
from metaq.model.filters.predicates import PREDICATE, YES
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, SerializeType
from tests.servers.remoting.test_pull import messages, offsets
from tests.servers.support import Client, open_server, pull_header, send_header, tick


class Master:
    """A SYNC_MASTER with a slave that reports what the test says, a producer and a consumer."""

    def __init__(self, server, clock):
        self.server, self.clock, self.broker = server, clock, server.broker
        self.log, self.replicas = self.broker.store.log, self.broker.replicas
        self.slave = self.replicas.connect("slave:1")
        self.ends: list[int] = []
        """Where the log ended behind each message."""
        self.producer = Client(server)
        self.report(0)

    def report(self, count: int) -> None:
        """The slave says that it has so many messages."""
        self.replicas.report(self.slave, self.ends[count - 1] if count else 0)

    def send(self, count: int, **more) -> None:
        """Send numbers; their answers are held as long as the slave says nothing."""
        for _ in range(count):
            header = send_header("orders", properties={"a": str(len(self.ends))}, **more)
            self.producer.feed(self.producer.frame(RequestCode.SEND_MESSAGE_V2, header, b"%d" % len(self.ends)))
            self.ends.append(self.log.end)

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        tick(self.server)


@pytest.fixture
def master(tmp_path, clock) -> Iterator[Master]:
    with open_server(tmp_path, clock, broker_role="SYNC_MASTER", slave_timeout=3000) as (_, server):
        yield Master(server, clock)


@pytest.fixture
def client(master):
    return Client(master.server)


def got(answers: list[Command]) -> list[int]:
    """The numbers in one answer."""
    (answer,) = answers
    return [int(message.body) for message in messages(answer)]


def hold(client, offset: int, **more) -> list[Command]:
    return client.pull("orders", 0, offset, sys_flag=FILTER | HOLD, suspend_ms=15_000, **more)


PULLS = {
    "plain": {},
    "by tags": {"subscription": "A || B"},
    "by an expression": {"subscription": "a >= 0", "expression_type": "SQL92"},
    "by a predicate": {"subscription": "all", "expression_type": PREDICATE},
    "lifted": {"max_msg_bytes": 1 << 20},
}


@pytest.mark.parametrize("kind", PULLS)
def test_a_pull_gets_what_a_slave_has(master, client, kind, monkeypatch):
    """Of every kind, with the queue's end as it is for it; one that waits is answered by the report, and not by the append."""
    monkeypatch.setattr(master.broker.predicates, "check", lambda _name: None)

    def judge(_group, name, records, done, *, owner):
        done(SimpleNamespace(verdicts=[YES] * len(records), records=records, deadline=0.0, why="", predicate=name))

    monkeypatch.setattr(master.broker.predicates, "judge", judge)
    master.send(5, tag="A")
    master.report(3)
    answers = client.pull("orders", 0, 1, **PULLS[kind]) or client.received()
    assert (got(answers), offsets(answers[0])) == ([1, 2], (3, 0, 3))
    for offset in (3, 4, 5):
        (answer,) = client.pull("orders", 0, offset, **PULLS[kind])
        assert (answer.code, offsets(answer)) == (ResponseCode.PULL_NOT_FOUND, (offset, 0, 3))
    assert hold(client, 3, **PULLS[kind]) == []
    master.send(1, tag="B")
    tick(master.server)
    assert client.received() == []
    master.report(4)
    assert got(client.received()) == [3]
    assert hold(client, 4, **PULLS[kind]) == []
    master.report(6)
    assert got(client.received()) == [4, 5]


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_the_fast_path_answers_at_a_sync_master_too(master, serialize, monkeypatch):
    """What comes and what was held, as long as something may be read."""
    client = Client(master.server, serialize)
    master.send(3)
    master.report(1)
    for _ in range(2):  # the first one makes the group, which closes all gates
        assert got(client.pull("orders")) == [0]
    monkeypatch.setattr(master.broker.pulls, "first", lambda _pull: pytest.fail("not on the fast path"))
    master.report(2)
    assert got(client.pull("orders")) == [0, 1]
    monkeypatch.undo()
    assert hold(client, 2) == []
    monkeypatch.setattr(master.broker.pulls, "read", lambda *_: pytest.fail("not on the fast path"))
    master.report(3)
    assert got(client.received()) == [2]


def test_only_queues_that_have_something_new_are_looked_at(master, monkeypatch):
    """A report costs nothing for the pulls that wait elsewhere, and nothing at all if it is of no queue's messages."""
    waiting = [Client(master.server) for _ in range(4)]
    master.send(1)
    master.report(1)
    for queue_id, client in enumerate(waiting):
        offset = 0 if queue_id else 1
        facts = {"sys_flag": FILTER | HOLD, "suspend_ms": 15_000}
        assert client.tell(RequestCode.PULL_MESSAGE, pull_header("orders", queue_id, offset, **facts)) == []
    looked, end_of = list[int](), master.broker.held_pulls.end_of
    monkeypatch.setattr(master.broker.held_pulls, "end_of", lambda tail: looked.append(tail.queue_id) or end_of(tail))
    master.send(1, queue_id=2)
    looked.clear()
    for part in range(1, 10):
        master.replicas.report(master.slave, master.ends[0] + part)
    assert looked == []
    master.report(2)
    assert set(looked) == {2}
    assert [len(client.received()) for client in waiting] == [0, 0, 1, 0]


def test_a_slave_that_stalls_lets_go(master, client, caplog):
    """After slaveTimeout the send is answered FLUSH_SLAVE_TIMEOUT, and its message is there for consumers."""
    master.send(1)
    assert hold(client, 0) == []
    master.later(0.1)
    master.later(2.8)
    assert client.received() == []
    with caplog.at_level(logging.WARNING):
        master.later(0.3)
    assert got(client.received()) == [0]
    assert "slaveTimeout" in caplog.text
    assert [answer.code for answer in master.producer.received()] == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    master.send(1)
    assert got(client.pull("orders", 0, 1)) == [1]


def test_a_slave_that_leaves_lets_go(master, client):
    """Sends are answered SLAVE_NOT_AVAILABLE from then on, and read at once."""
    master.send(1)
    assert hold(client, 0) == []
    master.replicas.disconnect(master.slave)
    tick(master.server)
    assert got(client.received()) == [0]
    master.send(1)
    assert got(client.pull("orders", 0, 1)) == [1]
    assert hold(client, 2) == []
    master.send(1)
    assert got(client.received()) == [2]


def test_a_slave_that_comes_back_with_less_sends_nobody_back(master, client):
    """Who has read more meanwhile waits where he is, until the slave has come there too."""
    master.send(2)
    master.report(2)
    master.replicas.disconnect(master.slave)
    tick(master.server)
    master.send(3)
    assert got(client.pull("orders")) == [0, 1, 2, 3, 4]
    master.slave = master.replicas.connect("slave:2")
    master.report(1)
    for offset in (3, 5):
        (answer,) = client.pull("orders", 0, offset)
        assert (answer.code, offsets(answer)) == (ResponseCode.PULL_NOT_FOUND, (offset, 0, 2))
    (answer,) = client.pull("orders", 0, 6)
    assert (answer.code, offsets(answer)) == (ResponseCode.PULL_OFFSET_MOVED, (2, 0, 2))
    assert hold(client, 3) == []
    for count in (2, 3):
        master.report(count)
        assert client.received() == []
    master.report(5)
    assert got(client.received()) == [3, 4]


def test_who_begins_at_the_end_begins_where_pulls_end(master, client):
    """Of what comes to the offsets behind it after a change of leaders, nothing may be passed over."""
    master.send(3)
    master.clock.advance(10.0)
    now = master.clock.now_ms()

    def ask(code: RequestCode, header: headers.Header) -> int:
        return headers.OffsetReplyHeader.from_ext(client.ask(code, header).ext).offset

    queue, time = (
        headers.QueueHeader(topic="orders", queue_id=0),
        headers.SearchOffsetHeader(topic="orders", queue_id=0, timestamp=now),
    )
    for count in (0, 2, 3):
        master.report(count)
        assert ask(RequestCode.GET_MAX_OFFSET, queue) == count
        assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, time) == min(count, 2)
