"""What reads the messages of an open store: pulls, single records, and searches by time and by key."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from metaq.in_pieces import InPieces, finish
from metaq.model.properties import KEYS, UNIQUE_ID, parse
from metaq.model.upkeep.floors import floor_of
from metaq.store.log.parts import Parts
from metaq.store.log.scan import LogScan, past_damage
from metaq.store.queues.index_file import ON_THE_WAY
from metaq.store.reads.outline import Outline, outline
from metaq.store.reads.pull import Puller
from metaq.store.reads.repair import Repairs
from metaq.store.reads.search import records_with
from metaq.store.retention.floors import Floors
from metaq.wire import hot

RECORDS_OF_A_PIECE = 16
"""Records whose keys are compared in one go: some 0.2 ms."""


class MessageReader:
    """`MessageStore.reader`. From any thread, beside appends. Pulls are `Puller`'s bound methods: they cost no call more."""

    def __init__(self, parts: Parts, puller: Puller, repairs: Repairs, floors: Floors) -> None:
        self._options, self._log, self._index = parts.options, parts.log, parts.index
        self._deleted, self._floors = parts.deleted, floors
        self.pull, self.in_memory = puller.pull, puller.is_recent
        self.pull_path, self.pulls_are_plain = puller.fast_path, puller.are_plain
        self.queue, self.existing_queue, self.queues = parts.queues.made, parts.queues.get, parts.queues.named
        self.listed_queues = parts.queues.listed
        self.record_at = parts.log.record
        self.log_bytes = parts.log.read
        """What replicas copy: the log's bytes as they are, up to its end and its file's; b"" where there are none."""
        self.records_with = functools.partial(records_with, parts.log)
        """`metaq.store.reads.search.records_with`."""
        self.log_tail = parts.log.tail
        """Says up to where clients may read: `read_end`."""
        self.repairs = repairs
        """Mends units that do not lead to their messages, as pulls meet them."""

    @property
    def indexed_log(self) -> int:
        """LogOffset of the newest record in the index, -1 of an empty one; 0 without an index."""
        return self._index.end_log if self._index else 0

    def outline_at(self, log_offset: int) -> Outline | None:
        """The record that begins at a LogOffset, without its body; None if none does."""
        return outline(self._log, log_offset)

    def log_bytes_cached(self, log_offset: int, size: int) -> bytes | bytearray | None:
        """As `log_bytes`, without waiting for a disk; None: some of them are not in memory."""
        file = self._log.run.find(log_offset)
        if file is None:
            return b""
        found = bytearray(max(0, min(size, self._log.end - log_offset, file.end - log_offset)))
        try:
            return found if file.read_cached(log_offset, memoryview(found)) else None
        except FileNotFoundError:  # retention has taken it
            return b""

    def heads(self, log_offset: int) -> Iterator[hot.RecordHead]:
        """What the records from `log_offset` on are, up to the log's end. What cannot be read is stepped over.

        For a start: it takes a second for a million of them.
        """
        run, end = self._log.run, self._log.end
        past = past_damage(run, end, [])  # told by recovery or a pull
        for heads in LogScan(run, max(log_offset, self._log.min), end, check_crc=False, past=past):
            yield from heads

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of the message at a queue offset; -1 if it is not there."""
        queue = self.existing_queue(topic, queue_id)
        unit = queue.peek(offset) if queue and queue.min_offset <= offset < queue.max_offset else None
        return self._log.store_time(unit.log_offset) if unit is not None else -1

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The queue offset for a time: see `ConsumeQueue.offset_at`. 0 for an unknown or empty queue."""
        queue = self.existing_queue(topic, queue_id)
        return queue.offset_at(self._log.store_time, timestamp_ms) if queue else 0

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Search at once; otherwise as `query_in_pieces`."""
        return finish(self.query_in_pieces(topic, key, count_max, begin_ms, end_ms))

    def query_in_pieces(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> InPieces[list[bytes]]:
        """Search records of `topic` with `key` among their keys or for unique id, stored in [begin_ms, end_ms]; oldest first.

        The newest ones if there are more than `count_max`, of which at most `maxMsgsNumBatch`.
        """
        if self._index is None:
            return []
        # RocketMQ's limit of one answer: each hit is a read of its own.
        count_max = min(count_max, self._options.max_msgs_num_batch)
        # Records from before a deletion, or that a topic has let go of, stay in the index as long as in the log.
        alive = max(self._deleted.get(topic, 0), self._floors.table.get(topic, 0))
        found = dict[int, bytes]()
        looked = 0
        for offset in self._index.find(f"{topic}#{key}".encode(), begin_ms, end_ms):
            if offset == ON_THE_WAY:
                yield
            elif offset >= alive and offset not in found:
                looked += 1
                if looked % RECORDS_OF_A_PIECE == 0:
                    yield
                # Keys are compared before they count: others with the same hash, which anybody can make, would fill the answer.
                if self._carries(offset, topic, key) and (record := self._log.record(offset)) is not None:
                    found[offset] = record
                    if len(found) >= count_max:
                        break
        # In the order of the log, as RocketMQ reads them.
        return [found[offset] for offset in sorted(found)]

    def _carries(self, log_offset: int, topic: str, key: str) -> bool:
        """Whether the record there is of the topic, has the key, and can still be read."""
        record = outline(self._log, log_offset)
        if record is None or record.topic != topic:
            return False
        if log_offset < floor_of(self._floors.table, topic, record.queue_id):
            return False
        pairs = parse(record.properties.decode("utf-8", "replace"))
        return key == pairs.get(UNIQUE_ID) or key in pairs.get(KEYS, "").split(" ")
