"""Paths and texts of MetaQ 1.x's nodes in ZooKeeper.

Under a root, `/meta` by default; B is a broker id, N the number of a slave, T a topic, G a group, P a partition `B-n`, C a consumer
`G_id`:

    /brokers/ids/B                          meta://host:port, for very old clients; parent of the next three
    /brokers/ids/B/master                   meta://host:port                         ephemeral
    /brokers/ids/B/slaveN                   meta://host:port                         ephemeral
    /brokers/ids/B/master_config_checksum   CRC-32 of server.ini, decimal            ephemeral
    /brokers/topics/T/B-m or B-sN           number of partitions, before 1.4.3       ephemeral
    /brokers/topics-pub/T/B-m or B-sN       {"numParts":3,"broker":"B-m"}            ephemeral
    /brokers/topics-sub/T/B-m or B-sN       the same                                 ephemeral
    /consumers/G/ids/C                      topics of the consumer, ","-separated    ephemeral
    /consumers/G/owners/T/P                 name of the consumer that has it         ephemeral
    /consumers/G/offsets/T/P                message id, hyphen, position; or the position alone
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, json

from metaq.address import join_address, split_address
from metaq.errors import ConfigError
from metaq.model.metaq1.partition import Published

SLASH: Final = "/"


PUBLISH, SUBSCRIBE = "topics-pub", "topics-sub"
"""Kinds of topic nodes since 1.4.3."""
_SCHEME: Final = "meta://"
_ROLE: Final = re.compile(r"([0-9]{1,9})-(?:m|s([0-9]{1,9}))")


class BrokerPlace(NamedTuple):
    """A broker id, and the master (`slave` None) or one of the slaves under it."""

    broker_id: int
    slave: int | None = None

    @property
    def node(self) -> str:
        """Name of the broker's own node below its id."""
        return "master" if self.slave is None else f"slave{self.slave}"


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

    @property
    def brokers(self) -> str:
        """The parent of all broker ids."""
        return f"{self.root}/brokers/ids"

    def broker(self, broker_id: int) -> str:
        return f"{self.brokers}/{broker_id}"

    def server(self, place: BrokerPlace) -> str:
        """Return the node with the address of a broker."""
        return f"{self.broker(place.broker_id)}/{place.node}"

    def who(self, broker: Metaq1Broker) -> str:
        """Return the broker's own node, which only one broker can have."""
        return self.server(BrokerPlace(broker.broker_id, broker.slave))

    def checksum(self, broker_id: int) -> str:
        return f"{self.broker(broker_id)}/master_config_checksum"

    def topic(self, kind: str, topic: str, broker: Metaq1Broker) -> str:
        """Return a broker's node of a topic. `kind`: topics (before 1.4.3), topics-pub or topics-sub."""
        return f"{self.topics(kind, topic)}/{broker.role}"

    def topics(self, kind: str, topic: str) -> str:
        """Return the parent of all brokers' nodes of a topic."""
        return f"{self.root}/brokers/{kind}/{topic}"

    def offsets(self, group: str, topic: str = "") -> str:
        """Return the parent of a group's offsets, of all topics or of one."""
        return f"{self.root}/consumers/{group}/offsets" + (f"/{topic}" if topic else "")

    @property
    def groups(self) -> str:
        """The parent of all groups."""
        return f"{self.root}/consumers"

    def offset(self, group: str, topic: str, partition: str) -> str:
        return f"{self.offsets(group, topic)}/{partition}"

    def members(self, group: str) -> str:
        """Return the parent of a group's consumers."""
        return f"{self.groups}/{group}/ids"

    def member(self, group: str, name: str) -> str:
        return f"{self.members(group)}/{name}"

    def owners(self, group: str, topic: str) -> str:
        """Return the parent of the nodes that say who has the topic's partitions."""
        return f"{self.groups}/{group}/owners/{topic}"

    def owner(self, group: str, topic: str, partition: str) -> str:
        return f"{self.owners(group, topic)}/{partition}"

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


def parse_role(name: str) -> BrokerPlace | None:
    """Return the broker of a topic node's name, `B-m` or `B-sN`; None: the name is no such."""
    found = _ROLE.fullmatch(name)
    return None if found is None else BrokerPlace(int(found[1]), None if found[2] is None else int(found[2]))


def parse_topic_text(text: str) -> int:
    """Return the number of partitions of a topic node. Raises ValueError."""
    return max(json.decode(text, type=_TopicText).numParts, 0)


class _TopicText(Struct):
    numParts: int  # noqa: N815  the field of the node


def parse_uri(text: str) -> str:
    """Return `host:port` of a broker's node, `meta://host:port`; a slave's may have parameters behind it. Raises ValueError."""
    address, _, _ = text.removeprefix(_SCHEME).partition("?")
    try:
        return join_address(*split_address(address.rstrip(SLASH)))
    except ConfigError as error:
        raise ValueError(str(error)) from None


def parents(path: str) -> Iterator[str]:
    """Yield the nodes above a path, from the root on."""
    parts = path.split(SLASH)
    return (SLASH.join(parts[:length]) for length in range(2, len(parts)))


UNKNOWN_MESSAGE: Final = -1
"""Id in an offset node of a message that is not known: Java's clients write it where a server has moved them."""


class OffsetNode(Struct, frozen=True):
    """A group's position in a partition: id of the last message, or `UNKNOWN_MESSAGE`, and the position behind it."""

    message_id: int
    position: int

    @property
    def text(self) -> str:
        return f"{self.message_id}-{self.position}"


def parse_offset(text: str) -> OffsetNode:
    """Parse an offset node; before 1.4 it was the position alone. Raises ValueError."""
    message_id, _, position = text.rpartition("-")
    # Split at the last hyphen: ids are negative from 1.4.5 on. One at the very front is the sign of a position alone.
    return OffsetNode(int(message_id), int(position)) if message_id else OffsetNode(UNKNOWN_MESSAGE, int(text))
