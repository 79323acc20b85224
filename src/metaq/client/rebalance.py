"""Who consumes which queue: pure functions that every member of a group computes alike (reference section 5.5).

A strategy gets all queues of a topic, all member ids, both sorted, and the member's own id; it returns the member's
share. The members' shares together are all queues, each once, provided that all see the same two lists; while they do
not, a queue has for a moment no owner or two, and its messages are delivered late or twice, never lost.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence

from metaq.errors import ConfigError
from metaq.model import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]

RING_NODES = 10
"""Virtual nodes of each member on the consistent-hash ring, as in Java."""


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Neighbouring queues, the first members one more: 5 queues over 2 members are 3 and 2. RocketMQ's AVG."""
    index = _index(members, me)
    if index is None:
        return []
    whole, rest = divmod(len(queues), len(members))
    start = index * whole + min(index, rest)
    return list(queues[start : start + whole + (index < rest)])


def circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Dealt out like cards. RocketMQ's AVG_BY_CIRCLE."""
    index = _index(members, me)
    return [] if index is None else list(queues[index :: len(members)])


def consistent_hash(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """A queue goes to the next member on a ring of hashes, so that few queues move when a member comes or goes."""
    if _index(members, me) is None:
        return []
    ring = sorted((_ring_hash(f"{member}-{node}"), member) for member in members for node in range(RING_NODES))
    places = [place for place, _ in ring]

    def owner(queue: MessageQueue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect.bisect_left(places, _ring_hash(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == me]


def fixed(mine: Sequence[MessageQueue]) -> Strategy:
    """Always these queues, whoever else there is. RocketMQ's CONFIG; the user must see to it that shares are disjoint."""

    def strategy(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:  # noqa: ARG001  a Strategy
        return [queue for queue in queues if queue in mine]

    return strategy


def _index(members: Sequence[str], me: str) -> int | None:
    """A member that the broker does not list yet owns nothing."""
    return members.index(me) if me in members else None


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


STRATEGIES: dict[str, Strategy] = {"average": average, "circle": circle, "consistent_hash": consistent_hash}


def strategy_of(given: str | Strategy) -> Strategy:
    """A strategy by its name, or the callable given. Raises ConfigError that lists the names."""
    if callable(given):
        return given
    if given not in STRATEGIES:
        raise ConfigError(
            f"no allocation strategy is named {given!r}: there are {', '.join(STRATEGIES)}, or a callable"
        )
    return STRATEGIES[given]
