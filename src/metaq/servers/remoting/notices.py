"""What a broker tells clients unasked: their group's members (40), a reset of offsets (220), a check of a transaction
(39)."""

from __future__ import annotations

from metaq.broker.channel import Notice
from metaq.model import properties as props
from metaq.model.notices import MembersChanged, OffsetsReset, TransactionCheck
from metaq.wire import bodies
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request
from metaq.wire.headers import CheckTransactionHeader, ConsumerGroupHeader, ResetOffsetHeader
from metaq.wire.record import encode_record


def notification_of(what: Notice) -> Command:
    """Return the oneway request that carries a notice."""
    match what:
        case MembersChanged(group):
            header = ConsumerGroupHeader(consumer_group=group)
            return request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
        case OffsetsReset():
            return reset_of(what)
        case TransactionCheck():
            return check_of(what)


def reset_of(what: OffsetsReset) -> Command:
    """Return RESET_CONSUMER_CLIENT_OFFSET (220)."""
    topic = next((queue.topic for queue in what.offsets), "")
    header = ResetOffsetHeader(topic=topic, group=what.group, timestamp=what.time_ms, force=what.force)
    # C++ cannot read objects as keys.
    write = bodies.queue_offset_list if what.language == "CPP" else bodies.queue_offsets
    return request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, write(what.offsets), oneway=True)


def check_of(check: TransactionCheck) -> Command:
    """Return CHECK_TRANSACTION_STATE (39). The client does not answer it, but sends END_TRANSACTION (37) some time."""
    half = check.half
    unique_id = half.properties.get(props.UNIQUE_ID)
    # Java's client copies both offsets into its END_TRANSACTION, so they are those of the half message's newest copy.
    header = CheckTransactionHeader(
        half_queue_offset=half.queue_offset,
        log_offset=half.log_offset,
        message_id=unique_id,
        transaction_id=unique_id,
        offset_message_id=half.offset_id,
    )
    pairs = dict(half.properties)
    if props.WAIT in pairs:
        pairs[props.WAIT] = "false"  # as in RocketMQ's requests, whatever is stored
    body = encode_record(
        topic=half.topic.encode(),
        queue_id=half.queue_id,
        queue_offset=half.queue_offset,
        log_offset=half.log_offset,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_ms=half.born_ms,
        born_host=half.born_host_raw,
        store_ms=half.store_ms,
        store_host=half.store_host_raw,
        reconsume_times=half.reconsume_times,
        prepared_offset=0,
        body=half.body,
        properties=props.join(pairs).encode(),
    )
    return request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)
