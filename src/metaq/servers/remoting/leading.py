"""What a slave leaves to its master: whatever appends to the log, or changes the tables that follow the master's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.servers.remoting.handlers import Answer, Call, Handler, Reply
from metaq.servers.remoting.replies import REPLIES
from metaq.servers.remoting.session import SENDS
from metaq.wire.codes import RequestCode, ResponseCode

APPENDS: Final = (
    *SENDS,
    *REPLIES,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.STAGE,
    RequestCode.SEAL,
    RequestCode.DECIDE,
    RequestCode.APPLY,
    RequestCode.FORGET_STAGED,
    RequestCode.END_BRANCH,
    RequestCode.CLOSE_PARTITIONS,
)
CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.TRIM_TOPIC,
)
NOT_HERE: Final = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
"""RocketMQ's words, which its tools print."""


def by_leaders(table: Mapping[int, Handler], broker: Broker) -> dict[int, Handler]:
    """Return a table whose handlers of `APPENDS` and `CHANGES` refuse while the broker is a slave."""
    found = dict(table)
    for code in APPENDS:
        found[code] = structs.replace(table[code], run=_appending(table[code].run, broker))
    for code in CHANGES:
        found[code] = structs.replace(table[code], run=_changing(table[code].run, broker))
    return found


def _appending(run: Callable[[Call[Any]], Answer], broker: Broker) -> Callable[[Call[Any]], Answer]:
    def guarded(call: Call[Any]) -> Answer:
        # Before anything is made for the message: a topic, a retry topic, a part.
        if (why := broker.store.state.follows) is not None:
            raise Refused(Reason.NOT_STORED, why)
        return run(call)

    return guarded


def _changing(run: Callable[[Call[Any]], Answer], broker: Broker) -> Callable[[Call[Any]], Answer]:
    def guarded(call: Call[Any]) -> Answer:
        if broker.leads:
            return run(call)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=NOT_HERE)

    return guarded
