"""Where MetaQ 1.x keeps what in ZooKeeper, and in which words.

Under a root, `/meta` unless said otherwise; B is a broker id, N the number of a slave, T a topic, G a group, P a partition `B-n`:

    /brokers/ids/B                          meta://host:port, for very old clients; parent of the next three
    /brokers/ids/B/master                   meta://host:port                         ephemeral
    /brokers/ids/B/slaveN                   meta://host:port                         ephemeral
    /brokers/ids/B/master_config_checksum   CRC-32 of server.ini, decimal            ephemeral
    /brokers/topics/T/B-m or B-sN           number of partitions, before 1.4.3       ephemeral
    /brokers/topics-pub/T/B-m or B-sN       {"numParts":3,"broker":"B-m"}            ephemeral
    /brokers/topics-sub/T/B-m or B-sN       the same                                 ephemeral
    /consumers/G/offsets/T/P                message id, hyphen, position; or the position alone
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, json

from metaq.model.metaq1.partition import Published

SLASH: Final = "/"


class Metaq1Broker(Struct, frozen=True):
    """Who a broker is to clients of MetaQ 1.x."""

    broker_id: int
    uri: str
    """`meta://host:port` of its MetaQ 1.x server."""
    slave: int | None = None
    """Its number among the slaves of the broker id; None is the master."""

    @property
    def role(self) -> str:
        """As names of topic nodes end: `B-m` or `B-sN`."""
        return f"{self.broker_id}-m" if self.slave is None else f"{self.broker_id}-s{self.slave}"


class Layout:
    """The paths under one root. A slash in front is added, one behind removed."""

    def __init__(self, root: str) -> None:
        self.root = SLASH + root.strip(SLASH) if root.strip(SLASH) else ""

    def broker(self, broker_id: int) -> str:
        return f"{self.root}/brokers/ids/{broker_id}"

    def who(self, broker: Metaq1Broker) -> str:
        """The node that only one broker can have."""
        name = "master" if broker.slave is None else f"slave{broker.slave}"
        return f"{self.broker(broker.broker_id)}/{name}"

    def checksum(self, broker_id: int) -> str:
        return f"{self.broker(broker_id)}/master_config_checksum"

    def topic(self, kind: str, topic: str, broker: Metaq1Broker) -> str:
        """A broker's node of a topic; `kind` is topics, topics-pub or topics-sub."""
        return f"{self.root}/brokers/{kind}/{topic}/{broker.role}"

    def offsets(self, group: str, topic: str = "") -> str:
        """Where a group's offsets of all topics are, or of one."""
        return f"{self.root}/consumers/{group}/offsets" + (f"/{topic}" if topic else "")

    def offset(self, group: str, topic: str, partition: str) -> str:
        return f"{self.offsets(group, topic)}/{partition}"

    def wanted(self, broker: Metaq1Broker, config: bytes, topics: Mapping[str, Published]) -> dict[str, str]:
        """Path → text of the ephemeral nodes that a broker keeps beside `who`."""
        nodes = {} if broker.slave is not None else {self.checksum(broker.broker_id): config_checksum(config)}
        for topic, published in topics.items():
            nodes[self.topic("topics", topic, broker)] = str(published.partitions)
            text = topic_text(published.partitions, broker)
            if published.publish:
                nodes[self.topic("topics-pub", topic, broker)] = text
            if published.subscribe:
                nodes[self.topic("topics-sub", topic, broker)] = text
        return nodes


def config_checksum(config: bytes) -> str:
    """What slaves compare to see that their master's server.ini changed."""
    return str(zlib.crc32(config))


def topic_text(partitions: int, broker: Metaq1Broker) -> str:
    """What a topic node says: a field more, and the Java client would not see the broker."""
    return json.encode({"numParts": partitions, "broker": broker.role}).decode()


def parents(path: str) -> Iterator[str]:
    """The nodes above a path, from the root on."""
    parts = path.split(SLASH)
    return (SLASH.join(parts[:length]) for length in range(2, len(parts)))


class OffsetNode(Struct, frozen=True):
    """How far a group has read a partition: the last message's id, -1 if unknown, and the position behind it."""

    message_id: int
    position: int

    @property
    def text(self) -> str:
        return f"{self.message_id}-{self.position}"


def parse_offset(text: str) -> OffsetNode:
    """Read an offset node, also one from before 1.4, which is the position alone. Raises ValueError."""
    message_id, _, position = text.rpartition("-")
    # A hyphen at the very front is the sign of a number, as the Java client has it.
    return OffsetNode(int(message_id), int(position)) if message_id else OffsetNode(-1, int(text))
