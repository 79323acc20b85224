"""What a broker tells a client on its own account, and what is answered."""

from __future__ import annotations

from metaq.client.conversation.transactions import check_of
from metaq.model.notices import MembersChanged, OffsetsReset, TransactionCheck
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode, request_name
from metaq.wire.command import Command, reply

Notice = MembersChanged | OffsetsReset | TransactionCheck


def notice_of(command: Command, broker: str = "") -> Notice | None:
    """What the request of the broker of that name says; None for one that we do not know. Raises BadRequest."""
    if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        return MembersChanged(command.ext.get("consumerGroup", ""))
    if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        return OffsetsReset(command.ext.get("group", ""), bodies.queue_offsets_of(command.body))
    if command.code == RequestCode.CHECK_TRANSACTION_STATE:
        return check_of(command, broker)
    return None


def not_supported(command: Command) -> Command:
    """The answer to a request that we do not know."""
    remark = f" request type {request_name(command.code)} not supported by this client"
    return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
