"""Checked options of a consumer group's member."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from metaq.client.consumer.membership.rebalance import Strategy
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.shared.serializers import Decode
from metaq.model import ConsumeFrom, MessageModel, MessageQueue


class GroupSeconds(Struct, frozen=True):
    """Intervals and time-outs of a group's member, in seconds."""

    rebalance: float = 20.0
    """Time between two rebalances if no notice of a change comes; RocketMQ's is 20 s, too."""
    persist: float = 5.0
    """Time between two commits of offsets."""
    retry: float = 1.0
    """Pause after a rebalance that failed, and after a pull whose answer has damaged records."""
    pause: float = 0.05
    """Time between two looks at a queue that is full (`queue_messages_max`); it is also looked at when a chunk has been handed out."""
    stall: float = 60.0
    """Time for which a queue is full before the log warns of it."""
    give_back: float = 60.0
    """Time for all tries to give a message back to its broker."""
    copy: float = 3.0
    """Time for all tries to send a copy of a message to the retry topic."""
    again: float = 5.0
    """Pause before a message that no broker takes back is handed out again by this member."""
    locks: float = 1.0
    """Time between two looks at which queue locks of an orderly consumer must be renewed."""
    leave: float = 20.0
    """Time that the message in hand gets to be finished when its queue moves to another member, in orderly consumption."""
    drain: float = 5.0
    """Time that messages which are being given back to the broker get when the member leaves."""


USUAL = GroupSeconds()


OnSkip = Callable[[MessageQueue, range], object]
"""Called with a queue and offsets that are never handed out: they were deleted before they were consumed, or skipped (`skip_when_behind`)."""
OnShare = Callable[[str, list[MessageQueue], list[MessageQueue]], object]
"""Called with a topic, all its queues, and the queues of it that belong to this member from now on."""


class GroupOptions(Struct, frozen=True):
    """How a member consumes."""

    model: MessageModel
    consume_from: ConsumeFrom
    start_ms: int
    strategy: Strategy
    pull_count: int
    pull_bytes: int
    queue_messages_max: int
    queue_bytes_max: int
    span_max: int
    max_reconsume_times: int | None
    """Failures after which a message is a dead letter; None: no limit, in orderly consumption only."""
    on_skip: OnSkip | None = None
    on_share: OnShare | None = None
    skip_when_behind: int | None = None
    """Offsets that a member may be behind the end of a queue; messages further behind are skipped. None: none is skipped."""
    pull_interval: float = 0.0
    """Seconds between two pulls of a queue."""
    topic_messages_max: int | None = None
    topic_bytes_max: int | None = None
    """How many messages, and bytes, of one topic may be pulled and unfinished at this member; its queues of the topic share them evenly. None: no limit."""
    keep_seconds: float = 0.0
    """Seconds for which a MetaQ broker keeps the member's queues for it after it has left; 0: it does not."""
    orderly: bool = False
    unit_mode: bool = False
    """The group is marked as one of a unit, and so are topics that are created for it."""
    message_class: type[ReceivedMessage] = ReceivedMessage
    decode: Decode | None = None
    """Function that makes the value of a message from its body; it is called in a thread."""
    seconds: GroupSeconds = USUAL
