"""How a producer is asked over the remoting protocol what became of its transaction (39)."""

from __future__ import annotations

from metaq.model import properties as props
from metaq.model.notices import TransactionCheck
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request
from metaq.wire.headers import CheckTransactionHeader
from metaq.wire.record import encode_record


def check_of(check: TransactionCheck) -> Command:
    """The request; nobody waits for its answer, which is an END_TRANSACTION (37)."""
    half = check.half
    unique_id = half.properties.get(props.UNIQUE_ID)
    header = CheckTransactionHeader(
        half_queue_offset=half.queue_offset,
        log_offset=half.log_offset,
        message_id=unique_id,
        transaction_id=unique_id,
        offset_message_id=half.offset_id,
    )
    pairs = dict(half.properties)
    if props.WAIT in pairs:
        pairs[props.WAIT] = "false"  # so RocketMQ asks, whatever it has stored
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
