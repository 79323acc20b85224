"""Questions about what is stored: offsets, times, and messages by key or by place (12, 14, 29-33)."""

from __future__ import annotations

from metaq.broker.offsets import Offsets
from metaq.broker.topics import Topics, check_client_topic
from metaq.errors import Reason, Refused
from metaq.options import StoreOptions
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.message_store import MessageStore
from metaq.wire.headers import QueryMessageHeader

KEY_CHARS_MAX = 4096


class Lookup:
    """Reads that change nothing."""

    def __init__(self, store_options: StoreOptions, store: MessageStore, topics: Topics, offsets: Offsets) -> None:
        self._options, self._store, self._topics, self._offsets = store_options, store, topics, offsets

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue if it holds or held anything. Raises Refused for a topic or queue that cannot exist."""
        config = self._topics.require(check_client_topic(topic))
        count = max(config.read_queues, config.write_queues)
        if not 0 <= queue_id < count:
            raise Refused(Reason.INVALID, f"queueId[{queue_id}] is illegal: topic {topic} has {count} queues")
        return self._store.existing_queue(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.max_offset if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue else 0

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset whose store time is nearest to `timestamp_ms`; 0 for an empty queue."""
        queue = self._queue(topic, queue_id)
        return self._store.offset_at(topic, queue_id, timestamp_ms) if queue else 0

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time of the queue's oldest message in ms, -1 if it has none."""
        queue = self._queue(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self._store.store_time(topic, queue_id, queue.min_offset)

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int:
        """A group's position. Raises Refused NOT_FOUND where there is none, so that the client chooses.

        A queue whose first message was never deleted and is still recent answers 0 instead: a group that starts on a
        young queue misses nothing, whatever its `consumeFromWhere` says. RocketMQ does so, and users rely on it.
        """
        stored = self._offsets.get(group, topic, queue_id)
        if stored is not None:
            return stored
        queue = self._queue(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return 0
        if queue.min_offset <= 0:
            first = queue.units(0, 1)
            if first and self._store.in_memory(first[0][0]):
                return 0
        raise Refused(
            Reason.NOT_FOUND,
            f"Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first: {group}, {topic}:{queue_id}",
        )

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Overwrite a group's position. Raises Refused for an unknown topic or queue, or a negative offset."""
        self._queue(topic, queue_id)
        if offset < 0:
            raise Refused(Reason.INVALID, f"commitOffset={offset} of {topic}:{queue_id} is negative")
        self._offsets.put(group, topic, queue_id, offset)

    def record(self, log_offset: int) -> bytes:
        """The stored record at a LogOffset. Raises Refused if none begins there."""
        data = self._store.record_at(log_offset)
        if data is None:
            raise Refused(Reason.INVALID, f"can not find message by the offset, {log_offset}")
        return data

    def query(self, header: QueryMessageHeader) -> list[bytes]:
        """Records by key, oldest first; a hash collision may add some that do not carry it. Raises Refused: none."""
        check_client_topic(header.topic)
        if not header.key or len(header.key) > KEY_CHARS_MAX:
            raise Refused(Reason.INVALID, f"the key has {len(header.key)} characters, allowed are 1 to {KEY_CHARS_MAX}")
        count = self._options.default_query_max_num if header.unique_id_query else header.max_messages
        count = max(0, min(count, self._options.max_msgs_num_batch))
        found = self._store.query(header.topic, header.key, count, header.begin_ms, header.end_ms) if count else []
        if not found:
            raise Refused(
                Reason.NOT_FOUND,
                f"can not find message, maybe time range not correct: topic {header.topic}, key {header.key}",
            )
        return found
