"""Byte positions of one queue: the sum of the 1.x frames before each of its messages (docs/formats/positions.md).

Used from one thread, the event loop's; what is not known yet is computed in another (`metaq.store.metaq1.positions`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from metaq.errors import ConfigError, Reason, Refused, StoreError
from metaq.saved import Pending, Saving
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.position_bases import Base, bound_of
from metaq.store.metaq1.position_files import PositionFiles
from metaq.store.metaq1.position_fill import CHUNK, Begins, Filler, Gone, sizes_of
from metaq.store.metaq1.position_open import opened
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire import hot

log = logging.getLogger(__name__)
STEP_MESSAGES: Final = 2048
"""Messages of other protocols' servers that are measured on the event loop; more are left to the thread."""
_HINTS_MAX: Final = 64
_AHEAD: Final = 512
_CHUNKS_BACK: Final = 16
_WINDOW: Final = 512
"""Units that a search reads at a time: a page."""
_GUESSES_MAX: Final = 4
"""Steps of a search that guess by the average size of messages; then it bisects, for sizes that are very uneven."""


class Owner(Protocol):
    """The store and the thread of all queues: `Positions`."""

    store: MessageStore

    @property
    def stopping(self) -> bool:
        """Whether jobs have to end early."""
        ...

    def ask(self, job: Callable[[], Callable[[], None]]) -> None:
        """Run `job` in the thread, and what it returns on the event loop afterwards."""
        ...

    def rebased(self, queue: QueuePositions) -> None:
        """Write a new base for the queue: until it is durable no client may see a position."""
        ...

    def is_recent(self, log_offset: int) -> bool:
        """Whether a record counts as in memory, so that the event loop may read it."""
        ...


class Place(NamedTuple):
    """The message at `queue_offset` begins at byte `position`."""

    queue_offset: int
    position: int


class QueuePositions:
    """The byte positions of one queue. `min`, `max`, `position` and `at` raise Saving while a position is being computed."""

    __slots__ = (
        "_begin", "_files", "_hints", "_opened", "_owner", "_settling", "_synced", "_waiting", "base", "busy", "gone", "low", "misfits",
        "queue_id", "rebased", "tail", "topic",
    )  # fmt: skip

    def __init__(self, owner: Owner, files: PositionFiles, topic: str, queue_id: int, base: Base | None) -> None:
        self.topic, self.queue_id, self._owner = topic, queue_id, owner
        self.base = base
        """The newest base in the log; None: there is none, the files are all there is."""
        self._files = files
        self.tail = hot.PositionTail()
        """The end of the units, which native code advances if its `next_offset` is the queue's, and there is room."""
        self._begin = 0
        """Messages before this queue offset have no position."""
        self.low = 0
        """Positions from this queue offset to the tail's are known."""
        self.busy = False
        """The thread is writing units behind the tail."""
        self.rebased = False
        """The units go on from a place that the log's bases do not lead to: a new base has to be written."""
        self.gone = False
        """Its topic was deleted."""
        self.misfits: frozenset[int] = frozenset()
        """Queue offsets of damaged messages whose frames are not as long as the positions say: gets pass over them."""
        self._opened = False
        self._settling: Pending | None = None
        self._waiting: Pending | None = None
        self._synced = -1
        self._hints: dict[int, int] = {}

    # ------------------------------------------------------------------ what is asked

    @property
    def touched(self) -> bool:
        """Whether clients may see positions: the base is durable, and the files are open."""
        if self._settling is not None and self._settling.done and self._settling.error is None:
            self._settling = None
        return self._opened and self._settling is None

    @property
    def min(self) -> int:
        """Position of the oldest message kept, or of the next one of an empty queue. Raises Saving, Refused."""
        return self.position(self.begin)

    @property
    def begin(self) -> int:
        """Queue offset of the oldest message that has a position. Raises Saving, Refused."""
        self._require_open()
        begin = self._oldest()
        if self.low > begin:
            raise Saving(self.fill(back=True))
        return begin

    def _oldest(self) -> int:
        """The same, without waiting for the position to be known."""
        return max(self._queue().min_offset, self._begin)

    @property
    def max(self) -> int:
        """One past the newest frame. Raises Saving, Refused."""
        self._require_end()
        return self.tail.next_position

    def position(self, queue_offset: int) -> int:
        """Return the position of the message at a queue offset, or of the next one to come.

        Raises Saving, Refused; ValueError: the queue does not hold that offset.
        """
        self._require_open()
        if queue_offset > self.tail.next_offset:
            self._require_end()
        if not self.low <= queue_offset <= self.tail.next_offset:
            queue = self._queue()
            oldest = self._oldest()
            if not oldest <= queue_offset <= queue.max_offset:
                raise ValueError(
                    f"queue {self.queue_id} of topic {self.topic} has positions of [{oldest}, {queue.max_offset}), "
                    f"wanted {queue_offset}"
                )
            raise Saving(self.fill(back=True))
        return self._unit(queue_offset)

    def is_before(self, position: int) -> bool:
        """Whether a position lies before the oldest message. Raises Saving, Refused."""
        # Units are computed from the end backwards, so clients that read at the end are answered long before `min` is known.
        self._require_open()
        oldest = self._oldest()
        if oldest > self.tail.next_offset:
            self._require_end()
        low = max(self.low, oldest)
        if position >= self._unit(low):
            return False
        if self.low > oldest:
            raise Saving(self.fill(back=True))
        return True

    def at(self, position: int) -> Place:
        """Return the message whose frame holds that byte; the oldest one before that, one past the newest behind the end.

        Raises Saving, Refused.
        """
        self._require_open()
        if position >= self.tail.next_position:
            self._require_end()
            if position >= self.tail.next_position:
                return Place(self.tail.next_offset, self.tail.next_position)
        oldest = self._oldest()
        if oldest > self.tail.next_offset:
            self._require_end()
        low = max(self.low, oldest)
        hint = self._hints.get(position, -1)
        # A lost message may have size 0: then the one behind it is at the same position, and is the one to return.
        if low <= hint < self.tail.next_offset and self._unit(hint + 1) > position:
            return Place(hint, position)
        first = self._unit(low)
        if position < first:
            if self.low > oldest:
                raise Saving(self.fill(back=True))
            return Place(low, first)
        return self._search(low, first, position)

    def _search(self, low: int, low_position: int, position: int) -> Place:
        """Search the messages from `low` on, which is not behind the position. Raises Saving, Refused."""
        # Messages are often of much the same size, so the first looks are where the position should be then.
        high, high_position, tries = self.tail.next_offset, self.tail.next_position, 0
        while True:
            first, stop = low, high
            if high - low > _WINDOW:
                tries += 1
                part = (position - low_position) / (high_position - low_position) if tries <= _GUESSES_MAX else 0.5
                first = max(low, min(low + int((high - low) * part) - _WINDOW // 2, high - _WINDOW))
                stop = first + _WINDOW
            row, found = hot.find_position(self._files.read_bytes(first, stop), first, position)
            if row < 0 and found >= 0:
                self._unit(found)  # raises, unless it was made anew meanwhile
                continue
            if row < 0:  # all of them lie behind it
                high, high_position = first, self._unit(first)
            elif first + row + 1 == stop and stop < high:
                low, low_position = first + row, found
                if self._unit(stop) > position:
                    return Place(low, found)
                low, low_position = stop, self._unit(stop)
            else:
                return Place(first + row, found)

    def confirm(self, queue_offset: int, count: int, frame_bytes: int) -> bool:
        """Whether the frames of `count` messages from a queue offset on have the size that their positions say.

        False: a position or a message is damaged. All units are verified then, and nothing may be answered.
        """
        begin, end = self._unit(queue_offset), self._unit(queue_offset + count)
        if end - begin != frame_bytes:
            self.verify()
            return False
        # A consumer asks next for the position behind what it got: the hint saves that get the search.
        if len(self._hints) >= _HINTS_MAX:
            del self._hints[next(iter(self._hints))]
        self._hints[end] = queue_offset + count
        return True

    # ------------------------------------------------------------------ growing

    def append(self, queue_offset: int, frame_bytes: int) -> int:
        """Add the next message, whose frame has `frame_bytes`. Returns its position.

        Raises Saving, Refused; StoreFull, OSError: no room for its unit; the next call tries again.
        """
        self._require_open()
        if queue_offset != self.tail.next_offset or self.busy:
            return self.position(queue_offset)
        position = self.tail.next_position
        if self.tail.room() < 1:
            self.grow()
        self.tail.put(frame_bytes)
        return position

    def grow(self) -> None:
        """Make room for units at the tail. Raises StoreFull, OSError; Saving, Refused: no position may be seen now."""
        self._require_open()
        self._files.attach(self.tail, _AHEAD)

    def is_caught_up(self) -> bool:
        """Whether the tail is at the queue's end; measures a few messages to get there. Raises Refused."""
        queue = self._queue()
        if self.busy or not self.touched:
            return False
        if self.tail.next_offset > queue.max_offset:
            self._cut(queue.max_offset)
        if self.tail.next_offset == queue.max_offset:
            return True
        return self._measure(queue)

    def _measure(self, queue: ConsumeQueue) -> bool:
        """Measure messages that other protocols' servers have put, if they are few, in memory and not compressed."""
        tail, stop = self.tail, queue.max_offset
        if stop - tail.next_offset > STEP_MESSAGES or tail.next_offset < queue.min_offset:
            return False
        unit = queue.unit(tail.next_offset)
        if unit is None or not self._owner.is_recent(unit.log_offset):  # the event loop must not wait for the disk
            return False
        try:
            # Compressed messages are left to the thread: expanding them could hold up the loop.
            found = sizes_of(self._owner.store, queue, tail.next_offset, stop, None)
            for size in found.sizes:
                if tail.room() < 1:
                    self.grow()
                tail.put(size)
        except Gone:
            return False
        except (StoreError, OSError, MemoryError) as error:
            raise self._refused(error) from error
        return tail.next_offset == stop

    def _cut(self, stop: int) -> None:
        """Follow the queue, which was cut with the log."""
        self._hints.clear()
        self.misfits = frozenset(offset for offset in self.misfits if offset < stop)
        known = self._files.read(stop) if stop >= self.low else None
        if known is None:
            self._opened = False  # the tail was not computed that far back: begin from the bases again
            self.base = None
        else:
            self.tail.detach()
            self.tail.start_at(stop, known)
            self._synced = min(self._synced, stop)

    def require(self) -> None:
        """Raises Saving or Refused unless clients may see positions."""
        self._require_open()

    def _require_open(self) -> None:
        if self._settling is not None:
            self._settling.settle()
            self._settling = None
        if not self._opened:
            raise Saving(self.fill())

    def _require_end(self) -> None:
        self._require_open()
        if not self.is_caught_up():
            raise Saving(self.fill())

    def _queue(self) -> ConsumeQueue:
        queue = None if self.gone else self._owner.store.reader.existing_queue(self.topic, self.queue_id)
        if queue is None:
            raise Refused(Reason.BUSY, f"the topic {self.topic} is being deleted, try again")
        return queue

    def _unit(self, queue_offset: int) -> int:
        if queue_offset == self.tail.next_offset:
            return self.tail.next_position
        value = self._files.read(queue_offset)
        if value is None or value > self.tail.next_position:
            log.error(
                "queue %d of topic %s: the byte position of queue offset %d is lost; all of its positions are computed anew",
                self.queue_id, self.topic, queue_offset,
            )  # fmt: skip
            raise Saving(self.verify())
        return value

    def _refused(self, error: Exception) -> Refused:
        text = f"the byte positions of queue {self.queue_id} of topic {self.topic} cannot be computed: {error or type(error).__name__}"
        return Refused(Reason.NOT_STORED if not isinstance(error, ConfigError) else Reason.UNAVAILABLE, text)

    # ------------------------------------------------------------------ settling (the service of bases)

    def settle_with(self, pending: Pending) -> None:
        """Show no position before `pending` is over: the queue's base becomes durable."""
        self._settling = pending

    def begin_again(self) -> None:
        """Look once more, at the next question, where the newest base leads. Not while it is `busy`."""
        self._opened = self.rebased = False
        self._settling = None

    # ------------------------------------------------------------------ the thread

    def fill(self, *, back: bool = False) -> Pending:
        """Have the thread open the files and compute units up to the end; `back`: if they are open, some before `low`.

        The caller asks again when this is over, and may get Saving again.
        """
        if self._waiting is None:
            self._waiting = Pending()
            back = back and self._opened
            # Going back leaves the tail alone: native puts go on meanwhile.
            self.busy = not back
            if back:
                self._owner.ask(functools.partial(self._do, functools.partial(self._go_back, self.low)))
            else:
                self._owner.ask(functools.partial(self._do, self._go_forward))
        return self._waiting

    def verify(self) -> Pending:
        """Have the thread compare all units with the messages, and write wrong ones again."""
        if self._waiting is None and self._opened:
            self._waiting = Pending()
            end = self.tail.next_offset, self.tail.next_position
            self._owner.ask(functools.partial(self._do, functools.partial(self._verified, self.low, *end)))
        return self._waiting or self.fill()

    def _do(self, act: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        """Run in the thread. Returns what is called on the event loop afterwards."""
        try:
            return act()
        except Gone:  # retention was faster: the next question begins where the queue does now
            return lambda: self._filled(None)
        except Refused as error:
            refusal = error
        except (StoreError, OSError, MemoryError, ConfigError) as error:
            refusal = self._refused(error)
            log.error("%s", refusal)  # noqa: TRY400  the text says it all
        except Exception as error:  # a fault of ours: whoever waits must not wait for ever
            refusal = self._refused(error)
            log.exception("%s", refusal)
        return lambda: self._filled(refusal)

    def _go_forward(self) -> Callable[[], None]:
        """Open the files if they are not open, and compute units up to the queue's end."""
        queue = self._queue()
        filler = Filler(self._owner.store, self._files, queue)
        if self._opened:
            low, offset, position, rebased = self.low, self.tail.next_offset, self.tail.next_position, False
        else:
            low, offset, position, self._synced, rebased = opened(self._files, queue, filler, self.base)
        while not self._owner.stopping and offset < (stop := min(queue.max_offset, offset + CHUNK)):
            self._files.reserve(offset + 1, stop)
            try:
                position = filler.forward(offset, position, stop)
            except Gone:
                if offset >= queue.min_offset:
                    raise
                # The messages in between have left the log, and no client has seen their positions: go on behind them.
                low = stop = queue.min_offset
                self._files.create(stop, stop)
                self._files.write_one(stop, position)
                rebased = True
            offset = stop
        self._files.release()
        return lambda: self._publish(low, offset, position, rebased=rebased)

    def _go_back(self, low: int) -> Callable[[], None]:
        queue = self._queue()
        stop, begin = max(self._oldest(), low - CHUNK * _CHUNKS_BACK), self._begin
        if low > stop:
            try:
                low = self._backward(Filler(self._owner.store, self._files, queue), low, stop)
            except Begins as error:
                low = begin = error.offset
        return lambda: self._went_back(low, begin)

    def _went_back(self, low: int, begin: int) -> None:
        self.low, self._begin = low, begin
        self._filled(None)
        self._go_on_back()

    def _go_on_back(self) -> None:
        """Compute the units before `low`, also if nobody asks for them: later their messages may have left the log."""
        queue = self._owner.store.reader.existing_queue(self.topic, self.queue_id)
        if not self.gone and queue is not None and self.low > self._oldest():
            self.fill(back=True)

    def _backward(self, filler: Filler, low: int, stop: int) -> int:
        high = low
        while low > stop and not self._owner.stopping:
            low = filler.backward(low, max(stop, low - CHUNK))
        self._files.sync(low, high)
        self._files.release()
        return low

    def _verified(self, low: int, offset: int, position: int) -> Callable[[], None]:
        filler = Filler(self._owner.store, self._files, self._queue())
        self._files.write_one(offset, position)
        first = max(low, self._oldest())
        believed, differ = filler.differences(first, offset)
        if differ and not believed:
            log.error(
                "queue %d of topic %s: a message is damaged in the log; the byte positions of the others stay, and consumers of MetaQ "
                "1.x pass over it", self.queue_id,
                self.topic,
            )  # fmt: skip
            filler.fill_gaps(first, offset)
            misfits = filler.misfits(first, offset)
            return lambda: self._verification_over(misfits)
        if differ:
            log.error(
                "queue %d of topic %s: %d byte positions were damaged; they are computed anew",
                self.queue_id, self.topic, differ,
            )  # fmt: skip
            at = offset
            while at > first:
                at = filler.backward(at, max(first, at - CHUNK))
            self._files.sync(first, offset + 1)
        return self._verification_over

    def _verification_over(self, misfits: frozenset[int] = frozenset()) -> None:
        self.misfits = misfits
        self._hints.clear()
        self._filled(None)

    def _publish(self, low: int, offset: int, position: int, *, rebased: bool) -> None:
        """Take over, on the event loop, what the thread has computed."""
        self.low = low
        self.tail.detach()
        self.tail.start_at(offset, position)
        self._hints.clear()
        self._opened, self.busy, self.rebased = True, False, self.rebased or rebased
        self.misfits = frozenset(offset for offset in self.misfits if low <= offset < self.tail.next_offset)
        if self.rebased:
            self._owner.rebased(self)
        self._filled(None)
        self._go_on_back()

    def _filled(self, error: Refused | None) -> None:
        self.busy = False
        pending, self._waiting = self._waiting, None
        if pending is not None:
            pending.finish(error)

    # ------------------------------------------------------------------ the disk

    @property
    def reached(self) -> tuple[int, int] | None:
        """(queue offset, position) up to which positions are known; None: not open yet, or the thread is at work."""
        return (self.tail.next_offset, self.tail.next_position) if self._opened and not self.busy else None

    def bound(self) -> int:
        """Return a position that is as large as any that was told; reads no message."""
        if self.reached is not None:
            return self.tail.next_position
        if self.base is not None:
            return bound_of(self.base, self._owner.store.log.end)
        return self._files.last_position() if self._files.load() else 0

    def sync(self, offset: int) -> None:
        """Make all units up to this one durable; in the thread. Raises OSError."""
        self._files.sync(max(self.low, self._synced), offset + 1)
        self._synced = offset

    def mark_synced(self, offset: int) -> None:
        """Take all units up to this one for durable: the whole file system was synced."""
        self._files.run.unsynced = False
        self._synced = offset

    def drop_below(self) -> None:
        """Delete files that lie wholly before the oldest message; in the thread. Raises OSError."""
        queue = self._owner.store.reader.existing_queue(self.topic, self.queue_id)
        if queue is not None and not self.gone:
            self._files.drop_below(min(queue.min_offset, self.tail.next_offset))

    def give_up(self) -> None:
        """Stop using the files: the topic is deleted, and its folder is renamed next."""
        self.gone = True
        self.tail.detach()
        self._files.run.give_up()

    def close(self) -> None:
        self.tail.detach()
        self._files.run.close()
