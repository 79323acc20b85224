"""What administrators see of queues and clients in detail."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from metaq.model.filters.subscription import GroupFilter, SubscriptionData
from metaq.model.queue import MessageQueue


class QueueTimeSpan(Struct, frozen=True):
    """Store times (ms) of one queue, and how far a group has come in it."""

    queue: MessageQueue
    oldest_ms: int
    """Of the oldest message; -1 in an empty queue."""
    newest_ms: int
    consumed_ms: int
    """Of the newest message that the group has consumed; of the oldest if it has consumed none."""
    delay_ms: int
    """Age of the oldest message that the group has not consumed; 0 if there is none."""


class QueueUnit(NamedTuple):
    """Where in the log one message of a queue is. `tags_code`: hash of its tag; of a delayed message, its delivery time, ms."""

    log_offset: int
    """Where the message begins in the log."""
    size: int
    """Bytes of the message there."""
    tags_code: int


class QueueUnits(Struct, frozen=True):
    """Some units of one queue [min_offset, max_offset), and what a group gets of it."""

    min_offset: int
    """Offset of the queue's oldest message."""
    max_offset: int
    """Offset that its next message will have."""
    units: Sequence[QueueUnit]
    """The units, in the order of the queue."""
    group: str | None = None
    """Group that was asked about; None: none was."""
    subscription: SubscriptionData | None = None
    """Its subscription; None: it is not online, or does not subscribe to the topic."""
    filter: GroupFilter | None = None
    """Its filter, if that is not by tags."""


class ProducerClient(Struct, frozen=True):
    """A member of a producer group, as administrators see it."""

    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int
    """Time of its newest heartbeat, ms."""


class MemberQueue(Struct, frozen=True, kw_only=True):
    """A queue as a running consumer has it. Times in ms since the epoch; 0: never."""

    position: int
    """The offset that it would commit now."""
    cached: int = 0
    """Messages that were pulled and are not finished."""
    cached_first: int = 0
    """Smallest offset of these; 0 if there are none."""
    cached_last: int = 0
    """Largest offset of these; 0 if there are none."""
    cached_mib: int = 0
    """Their size, MiB."""
    locked: bool = False
    """Whether the broker has locked it for this member, in orderly consumption."""
    unlock_tries: int = 0
    """How often it has tried to give back the lock."""
    locked_ms: int = 0
    """When the broker last locked it for this member."""
    dropped: bool = False
    """Whether the member has given it up."""
    pulled_ms: int = 0
    """When messages of it were last pulled."""
    consumed_ms: int = 0
    """When messages of it were last taken to be handled."""
    in_hand: int = 0
    """In orderly consumption: messages that a handler has."""
    in_hand_first: int = 0
    """Smallest offset of these; 0 if there are none."""
    in_hand_last: int = 0
    """Largest offset of these; 0 if there are none."""


class MemberRates(Struct, frozen=True, kw_only=True):
    """What a running consumer did with a topic in the last minute. Durations in ms, rates in messages per second."""

    pull_ms: float = 0.0
    """Of a pull that found messages, waiting at the broker included."""
    pulled: float = 0.0
    """Messages pulled a second."""
    consume_ms: float = 0.0
    """Of one call of its handler."""
    consumed: float = 0.0
    """Messages consumed a second."""
    failed: float = 0.0
    """Messages a second that the handler refused, or for which it raised."""
    failed_messages: int = 0
    """In the last hour."""


class MemberState(Struct, frozen=True, kw_only=True):
    """What a running consumer tells of itself (307)."""

    properties: Mapping[str, str]
    """Its options by RocketMQ's names, and what RocketMQ's clients tell under names that begin with `PROP_`."""
    subscriptions: tuple[SubscriptionData, ...] = ()
    """What it subscribes to."""
    queues: Mapping[MessageQueue, MemberQueue] = {}
    """Those that it has now."""
    rates: Mapping[str, MemberRates] = {}
    """By topic."""
    stacks: str | None = None
    """Of its threads and tasks, if asked for."""


class ConsumeVerdict(enum.StrEnum):
    """What became of a message that a running consumer was told to consume (309)."""

    SUCCESS = "CR_SUCCESS"
    """The handler has consumed it."""
    LATER = "CR_LATER"
    """The handler wants it again later."""
    ROLLBACK = "CR_ROLLBACK"
    """An orderly handler has rolled it back."""
    COMMIT = "CR_COMMIT"
    """An orderly handler has committed it."""
    EXCEPTION = "CR_THROW_EXCEPTION"
    """The handler raised."""
    NOTHING = "CR_RETURN_NULL"
    """The handler returned nothing where it should say what became of the message."""


class ConsumedDirectly(Struct, frozen=True, kw_only=True):
    """The outcome of such a consumption. Nothing was acknowledged by it, or is delivered again because of it."""

    verdict: ConsumeVerdict | None
    """None: the client's answer names none that is known."""
    remark: str | None = None
    """What the handler raised, for example."""
    spent_ms: int = 0
    """How long the handler took."""
    order: bool = False
    """Whether the consumer is an orderly one."""
    auto_commit: bool = True
    """Whether an orderly consumer commits by itself."""
