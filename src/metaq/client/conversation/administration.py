"""What administrators ask of one broker."""

from __future__ import annotations

from metaq.client.conversation.call import Call, Order
from metaq.model import MessageQueue, QueueStats
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class CreateTopic(Order, frozen=True):
    """Create or change a topic. `perm`: 4 readable, 2 writable, 6 both."""

    topic: str
    queues: int
    perm: int
    order: bool = False

    @property
    def action(self) -> str:
        return f"create topic {self.topic}"

    def request(self) -> Command:
        header = headers.CreateTopicHeader(
            topic=self.topic, read_queues=self.queues, write_queues=self.queues, perm=self.perm, order=self.order
        )
        return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


class DeleteTopic(Order, frozen=True):
    """Delete a topic with its messages. Name servers keep its route until they are told (`DeleteTopicRoute`)."""

    topic: str

    @property
    def action(self) -> str:
        return f"delete topic {self.topic}"

    def request(self) -> Command:
        return request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=self.topic))


class GetTopicStats(Call[dict[MessageQueue, QueueStats]], frozen=True):
    """What each queue of a topic keeps."""

    topic: str

    @property
    def action(self) -> str:
        return f"tell the offsets of {self.topic}"

    def request(self) -> Command:
        return request(RequestCode.GET_TOPIC_STATS_INFO, headers.TopicHeader(topic=self.topic))

    def read(self, answer: Command) -> dict[MessageQueue, QueueStats]:
        return bodies.topic_stats_of(answer.body)


class GetRuntime(Call[dict[str, str]], frozen=True):
    """What a broker says of itself, under RocketMQ's names."""

    action = "tell how it is"

    def request(self) -> Command:
        return request(RequestCode.GET_BROKER_RUNTIME_INFO)

    def read(self, answer: Command) -> dict[str, str]:
        return bodies.kv_table_of(answer.body)
