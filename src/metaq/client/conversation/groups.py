"""Requests about clients and groups: heartbeats (34, 35), members (38, 203, 204), and progress (208, 300)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from metaq.client.conversation.call import FAULTS, Call, Consultation, Order, asked_at
from metaq.errors import MetaqError, NoRoute
from metaq.model import ClientConnection, ConsumerView, ConsumeStats, Heartbeat, MessageQueue
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.extensions import level_of


class SendHeartbeat(Call[int], frozen=True):
    """Register this client and its groups (34). The outcome: the level of our extensions; 0: a RocketMQ broker."""

    action = "register this client"

    beat: Heartbeat

    def request(self) -> Command:
        return request(RequestCode.HEART_BEAT, body=bodies.heartbeat(self.beat))

    def read(self, answer: Command) -> int:
        return level_of(answer.ext)


class LeaveGroup(Order, frozen=True):
    """Unregister this client from a group (35)."""

    action = "unregister this client"
    # Short: it is sent when a client closes, and brokers notice the end of the connection anyway.
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
    """Client ids of a consumer group's members, sorted (38); empty if the group is offline."""

    # RocketMQ answers SYSTEM_ERROR for a group without members.
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
    """Ask for a group's client ids, at the first broker that answers: members send heartbeats to all brokers.

    Raises the last broker's error; NoRoute: `addresses` is empty.
    """
    failure: MetaqError = NoRoute("the topic has no readable queue")
    for address in addresses:
        try:
            return (yield from asked_at(address, ListMembers(group)))
        except FAULTS as error:
            failure = error
    raise failure


class GetConnections(Call[tuple[list[ClientConnection], ConsumerView] | None], frozen=True):
    """Members of a consumer group at one broker, and its subscriptions (203); None: the group is offline."""

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
    """Members of a producer group at one broker (204); empty if there are none."""

    # RocketMQ answers SYSTEM_ERROR for a group without producers.
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
    """Offsets of a group in each queue of a broker, and its messages per second (208)."""

    group: str

    @property
    def action(self) -> str:
        return f"tell how far group {self.group} is"

    def request(self) -> Command:
        return request(RequestCode.GET_CONSUME_STATS, headers.ConsumeStatsHeader(consumer_group=self.group))

    def read(self, answer: Command) -> tuple[dict[MessageQueue, ConsumeStats], float]:
        return bodies.consume_stats_of(answer.body)


class GetGroups(Call[list[str]], frozen=True):
    """Groups that subscribe to a topic now, or have offsets in it, at one broker (300)."""

    topic: str

    @property
    def action(self) -> str:
        return f"tell who consumes {self.topic}"

    def request(self) -> Command:
        return request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.ReadersHeader(topic=self.topic))

    def read(self, answer: Command) -> list[str]:
        return sorted(bodies.group_list_of(answer.body))


class GetMetaq1Groups(Call[list[str]], frozen=True):
    """Groups of MetaQ 1.x that the ZooKeeper of a broker of ours knows (300); none at a RocketMQ, which takes it for a topic that nobody
    reads."""

    action = "tell the groups of MetaQ 1.x"
    seconds: ClassVar[float] = 10.0

    def request(self) -> Command:
        return request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.ReadersHeader(topic="", metaq1=True))

    def read(self, answer: Command) -> list[str]:
        return sorted(bodies.group_list_of(answer.body))
