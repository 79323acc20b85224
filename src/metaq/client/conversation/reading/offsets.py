"""Queue bounds (30, 31) and consumer offsets (14, 15)."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from metaq.client.conversation.call import Call, Order
from metaq.model import MessageQueue
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request


class GetMinOffset(Call[int], frozen=True):
    """Minimum offset of a queue (31)."""

    queue: MessageQueue

    @property
    def action(self) -> str:
        return f"find where {self.queue} begins"

    def request(self) -> Command:
        return request(RequestCode.GET_MIN_OFFSET, _queue_header(self.queue))

    def read(self, answer: Command) -> int:
        return headers.OffsetReplyHeader.from_ext(answer.ext).offset


class Beginning(NamedTuple):
    """Minimum offset of a queue, and its topic's generation there; None: a RocketMQ broker does not tell it."""

    offset: int
    generation: int | None


class GetBeginning(Call[Beginning], frozen=True):
    """Minimum offset of a queue, with its topic's generation (31).

    A topic that is made anew has another generation: offsets of the one before mean other messages, or none.
    """

    queue: MessageQueue

    @property
    def action(self) -> str:
        return f"find where {self.queue} begins"

    def request(self) -> Command:
        queue = self.queue
        header = headers.QueueHeader(
            topic=queue.topic, queue_id=queue.queue_id, wants_generation=True, broker_name=queue.broker
        )
        return request(RequestCode.GET_MIN_OFFSET, header)

    def read(self, answer: Command) -> Beginning:
        header = headers.OffsetReplyHeader.from_ext(answer.ext)
        return Beginning(header.offset, header.generation)


class GetMaxOffset(Call[int], frozen=True):
    """Maximum offset of a queue, one past the newest message (30)."""

    queue: MessageQueue

    @property
    def action(self) -> str:
        return f"find where {self.queue} ends"

    def request(self) -> Command:
        return request(RequestCode.GET_MAX_OFFSET, _queue_header(self.queue))

    def read(self, answer: Command) -> int:
        return headers.OffsetReplyHeader.from_ext(answer.ext).offset


class GetPosition(Call[int | None], frozen=True):
    """Next offset that a group consumes in a queue (14); None: it has none.

    A group without one gets 0 as long as the queue is young: its first message is there, and in memory. With `exact` it gets
    None from brokers of ours and RocketMQ 5; RocketMQ 4 does not know the field.
    """

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    group: str
    queue: MessageQueue
    exact: bool = False

    @property
    def action(self) -> str:
        return f"load the offset of {self.queue}"

    def request(self) -> Command:
        queue = self.queue
        header = headers.QueryOffsetHeader(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            zero_if_not_found=False if self.exact else None,
            broker_name=queue.broker,
        )
        return request(RequestCode.QUERY_CONSUMER_OFFSET, header)

    def read(self, answer: Command) -> int | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = headers.OffsetReplyHeader.from_ext(answer.ext).offset
        return offset if offset >= 0 else None


class SetPosition(Order, frozen=True):
    """Commit `offset` as the next one that the group consumes (15); with `instead_of`, where that is what the broker has."""

    group: str
    queue: MessageQueue
    offset: int
    generation: int | None = None
    instead_of: int | None = None

    @property
    def action(self) -> str:
        return f"keep the offset of {self.queue}"

    def request(self) -> Command:
        queue = self.queue
        header = headers.UpdateOffsetHeader(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=self.offset,
            generation=self.generation,
            instead_of=self.instead_of,
            broker_name=queue.broker,
        )
        return request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def beginners(queues: Iterable[MessageQueue], begun: Container[tuple[str, str]]) -> list[MessageQueue]:
    """Return queues whose commit must be acknowledged before others are sent: one per broker and topic not in `begun`.

    A RocketMQ broker creates the offset table of a group and topic with the first commit, without a lock: of several concurrent
    first commits only the last one's table stays, and the others are lost although they were acknowledged. `begun` has pairs of
    broker and topic.
    """
    first: dict[tuple[str, str], MessageQueue] = {}
    for queue in queues:
        if (queue.broker, queue.topic) not in begun:
            first.setdefault((queue.broker, queue.topic), queue)
    return list(first.values())


def _queue_header(queue: MessageQueue) -> headers.QueueHeader:
    return headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker)
