"""Units of a queue (321): where in the log its messages are, and how large, without reading them."""

from __future__ import annotations

from metaq.client.conversation.call import Call
from metaq.model import MessageQueue
from metaq.model.inspection import QueueUnits
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class GetUnits(Call[QueueUnits], frozen=True):
    """`count` units of a queue from a QueueOffset on, and what a group gets of it (321); brokers of ours return 1024 at most.

    No units, and 0 to 0, if none is there.
    """

    queue: MessageQueue
    index: int
    count: int
    group: str | None = None

    @property
    def action(self) -> str:
        return f"tell the units of {self.queue}"

    def request(self) -> Command:
        header = headers.ConsumeQueueHeader(
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            index=self.index,
            count=self.count,
            consumer_group=self.group,
        )
        return request(RequestCode.QUERY_CONSUME_QUEUE, header)

    def read(self, answer: Command) -> QueueUnits:
        # RocketMQ's answer has no body where there are no units.
        return bodies.queue_units_of(answer.body) if answer.body else QueueUnits(0, 0, [])
