"""The state that a member tells (307): from its options, its queues and its rates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from metaq.client.consumer.delivery.delivery import Hold
from metaq.client.consumer.delivery.window import Window
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.telling.stacks import stacks as stacks_now
from metaq.client.shared.together import in_thread
from metaq.model import MessageQueue, SubscriptionData
from metaq.model.inspection import MemberQueue, MemberRates, MemberState

MIB = 1024 * 1024

Properties = Callable[[], Mapping[str, str]]
Loops = Callable[[], Collection[asyncio.AbstractEventLoop]]


def nothing_told() -> Mapping[str, str]:
    return {}


def no_loops() -> Collection[asyncio.AbstractEventLoop]:
    return ()


async def state_of(
    properties: Mapping[str, str], subscriptions: Iterable[SubscriptionData], queues: Mapping[MessageQueue, MemberQueue],
    rates: Mapping[str, MemberRates], loops: Collection[asyncio.AbstractEventLoop] | None,
) -> MemberState:  # fmt: skip
    """Return the state. `loops`: event loops whose tasks are shown, besides all threads and the client's own; None: no stacks."""
    shown = None
    if loops is not None:
        # In a thread: there may be thousands of tasks.
        shown = await in_thread(stacks_now, {asyncio.get_running_loop(), *loops})
    in_order = tuple(sorted(subscriptions, key=lambda one: one.topic))
    return MemberState(properties=properties, subscriptions=in_order, queues=queues, rates=rates, stacks=shown)


def queue_of(window: Window[ReceivedMessage], hold: Hold, pulled_ms: int, ms_of: Callable[[float], int]) -> MemberQueue:
    """In the loop: the state of one queue. `ms_of`: makes a wall-clock time of a monotonic one."""
    position, cached, last = window.finished_offset(), window.unfinished, window.last_unfinished
    return MemberQueue(
        position=position,
        cached=cached,
        cached_first=0 if last is None else position,
        cached_last=0 if last is None else last,
        cached_mib=window.unfinished_bytes // MIB,
        locked=hold.locked_at is not None,
        locked_ms=0 if hold.locked_at is None else ms_of(hold.locked_at),
        dropped=window.dropped,
        pulled_ms=pulled_ms,
        consumed_ms=window.taken_ms,
        in_hand=len(hold.in_hand),
        in_hand_first=min(hold.in_hand, default=0),
        in_hand_last=max(hold.in_hand, default=0),
    )
