"""Requests of the services, independent of the protocol they came in."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from metaq.model import TransactionOutcome
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    TransactionDecision,
)

ANY_QUEUE: Final = -1

COMMIT: Final = 1
HOLD: Final = 2
FILTER: Final = 4
"""Flags of a `PullRequest`. RocketMQ's sysFlag bits, so a row of the compiled extension needs no translation."""


class Send(Struct, frozen=True, kw_only=True):
    """Store a message, or a batch of them."""

    topic: str
    body: bytes
    """The body; of a batch, its encoded entries (docs/formats/batch.md)."""
    born_ms: int
    born_host: bytes
    queue_id: int = ANY_QUEUE
    """Below 0: the broker chooses."""
    properties: str = ""
    """Encoded properties; of a batch, those common to its messages."""
    flag: int = 0
    sys_flag: int = 0
    """Bits of `metaq.model.SysFlag`; only those that a sender decides are stored (`log.records.SENDER_FLAGS`)."""
    batch: bool = False
    reconsume_times: int = 0
    """Failed deliveries so far, of a message sent to a retry topic."""
    retries_max: int | None = None
    """Failures after which it becomes a dead letter; None: the group's retryMaxTimes."""
    template: str = AUTO_CREATE_TOPIC
    """Template topic whose settings an automatically created topic takes over."""
    template_queues: int = 4
    unit: bool = False
    """Whether an automatically created topic belongs to a unit (`TopicConfig.sys_flag`)."""
    producer_group: str = ""
    """Of a half message: the group that is checked, if the property PGROUP is absent."""
    client: str = ""
    """`Caller.client` of the sender, for whom an automatically created topic counts."""


class EndTransaction(Struct, frozen=True, kw_only=True):
    """End a transaction (37): the producer reports the outcome of the local transaction of a half message."""

    producer_group: str
    slot: int
    """QueueOffset of the half message, from the send's response or from a check."""
    log_offset: int
    """LogOffset of its record."""
    outcome: TransactionOutcome
    message_id: str = ""
    """The message's unique id, if given. After a power cut another half message may lie at the same offset."""


class SendBack(Struct, frozen=True, kw_only=True):
    """Return a failed message (36): deliver it again later, or store it with the dead letters."""

    group: str
    log_offset: int
    """LogOffset of its record."""
    delay_level: int = 0
    """Delay level. Below 0: dead letter at once; 0: the broker chooses by the number of failures."""
    retries_max: int | None = None
    """Failures after which it becomes a dead letter; None: the group's retryMaxTimes."""
    repeated: bool = False
    """Whether this repeats a request whose response may have been lost. Our client's extension."""
    client: str = ""
    """`Caller.client` of the sender, for whom an automatically created group counts."""


class PullRequest(NamedTuple):
    """Pull messages of one queue for a group (11). Names are UTF-8 as received.

    The fields are in the order of `hot.FrameTable.pull`, so that a server makes one of a scanned row without looking at it.
    """

    group: bytes
    topic: bytes
    queue_id: int
    offset: int
    """First QueueOffset wanted."""
    count_max: int
    flags: int = 0
    commit_offset: int = -1
    """With COMMIT: the group's offset, stored along with the pull."""
    hold_ms: int = 0
    """With HOLD: long-polling time-out, ms."""
    subscription: bytes | None = None
    """With FILTER: the subscription that counts. Without: the one that the client believes to be in its heartbeat."""
    version: int = 0
    """Version of the subscription that the client believes to have, ms."""
    expression_type: bytes | None = None
    bytes_max: int = 0
    """Response limit of our client's extension, bytes; 0: RocketMQ's limits of bytes and messages."""


class OffsetCommit(Struct, frozen=True, kw_only=True):
    """Commit a group's offset in a queue (15): all before `offset` is consumed."""

    group: str
    topic: str
    queue_id: int
    offset: int
    client: str = ""
    """`Caller.client` of the sender, for whom an automatically created group counts."""
    generation: int | None = None
    """Generation of the topic that the offset is of; None: the client does not know generations."""
    instead_of: int | None = None
    """The offset that this one is to replace; where there is another one by now, that stays. None: whatever is there."""


class KeyQuery(Struct, frozen=True, kw_only=True):
    """Query messages by key or unique id (12). Store times in ms, both inclusive."""

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int
    unique: bool = False
    """Whether `key` is a unique id. Then `count_max` is ignored, as by RocketMQ."""


class Decide(Struct, frozen=True, kw_only=True):
    """Commit, roll back or prepare a staged transaction. Only its coordinator accepts it."""

    transaction: str
    outcome: DecisionOutcome
    parts: tuple[ManifestPart, ...] | None = None
    """The manifest. None: that of the preparation; for a rollback, all parts."""
    row: str = ""
    """Writer row (like Kafka's producer epoch and sequence). A commit raises it to `sequence`, which must be higher."""
    sequence: int = -1
    label: str = ""
    """With PREPARED: name under which it is recovered, such as an XA key. Later decisions keep it."""


class Stage(Struct, frozen=True, kw_only=True):
    """Stage chunks of a transaction, of one or several parts, and optionally decide it in the same request."""

    transaction: str
    chunks: tuple[Chunk, ...]
    born_ms: int
    born_host: bytes
    lifetime: PartLifetime = PartLifetime.AGE
    seconds: int = 0
    """With AGE: time until rollback, s; 0: the broker's `stagedSecondsMax`."""
    decide: Decide | None = None


class SealPart(Struct, frozen=True, kw_only=True):
    """Seal a part: no chunk follows."""

    transaction: str
    part: str
    seal: PartSeal


class Apply(Struct, frozen=True, kw_only=True):
    """Apply a committed transaction for a bounded time: deliver its messages to their queues."""

    transaction: str
    decision: TransactionDecision | None = None
    """The coordinator's decision, for a participant that may not have it."""
    confirmed: tuple[str, ...] = ()
    """To the coordinator: brokers that reported to the client that nothing remains there; they need not be asked."""
