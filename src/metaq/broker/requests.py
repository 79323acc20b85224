"""What servers ask of the services, in the broker's own words."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from metaq.model import TransactionOutcome
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.model.transactions.staging import Chunk, Decision, Lifetime, ManifestPart, Outcome, Seal

ANY_QUEUE: Final = -1

COMMIT: Final = 1
HOLD: Final = 2
FILTER: Final = 4
"""Flags of a `PullRequest`. They are RocketMQ's, so that a row of the compiled extension needs no translation."""


class Send(Struct, frozen=True, kw_only=True):
    """Store a message, or a batch of them."""

    topic: str
    body: bytes
    """Of a batch, its entries (docs/formats/batch.md)."""
    born_ms: int
    born_host: bytes
    queue_id: int = ANY_QUEUE
    """Below 0: the broker chooses."""
    properties: str = ""
    """As they are stored; of a batch, those that all its messages get."""
    flag: int = 0
    sys_flag: int = 0
    """Of `metaq.model.SysFlag`, those that are the sender's to say."""
    batch: bool = False
    reconsume_times: int = 0
    """How often a consumer has failed on it, if it is sent to a retry topic."""
    retries_max: int | None = None
    """After so many it is a dead letter; None: what the group's settings say."""
    template: str = AUTO_CREATE_TOPIC
    """The topic whose settings a topic that is made for this message takes over."""
    template_queues: int = 4
    unit: bool = False
    """A topic that is made for this message is one of a unit (`TopicConfig.sys_flag`)."""
    producer_group: str = ""
    """Of a half message: whose members are asked what became of it, if its properties do not say."""


class EndTransaction(Struct, frozen=True, kw_only=True):
    """A producer says what became of the local transaction that a half message belongs to."""

    producer_group: str
    slot: int
    """QueueOffset of the half message, as its send was answered or as a check named it."""
    log_offset: int
    """Where its record is."""
    outcome: TransactionOutcome
    message_id: str = ""
    """The message's unique id, if the producer says it. After a power cut another half message may lie in the same place."""


class SendBack(Struct, frozen=True, kw_only=True):
    """A consumer could not handle a message: deliver it again later, or file it with the dead letters."""

    group: str
    log_offset: int
    """Where its record is."""
    delay_level: int = 0
    """Below 0: a dead letter at once; 0: the broker chooses; above: that level."""
    retries_max: int | None = None
    """After so many it is a dead letter; None: what the group's settings say."""
    repeated: bool = False
    """The same may have been asked before, and the answer lost."""


class PullRequest(NamedTuple):
    """Give a group messages of one queue. Names are UTF-8 as they came.

    The fields are in the order of `hot.FrameTable.pull`, so that a server makes one of a scanned row without looking at it.
    """

    group: bytes
    topic: bytes
    queue_id: int
    offset: int
    """QueueOffset of the first that is wanted."""
    count_max: int
    flags: int = 0
    commit_offset: int = -1
    """With COMMIT: the group's position, which is taken over by the way."""
    hold_ms: int = 0
    """With HOLD: how long the answer may wait for a message."""
    subscription: bytes | None = None
    """With FILTER: what is wanted. Without: what the client believes that its heartbeat said."""
    version: int = 0
    """Of the subscription that the client believes to have."""
    expression_type: bytes | None = None
    bytes_max: int = 0
    """0: the usual limits of bytes and messages."""


class OffsetCommit(Struct, frozen=True, kw_only=True):
    """A group has consumed a queue up to `offset`, exclusive."""

    group: str
    topic: str
    queue_id: int
    offset: int


class KeyQuery(Struct, frozen=True, kw_only=True):
    """Find messages by key or unique id. Store times in ms, both inclusive."""

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int
    unique: bool = False
    """By unique id: few have it, whatever `count_max` says."""


class Decide(Struct, frozen=True, kw_only=True):
    """End a transaction, or say that it is prepared. Only its coordinator can."""

    transaction: str
    outcome: Outcome
    parts: tuple[ManifestPart, ...] | None = None
    """None: those that it was prepared with; for a rollback whatever there is."""
    row: str = ""
    """Key of a row. A commit moves it on to `sequence`, which is to be above the one that it has."""
    sequence: int = -1
    label: str = ""
    """With PREPARED: what it is called by those who have to end it. Its decisions keep it."""


class Stage(Struct, frozen=True, kw_only=True):
    """Take chunks of a transaction, of one part or of several, and possibly decide it at once."""

    transaction: str
    chunks: tuple[Chunk, ...]
    born_ms: int
    born_host: bytes
    lifetime: Lifetime = Lifetime.AGE
    seconds: int = 0
    """With AGE: roll back after so long; 0: after the broker's `stagedSecondsMax`."""
    decide: Decide | None = None


class SealPart(Struct, frozen=True, kw_only=True):
    """A part ends with the chunks that it has."""

    transaction: str
    part: str
    seal: Seal


class Apply(Struct, frozen=True, kw_only=True):
    """Deliver what is committed, for a bounded time."""

    transaction: str
    decision: Decision | None = None
    """The coordinator's, for a participant that may not know it."""
    confirmed: tuple[str, ...] = ()
    """To the coordinator: these brokers have told the client that nothing remains there, and need not be asked."""
