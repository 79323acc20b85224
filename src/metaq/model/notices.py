"""What a broker tells a client without being asked."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.model.message import StoredMessage
from metaq.model.queue import MessageQueue


class MembersChanged(Struct, frozen=True):
    """The members of a consumer group are others than before: its queues are to be shared out anew."""

    group: str


class OffsetsReset(Struct, frozen=True):
    """An administrator moved a group's progress: each queue is to be consumed from its offset on."""

    group: str
    offsets: Mapping[MessageQueue, int]
    """Queues of one topic."""
    time_ms: int = -1
    """The moment that was asked for; -1: the end."""
    force: bool = True
    language: str = "JAVA"
    """Of the client that is told: C++ wants it in another form."""


class RequestReplied(Struct, frozen=True):
    """Somebody has replied to a request of ours."""

    correlation_id: str
    """The request's."""
    reply: StoredMessage
    """Its body is expanded. Where it is stored is not told."""
    broken: str = ""
    """Why its body cannot be expanded; it is as it came then."""


class TransactionCheck(Struct, frozen=True):
    """How did the local transaction end that this half message belongs to?

    The message has the topic and queue that it is for, and the queue offset and log offset of the half message, which the
    answer names. Its body is as stored, perhaps compressed.
    """

    group: str
    """Of the producers, one of which is asked."""
    half: StoredMessage
