"""Sends (10, 310, 320) on the slow path: the checks of RocketMQ 4.9 in its order, and every case the fast path leaves.

The first failing check decides the response, in this order: topic name, forbidden topics, existence or automatic creation,
queue id, exhausted retries, transactions, and last the store's limits.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.broker.delays.schedule import ScheduleService
from metaq.broker.environment import Environment, Tables
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import delay_level, delayed_until, put_record, sent_record
from metaq.broker.requests import ANY_QUEUE, Send
from metaq.broker.tables.topics import check_client_topic
from metaq.broker.transactions.records import is_transactional
from metaq.broker.transactions.service import TransactionService
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import Perm, TopicConfig
from metaq.model import properties as props
from metaq.model.message import TRANSACTION_MASK
from metaq.model.topics.system import SEND_FORBIDDEN
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_topic
from metaq.store.log.writer import Put, PutRecord
from metaq.wire.record import decode_batch, offset_id, record_bytes


class Sent(Struct, frozen=True):
    """Result of a stored send. `queue_id` is that of the response: of a delayed message, the queue it will be delivered to."""

    put: Put
    queue_id: int
    message_id: str
    """Offset id; of a batch, the ids of all messages, comma-separated, as Java clients expect it."""
    wait: bool
    """Whether the response waits for disk and replicas where the broker is configured so (property WAIT)."""


class SendService:
    """Stores what producers send."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        appender: Appender,
        schedule: ScheduleService,
        transactions: TransactionService,
    ) -> None:
        self._environment, self._appender, self._schedule = environment, appender, schedule
        self._transactions, self._closed_partitions = transactions, tables.closed_partitions
        self._topics, self._groups = tables.topics, tables.groups

    def send(self, send: Send) -> Sent:
        """Store one message, or a batch.

        Raises Refused, or Saving while its topic is being made or deleted, or its queue is closed: nothing was stored.
        """
        queue_id = self.queue_of(send)
        if send.batch:
            return self._send_batch(send, queue_id)
        pairs = props.parse(send.properties)
        # RocketMQ decides by the property TRAN_MSG, not by the bits of sysFlag; bits without the property are refused.
        half = is_transactional(pairs)
        if not half:
            self._refuse_flags(send)
        # The response names the queue that the producer chose, also where the record goes to the schedule or half topic first.
        topic, told_queue = send.topic, queue_id
        wait = waits(pairs)
        # Responders of RocketMQ's request-reply derive the reply topic from CLUSTER, so the broker adds it to each message.
        pairs[props.CLUSTER] = self._environment.options.broker_cluster_name
        tags, level, retried = None, delay_level(pairs, len(self._schedule.delays_ms)), topic.startswith(RETRY_PREFIX)
        # Consumers send retries as new messages when the broker did not take one back (36). The header then has the limit.
        if retried and self._is_spent(send):
            group = topic.removeprefix(RETRY_PREFIX)
            topic, queue_id, level = self._topics.ensure(DEAD_LETTER_PREFIX + group).name, 0, 0
            told_queue = 0
        if half and not (send.reconsume_times > 0 and level):  # a consumer may give back what was a half message once
            # A transactional message ignores its delay level, as with RocketMQ (Java's client clears it).
            put = self._transactions.prepare(send, topic, queue_id, pairs)
            return Sent(put, told_queue, offset_id(self._environment.store_host, put.log_offset), wait)
        if level:
            topic, queue_id, tags = delayed_until(pairs, topic, queue_id, level, self._schedule.due_ms(level))
            # A message that was taken can be given back: at once, if its properties leave no room for the delay.
            if retried and not props.make_room(pairs, props.ADDED):
                topic, queue_id, tags, level = send.topic, told_queue, None, 0
                props.make_room(pairs, (props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID))
        else:
            pairs.pop(props.WAIT, None)  # Stored only where RocketMQ stores it: delayed messages and batches.
        if retried:
            props.make_room(pairs, (*props.ADDED, props.DELAY, props.RETRY_TOPIC))
        record = sent_record(send, topic, queue_id, pairs, tags=tags)
        # Before the append: a queue in which a staged transaction is being applied takes nothing in between.
        self._appender.closed_queues.pass_by(topic, queue_id)
        put = self._appender.put([record])
        if level:
            self._schedule.waits_at(level)
        return Sent(put, told_queue, offset_id(self._environment.store_host, put.log_offset), wait)

    # -- where to
    def queue_of(self, send: Send) -> int:
        """Choose the queue. Raises Refused: the topic or queue does not take it, or the body is too long; Saving, as `send`."""
        queue_id = self._queue(send, self._destination(send))
        body_bytes_max = self._environment.store_options.max_message_size
        if len(send.body) > body_bytes_max:
            raise Refused(Reason.ILLEGAL_MESSAGE, f"a body of {len(send.body)} bytes, the limit is {body_bytes_max}")
        return queue_id

    def _destination(self, send: Send) -> TopicConfig:
        name = check_topic(check_client_topic(send.topic))
        if name in SEND_FORBIDDEN:
            raise Refused(Reason.NO_PERMISSION, f"sending to the topic {name} is forbidden")
        config = self._topics.taking(name)
        # A client sends to its retry topic before it exists: created with one queue, if its group exists.
        if config is None and name.startswith(RETRY_PREFIX):
            self._retry_group(name, send.client)
            return self._topics.ensure(name)
        if config is None:
            config = self._topics.auto_create(
                name,
                send.template,
                send.template_queues,
                unit=send.unit,
                # A half message leaves its queue empty, and a RocketMQ that finds a file without units counts one in it.
                queue_id=ANY_QUEUE if props.TRANSACTION_PREPARED in send.properties else send.queue_id,
                client=send.client,
            )
        # RocketMQ looks at the broker's permission for ordered topics only; others keep producers away through the route.
        if config.order and not self._environment.options.broker_permission & Perm.WRITE:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the broker's permission is {self._environment.options.broker_permission}: sending ordered messages is forbidden",
            )
        return config

    def _queue(self, send: Send, config: TopicConfig) -> int:
        # The larger count: a queue that is being closed for writing still takes what producers with an old route send.
        count = max(config.read_queues, config.write_queues)
        if send.queue_id >= count:
            raise Refused(
                Reason.INVALID, f"request queueId[{send.queue_id}] is illegal: topic {config.name} has {count} queues"
            )
        # Only a queue id below 0 leaves the choice to the broker.
        if send.queue_id >= 0:
            self._closed_partitions.check(config.name, send.queue_id)
            return send.queue_id
        if config.write_queues <= 0:
            raise Refused(Reason.INVALID, f"topic {config.name} has no queue to write to")
        return self._closed_partitions.any_open(config.name, config.write_queues, self._environment.clock)

    # -- what
    def _refuse_flags(self, send: Send) -> None:
        if send.sys_flag & TRANSACTION_MASK:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the transaction flags of sysFlag {send.sys_flag} need the property {props.TRANSACTION_PREPARED}=true, which "
                f"the message for topic {send.topic} lacks",
            )

    def _retry_group(self, topic: str, client: str) -> int:
        """Return retryMaxTimes of a retry topic's group. Raises Refused NO_GROUP; Saving while the group is being created."""
        return self._groups.require(topic.removeprefix(RETRY_PREFIX), client).retry_max

    def _is_spent(self, send: Send) -> bool:
        # Go's client sends maxReconsumeTimes=0 with every send; here it counts for retry topics only.
        limit = self._retry_group(send.topic, send.client)
        return send.reconsume_times >= (limit if send.retries_max is None else send.retries_max)

    # -- batches
    def _send_batch(self, send: Send, queue_id: int) -> Sent:
        if send.topic.startswith(RETRY_PREFIX):
            # RocketMQ's rules for a batch: no retry topic, no transaction, no delay.
            raise Refused(Reason.ILLEGAL_MESSAGE, "no batch may go to a retry topic")
        common = props.parse(send.properties)
        self._refuse_flags(send)
        try:
            entries = decode_batch(send.body)
        except BadRequest as error:
            raise Refused(Reason.ILLEGAL_MESSAGE, str(error)) from error
        # As for single sends: responders need CLUSTER in each message.
        common[props.CLUSTER] = self._environment.options.broker_cluster_name
        records = list[PutRecord]()
        for flag, part, text in entries:
            pairs = props.parse(text.decode("utf-8", "replace"))
            if is_transactional(pairs) or is_transactional(common):
                raise Refused(
                    Reason.ILLEGAL_MESSAGE, f"no batch may be transactional: send half messages for {send.topic} singly"
                )
            if props.DELAY in pairs or props.DELAY in common:
                raise Refused(Reason.ILLEGAL_MESSAGE, "no batch may be delayed")
            # All records in one append: contiguous offsets, all or none of them stored.
            records.append(
                put_record(
                    send.topic,
                    queue_id,
                    part,
                    # Batch-level properties (CLUSTER, WAIT) win over those of the message.
                    pairs | common,
                    flag=flag,
                    sys_flag=send.sys_flag,
                    born_ms=send.born_ms,
                    born_host=send.born_host,
                    reconsume_times=send.reconsume_times,
                )
            )
        self._appender.closed_queues.pass_by(send.topic, queue_id)
        put = self._appender.put(records)
        ids, place = [], put.log_offset
        for record in records:
            # The records lie back to back in one append, so the ids follow from their sizes.
            ids.append(offset_id(self._environment.store_host, place))
            place += record_bytes(record.sys_flag, len(record.body), len(record.topic), len(record.properties))
        return Sent(put, queue_id, ",".join(ids), waits(common))


def waits(pairs: Mapping[str, str]) -> bool:
    """Return whether the response waits for the flush: yes unless WAIT says otherwise (Java's `parseBoolean`)."""
    return pairs.get(props.WAIT, "true").lower() == "true"
