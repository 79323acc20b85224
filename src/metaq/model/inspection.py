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
    size: int
    tags_code: int


class QueueUnits(Struct, frozen=True):
    """Some units of one queue [min_offset, max_offset), and what a group gets of it."""

    min_offset: int
    max_offset: int
    units: Sequence[QueueUnit]
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
    cached_mib: int = 0
    locked: bool = False
    """Whether the broker has locked it for this member, in orderly consumption."""
    unlock_tries: int = 0
    locked_ms: int = 0
    dropped: bool = False
    pulled_ms: int = 0
    consumed_ms: int = 0
    """When messages of it were last taken to be handled."""
    in_hand: int = 0
    """In orderly consumption: messages that a handler has."""
    in_hand_first: int = 0
    in_hand_last: int = 0


class MemberRates(Struct, frozen=True, kw_only=True):
    """What a running consumer did with a topic in the last minute. Durations in ms, rates in messages per second."""

    pull_ms: float = 0.0
    """Of a pull that found messages, waiting at the broker included."""
    pulled: float = 0.0
    consume_ms: float = 0.0
    """Of one call of its handler."""
    consumed: float = 0.0
    failed: float = 0.0
    failed_messages: int = 0
    """In the last hour."""


class MemberState(Struct, frozen=True, kw_only=True):
    """What a running consumer tells of itself (307)."""

    properties: Mapping[str, str]
    """Its options by RocketMQ's names, and what RocketMQ's clients tell under names that begin with `PROP_`."""
    subscriptions: tuple[SubscriptionData, ...] = ()
    queues: Mapping[MessageQueue, MemberQueue] = {}
    rates: Mapping[str, MemberRates] = {}
    """By topic."""
    stacks: str | None = None
    """Of its threads and tasks, if asked for."""


class ConsumeVerdict(enum.StrEnum):
    """What became of a message that a running consumer was told to consume (309)."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    EXCEPTION = "CR_THROW_EXCEPTION"
    NOTHING = "CR_RETURN_NULL"


class ConsumedDirectly(Struct, frozen=True, kw_only=True):
    """The outcome of such a consumption. Nothing was acknowledged by it, or is delivered again because of it."""

    verdict: ConsumeVerdict | None
    """None: the client's answer names none that is known."""
    remark: str | None = None
    """What the handler raised, for example."""
    spent_ms: int = 0
    order: bool = False
    """Whether the consumer is an orderly one."""
    auto_commit: bool = True
