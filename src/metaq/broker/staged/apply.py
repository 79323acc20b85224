"""Applying committed transactions: appends their messages to the queues, chunk by chunk, per queue in the order of the decisions.

Every message names its chunk's record (`copy_mark`), so a start finds in the log how far this had come. While a part is half
applied, its queue is closed to other messages (`metaq.broker.log.closing`), so that a part is contiguous. Recent chunks are read
at once, older ones in a thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from metaq.broker.environment import Environment, ReadCold
from metaq.broker.log.admit import GateTable
from metaq.broker.log.appender import Appender
from metaq.broker.staged.parts import Part, Transaction
from metaq.broker.staged.records import DONE, FINISHED, copies_of, done_record, entries_of
from metaq.broker.tables.topics import Topics
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.saved import Saving
from metaq.store.queues.table import QueueKey
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire.hot import STOP_END, AppendOutcome
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

DONE_MAX: Final = 256
"""Transactions per DONE record; as soon as so many wait, they are marked at once."""
AT_ONCE_BYTES: Final = 1 << 20
"""Transactions up to this size are applied in the request that commits them."""
CHUNK_BYTES_LEAST: Final = 4096
"""Least bytes that a chunk counts for in time slices: even a small one takes time."""

READS_MAX: Final = 64
"""Chunks being read by threads, or read and not taken yet."""
READ_BYTES_MAX: Final = 64 << 20
"""Bytes of these together; a single one may be larger."""
KEPT_SECONDS: Final = 10.0
"""Time for which a read chunk is kept, s: its transaction may be over meanwhile."""


class DamagedChunk(Exception):
    """A chunk cannot be read where it was staged."""


def decoded(record: bytes) -> StoredMessage:
    """Decode a chunk's record. Raises DamagedChunk."""
    try:
        return decode_record(record)
    except RemoteProtocolError:
        raise DamagedChunk from None


class ChunkReader:
    """Reads chunks from the log, cold ones in threads."""

    def __init__(self, environment: Environment, read_cold: ReadCold) -> None:
        self._store, self._options, self._read_cold = environment.store, environment.store_options, read_cold
        self._clock = environment.clock
        self._found: dict[int, bytes | None] = {}
        """LogOffset → record read by a thread; None: it is being read."""
        self._sizes: dict[int, int] = {}
        """LogOffset → bytes of that chunk."""
        self._bytes = 0
        """Sum of the sizes."""
        self._read_at: dict[int, float] = {}
        """LogOffset → time of the read (monotonic seconds), the oldest first."""

    @property
    def full(self) -> bool:
        """Whether no further chunk can be read now (READS_MAX, READ_BYTES_MAX). Drops chunks that nobody took in time."""
        if not self._is_full:
            return False
        late = self._clock.monotonic() - KEPT_SECONDS
        for place in [place for place, read_at in self._read_at.items() if read_at < late]:
            self._drop(place)
        return self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self._found) >= READS_MAX or self._bytes >= READ_BYTES_MAX

    def get(self, place: int, size: int) -> StoredMessage | None:
        """Return a chunk of about `size` bytes; None: a thread is reading it, ask again. Raises DamagedChunk."""
        record = self.record(place, size)
        return None if record is None else decoded(record)

    def record(self, place: int, size: int) -> bytes | None:
        """Return a chunk's record; b"": it is not in the log; None: a thread is reading it, ask again."""
        # In the page cache: faster than a thread, which costs a turn of the loop.
        if self._store.log.end - place <= self._options.hot_bytes:
            return self._store.reader.record_at(place) or b""
        if place not in self._found:
            if self.full:
                return None
            self._found[place], self._sizes[place] = None, size
            self._bytes += size
            self._read_cold(
                lambda: ReadResult(ReadStatus.FOUND, 0, 0, 0, self._store.reader.record_at(place) or b""),
                lambda found: self._take(place, found),
            )
        found = self._found.get(place)
        if found is not None:
            # Taken once: a committed chunk is read by nobody else.
            self._drop(place)
        return found

    def _drop(self, place: int) -> None:
        del self._found[place]
        self._read_at.pop(place, None)
        self._bytes -= self._sizes.pop(place)

    def _take(self, place: int, found: ReadResult | None) -> None:
        if found is None:
            self._drop(place)
        else:
            self._found[place] = bytes(found.body)
            self._read_at[place] = self._clock.monotonic()


class Applier:
    """Applies commits. `applied` is called with each transaction of which nothing remains at this broker."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        appender: Appender,
        gates: GateTable,
        chunks: ChunkReader,
        applied: Callable[[Transaction], None],
    ) -> None:
        self._environment, self._topics = environment, topics
        self._appender, self._closed = appender, appender.closed_queues
        self._gates, self._chunks, self._applied = gates, chunks, applied
        self._outcome = AppendOutcome()
        self._waiting: dict[QueueKey, deque[tuple[Transaction, Part]]] = {}
        self._turns: deque[QueueKey] = deque()
        """Queues with waiting parts, the next one first."""
        self._reading: dict[QueueKey, None] = {}
        """Queues whose next chunk is being read by a thread, or was read."""
        self._log = RateLimitedLog(log, environment.clock)

    def tick(self) -> None:
        self._log.tick()

    @property
    def waits(self) -> bool:
        """Whether parts wait to be applied."""
        return bool(self._waiting)

    def add(self, transaction: Transaction) -> None:
        """Queue a transaction's parts. Queues with a half-applied part are closed at once."""
        for part in transaction.parts.values():
            if not part.remaining:
                continue
            transaction.waiting += 1
            key = part.topic, part.queue_id
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = deque()
                self._turns.append(key)
            waiting.append((transaction, part))
            # Half applied, perhaps before a crash: nothing may come between its messages.
            if part.applied or part.entries:
                self._closed.close(*key)

    def add_first(self, transaction: Transaction) -> None:
        """Queue a commit before all others: recovery found a part of it half applied."""
        self.add(transaction)
        for part in transaction.parts.values():
            waiting = self._waiting.get((part.topic, part.queue_id))
            if waiting is not None and (part.applied or part.entries) and waiting[-1][1] is part:
                # The one that had begun before the crash continues first, whatever the order of decisions says.
                waiting.appendleft(waiting.pop())

    # ------------------------------------------------------------------ going on

    def run(self, transaction: Transaction, size: int, *, carrying: bool = False) -> None:
        """Apply about `size` bytes of a transaction, at least one chunk, and what is before it in its queues."""
        parts = list(transaction.parts.values())
        for part in parts:
            while size > 0 and part.remaining and (came := self._chunk((part.topic, part.queue_id), carrying=carrying)):
                size -= came
        self._close_halves((part.topic, part.queue_id) for part in parts)

    def step(self, more_time: Callable[[], bool]) -> bool:
        """Apply as long as there is time, queue by queue. Returns whether something was done."""
        done, blocked, touched = False, 0, dict.fromkeys(self._reading)
        for key in touched:
            # First the queues whose cold chunks have been read, to free the reader's memory.
            self._reading.pop(key, None)
            done = bool(self._chunk(key)) or done
            if not more_time():
                break
        while self._turns and blocked < len(self._turns) and not self._chunks.full:
            key = self._turns[0]
            touched[key] = None
            if self._chunk(key):
                done, blocked = True, 0
            else:
                blocked += 1
                # Queues take turns, so one that is blocked does not hold up the others.
                self._turns.rotate(-1)
            if not more_time():
                break
        self._close_halves(touched)
        return done

    def _close_halves(self, keys: Iterable[QueueKey]) -> None:
        """Close queues with a half-applied part, before anything else is appended to them."""
        for key in keys:
            if waiting := self._waiting.get(key):
                part = waiting[0][1]
                if part.applied or part.entries:
                    self._closed.close(*key)

    def _chunk(self, key: QueueKey, *, carrying: bool = False) -> int:
        """Apply the next chunk of a queue. Returns its bytes; 0: there is none, or it has to wait."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return 0
        transaction, part = waiting[0]
        number = part.applied
        try:
            if not self._is_topic_there(part):
                return 0
            # First on the fast path, which finds the chunk in the current log file; else the chunk is read.
            if not self._expand(part, None, carrying=carrying):
                record = self._chunks.record(part.places[number], part.sizes[number])
                if record is None:
                    self._reading[key] = None
                    return 0
                if not self._expand(part, record, carrying=carrying):
                    self._put(part, decoded(record), carrying=carrying)
        except DamagedChunk:
            # Counted as applied: the commit stands, and the rest of it must not wait for messages that are lost.
            self._log.error(
                "damaged", "chunk %d of part %s of transaction %s cannot be read at log offset %d: its %d messages for queue %d "
                "of topic %s are lost", number, part.part, transaction.id, part.places[number], part.counts[number],
                part.queue_id, part.topic,
            )  # fmt: skip
        except Refused as error:
            if error.reason is not Reason.ILLEGAL_MESSAGE:
                self._log.warning("held up", "staged transactions are held up: %s", error)
                return 0
            self._log.error(
                "illegal", "chunk %d of part %s of transaction %s can never be stored in queue %d of topic %s: %s", number,
                part.part, transaction.id, part.queue_id, part.topic, error,
            )  # fmt: skip
        except Saving:
            return 0  # the topic is being created or deleted
        # Also after damage and refusal above: the rest of the commit goes on.
        part.applied, part.entries = number + 1, 0
        if not part.remaining:
            self._part_is_there(key, waiting, transaction)
        return max(CHUNK_BYTES_LEAST, part.sizes[number])

    def _part_is_there(self, key: QueueKey, waiting: deque[tuple[Transaction, Part]], transaction: Transaction) -> None:
        waiting.popleft()
        if not waiting:
            del self._waiting[key]
            self._turns.remove(key)
            self._reading.pop(key, None)
        transaction.waiting -= 1
        if not transaction.waiting:
            self._applied(transaction)
        if not (waiting and (waiting[0][1].applied or waiting[0][1].entries)):
            self._closed.open(*key)

    def _is_topic_there(self, part: Part) -> bool:
        """Make sure that the part's topic exists.

        Raises Saving: it is being created or deleted; Refused: it cannot be created.
        """
        config = self._topics.taking(part.topic)
        if config is None:
            # The transaction is committed, so its messages must be stored somewhere: the topic comes back.
            queues = max(part.queue_id + 1, self._environment.options.default_topic_queue_nums)
            self._log.warning(
                ("made again", part.topic), "the topic %s was deleted, and a transaction with messages for it is committed: it "
                "is made again, with %d queues", part.topic, queues,
            )  # fmt: skip
            self._topics.ensure(part.topic, queues)
        elif part.queue_id >= max(config.read_queues, config.write_queues):
            self._log.warning(
                ("no queue", part.topic), "messages are committed to queue %d of topic %s, which has no such queue now: they "
                "can be read once the queue is there again", part.queue_id, part.topic,
            )  # fmt: skip
        return True

    def _expand(self, part: Part, record: bytes | None, *, carrying: bool) -> bool:
        """Apply the next chunk in one call of the compiled extension. `record`: the chunk; None: it is in the current log file.

        Returns whether all of it is applied. Raises Refused; `part.entries` then has the number of applied messages.
        """
        topic, outcome = part.topic.encode(), self._outcome
        if topic not in self._gates.table and not self._gates.open(topic):
            return False
        outcome.row = part.entries
        try:
            self._appender.expand(
                outcome, part.places[part.applied], self._gates.table, record=record, carrying=carrying
            )
        finally:
            part.entries = outcome.row
        return outcome.stop == STOP_END

    def _put(self, part: Part, chunk: StoredMessage, *, carrying: bool) -> None:
        records = copies_of(
            entries_of(chunk.body)[part.entries :],
            part.topic,
            part.queue_id,
            chunk.log_offset,
            self._environment.options.broker_cluster_name,
            (chunk.born_ms, chunk.born_host_raw),
        )
        if records:
            # `through`: past the closed queue, which is closed for this part.
            self._appender.put(records, through=True, carrying=carrying)


class DoneMarks:
    """Writes DONE and FINISHED records of applied commits, many at a time, once a tick.

    Args:
        marked: called with each transaction whose record is stored.
    """

    def __init__(self, environment: Environment, appender: Appender, marked: Callable[[Transaction], None]) -> None:
        self._environment, self._appender, self._marked = environment, appender, marked
        self._waiting: dict[str, Transaction] = {}
        self._log = RateLimitedLog(log, environment.clock)

    def add(self, transaction: Transaction) -> None:
        """Queue a commit of which nothing remains here."""
        self._waiting[transaction.id] = transaction
        if len(self._waiting) >= DONE_MAX:
            self.write()

    def drop(self, name: str) -> None:
        """Drop a transaction that an administrator has forgotten."""
        self._waiting.pop(name, None)

    def tick(self) -> None:
        """Write what waits."""
        self.write()
        self._log.tick()

    def write(self) -> None:
        """Write records for all that wait. What cannot be stored now is retried with the next tick."""
        done = list(self._waiting.values())
        # One record kind for both facts: applied here, and confirmed by all participants.
        finished = [tx for tx in done if not tx.unconfirmed and self._has_others(tx)]
        only_here = [tx for tx in done if tx.unconfirmed or not self._has_others(tx)]
        try:
            for kind, some in ((DONE, only_here), (FINISHED, finished)):
                for start in range(0, len(some), DONE_MAX):
                    self._mark(kind, some[start : start + DONE_MAX])
        except Refused as error:  # no request depends on it; without the mark, a start looks at the transaction again
            self._log.warning(
                "done", "%d transactions are applied, and are to be marked so: %s", len(self._waiting), error
            )

    def _mark(self, kind: str, some: list[Transaction]) -> None:
        names, now_ms, host = [tx.id for tx in some], self._environment.clock.now_ms(), self._environment.store_host
        # Also when the disk is full: the mark lets retention delete files.
        self._appender.put([done_record(kind, names, now_ms, host)], carrying=True)
        for tx in some:
            self._waiting.pop(tx.id, None)
            self._marked(tx)

    def _has_others(self, transaction: Transaction) -> bool:
        """Return whether this broker is the coordinator, and others have parts."""
        name, decision = self._environment.name, transaction.decision
        return (
            transaction.coordinator == name
            and decision is not None
            and any(part.broker != name for part in decision.parts)
        )
