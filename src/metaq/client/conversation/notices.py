"""Broker-initiated requests (39, 40, 220, 221, 307, 309, 326), and error responses to them."""

from __future__ import annotations

from metaq.client.conversation.sending.replies import reply_of
from metaq.client.conversation.sending.transactions import check_of
from metaq.model.notices import (
    ConsumeAsked,
    MembersChanged,
    OffsetsReset,
    PositionsAsked,
    RequestReplied,
    StateAsked,
    TransactionCheck,
)
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode, request_name
from metaq.wire.command import Command, reply

Notice = MembersChanged | OffsetsReset | TransactionCheck | RequestReplied | PositionsAsked | StateAsked | ConsumeAsked


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
    if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        status = headers.ConsumerStatusHeader.from_ext(command.ext)
        return PositionsAsked(status.group, status.topic)
    if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        state = headers.RunningInfoHeader.from_ext(command.ext)
        return StateAsked(state.consumer_group, state.stacks)
    if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        consume = headers.ConsumeDirectlyHeader.from_ext(command.ext)
        return ConsumeAsked(consume.consumer_group, bytes(command.body), consume.broker_name or broker)
    return None


def unreadable(command: Command, why: str) -> Command:
    """Make the response to an undecodable request."""
    return reply(command, ResponseCode.SYSTEM_ERROR, remark=f"{request_name(command.code)} cannot be read: {why}")


def not_supported(command: Command) -> Command:
    """Make the response to an unknown request code."""
    remark = f" request type {request_name(command.code)} not supported by this client"
    return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
