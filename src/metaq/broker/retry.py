"""Messages that a consumer could not handle: delivered again later, and after the last try filed with the dead letters.

A retry is a new record in the group's own topic `%RETRY%group`, which waits on the delay ladder first: 10 s after the
first failure, then 30 s, up to 2 h after the sixteenth. What fails once more goes to `%DLQ%group` and stays there.
"""

from __future__ import annotations

from metaq.broker.appender import Appender
from metaq.broker.delay import DelayLadder
from metaq.broker.groups import Groups
from metaq.broker.records import delayed_until, put_record
from metaq.broker.send import RECONSUME_LIMIT_VERSION
from metaq.broker.topics import Topics, check_client_topic
from metaq.clock import Clock
from metaq.errors import BadRequest, RemoteProtocolError
from metaq.model import Perm, StoredMessage
from metaq.model import properties as props
from metaq.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.options import BrokerOptions
from metaq.store.message_store import MessageStore, Put
from metaq.wire.codes import ResponseCode
from metaq.wire.headers import SendBackHeader
from metaq.wire.record import decode_record

FIRST_RETRY_LEVEL = 3
"""The first retry comes after level 3 (10 s), each further one a level later."""


class RetryService:
    """Takes messages back from consumers (36)."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        appender: Appender,
        ladder: DelayLadder,
    ) -> None:
        self._options, self._clock, self._store, self._topics = options, clock, store, topics
        self._groups, self._appender, self._ladder = groups, appender, ladder

    def send_back(self, header: SendBackHeader, version: int) -> Put | None:
        """Store the message for another try, or with the dead letters. None: the group wants no retries.

        Raises BadRequest: unknown group (26), not writable (16), or no record at that offset (1).
        """
        group = self._groups.get(header.group)
        if group is None:
            raise BadRequest(f"subscription group not exist, {header.group}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        if not self._options.broker_permission & Perm.WRITE:
            raise BadRequest("the broker may not be written to", ResponseCode.NO_PERMISSION)
        if group.retry_queues <= 0:
            return None
        topic = self._topics.ensure(RETRY_PREFIX + group.name, group.retry_queues)
        if not topic.writable:
            raise BadRequest(f"the topic[{topic.name}] sending message is forbidden", ResponseCode.NO_PERMISSION)
        message = self._load(header.offset)
        limit = group.retry_max
        if header.max_reconsume_times is not None and version >= RECONSUME_LIMIT_VERSION:
            limit = header.max_reconsume_times
        pairs = dict(message.properties)
        pairs.setdefault(props.RETRY_TOPIC, message.topic)
        pairs.setdefault(props.ORIGIN_MESSAGE_ID, message.offset_id)
        pairs[props.WAIT] = "false"
        tags = None
        if message.reconsume_times >= limit or header.delay_level < 0:
            name, queue_id = self._topics.ensure(DEAD_LETTER_PREFIX + group.name).name, 0
            pairs[props.DELAY] = "0"
        else:
            level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
            level = min(level, len(self._ladder.delays_ms))
            pairs[props.DELAY] = str(level)
            name, queue_id, tags = delayed_until(
                pairs,
                topic.name,
                self._clock.random_below(max(1, topic.write_queues)),
                level,
                self._ladder.due_ms(level),
            )
        record = put_record(
            name,
            queue_id,
            message.body,
            pairs,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=message.born_host_raw,
            reconsume_times=message.reconsume_times + 1,
            tags=tags,
        )
        return self._appender.put([record])

    def _load(self, log_offset: int) -> StoredMessage:
        data = self._store.record_at(log_offset)
        try:
            if data is not None:
                message = decode_record(data)
                check_client_topic(message.topic)
                return message
        except RemoteProtocolError:
            pass
        raise BadRequest(f"look message by offset failed, {log_offset}")
