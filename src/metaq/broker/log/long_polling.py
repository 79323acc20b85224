"""Long polling: pulls that found nothing, held until an append to their queue or their deadline.

When the queue grows, a held pull is read again from where it stopped. Units that the filter refuses move that place forward
without a response, so a rare tag costs one read per append, not one round trip. `QueueTail.watched` is set while pulls wait at
the queue, and until it grows once more: the fast path reports growth of watched queues only.

Messages that clients may not read yet (`LogTail.read_end`) count as growth when they may: `read_on`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from metaq.broker.allowance import share_of
from metaq.broker.channel import Channel
from metaq.broker.quota.meter import Meter
from metaq.clock import Clock
from metaq.kept import SLACK_BYTES, Kept
from metaq.store.message_reader import MessageReader
from metaq.store.queues.table import QueueKey
from metaq.wire.hot import QueueTail

CHANNEL_HELD_MIN = 1024
"""Held pulls that any client may have. Beyond that a quarter of the table is the limit, so none can fill it alone, over
however many connections."""

READING_MAX = 128
"""Held pulls with an SQL filter that are woken per queue: each new message is evaluated for each of them at once."""
HELD_BYTES = 4000
"""Memory of a held pull beside its filter, with what the server keeps to answer it."""
DEAF_SECONDS = 1.0
"""Hold time of further ones, s, which are not woken. Answered at once, their clients would pull again at once, in a loop."""


class HeldPull(Struct, eq=False):
    """A held pull. `place` is the QueueOffset that must exist before it can be answered."""

    channel: Channel
    key: QueueKey
    place: int
    deadline: float
    """Deadline, monotonic seconds."""
    request: Any
    """The server's own state to repeat and answer the pull; opaque here."""
    reads: bool = False
    """Whether its filter reads properties (SQL), not only the tag hashes of units."""
    deaf: bool = False
    """Whether it is not woken by growth, because READING_MAX others are."""
    size: int = HELD_BYTES
    """Memory that it takes, bytes."""
    meters: Sequence[Meter] = ()
    """Of the quotas that it counts for."""
    since: float = 0.0
    """When it came, monotonic seconds, if it is to be measured how long it is held; 0: it is not."""
    over: bool = False
    """Whether it was answered or dropped. Such an entry may still lie in the heap of deadlines."""

    def renewed(self) -> HeldPull:
        """Return the same pull, to be held again until the same deadline."""
        return HeldPull(
            self.channel,
            self.key,
            self.place,
            self.deadline,
            self.request,
            self.reads,
            size=self.size,
            since=self.since,
        )


class _Client(Struct, eq=False):
    """The connections of one client, by its host or identity, that have had pulls held."""

    name: str
    connections: int = 0
    held: int = 0


class _Holder(Struct, eq=False):
    """A connection that has had pulls held."""

    kept: Kept
    client: _Client
    pulls: set[HeldPull] = field(default_factory=set)


class HeldPulls:
    """All held pulls of a broker, at most `held_max`."""

    def __init__(self, reader: MessageReader, clock: Clock, held_max: int) -> None:
        self._reader, self._clock, self._held_max = reader, clock, held_max
        self._log = reader.log_tail
        self._waiting: dict[QueueKey, list[HeldPull]] = {}
        self._by_channel: dict[Channel, _Holder] = {}
        """Until the connection's end: most pulls are answered soon, and the next one comes."""
        self._clients: dict[str, _Client] = {}
        self._reading: Counter[QueueKey] = Counter()
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self.grown: dict[QueueKey, QueueTail] = {}
        """Watched queues that grew since the last call of `ready`."""
        self._unread: list[tuple[int, QueueKey]] = []
        """Heap of (LogOffset, queue): grown queues that have something to read once clients may read up to there."""
        self._in_unread = set[QueueKey]()
        self.holders: Callable[[Channel], Sequence[Meter]] | None = None
        """Returns the meters of a connection's quotas; None: there are no quotas."""
        self.serial = 0
        """How many pulls were held so far."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull. Returns False if the table, or the connection's share in it, is full: answer it now."""
        mine = self._by_channel.get(pull.channel)
        if mine is None:
            mine = self._add_holder(pull.channel)
        # Answered at once instead of refused: clients treat NO_NEW_MSG as the normal case, and simply pull again.
        if self._count >= self._held_max or mine.client.held >= share_of(self._held_max, CHANNEL_HELD_MIN):
            return False
        if self.holders is not None and not self._count_for(pull, self.holders(pull.channel)):
            return False
        if pull.reads and self._reading[pull.key] >= READING_MAX:
            pull.deaf, pull.deadline = True, min(pull.deadline, self._clock.monotonic() + DEAF_SECONDS)
        elif pull.reads:
            self._reading[pull.key] += 1
        self._waiting.setdefault(pull.key, []).append(pull)
        mine.pulls.add(pull)
        mine.client.held += 1
        kept = mine.kept
        kept.bytes += pull.size  # not by `add`, nor in `remove`: a call less for each held pull
        if kept.bytes > kept.told:
            kept.tell()
        # Breaks ties in the heap, which must not compare pulls.
        self.serial += 1
        heapq.heappush(self._deadlines, (pull.deadline, self.serial, pull))
        self._count += 1
        tail = self._watch(pull.key)
        if tail is not None and tail.log_end > self._log.read_end and pull.place < tail.next_offset:
            self._note_growth(pull.key, tail)
        return True

    def _count_for(self, pull: HeldPull, meters: Sequence[Meter]) -> bool:
        """Count a pull for the quotas of its connection. Returns False: one of them is used up."""
        if any(meter.limits.held_pulls and meter.held_pulls >= meter.limits.held_pulls for meter in meters):
            return False
        pull.meters = meters
        for meter in meters:
            meter.held_pulls += 1
        return True

    def _add_holder(self, channel: Channel) -> _Holder:
        name = channel.caller.client
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(name)
        client.connections += 1
        holder = self._by_channel[channel] = _Holder(Kept(channel.keep), client)
        return holder

    def adopt(self, key: QueueKey) -> None:
        """Watch a queue that was just created, if pulls wait for it already."""
        if key in self._waiting:
            # Consumers may pull from a queue before its first message creates it.
            self._watch(key)

    def grew(self, queues: Sequence[QueueTail], _messages: int, _size: int, _log_start: int, _log_end: int) -> None:
        """Note which watched queues have grown (`metaq.broker.log.appender.Growth`), for `ready`."""
        for tail in queues:
            key = (tail.topic.decode(), tail.queue_id)
            if key in self._waiting:
                self._note_growth(key, tail)
                tail.watched = True  # the queue may have been created after the pulls were held
            else:
                # Reset here and not in `remove`: a consumer that was answered mostly pulls again before the next append.
                tail.watched = False

    def _note_growth(self, key: QueueKey, tail: QueueTail) -> None:
        if tail.log_end <= self._log.read_end:
            self.grown[key] = tail
        elif key not in self._in_unread:
            self._in_unread.add(key)
            first = tail.record_end(self.end_of(tail))
            heapq.heappush(self._unread, (first if first >= 0 else tail.log_end, key))

    def read_on(self) -> None:
        """Note which queues have messages that clients may read since `LogTail.read_end` has moved, for `ready`."""
        read_end = self._log.read_end
        while self._unread and self._unread[0][0] <= read_end:
            _, key = heapq.heappop(self._unread)
            self._in_unread.discard(key)
            if key in self._waiting and (queue := self._reader.existing_queue(*key)) is not None:
                self.grown[key] = queue.tail

    def end_of(self, tail: QueueTail) -> int:
        """Return where a queue that has grown ends for clients; -1: in an older file than its newest."""
        return tail.end_below(self._log.read_end)

    def waiting(self, key: QueueKey) -> Sequence[HeldPull]:
        """Return the pulls held at a queue."""
        return self._waiting.get(key, ())

    def ready(self) -> list[HeldPull]:
        """Remove and return the pulls whose place exists since their queue grew.

        Those whose filter refuses all are held again.
        """
        grown, self.grown = self.grown, {}
        ready = list[HeldPull]()
        for key, tail in grown.items():
            end, waiting = self.end_of(tail), self._waiting.get(key, ())
            # Pulls may wait at different offsets: only those whose message exists now.
            ready += [pull for pull in waiting if pull.place < end and not pull.deaf]
            if waiting and end < tail.next_offset:
                self._note_growth(key, tail)
        for pull in ready:
            self.remove(pull)
        return ready

    def overdue(self) -> list[HeldPull]:
        """Remove and return the pulls whose deadline has passed."""
        now, ready = self._clock.monotonic(), list[HeldPull]()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].over):
            pull = heapq.heappop(self._deadlines)[2]
            if not pull.over:
                self.remove(pull)
                ready.append(pull)
        return ready

    def of(self, channel: Channel) -> list[HeldPull]:
        """Remove and return the pulls of a connection."""
        mine = self._by_channel.get(channel)
        pulls = list(mine.pulls) if mine is not None else []
        for pull in pulls:
            self.remove(pull)
        return pulls

    def closed(self, channel: Channel) -> None:
        """Drop the pulls of a closed connection."""
        if (mine := self._by_channel.get(channel)) is not None:
            self.of(channel)
            mine.kept.clear()
            del self._by_channel[channel]
            mine.client.connections -= 1
            if not mine.client.connections:
                del self._clients[mine.client.name]

    def remove(self, pull: HeldPull) -> None:
        """Remove a pull that was answered, or whose connection is closed."""
        pull.over = True
        self._count -= 1
        waiting = self._waiting[pull.key]
        waiting.remove(pull)
        if pull.reads and not pull.deaf:
            self._reading[pull.key] -= 1
            if not self._reading[pull.key]:
                del self._reading[pull.key]
        if not waiting:
            del self._waiting[pull.key]  # `watched` stays set: the same consumer mostly pulls again soon, see `grew`
        mine = self._by_channel[pull.channel]
        mine.pulls.discard(pull)
        mine.client.held -= 1
        for meter in pull.meters:
            meter.held_pulls -= 1
        kept = mine.kept
        kept.bytes -= pull.size
        if kept.bytes < kept.told - SLACK_BYTES:
            kept.tell()
        # A busy queue answers long before the deadlines, so answered pulls pile up in the heap. Removing one from its middle
        # costs a scan; rebuilding when most entries are dead costs little per pull.
        if len(self._deadlines) > 1024 and len(self._deadlines) > 4 * self._count:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].over]
            heapq.heapify(self._deadlines)

    def _watch(self, key: QueueKey) -> QueueTail | None:
        queue = self._reader.existing_queue(*key)
        if queue is None:
            return None
        queue.tail.watched = True
        return queue.tail
