"""All messages with a key, from a broker whose index knows hashes and seconds: against the obvious search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.driver import converse
from metaq.client.conversation.reading.key_search import Hits, KeySearch, search_key
from metaq.client.conversation.reading.lookups import QueryRecords
from metaq.client.conversation.reading.newest import newest_between
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import Pull, PullResult, PullStatus
from metaq.model import MessageQueue, StoredMessage
from metaq.wire import hot
from metaq.wire.record import encode_record

QUEUE = MessageQueue("orders", "broker-a", 0)
BEGIN_MS = 1_700_000_000_123
"""Store time of the first entry of the index, from which its seconds are counted."""


class Rocketmq:
    """A queue whose keys are looked up as RocketMQ 4.9 does (rocketmq-4x.md 4.3): `Aa` and `BB` have one hash."""

    def __init__(self, stored: list[tuple[int, str]]) -> None:
        """Args: stored: ms since the beginning and key of each message, in their order."""
        self.records = [
            encode_record(
                topic=b"orders", queue_id=0, queue_offset=number, log_offset=number * 1000, flag=0, sys_flag=0, born_ms=1,
                born_host=bytes(8), store_ms=BEGIN_MS + at, store_host=bytes(8), reconsume_times=0, prepared_offset=0,
                body=b"%d" % number, properties=f"KEYS\x01{key}\x02".encode(),
            )
            for number, (at, key) in enumerate(stored)
        ]  # fmt: skip
        self.times = [BEGIN_MS + at for at, _ in stored]
        self.asked = 0

    def __call__(self, step: object) -> object:
        self.asked += 1
        if isinstance(step, QueryRecords):
            fitting = [
                number for number, at in enumerate(self.times) if step.begin_ms <= self._entry(at) <= step.end_ms
            ]
            return self._messages(fitting[max(0, len(fitting) - min(step.count_max, 64)) :])
        if isinstance(step, Pull):
            some = self.records[step.offset : step.offset + min(step.count, 32)]
            status = PullStatus.FOUND if some else PullStatus.NOTHING_NEW
            return PullResult(status, b"".join(some), step.offset + len(some), 0, len(self.records))
        return {GetMinOffset: 0, GetMaxOffset: len(self.records)}[type(step)]

    @staticmethod
    def _entry(at: int) -> int:
        return BEGIN_MS + (at - BEGIN_MS) // 1000 * 1000

    def _messages(self, numbers: list[int]) -> list[StoredMessage]:
        data = b"".join(self.records[number] for number in numbers)
        return hot.decode_records(data, 0, len(data), StoredMessage, "broker-a", 0, 0)

    def search(self, limit: int, start: int = 0, end: int = 1 << 40) -> Hits:
        wanted = KeySearch(topic="orders", key="Aa", start_ms=BEGIN_MS + start, end_ms=BEGIN_MS + end, limit=limit)
        return converse(search_key(wanted, "broker-a", [QUEUE]), self)


def expected(stored: list[tuple[int, str]], limit: int, start: int = 0, end: int = 1 << 40) -> tuple[list[bytes], bool]:
    found = [b"%d" % number for number, (at, key) in enumerate(stored) if key == "Aa" and start <= at < end]
    return found[max(0, len(found) - limit) :], len(found) > limit


def bodies(hits: Hits) -> tuple[list[bytes], bool]:
    return [one.body for one in hits.messages], hits.more


KEYS = st.sampled_from(["Aa", "BB", "BB", "BB"])
CROWDS = st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 90), KEYS), max_size=8).map(
    lambda crowds: sorted((at, key) for at, count, key in crowds for _ in range(count))
)
"""Crowds of messages in one millisecond, more than an answer has room for."""


@given(CROWDS, st.integers(1, 100), st.integers(0, 9000), st.integers(0, 9000))
def test_no_message_is_cut_off_by_others_with_the_same_hash(stored, limit, one, other):
    """The newest of them, exactly, to the millisecond, and whether there are more."""
    start, end = sorted((one, other))
    assert bodies(Rocketmq(stored).search(limit)) == expected(stored, limit)
    assert bodies(Rocketmq(stored).search(limit, start, end)) == expected(stored, limit, start, end)


def test_a_common_search_is_one_request():
    broker = Rocketmq([(number * 100, "Aa") for number in range(20)])
    assert bodies(broker.search(32)) == ([b"%d" % number for number in range(20)], False)
    assert broker.asked == 1


@given(CROWDS, st.integers(1, 100), st.integers(-10, 9010), st.integers(-10, 9010))
def test_the_newest_of_a_time_are_read_backwards(stored, count, one, other):
    """In [start, end); bounds may be open, messages may have to fit."""
    start, end = sorted((one, other))
    broker = Rocketmq(stored)
    found = converse(newest_between(QUEUE, BEGIN_MS + start, BEGIN_MS + end, count), broker)
    numbers = [number for number, (at, _) in enumerate(stored) if start <= at < end]
    assert [one.queue_offset for one in found] == numbers[-count:]
    whole = converse(newest_between(QUEUE, None, None, count, lambda one: one.keys == ("Aa",)), broker)
    assert [one.queue_offset for one in whole] == [n for n, (_, key) in enumerate(stored) if key == "Aa"][-count:]


@pytest.mark.parametrize("key", ["Aa", "BB"])
def test_the_two_keys_have_one_hash(key):
    """On which the tests above stand."""
    assert hot.index_hash(f"orders#{key}".encode()) == hot.index_hash(b"orders#Aa")
