"""Whether a RocketMQ broker's queue is still the same: its messages' places in the log tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq.client.consumer.membership.generations import Anchor, Generations
from metaq.client.conversation.reading.offsets import Beginning, GetBeginning
from metaq.client.conversation.reading.pulling import PullResult, PullStatus
from metaq.errors import RequestTimeout
from metaq.model import MessageQueue
from metaq.wire.record import HOST_V4, encode_record

QUEUE = MessageQueue("orders", "broker-a", 0)


def record(offset: int, log_offset: int, store_ms: int) -> bytes:
    return encode_record(
        topic=b"orders", queue_id=0, queue_offset=offset, log_offset=log_offset, flag=0, sys_flag=0, born_ms=1,
        born_host=bytes(HOST_V4), store_ms=store_ms, store_host=bytes(HOST_V4), reconsume_times=0, prepared_offset=0,
        body=b"x", properties=b"",
    )  # fmt: skip


class Core:
    """A client at a RocketMQ broker with one queue: offset → (place in the log, store time)."""

    def __init__(self, messages: dict[int, tuple[int, int]]) -> None:
        self.messages, self.asked, self.away = messages, 0, False

    async def learn_level(self, broker: str) -> int:
        return 0

    async def ask_broker(self, broker: str, call: Any) -> object:
        self.asked += 1
        if self.away:
            raise RequestTimeout("no answer")
        low, high = min(self.messages, default=0), max(self.messages, default=-1) + 1
        if isinstance(call, GetBeginning):
            return Beginning(low, None)
        offset = call.offset
        found = record(offset, *self.messages[offset]) if offset in self.messages else b""
        status = PullStatus.FOUND if found else PullStatus.OUT_OF_RANGE
        return PullResult(status, memoryview(found), offset + 1 if found else high, low, high)


def queue_of(count: int, log_begin: int, begin_ms: int, first: int = 0) -> dict[int, tuple[int, int]]:
    return {first + n: (log_begin + 100 * n, begin_ms + n) for n in range(count)}


def anchor(messages: dict[int, tuple[int, int]]) -> Anchor:
    offset = max(messages)
    return Anchor(offset, *messages[offset])


def look(core: Core, generations: Generations, newest: Anchor, *, short: bool = False) -> dict[MessageQueue, int]:
    return asyncio.run(generations.renewed([QUEUE], lambda _: newest, short=short))


OLD = queue_of(5, 1000, 50)


@pytest.mark.parametrize(
    ("now", "anew"),
    [
        (OLD, False),
        (queue_of(2, 1000, 50), False),  # the broker has lost its newest messages
        (queue_of(3, 9000, 90), True),  # shorter
        (queue_of(9, 9000, 90), True),  # longer
        (queue_of(9, 9000, 90, first=7), False),  # what was deleted cannot be compared
    ],
)
def test_a_queue_that_ends_early_is_another_one_if_its_messages_are(now, anew):
    core = Core(now)
    assert look(core, Generations(core), anchor(OLD), short=True) == ({QUEUE: 0} if anew else {})


def test_a_longer_queue_is_found_at_the_next_look_after_something_came_of_it():
    """A queue of which nothing has come costs no request."""
    core = Core(OLD)
    generations = Generations(core)
    for _ in range(3):
        assert look(core, generations, anchor(OLD)) == {}
    assert core.asked == 0
    core.messages = queue_of(9, 9000, 90)
    assert look(core, generations, anchor(core.messages)) == {QUEUE: 0}
    assert look(core, generations, anchor(core.messages)) == {}


def test_a_queue_that_goes_on_is_the_same():
    core = Core(OLD)
    generations = Generations(core)
    look(core, generations, anchor(OLD))
    core.messages = queue_of(9, 1000, 50)
    assert look(core, generations, anchor(core.messages)) == {}
    core.away = True
    core.messages = queue_of(12, 1000, 50)
    assert look(core, generations, anchor(core.messages)) == {}
