"""Notices: what a broker tells a client unasked."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.model.message import StoredMessage
from metaq.model.queue import MessageQueue


class MembersChanged(Struct, frozen=True):
    """The members of a consumer group have changed: clients rebalance."""

    group: str


class OffsetsReset(Struct, frozen=True):
    """An administrator has reset a group's offsets: consume each queue from its offset on."""

    group: str
    offsets: Mapping[MessageQueue, int]
    """Queues of one topic."""
    time_ms: int = -1
    """Time to which the offsets were reset, ms; -1: the end."""
    force: bool = True
    language: str = "JAVA"
    """Language of the client that gets the notice: C++ reads another form."""


class PositionsAsked(Struct, frozen=True):
    """Which offsets a member would commit now, in the queues of a topic; "": in all of its queues."""

    group: str
    topic: str


class StateAsked(Struct, frozen=True):
    """How a member is: options, queues, rates; with the stacks of its threads and tasks, if wished."""

    group: str
    stacks: bool


class ConsumeAsked(Struct, frozen=True):
    """A member is to consume this message now, and to say how that went."""

    group: str
    record: bytes
    """The message as it is stored."""
    broker: str
    """Name of the broker that has it."""


class RequestReplied(Struct, frozen=True):
    """A reply to a request of this client."""

    correlation_id: str
    """The request's."""
    reply: StoredMessage
    """The reply, its body expanded. The broker does not tell where it is stored."""
    broken: str = ""
    """Why its body could not be expanded; it is as it came then."""


class TransactionCheck(Struct, frozen=True):
    """The broker asks how the local transaction of a half message ended.

    `half` has the topic and queue that the message is for, and the queue offset and log offset of the half message,
    which the answer must name. Its body is as stored, perhaps compressed.
    """

    group: str
    """Producer group, one member of which is asked."""
    half: StoredMessage
