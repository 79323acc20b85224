"""Requests for which RocketMQ asks no right, and any account may send them: with `aclCompatible` here, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from metaq.broker.gatekeeper import Gatekeeper
from metaq.model.access import Action
from metaq.servers.remoting.handlers import Handler
from metaq.wire.codes import RequestCode

UNCOVERED: Final = (
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
)
"""Judged here by what their headers name. 33, 37, 41, 42 and the message that 36 gives back are judged by the services, with
`Gatekeeper.check_uncovered`. What changes settings is for administrators in any case, and so are our own requests."""


def as_covered(gatekeeper: Gatekeeper, table: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return a table in which `UNCOVERED` need no right if the rules are to be RocketMQ's."""
    found = dict(table)
    if gatekeeper.compatible:
        for code in UNCOVERED:
            found[code] = structs.replace(table[code], action=Action.OBSERVE, topic="", group="")
    return found
