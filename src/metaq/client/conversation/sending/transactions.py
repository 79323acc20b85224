"""Half messages: sending, END_TRANSACTION (37), and CHECK_TRANSACTION_STATE (39).

    half = half_message(outgoing, group)             # sent by `Send`, stored unseen
    half = half_at(message_id, queue_offset, offset_id)
    EndTransaction(group=group, broker=broker, half=half, ending=TransactionOutcome.COMMIT)

A broker that has waited long enough asks a client of the producer's group (`check_of`); the answer is an EndTransaction, too,
with `from_check`. Each check stores the half message again, under new offsets: it is those that an answer names, and also
the end of a transaction that was still going on.
"""

from __future__ import annotations

from msgspec import structs

from metaq.client.conversation.call import Order
from metaq.client.conversation.sending.sending import Outgoing
from metaq.errors import BadRequest, MetaqError
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX, HalfMessage, SysFlag, TransactionOutcome
from metaq.model.notices import TransactionCheck
from metaq.wire import compression, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request
from metaq.wire.record import decode_record, parse_offset_id

BODY_EXPANDED_MAX = 4 * BODY_BYTES_MAX
"""Bytes of a decompressed body at most."""
REMARK_CHARS_MAX = 500

_WIRE = {
    TransactionOutcome.COMMIT: int(SysFlag.COMMITTED),
    TransactionOutcome.ROLLBACK: int(SysFlag.ROLLED_BACK),
    TransactionOutcome.UNKNOWN: 0,
}


def half_message(outgoing: Outgoing, group: str, check_after: int | None = None) -> Outgoing:
    """Make a half message. `check_after`: seconds before the broker may check it (CHECK_IMMUNITY_TIME_IN_SECONDS)."""
    marks = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: group}
    if check_after is not None:
        marks[props.CHECK_IMMUNITY] = str(check_after)
    text = props.join(marks)
    return structs.replace(
        outgoing,
        sys_flag=outgoing.sys_flag | SysFlag.PREPARED,
        properties=f"{outgoing.properties}{props.PAIR_END}{text}" if outgoing.properties else text,
    )


def half_at(message_id: str, queue_offset: int, offset_id: str) -> HalfMessage:
    """Return the identity of a half message from its send's response. Raises BadRequest: malformed offset id."""
    return HalfMessage(message_id, queue_offset, parse_offset_id(offset_id)[2])


def half_of(checked: StoredMessage) -> HalfMessage:
    """Return the identity of the half message in a check."""
    return HalfMessage(checked.message_id, checked.queue_offset, checked.log_offset)


class EndTransaction(Order, frozen=True, kw_only=True):
    """Report how the transaction of a half message ended: oneway, as Java does, or with an answer. Brokers never answer
    UNKNOWN. `remark`: why, for the broker's log."""

    group: str
    broker: str | None
    half: HalfMessage
    ending: TransactionOutcome
    from_check: bool = False
    remark: str | None = None

    @property
    def action(self) -> str:
        return f"{self.ending.value} transaction {self.half.message_id}"

    def request(self) -> Command:
        header = headers.EndTransactionHeader(
            producer_group=self.group,
            half_queue_offset=self.half.queue_offset,
            log_offset=self.half.log_offset,
            outcome=_WIRE[self.ending],
            from_check=self.from_check,
            message_id=self.half.message_id,
            transaction_id=self.half.message_id,
            broker_name=self.broker,
        )
        command = request(RequestCode.END_TRANSACTION, header)
        if self.remark:
            command.remark = self.remark[:REMARK_CHARS_MAX]
        return command


def check_of(command: Command, broker: str = "") -> TransactionCheck:
    """Decode a check of the broker of that name, and decompress the message's body.

    Raises BadRequest: it cannot be read, or names no group.
    """
    header = headers.CheckTransactionHeader.from_ext(command.ext)
    try:
        message = decode_record(command.body)
        message.body = compression.decompress(message.body, message.sys_flag, BODY_EXPANDED_MAX)
    except MetaqError as error:
        raise BadRequest(f"the half message of a check cannot be read: {error}") from None
    message.broker = broker
    group = message.properties.get(props.PRODUCER_GROUP)
    if not group:
        raise BadRequest(f"the half message {message.message_id} names no producer group")
    message.queue_offset, message.log_offset = header.half_queue_offset, header.log_offset  # The record's may be older.
    return TransactionCheck(group, message)
