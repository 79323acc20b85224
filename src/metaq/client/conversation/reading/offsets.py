"""Where a queue begins and ends, and how far a group has come in it."""

from __future__ import annotations

from collections.abc import Container, Iterable

from metaq.client.conversation.call import Call, Order
from metaq.model import MessageQueue
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request


class GetMinOffset(Call[int], frozen=True):
    """The oldest offset kept."""

    queue: MessageQueue

    @property
    def action(self) -> str:
        return f"find where {self.queue} begins"

    def request(self) -> Command:
        return request(RequestCode.GET_MIN_OFFSET, _queue_header(self.queue))

    def read(self, answer: Command) -> int:
        return headers.OffsetReplyHeader.from_ext(answer.ext).offset


class GetMaxOffset(Call[int], frozen=True):
    """One past the newest offset."""

    queue: MessageQueue

    @property
    def action(self) -> str:
        return f"find where {self.queue} ends"

    def request(self) -> Command:
        return request(RequestCode.GET_MAX_OFFSET, _queue_header(self.queue))

    def read(self, answer: Command) -> int:
        return headers.OffsetReplyHeader.from_ext(answer.ext).offset


class GetPosition(Call[int | None], frozen=True):
    """The offset that a group consumes next; None if it has no progress in the queue."""

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    group: str
    queue: MessageQueue

    @property
    def action(self) -> str:
        return f"load the offset of {self.queue}"

    def request(self) -> Command:
        queue = self.queue
        header = headers.QueryOffsetHeader(
            group=self.group, topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker
        )
        return request(RequestCode.QUERY_CONSUMER_OFFSET, header)

    def read(self, answer: Command) -> int | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = headers.OffsetReplyHeader.from_ext(answer.ext).offset
        return offset if offset >= 0 else None


class SetPosition(Order, frozen=True):
    """Keep `offset` as the one that the group consumes next."""

    group: str
    queue: MessageQueue
    offset: int

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
            broker_name=queue.broker,
        )
        return request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def beginners(queues: Iterable[MessageQueue], begun: Container[tuple[str, str]]) -> list[MessageQueue]:
    """Those whose progress must be kept before that of the others is sent: one of each broker and topic not in `begun`.

    A RocketMQ makes the table of a group and topic with the first progress it is sent, and has no lock around that: of
    several at once, the last one's table stays, and what was acknowledged of the others is gone. `begun` has pairs of
    broker and topic.
    """
    first: dict[tuple[str, str], MessageQueue] = {}
    for queue in queues:
        if (queue.broker, queue.topic) not in begun:
            first.setdefault((queue.broker, queue.topic), queue)
    return list(first.values())


def _queue_header(queue: MessageQueue) -> headers.QueueHeader:
    return headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker)
