"""How a member consumes: what the arguments of a consumer come to."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from metaq.client.consumer.seconds import USUAL, GroupSeconds
from metaq.client.rebalance import Strategy
from metaq.model import ConsumeFrom, MessageModel, MessageQueue

OnSkip = Callable[[MessageQueue, range], object]
"""Told which offsets of a queue were gone before they were consumed."""


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
    max_reconsume_times: int
    on_skip: OnSkip | None
    seconds: GroupSeconds = USUAL
