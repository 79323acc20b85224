"""The fast path of puts of MetaQ 1.x at a real broker: what it takes is stored as the slow path stores it, and what closes it."""

from __future__ import annotations

import pytest

from metaq.broker.requests import Send
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.access import Action, Caller
from metaq.wire.metaq1.commands import ValueLine, put_place
from metaq.wire.metaq1.frame import frames, with_attribute
from tests.broker.support import BORN_HOST
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings


@pytest.fixture
def clock():
    return FakeClock()


def put(body: bytes, partition: int = 0, flag: int = 0, topic: bytes = b"test") -> bytes:
    return b"put %b %d %d %d 1\r\n%b" % (topic, partition, len(body), flag, body)


class Lane:
    """A server of a broker, a client at it, and how many of its puts came by the fast path."""

    def __init__(self, broker, server) -> None:
        self.broker, self.server = broker, server
        self.client = TextClient(server)

    def fast(self, data: bytes) -> list[int]:
        """Feed puts; the codes of their answers. All but the first failing or slow one came by the fast path: see `taken`."""
        list(self.broker.metaq1.fast_path.counts())
        self.client.feed(data)
        return [answer.code for answer in self.client.answers()]

    @property
    def taken(self) -> int:
        return sum(puts for _, puts, _ in self.broker.metaq1.fast_path.counts())


@pytest.fixture
def fast_path(tmp_path, clock):
    text = settings({"test": 3, "other": 1}, unflush_threshold=1_000_000)
    with open_metaq1_server(tmp_path, clock, text) as (broker, server):
        yield Lane(broker, server)


def opened(fast_path: Lane) -> Lane:
    """With gates for all partitions."""
    for partition in range(3):
        fast_path.client.put(b"first", partition=partition)
    return fast_path


def test_the_first_put_opens_a_gate_and_all_that_follow_take_it(fast_path) -> None:
    """A gate has all partitions that are touched."""
    assert fast_path.fast(put(b"a")) == [200]
    assert fast_path.taken == 0
    assert fast_path.fast(put(b"b") * 1000) == [200] * 1000
    assert fast_path.taken == 1000
    assert fast_path.client.put(b"c")[2] == 21 * 1001


def test_both_paths_store_the_same_record(fast_path, clock) -> None:
    """But for id and place; with and without an attribute."""
    tagged = with_attribute("red", b"payload")
    for body, flag in ((b"hello", 4), (tagged, 1)):
        fast_path.broker.metaq1.fast_path.close_all()
        assert fast_path.fast(put(body, flag=flag)) == [200]
        assert fast_path.taken == 0
        assert fast_path.fast(put(body, flag=flag)) == [200]
        assert fast_path.taken == 1
    (value,) = fast_path.client.feed(b"get test g 0 0 1000 1\r\n") or fast_path.client.answers()
    assert isinstance(value, ValueLine)
    first, second, third, fourth = frames(value.body)
    assert (first.flag, first.body, third.flag, third.body) == (4, b"hello", 1, tagged)
    assert (second.flag, second.body, fourth.flag, fourth.body) == (4, b"hello", 1, tagged)
    assert first.message_id < second.message_id < third.message_id < fourth.message_id
    queue = fast_path.broker.store.reader.queue("test", 0)
    assert queue.unit(2).tags_code == queue.unit(3).tags_code != 0
    assert queue.unit(0).size == queue.unit(1).size
    assert queue.unit(2).size == queue.unit(3).size


def test_ids_of_both_paths_ascend_and_none_is_given_twice(fast_path) -> None:
    """Also within one millisecond of a clock that stands, and by the thousand."""
    opened(fast_path)
    ids = []
    for _ in range(3):
        fast_path.client.feed(put(b"x") * 600 + b"put test 0 1 0 -1 null 9\r\nx" + put(b"x", flag=1))
        ids += [put_place(answer.body)[0] for answer in fast_path.client.answers() if answer.code == 200]
    assert len(ids) == 3 * 601
    assert ids == sorted(set(ids))


def test_what_changes_an_answer_closes_the_gate(fast_path, clock) -> None:
    """A closed partition, other rules, a deleted topic; the slow path then says what is to be said."""
    opened(fast_path)
    assert fast_path.fast(put(b"x")) == [200]
    fast_path.broker.metaq1.partitions.close_partitions("test", 0, 0)
    assert fast_path.fast(put(b"x") + put(b"x", 1)) == [403, 200]
    fast_path.broker.metaq1.partitions.open_partitions("test")
    assert fast_path.fast(put(b"x") * 2) == [200, 200]
    assert fast_path.taken == 1
    text = settings({"other": 1})
    fast_path.client.session._space.settings.exchange(text.rules, b"")
    assert fast_path.fast(put(b"x")) == [500]


def test_messages_of_other_servers_are_caught_up_with(fast_path) -> None:
    """A queue that somebody else appended to is put to by the slow path once, at the right position."""
    opened(fast_path)
    fast_path.broker.sends.send(Send(topic="test", body=b"from elsewhere", born_ms=1, born_host=BORN_HOST, queue_id=0))
    fast_path.client.feed(put(b"x") * 3)
    assert [put_place(answer.body)[2] for answer in fast_path.client.answers()] == [25 + 34, 25 + 34 + 21, 25 + 34 + 42]
    assert fast_path.taken == 2


def test_a_log_file_that_is_full_is_followed_by_the_next(fast_path) -> None:
    """And so are queues and positions; nothing is lost or stored twice."""
    opened(fast_path)
    total, position = 0, 25
    for _ in range(12):
        fast_path.client.feed(put(bytes(1000)) * 500)
        for answer in fast_path.client.answers():
            assert put_place(answer.body)[1:] == (0, position)
            position += 1020
            total += 1
    assert total == 6000
    assert fast_path.broker.metaq1.partitions.messages("test") == total + 3
    assert fast_path.taken > 5000


def test_files_of_queues_and_positions_are_followed_by_the_next_ones(fast_path) -> None:
    """The slow path makes room; the fast one goes on, and every position is right."""
    opened(fast_path)
    offset, position = (
        fast_path.broker.store.reader.queue("test", 1).max_offset,
        fast_path.client.put(b"", partition=1)[2] + 20,
    )
    fast_path.fast(b"")
    for _ in range(80):
        fast_path.client.feed(put(b"", 1) * 256)
        places = [put_place(answer.body)[2] for answer in fast_path.client.answers()]
        assert places == list(range(position, position + 20 * 256, 20))
        position += 20 * 256
    assert fast_path.broker.store.reader.queue("test", 1).max_offset == offset + 1 + 80 * 256
    assert fast_path.taken > 79 * 256


def test_who_may_not_publish_gets_no_gate(tmp_path, clock) -> None:
    """The slow path asks each time."""

    def authorise(who: Caller, action: Action, resource: str) -> None:
        if action is Action.PUBLISH and resource == "test" and len(allowed) == 0:
            raise Refused(Reason.NO_PERMISSION, "not you")

    allowed = [1]
    with open_metaq1_server(tmp_path, clock, settings(unflush_threshold=1_000_000), authorise=authorise) as (
        broker,
        server,
    ):
        fast_path = Lane(broker, server)
        allowed.clear()
        assert fast_path.fast(put(b"x") * 2) == [403, 403]
        allowed.append(1)
        assert fast_path.fast(put(b"x") * 3) == [200] * 3
        assert fast_path.taken == 2


def test_a_refusal_of_the_store_is_told_to_each_put(fast_path) -> None:
    """Whatever the path: nothing is stored, the connection goes on."""
    opened(fast_path)
    fast_path.broker.acks.waiting_bytes = 1 << 40
    assert fast_path.fast(put(b"x") * 2 + b"version 1\r\n") == [503, 503, 200]
    fast_path.broker.acks.waiting_bytes = 0


def test_statistics_count_both_paths(fast_path) -> None:
    """Totals and topics."""
    opened(fast_path)
    fast_path.client.feed(put(b"12345") * 7)
    fast_path.client.answers()
    _, body = fast_path.client.ask(b"stats realtime 1\r\n")
    assert b"realtime_put Count=10,Value=10," in body
    assert b"realtime_message_size Count=10,Value=50," in body
    assert b"\r\ncmd_put 10\r\n" in fast_path.client.ask(b"stats  1\r\n")[1]


def test_no_id_is_given_again_after_a_start_though_the_clock_was_set_back(tmp_path, clock) -> None:
    """More than 4096 messages without the clock moving on: ids run ahead of it, and so does the store's time."""
    text = settings(unflush_threshold=1_000_000)
    with open_metaq1_server(tmp_path, clock, text) as (broker, server):
        fast_path = opened(Lane(broker, server))
        clock.set_wall(clock.now_ms() - 3_600_000)
        fast_path.client.feed(put(b"x") * 20_000)
        given = [put_place(answer.body)[0] for answer in fast_path.client.answers()]
        assert given == sorted(set(given))
    with open_metaq1_server(tmp_path, clock, text) as (broker, server):
        assert Lane(broker, server).client.put(b"x")[0] > given[-1]
