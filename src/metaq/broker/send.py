"""Sends, one at a time: the checks of RocketMQ 4.9 in its order, and every case that the fast lane leaves.

The first failing check is the answer. In order: the topic's name, whether clients may send to it, whether it exists or
can be made, the queue id, the end of a retry's life, transactions, and last the store's own limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metaq.broker.appender import Appender
from metaq.broker.delay import DelayLadder
from metaq.broker.groups import Groups
from metaq.broker.records import delay_level, delayed_until, put_record
from metaq.broker.topics import Topics, check_client_topic
from metaq.clock import Clock
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import Perm, TopicConfig
from metaq.model import properties as props
from metaq.model.message import TRANSACTION_MASK
from metaq.model.system import SEND_FORBIDDEN
from metaq.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.options import BrokerOptions
from metaq.store.message_store import Put, PutRecord
from metaq.wire.headers import SendHeader
from metaq.wire.record import decode_batch, offset_id, record_bytes

RECONSUME_LIMIT_VERSION = 121
"""Clients of at least this version mean the maxReconsumeTimes that they send."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A stored send. `queue_id` is what the client is told: for a delayed message the queue it will arrive in."""

    put: Put
    queue_id: int
    message_id: str
    """Offset id; of a batch, all of them, comma-separated."""
    wait: bool
    """Whether the answer waits for the disk where the broker flushes synchronously."""


class SendService:
    """Takes what producers send (10, 310, 320)."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        topics: Topics,
        groups: Groups,
        appender: Appender,
        ladder: DelayLadder,
        store_host: bytes,
        body_bytes_max: int,
    ) -> None:
        self._options, self._clock, self._topics, self._groups = options, clock, topics, groups
        self._appender, self._ladder, self._store_host = appender, ladder, store_host
        self._body_bytes_max = body_bytes_max

    def send(self, header: SendHeader, body: bytes, born_host: bytes, version: int) -> Sent:
        """Store one message, or a batch. `version` is the client's.

        Raises Refused, or Saving while its topic is being made or deleted: nothing was stored.
        """
        config = self._destination(header)
        queue_id = self._queue(header, config)
        if len(body) > self._body_bytes_max:
            raise Refused(
                Reason.ILLEGAL_MESSAGE,
                f"the message is illegal: a body of {len(body)} bytes, the limit is {self._body_bytes_max}",
            )
        if header.batch:
            return self._send_batch(header, body, born_host, queue_id)
        pairs = props.parse(header.properties)
        self._refuse_transaction(header.sys_flag, pairs)
        topic, told_queue = header.topic, queue_id
        wait = waits(pairs)
        pairs[props.CLUSTER] = self._options.broker_cluster_name
        tags, level = None, delay_level(pairs, len(self._ladder.delays_ms))
        if topic.startswith(RETRY_PREFIX) and self._is_spent(header, version):
            group = topic.removeprefix(RETRY_PREFIX)
            topic, queue_id, level = self._topics.ensure(DEAD_LETTER_PREFIX + group).name, 0, 0
            told_queue = 0
        if level:
            topic, queue_id, tags = delayed_until(pairs, topic, queue_id, level, self._ladder.due_ms(level))
        else:
            pairs.pop(props.WAIT, None)  # Stored only where RocketMQ stores it: delayed messages and batches.
        record = put_record(
            topic,
            queue_id,
            body,
            pairs,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_ms=header.born_ms,
            born_host=born_host,
            reconsume_times=header.reconsume_times,
            tags=tags,
        )
        put = self._appender.put([record])
        return Sent(put, told_queue, offset_id(self._store_host, put.log_offset), wait)

    # -- where to
    def _destination(self, header: SendHeader) -> TopicConfig:
        name = check_client_topic(header.topic)
        if name in SEND_FORBIDDEN:
            raise Refused(Reason.NO_PERMISSION, f"sending to the topic {name} is forbidden")
        config = self._topics.taking(name)
        if config is None and name.startswith(RETRY_PREFIX):
            self._retry_group(name)
            return self._topics.ensure(name)
        if config is None:
            config = self._topics.auto_create(
                name,
                header.default_topic,
                header.default_topic_queues,
                unit=header.unit_mode,
                queue_id=header.queue_id,
            )
        if config.order and not self._options.broker_permission & Perm.WRITE:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the broker's permission is {self._options.broker_permission}: sending ordered messages is forbidden",
            )
        return config

    def _queue(self, header: SendHeader, config: TopicConfig) -> int:
        # The larger count: a queue that is being closed for writing still takes what producers with an old route send.
        count = max(config.read_queues, config.write_queues)
        if header.queue_id >= count:
            raise Refused(
                Reason.INVALID, f"request queueId[{header.queue_id}] is illegal: topic {config.name} has {count} queues"
            )
        if header.queue_id >= 0:
            return header.queue_id
        if config.write_queues <= 0:
            raise Refused(Reason.INVALID, f"topic {config.name} has no queue to write to")
        return self._clock.random_below(config.write_queues)

    # -- what
    def _refuse_transaction(self, sys_flag: int, pairs: dict[str, str]) -> None:
        if sys_flag & TRANSACTION_MASK or pairs.get(props.TRANSACTION_PREPARED) == "true":
            raise Refused(
                Reason.NO_PERMISSION,
                "transactional (half) messages are refused by this broker: send without TRAN_MSG and transaction flags",
            )

    def _retry_group(self, topic: str) -> int:
        """How often the group of a retry topic is served again. Raises Refused NO_GROUP."""
        group = topic.removeprefix(RETRY_PREFIX)
        config = self._groups.get(group)
        if config is None:
            raise Refused(Reason.NO_GROUP, f"subscription group [{group}] does not exist")
        return config.retry_max

    def _is_spent(self, header: SendHeader, version: int) -> bool:
        limit = self._retry_group(header.topic)
        if version >= RECONSUME_LIMIT_VERSION and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        return header.reconsume_times >= limit

    # -- batches
    def _send_batch(self, header: SendHeader, body: bytes, born_host: bytes, queue_id: int) -> Sent:
        if header.topic.startswith(RETRY_PREFIX):
            raise Refused(Reason.ILLEGAL_MESSAGE, "the message is illegal: no batch may go to a retry topic")
        common = props.parse(header.properties)
        self._refuse_transaction(header.sys_flag, common)
        try:
            entries = decode_batch(body)
        except BadRequest as error:
            raise Refused(Reason.ILLEGAL_MESSAGE, f"the message is illegal: {error}") from error
        common[props.CLUSTER] = self._options.broker_cluster_name
        records = list[PutRecord]()
        for flag, part, text in entries:
            pairs = props.parse(text.decode("utf-8", "replace"))
            self._refuse_transaction(0, pairs)
            if props.DELAY in pairs or props.DELAY in common:
                raise Refused(Reason.ILLEGAL_MESSAGE, "the message is illegal: no batch may be delayed")
            records.append(
                put_record(
                    header.topic,
                    queue_id,
                    part,
                    pairs | common,
                    flag=flag,
                    sys_flag=header.sys_flag,
                    born_ms=header.born_ms,
                    born_host=born_host,
                    reconsume_times=header.reconsume_times,
                )
            )
        put = self._appender.put(records)
        ids, place = [], put.log_offset
        for record in records:
            ids.append(offset_id(self._store_host, place))
            place += record_bytes(record.sys_flag, len(record.body), len(record.topic), len(record.properties))
        return Sent(put, queue_id, ",".join(ids), waits(common))


def waits(pairs: Mapping[str, str]) -> bool:
    """Whether the sender wants its answer after the flush: unless it says otherwise (Java's `parseBoolean`)."""
    return pairs.get(props.WAIT, "true").lower() == "true"
