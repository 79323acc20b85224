"""Why a service refuses, in the codes of the remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import Reason
from metaq.wire.codes import ResponseCode

CODE_OF: Final[Mapping[Reason, ResponseCode]] = {
    Reason.INVALID: ResponseCode.SYSTEM_ERROR,
    Reason.NO_PERMISSION: ResponseCode.NO_PERMISSION,
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NOT_SUBSCRIBED: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.SUBSCRIPTION_OLD: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.BAD_FILTER: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.OFFLINE: ResponseCode.CONSUMER_NOT_ONLINE,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.ILLEGAL_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""Complete: a reason without a code would be a request without an answer (tests/doors/test_refusals.py)."""
