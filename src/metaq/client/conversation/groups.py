"""What brokers know of clients and groups: heartbeats, members, how far a group has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from metaq.client.conversation.call import FAULTS, Call, Consultation, Order, asked_at
from metaq.errors import MetaqError, NoRoute
from metaq.model import ClientConnection, ConsumerView, ConsumeStats, Heartbeat, MessageQueue, QueueLocks
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.extensions import level_of


class SendHeartbeat(Call[int], frozen=True):
    """Register this client and its groups. The outcome: the level of our extensions that the broker supports, 0 for a
    RocketMQ."""

    action = "register this client"

    beat: Heartbeat

    def request(self) -> Command:
        return request(RequestCode.HEART_BEAT, body=bodies.heartbeat(self.beat))

    def read(self, answer: Command) -> int:
        return level_of(answer.ext)


class LeaveGroup(Order, frozen=True):
    """Unregister this client from a group."""

    action = "unregister this client"
    seconds: ClassVar[float] = 1.0

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None

    def request(self) -> Command:
        header = headers.UnregisterClientHeader(
            client_id=self.client_id, producer_group=self.producer_group, consumer_group=self.consumer_group
        )
        return request(RequestCode.UNREGISTER_CLIENT, header)


class ListMembers(Call[list[str]], frozen=True):
    """The client ids of a consumer group's members, sorted; none if the broker knows nobody."""

    answers = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)

    group: str

    @property
    def action(self) -> str:
        return f"list the members of {self.group}"

    def request(self) -> Command:
        return request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ConsumerGroupHeader(consumer_group=self.group))

    def read(self, answer: Command) -> list[str]:
        return [] if answer.code == ResponseCode.SYSTEM_ERROR else sorted(bodies.consumer_ids_of(answer.body))


def members_of(group: str, addresses: Sequence[str]) -> Consultation[list[str]]:
    """The client ids of a group's members, from the first broker that answers; each knows all that use it.

    Raises what the last one raised; NoRoute: there is none.
    """
    failure: MetaqError = NoRoute("the topic has no readable queue")
    for address in addresses:
        try:
            return (yield from asked_at(address, ListMembers(group)))
        except FAULTS as error:
            failure = error
    raise failure


class GetConnections(Call[tuple[list[ClientConnection], ConsumerView] | None], frozen=True):
    """The members of a consumer group at one broker, and what they subscribe to; None: nobody is there."""

    answers = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)

    group: str

    @property
    def action(self) -> str:
        return f"list the members of group {self.group}"

    def request(self) -> Command:
        return request(RequestCode.GET_CONSUMER_CONNECTION_LIST, headers.ConsumerGroupHeader(consumer_group=self.group))

    def read(self, answer: Command) -> tuple[list[ClientConnection], ConsumerView] | None:
        return None if answer.code == ResponseCode.CONSUMER_NOT_ONLINE else bodies.connections_of(answer.body)


class GetProducers(Call[list[ClientConnection]], frozen=True):
    """The instances of a producer group that are connected to a broker; none if it knows nobody."""

    answers = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)

    group: str

    @property
    def action(self) -> str:
        return f"list the producers of group {self.group}"

    def request(self) -> Command:
        header = headers.ProducerGroupHeader(producer_group=self.group)
        return request(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)

    def read(self, answer: Command) -> list[ClientConnection]:
        return [] if answer.code == ResponseCode.SYSTEM_ERROR else bodies.connections_of(answer.body)[0]


class GetConsumeStats(Call[tuple[dict[MessageQueue, ConsumeStats], float]], frozen=True):
    """How far a group has come in each queue of a broker, and its messages per second."""

    group: str

    @property
    def action(self) -> str:
        return f"tell how far group {self.group} is"

    def request(self) -> Command:
        return request(RequestCode.GET_CONSUME_STATS, headers.ConsumeStatsHeader(consumer_group=self.group))

    def read(self, answer: Command) -> tuple[dict[MessageQueue, ConsumeStats], float]:
        return bodies.consume_stats_of(answer.body)


class GetGroups(Call[list[str]], frozen=True):
    """The groups that subscribe to a topic now, or have consumed of it, as one broker knows them."""

    topic: str

    @property
    def action(self) -> str:
        return f"tell who consumes {self.topic}"

    def request(self) -> Command:
        return request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.TopicHeader(topic=self.topic))

    def read(self, answer: Command) -> list[str]:
        return sorted(bodies.group_list_of(answer.body))


class LockQueues(Call[frozenset[MessageQueue]], frozen=True):
    """Lock queues of one broker for a client, or renew its locks. The outcome: those that it has now."""

    action = "lock queues"

    locks: QueueLocks

    def request(self) -> Command:
        return request(RequestCode.LOCK_BATCH_MQ, body=bodies.queue_locks(self.locks))

    def read(self, answer: Command) -> frozenset[MessageQueue]:
        return frozenset(bodies.locked_queues_of(answer.body)) & frozenset(self.locks.queues)


class UnlockQueues(Order, frozen=True):
    """Release the locks of queues."""

    action = "unlock queues"

    locks: QueueLocks

    def request(self) -> Command:
        return request(RequestCode.UNLOCK_BATCH_MQ, body=bodies.queue_locks(self.locks))
