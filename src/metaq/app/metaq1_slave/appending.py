"""Messages of another 1.x broker in the log of this one: with their ids, at the byte positions that they have there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.log.records import put_record
from metaq.broker.metaq1.records import without_attribute
from metaq.errors import Reason, Refused
from metaq.model import TopicConfig
from metaq.model import properties as props
from metaq.model.metaq1.partition import HAS_ATTRIBUTE, ID_EPOCH_MS
from metaq.model.topics.topic import QUEUES_MAX, check_partition_topic
from metaq.store.log.writer import PutRecord
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire.metaq1.frame import Frame
from metaq.wire.record import decode_record

_ID_TIME_SHIFT: Final = 22
RECORD_MORE: Final = 400
"""Bytes of a record beyond its frame, about."""


class CopiedPartitions:
    """Partitions of a broker whose messages come from another one. What needs something saved first raises Saving."""

    def __init__(self, broker: Broker) -> None:
        assert broker.metaq1 is not None, "the broker serves MetaQ 1.x: its messages have byte positions"
        self._broker, self._store, self._bases = broker, broker.store, broker.metaq1.bases

    def make_topic(self, topic: str, partition: int) -> None:
        """Have the topic, and this partition of it. Raises Saving; Refused: there cannot be such a topic or partition here."""
        topics, wanted = self._broker.topics, partition + 1
        check_partition_topic(topic)
        if topics.is_system(topic):
            raise Refused(
                Reason.INVALID, f"topic {topic} is the broker's own here: it takes no messages of another broker"
            )
        if wanted > QUEUES_MAX:
            raise Refused(Reason.INVALID, f"topic {topic} has no partition {partition}: they end at {QUEUES_MAX - 1}")
        config = topics.get(topic)
        if config is None:
            topics.ensure(topic, wanted)
        elif min(config.read_queues, config.write_queues) < wanted:
            more: TopicConfig = structs.replace(
                config, read_queues=max(wanted, config.read_queues), write_queues=max(wanted, config.write_queues)
            )
            topics.saved.change(topic, more).settle()

    def queue(self, topic: str, partition: int) -> ConsumeQueue | None:
        """Return the queue; None: nothing was ever put into it."""
        return self._store.reader.existing_queue(topic, partition)

    def positions(self, topic: str, partition: int) -> QueuePositions | None:
        """Return the byte positions; None: the partition has none yet."""
        return self._bases.find(topic, partition)

    def begin(self, topic: str, partition: int, position: int) -> None:
        """Have an empty partition begin at a position. Raises Saving, Refused."""
        self._bases.begin_at(topic, partition, position)

    def end(self, topic: str, partition: int) -> int | None:
        """Return the position behind the last message; None: the partition has no positions. Raises Saving, Refused."""
        if self._bases.find(topic, partition) is None:
            return None
        return self._bases.touch(topic, partition).max

    def last(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return position and id of the last message; None: none is kept. Raises Saving, Refused."""
        queue = self.queue(topic, partition)
        if queue is None or queue.max_offset <= queue.min_offset:
            return None
        message_id = self.last_id(queue)
        position = self._bases.touch(topic, partition).position(queue.max_offset - 1)
        return None if message_id is None else (position, message_id)

    def last_id(self, queue: ConsumeQueue) -> int | None:
        """Return the 1.x id of a queue's last message; None: it has none, or cannot be read."""
        units = queue.units(queue.max_offset - 1, 1)
        record = self._store.reader.record_at(units[0].log_offset) if units else None
        told = decode_record(record).properties.get(props.METAQ_ID) if record else None
        return int(told) if told else None

    def go_on_at(self, topic: str, partition: int, position: int) -> None:
        """Have the next message of a partition whose messages are all gone begin at a later position. Raises Refused."""
        self._bases.go_on_at(topic, partition, position)

    def record(self, topic: str, partition: int, frame: Frame, written_ms: int) -> PutRecord:
        """Return the record of a message. `written_ms`: when it was there at the latest. Raises Refused: it cannot be stored."""
        pairs, body = without_attribute(frame.flag, frame.body)
        pairs[props.METAQ_ID] = str(frame.message_id)
        pairs[props.CLUSTER] = self._broker.options.broker_cluster_name
        return put_record(
            topic,
            partition,
            body,
            pairs,
            flag=frame.flag & ~HAS_ATTRIBUTE,
            sys_flag=0,
            born_ms=_born_ms(frame.message_id, written_ms),
            born_host=self._broker.environment.store_host,
        )

    def append(self, records: Sequence[PutRecord]) -> None:
        """Append records of one partition at its end. Raises Refused: none of them is stored."""
        self._broker.appender.put(records)


def _born_ms(message_id: int, written_ms: int) -> int:
    """Return when a message was put, ms: the time in its id, else when it was there.

    From 1.4.5 on the time in ids counts from an arbitrary start, mostly boot, and ids are negative.
    """
    told = (message_id >> _ID_TIME_SHIFT) + ID_EPOCH_MS
    return told if message_id > 0 and told <= written_ms + 1000 else written_ms
