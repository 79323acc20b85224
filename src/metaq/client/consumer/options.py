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
    """Interval of rebalances without notices, s; RocketMQ's is 20."""
    persist: float = 5.0
    """Interval of offset commits, s."""
    retry: float = 1.0
    """After a rebalance that failed, and a pull whose answer holds broken records."""
    pause: float = 0.05
    """Between two looks at a full queue, which is also woken when a chunk has been handed out."""
    stall: float = 60.0
    """Until a queue that stays full is warned of."""
    give_back: float = 60.0
    """For all tries to give a message back to its broker."""
    copy: float = 3.0
    """For all tries to send a copy to the retry topic."""
    again: float = 5.0
    """Until a message that no broker takes back is handed out here once more."""
    locks: float = 1.0
    """Between two looks at which locks of an orderly consumer are to be renewed."""
    leave: float = 20.0
    """For the message in hand of a queue that goes to another member, in orderly consumption."""
    drain: float = 5.0
    """For messages on their way back to the broker, when the member leaves."""


USUAL = GroupSeconds()


OnSkip = Callable[[MessageQueue, range], object]
"""Called with a queue and offsets that are never handed out: deleted before they were consumed, or skipped as wished."""
OnShare = Callable[[str, list[MessageQueue], list[MessageQueue]], object]
"""Called with a topic, all its queues, and those of them that are this member's from now on."""


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
    """None: without limit, in orderly consumption only."""
    on_skip: OnSkip | None = None
    on_share: OnShare | None = None
    skip_when_behind: int | None = None
    """Messages of one queue that may wait; what is further behind is skipped."""
    pull_interval: float = 0.0
    """Seconds between two pulls of a queue."""
    topic_messages_max: int | None = None
    topic_bytes_max: int | None = None
    """What of one topic may be pulled and unfinished here, shared evenly by the queues of it that are ours."""
    keep_seconds: float = 0.0
    """How long a broker of ours keeps the member's queues for it when it is gone."""
    orderly: bool = False
    unit_mode: bool = False
    """The group is one of a unit: so are topics that are made for it."""
    message_class: type[ReceivedMessage] = ReceivedMessage
    decode: Decode | None = None
    """Makes the value of a message of its body, in a thread."""
    seconds: GroupSeconds = USUAL
