"""Broker-initiated requests (39, 40, 220, 326), and error responses to them."""

from __future__ import annotations

from metaq.client.conversation.sending.replies import reply_of
from metaq.client.conversation.sending.transactions import check_of
from metaq.model.notices import MembersChanged, OffsetsReset, RequestReplied, TransactionCheck
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode, request_name
from metaq.wire.command import Command, reply

Notice = MembersChanged | OffsetsReset | TransactionCheck | RequestReplied


def notice_of(command: Command, broker: str = "", now_ms: int = 0) -> Notice | None:
    """Decode a request of the broker of that name; None: an unknown request code. Raises BadRequest."""
    if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        return MembersChanged(command.ext.get("consumerGroup", ""))
    if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        return OffsetsReset(command.ext.get("group", ""), bodies.queue_offsets_of(command.body))
    if command.code == RequestCode.CHECK_TRANSACTION_STATE:
        return check_of(command, broker)
    if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
        return reply_of(command, broker, now_ms)
    return None


def unreadable(command: Command, why: str) -> Command:
    """Make the response to an undecodable request."""
    return reply(command, ResponseCode.SYSTEM_ERROR, remark=f"{request_name(command.code)} cannot be read: {why}")


def not_supported(command: Command) -> Command:
    """Make the response to an unknown request code."""
    remark = f" request type {request_name(command.code)} not supported by this client"
    return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
