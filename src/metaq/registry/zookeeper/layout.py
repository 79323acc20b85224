"""Paths and texts of MetaQ 1.x's nodes in ZooKeeper.

Under a root, `/meta` by default; B is a broker id, N the number of a slave, T a topic, G a group, P a partition `B-n`:

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
    """Identity of a broker for clients of MetaQ 1.x."""

    broker_id: int
    uri: str
    """`meta://host:port` of its MetaQ 1.x server."""
    slave: int | None = None
    """Number among the slaves of the broker id; None: the master."""

    @property
    def role(self) -> str:
        """End of the names of its topic nodes: `B-m` or `B-sN`."""
        return f"{self.broker_id}-m" if self.slave is None else f"{self.broker_id}-s{self.slave}"


class Layout:
    """Paths under one root.

    Args:
        root: a slash in front is added, one behind removed.
    """

    def __init__(self, root: str) -> None:
        self.root = SLASH + root.strip(SLASH) if root.strip(SLASH) else ""

    def broker(self, broker_id: int) -> str:
        return f"{self.root}/brokers/ids/{broker_id}"

    def who(self, broker: Metaq1Broker) -> str:
        """Return the broker's own node, which only one broker can have."""
        name = "master" if broker.slave is None else f"slave{broker.slave}"
        return f"{self.broker(broker.broker_id)}/{name}"

    def checksum(self, broker_id: int) -> str:
        return f"{self.broker(broker_id)}/master_config_checksum"

    def topic(self, kind: str, topic: str, broker: Metaq1Broker) -> str:
        """Return a broker's node of a topic. `kind`: topics (before 1.4.3), topics-pub or topics-sub."""
        return f"{self.root}/brokers/{kind}/{topic}/{broker.role}"

    def offsets(self, group: str, topic: str = "") -> str:
        """Return the parent of a group's offsets, of all topics or of one."""
        return f"{self.root}/consumers/{group}/offsets" + (f"/{topic}" if topic else "")

    @property
    def groups(self) -> str:
        """The parent of all groups."""
        return f"{self.root}/consumers"

    def offset(self, group: str, topic: str, partition: str) -> str:
        return f"{self.offsets(group, topic)}/{partition}"

    def wanted(self, broker: Metaq1Broker, config: bytes, topics: Mapping[str, Published]) -> dict[str, str]:
        """Return path → text of the ephemeral nodes that a broker keeps beside `who`.

        Also those of 1.x before 1.4.3, which the Python and Ruby clients read.
        """
        nodes = {} if broker.slave is not None else {self.checksum(broker.broker_id): config_checksum(config)}
        for topic, published in topics.items():
            # Whether or not it may be published and subscribed: clients before 1.4.3 know no difference.
            nodes[self.topic("topics", topic, broker)] = str(published.partitions)
            text = topic_text(published.partitions, broker)
            # acceptPublish=false: without the node no producer finds the partitions here.
            if published.publish:
                nodes[self.topic("topics-pub", topic, broker)] = text
            if published.subscribe:
                nodes[self.topic("topics-sub", topic, broker)] = text
        return nodes


def config_checksum(config: bytes) -> str:
    """Return the text by which slaves see that their master's server.ini has changed."""
    return str(zlib.crc32(config))


def topic_text(partitions: int, broker: Metaq1Broker) -> str:
    """Return the text of a topic node. With any other field the Java client would ignore the broker."""
    return json.encode({"numParts": partitions, "broker": broker.role}).decode()


def parents(path: str) -> Iterator[str]:
    """Yield the nodes above a path, from the root on."""
    parts = path.split(SLASH)
    return (SLASH.join(parts[:length]) for length in range(2, len(parts)))


class OffsetNode(Struct, frozen=True):
    """A group's position in a partition: id of the last message, -1 if unknown, and the position behind it."""

    message_id: int
    position: int

    @property
    def text(self) -> str:
        return f"{self.message_id}-{self.position}"


def parse_offset(text: str) -> OffsetNode:
    """Parse an offset node; before 1.4 it was the position alone. Raises ValueError."""
    message_id, _, position = text.rpartition("-")
    # Split at the last hyphen: ids are negative from 1.4.5 on. One at the very front is the sign of a position alone.
    return OffsetNode(int(message_id), int(position)) if message_id else OffsetNode(-1, int(text))
