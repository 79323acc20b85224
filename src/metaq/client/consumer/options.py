"""How a member consumes: what the arguments of a consumer come to."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from metaq.client.consumer.membership.rebalance import Strategy
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.seconds import USUAL, GroupSeconds
from metaq.client.shared.serializers import Decode
from metaq.model import ConsumeFrom, MessageModel, MessageQueue

OnSkip = Callable[[MessageQueue, range], object]
"""Told which offsets of a queue are never handed out: deleted before they were consumed, or skipped as wished."""
OnShare = Callable[[str, list[MessageQueue], list[MessageQueue]], object]
"""Told a topic, all its queues, and those of them that are this member's from now on."""


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
