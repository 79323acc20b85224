"""Why a service refuses, in the codes of the remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import Reason, Refused
from metaq.servers.waiting import Wording
from metaq.wire.codes import ResponseCode

CODE_OF: Final[Mapping[Reason, ResponseCode]] = {
    Reason.INVALID: ResponseCode.SYSTEM_ERROR,
    Reason.NO_PERMISSION: ResponseCode.NO_PERMISSION,
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NOT_SUBSCRIBED: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.SUBSCRIPTION_OLD: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.BAD_FILTER: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.NO_FILTER: ResponseCode.FILTER_DATA_NOT_EXIST,
    Reason.OFFLINE: ResponseCode.CONSUMER_NOT_ONLINE,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.ILLEGAL_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.STALE: ResponseCode.STALE_SEQUENCE,
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.THROTTLED: ResponseCode.SYSTEM_BUSY,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.NOT_STORED: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""Complete: a reason without a code would be a request without an answer (tests/servers/remoting/test_refusals.py)."""

BEGINNINGS: Final[Mapping[Reason, str]] = {
    Reason.ILLEGAL_MESSAGE: "the message is illegal: ",
    Reason.THROTTLED: "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: ",
    Reason.NOT_STORED: "service not available now: ",
}
"""How RocketMQ begins such a remark: users and their alarms look for these words."""

WAITED_IN_VAIN: Final = Wording(
    too_often="[PCBUSY_CLEAN_QUEUE]broker busy: what the request needs is deleted as often as it is made",
    too_many="[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: {connection} bytes of your requests, "
    "{total} of all, wait for topics and groups to be saved",
    too_late="[TIMEOUT_CLEAN_QUEUE]broker busy: a change that the request needs was not saved within {seconds:g} s. ",
)
"""As `BEGINNINGS`."""


def remark_of(refused: Refused) -> str:
    """What the answer says beside its code."""
    return BEGINNINGS.get(refused.reason, "") + refused.text
