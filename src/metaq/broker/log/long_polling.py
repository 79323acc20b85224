"""Long polling: pulls that found nothing and wait for an append or their deadline.

A held pull keeps its place: when its queue grows, the new units are looked at from where it stopped. Units that the
filter refuses move the place forward without an answer, so a rare tag costs one look per append, not one answer.
The queue's `QueueTail.watched` is set while anybody waits, and until it grows once more: the fast path reports growth of
watched queues only.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from metaq.broker.channel import Channel
from metaq.clock import Clock
from metaq.store.message_reader import MessageReader
from metaq.store.queues.table import QueueKey
from metaq.wire.hot import QueueTail

CHANNEL_HELD_MIN = 1024
"""One connection may hold a quarter of the table, but at least this many: nobody can take it all from the others."""

READING_MAX = 128
"""Pulls by an expression that wait at one queue: a message that comes there is looked at for each of them, in one go."""
DEAF_SECONDS = 1.0
"""What waits beyond that is not woken, and waits for so long: answered at once, its client would ask again at once, for ever."""


class HeldPull(Struct, eq=False):
    """One waiting pull. `place` is the QueueOffset that must appear before it can be answered."""

    channel: Channel
    key: QueueKey
    place: int
    deadline: float
    """Monotonic seconds."""
    request: Any
    """What the server needs to run the pull again and answer it; opaque to us."""
    reads: bool = False
    """It looks at messages, not at their tags alone: each new one costs it some work."""
    deaf: bool = False
    """It is not woken when its queue grows: too many are already."""
    over: bool = False
    """Answered, dropped, or its connection closed."""

    def renewed(self) -> HeldPull:
        """The same pull, to be held again until the same deadline."""
        return HeldPull(self.channel, self.key, self.place, self.deadline, self.request, self.reads)


class HeldPulls:
    """All held pulls of a broker, at most `held_max`."""

    def __init__(self, reader: MessageReader, clock: Clock, held_max: int) -> None:
        self._reader, self._clock, self._held_max = reader, clock, held_max
        self._waiting: dict[QueueKey, list[HeldPull]] = {}
        self._by_channel: dict[Channel, set[HeldPull]] = {}
        self._reading: Counter[QueueKey] = Counter()
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self.grown: dict[QueueKey, QueueTail] = {}
        """Queues that somebody waits on and that grew since `ready` was called last."""
        self._serial = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull. False when the table, or the connection's share in it, is full: answer it now."""
        mine = self._by_channel.get(pull.channel, ())
        if self._count >= self._held_max or len(mine) >= max(CHANNEL_HELD_MIN, self._held_max // 4):
            return False
        if pull.reads and self._reading[pull.key] >= READING_MAX:
            pull.deaf, pull.deadline = True, min(pull.deadline, self._clock.monotonic() + DEAF_SECONDS)
        elif pull.reads:
            self._reading[pull.key] += 1
        self._waiting.setdefault(pull.key, []).append(pull)
        self._by_channel.setdefault(pull.channel, set()).add(pull)
        self._serial += 1
        heapq.heappush(self._deadlines, (pull.deadline, self._serial, pull))
        self._count += 1
        self._watch(pull.key)
        return True

    def adopt(self, key: QueueKey) -> None:
        """A queue was just made: watch it if somebody waits for it already."""
        if key in self._waiting:
            self._watch(key)

    def grew(self, queues: Sequence[QueueTail], _messages: int, _size: int, _log_start: int, _log_end: int) -> None:
        """Messages were appended to these queues (`metaq.broker.log.appender.Growth`); `ready` will look at them."""
        for tail in queues:
            key = (tail.topic.decode(), tail.queue_id)
            if key in self._waiting:
                self.grown[key] = tail
                tail.watched = True  # also if the queue is younger than those who wait
            else:
                tail.watched = False

    def waiting(self, key: QueueKey) -> Sequence[HeldPull]:
        """Those who wait at a queue."""
        return self._waiting.get(key, ())

    def ready(self) -> list[HeldPull]:
        """Remove and return the pulls whose place exists since their queue grew. Who finds nothing that fits holds again."""
        grown, self.grown = self.grown, {}
        ready = list[HeldPull]()
        for key, tail in grown.items():
            end = tail.next_offset
            ready += [pull for pull in self._waiting.get(key, ()) if pull.place < end and not pull.deaf]
        for pull in ready:
            self.remove(pull)
        return ready

    def overdue(self) -> list[HeldPull]:
        """Remove and return the pulls whose deadline has come."""
        now, ready = self._clock.monotonic(), list[HeldPull]()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].over):
            pull = heapq.heappop(self._deadlines)[2]
            if not pull.over:
                self.remove(pull)
                ready.append(pull)
        return ready

    def closed(self, channel: Channel) -> None:
        """Forget the pulls of a connection that is gone."""
        for pull in list(self._by_channel.get(channel, ())):
            self.remove(pull)

    def remove(self, pull: HeldPull) -> None:
        """Keep it no longer: it is answered, or nobody waits for an answer."""
        pull.over = True
        self._count -= 1
        waiting = self._waiting[pull.key]
        waiting.remove(pull)
        if pull.reads and not pull.deaf:
            self._reading[pull.key] -= 1
            if not self._reading[pull.key]:
                del self._reading[pull.key]
        if not waiting:
            del self._waiting[pull.key]  # the next who waits is mostly near: `grew` sees it if nobody is
        mine = self._by_channel[pull.channel]
        mine.discard(pull)
        if not mine:
            del self._by_channel[pull.channel]
        # Answered pulls stay in the heap until their deadline; when they are most of it, they are taken out at once: a busy
        # queue answers long before deadlines.
        if len(self._deadlines) > 1024 and len(self._deadlines) > 4 * self._count:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].over]
            heapq.heapify(self._deadlines)

    def _watch(self, key: QueueKey) -> None:
        queue = self._reader.existing_queue(*key)
        if queue is not None:
            queue.tail.watched = True
