"""Groups of a broker: their members, and what they have still to consume."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from metaq.broker.broker import Broker
from metaq.in_pieces import InPieces
from metaq.metrics import table
from metaq.metrics.metric import Sample
from metaq.metrics.top import OTHERS

PIECE = 100
"""Queues looked at in a piece of work."""
Pair: TypeAlias = tuple[str, str]
"""(topic, group)."""


class Lag(NamedTuple):
    """What a group has still to consume of a topic. The first field orders them."""

    messages: int
    pair: Pair
    queue_id: int
    offset: int
    """The queue with the most of them, and the offset of its next one."""


class Lags(NamedTuple):
    """`named`: the largest, the largest first. `rest`: messages of all others together; None: there are no others. `groups`: all."""

    named: list[Lag]
    rest: int | None
    groups: set[str]


class GroupMetrics:
    """Collects. Args: most: pairs and groups that have values of their own; 0: all."""

    def __init__(self, broker: Broker, most: int) -> None:
        self._broker, self._most = broker, most

    def lags(self) -> InPieces[Lags]:
        """Return what groups have still to consume of topics in which they have offsets."""
        # Only the largest are kept: an object for each of ten thousand pairs would have the collector of garbage look at all there is.
        largest, groups, pairs, work, total = list[Lag](), set[str](), 0, 0, 0
        for pair, offsets in list(self._broker.offsets.table.items()):
            messages, widest, at = self._left(pair, offsets)
            pairs, total, work = pairs + 1, total + messages, work + len(offsets)
            groups.add(pair[1])
            if not self._most or len(largest) < self._most:
                heapq.heappush(largest, Lag(messages, pair, widest, at))
            elif messages > largest[0].messages:
                heapq.heapreplace(largest, Lag(messages, pair, widest, at))
            if work >= PIECE:
                work = 0
                yield
        rest = total - sum(one.messages for one in largest) if pairs > len(largest) else None
        return Lags(sorted(largest, reverse=True), rest, groups)

    def _left(self, pair: Pair, offsets: Mapping[int, int]) -> tuple[int, int, int]:
        """Return the messages, and of the queue with the most of them its id and the offset of its next one."""
        reader = self._broker.store.reader
        total, most, widest, place, read_end = 0, 0, 0, 0, reader.log_tail.read_end
        for queue_id, offset in list(offsets.items()):
            queue = reader.existing_queue(pair[0], queue_id)
            if queue is None or offset >= queue.tail.next_offset:  # the usual case: it has all
                continue
            at, end = max(offset, queue.min_offset), queue.tail.end_below(read_end)
            if end < 0:  # `readable_end` knows more; this spares a call for each of ten thousand queues
                end = queue.readable_end(read_end)
            if end <= at:
                continue
            left = end - at
            total += left
            if left > most:
                most, widest, place = left, queue_id, at
        return total, widest, place

    async def samples(self, lags: Lags) -> list[Sample]:
        """Return the samples: the largest by name, the others as one."""
        store_time = self._broker.store.reader.store_time

        def ages() -> list[float]:
            now_ms = self._broker.clock.now_ms()
            return [
                max(0, now_ms - stored) / 1000
                if one.messages and (stored := store_time(one.pair[0], one.queue_id, one.offset)) > 0
                else 0.0
                for one in lags.named
            ]

        found = [Sample(table.GROUP_LAG, one.messages, one.pair) for one in lags.named]
        # In a thread: what a group is late with may be on the disk alone.
        of_time = await asyncio.to_thread(ages)
        found += [Sample(table.GROUP_LAG_SECONDS, age, one.pair) for age, one in zip(of_time, lags.named, strict=True)]
        if lags.rest is not None:
            found.append(Sample(table.GROUP_LAG, lags.rest, (OTHERS, OTHERS)))
        return found + self._members(lags.groups)

    def _members(self, groups: set[str]) -> list[Sample]:
        members = {name: len(group.members) for name, group in self._broker.members.consumers.items()}
        largest = heapq.nlargest(self._most or len(members), members, key=members.__getitem__)
        found = [Sample(table.GROUP_MEMBERS, members[name], (name,)) for name in largest]
        if len(largest) < len(members):
            left = sum(members.values()) - sum(members[name] for name in largest)
            found.append(Sample(table.GROUP_MEMBERS, left, (OTHERS,)))
        found.append(Sample(table.GROUPS, len(groups | members.keys())))
        return found
