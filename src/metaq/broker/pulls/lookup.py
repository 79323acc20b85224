"""Queries of offsets (14, 29 to 32) and messages (12, 33), and offset commits (15).

A queue ends here where it ends for pulls (`LogTail.read_end`): a group that begins at its end must not pass over messages that come
to offsets which only this broker has given away.
"""

from __future__ import annotations

from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.requests import KeyQuery, OffsetCommit
from metaq.broker.tables.topics import check_client_topic
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model.topics.system import TRANSACTION_GROUP
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire.record import decode_record

KEY_CHARS_MAX = 4096


class Lookup:
    """Answers queries of offsets and messages."""

    def __init__(self, environment: Environment, tables: Tables, deletions: Deletions) -> None:
        self._deletions = deletions
        self._environment, self._reader, self._keeper = environment, environment.store.reader, environment.store.keeper
        self._topics, self._offsets = tables.topics, tables.offsets

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if nothing was ever stored in it. Raises Refused: unknown topic or queue."""
        config = self._topics.require(check_client_topic(topic))
        count = max(config.read_queues, config.write_queues)
        if not 0 <= queue_id < count:
            raise Refused(Reason.INVALID, f"queueId[{queue_id}] is illegal: topic {topic} has {count} queues")
        return self._reader.existing_queue(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.readable_end(self._reader.log_tail.read_end) if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue else 0

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset with the store time nearest to `timestamp_ms`; 0 for an empty queue."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        return min(
            self._reader.offset_at(topic, queue_id, timestamp_ms), queue.readable_end(self._reader.log_tail.read_end)
        )

    def first_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at `timestamp_ms` or later; the queue's end if there is none."""
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        nearest = max(low, self.offset_at(topic, queue_id, timestamp_ms))
        if nearest < high and self._reader.store_time(topic, queue_id, nearest) < timestamp_ms:
            nearest += 1  # its neighbour is not older than the time, or there is none
        return min(nearest, high)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the queue's oldest message, ms; -1 if it is empty."""
        queue = self._queue(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self._reader.store_time(topic, queue_id, queue.min_offset)

    def consumer_offset(self, group: str, topic: str, queue_id: int, *, young_is_zero: bool = True) -> int | None:
        """Return a group's offset; None: there is none, and the client applies its `consumeFromWhere`.

        For a queue whose first message is still there and in memory, 0 in place of None, as in RocketMQ: a new group on a
        young queue misses nothing, whatever its `consumeFromWhere`. Users rely on it; `young_is_zero` False is for clients
        that tell new queues from old ones themselves.
        """
        stored = self._offsets.get(group, topic, queue_id)
        if stored is None and self._deletions.returns(group, topic):
            return self.min_offset(topic, queue_id)
        if stored is not None or not young_is_zero:
            return stored
        queue = self._queue(topic, queue_id)
        # RocketMQ counts a queue without messages as young, too.
        if queue is None or queue.max_offset == 0:
            return 0
        if queue.min_offset <= 0:
            first = queue.units(0, 1)
            # "In memory" by RocketMQ's 40 % rule.
            if first and self._reader.in_memory(first[0][0]):
                return 0
        return None

    def commit_offset(self, commit: OffsetCommit) -> None:
        """Overwrite a group's offset. Raises Refused: unknown topic or queue, or a negative offset."""
        if commit.group == TRANSACTION_GROUP:
            # These offsets say which half messages are done: a client's commit could end the checks of open transactions.
            raise Refused(Reason.NO_PERMISSION, f"the positions of group {commit.group} are the broker's own")
        self._queue(commit.topic, commit.queue_id)
        if commit.offset < 0:
            raise Refused(
                Reason.INVALID, f"commitOffset={commit.offset} of {commit.topic}:{commit.queue_id} is negative"
            )
        known = self._offsets.get(commit.group, commit.topic, commit.queue_id)
        if commit.instead_of is None or commit.instead_of == known:
            self._offsets.put(commit.group, commit.topic, commit.queue_id, commit.offset)

    def record(self, log_offset: int) -> bytes:
        """Return the record at a LogOffset (33). Raises Refused: no record begins there, or its topic was deleted."""
        data = self._reader.record_at(log_offset)
        # Records of a deleted topic stay in the log until retention, but are not to be seen any more.
        if data is not None:
            message = decode_record(data)
            if log_offset >= self._keeper.floor(message.topic, message.queue_id):
                return data
        raise Refused(Reason.INVALID, f"can not find message by the offset, {log_offset}")

    def query(self, query: KeyQuery) -> InPieces[list[bytes]]:
        """Return records by key, oldest first (12). Raises Refused: none."""
        check_client_topic(query.topic)
        if not query.key or len(query.key) > KEY_CHARS_MAX:
            raise Refused(Reason.INVALID, f"the key has {len(query.key)} characters, allowed are 1 to {KEY_CHARS_MAX}")
        options = self._environment.store_options
        count = options.default_query_max_num if query.unique else query.count_max
        count = max(0, min(count, options.max_msgs_num_batch))
        found: list[bytes] = []
        if count:
            found = yield from self._reader.query_in_pieces(query.topic, query.key, count, query.begin_ms, query.end_ms)
        if not found:
            raise Refused(
                Reason.NOT_FOUND,
                f"can not find message, maybe time range not correct: topic {query.topic}, key {query.key}",
            )
        return found
