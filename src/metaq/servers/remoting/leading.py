"""What a slave leaves to its master: whatever appends to the log, or changes the tables that follow the master's.

A broker that has led in this process relays to its successor what clients ask of a leader (`metaq.servers.remoting.relaying`); any
other slave refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.saved import Pending, Saving
from metaq.servers.remoting.handlers import After, Answer, Call, Handler, Later, Reply
from metaq.servers.remoting.relaying import Relay, caller_behind
from metaq.servers.remoting.replies import REPLIES
from metaq.servers.remoting.session import SENDS
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.extensions import LEADING, NOT_LEADING, NOT_LEADING_MARK, RELAYED_FIELD

if TYPE_CHECKING:
    from metaq.broker.failover.table_acks import TableAcks

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
RELAYED_APPENDS: Final = frozenset(
    (
        *SENDS,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.STAGE,
        RequestCode.SEAL,
        RequestCode.DECIDE,
        RequestCode.APPLY,
        RequestCode.FORGET_STAGED,
    )
)
"""Those of `APPENDS` that a broker relays which has stepped down."""
LED: Final = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.STAGED_STATE)
"""What only a leader knows: relayed too, or refused."""
FOLLOWED: Final = (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET)
"""What the leader knows first: relayed too, and answered here if no leader takes it, as any slave does."""
NOT_HERE: Final = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
"""RocketMQ's words, which its tools print."""


def by_leaders(table: Mapping[int, Handler], broker: Broker, relay: Relay | None = None) -> dict[int, Handler]:
    """Return a table whose handlers of `APPENDS` and `CHANGES` refuse while the broker is a slave.

    `relay`: takes what is to be relayed; None: nothing is.
    """
    found = dict(table)
    for code in APPENDS:
        relayed = relay if code in RELAYED_APPENDS else None
        found[code] = structs.replace(table[code], run=_appending(table[code].run, broker, relayed))
    if relay is not None:
        for code in (*LED, *FOLLOWED):
            run = _led(table[code].run, broker, relay, answers=code in FOLLOWED)
            found[code] = structs.replace(table[code], run=run)
        identify = table[RequestCode.IDENTIFY]
        found[RequestCode.IDENTIFY] = structs.replace(identify, run=_identified(identify.run, broker))
    for code in CHANGES:
        found[code] = structs.replace(table[code], run=_changing(table[code].run, broker))
    return found


def _appending(
    run: Callable[[Call[Any]], Answer], broker: Broker, relay: Relay | None
) -> Callable[[Call[Any]], Answer]:
    def guarded(call: Call[Any]) -> Answer:
        # Before anything is made for the message: a topic, a retry topic, a part.
        if (why := broker.store.state.follows) is not None:
            if RELAYED_FIELD in call.command.ext:
                return _not_leading(why)
            if relay is not None and broker.roles.relays():
                return relay.take(call, why)
            raise Refused(Reason.NOT_LEADING, why)
        copies = broker.acks.copies
        if RELAYED_FIELD in call.command.ext and not copies.enough and copies.lacks_for_now:
            return _not_leading(copies.lacking)  # its followers are just coming: who relays it tries again
        if (in_sync := broker.in_sync) is not None and (lapse := in_sync.until_enough()) is not None:
            raise Saving(lapse)
        return run(_of_client(call, broker))

    return guarded


def _led(
    run: Callable[[Call[Any]], Answer], broker: Broker, relay: Relay, *, answers: bool
) -> Callable[[Call[Any]], Answer]:
    """Args: answers: whether `run` answers where no leader takes the request."""

    def guarded(call: Call[Any]) -> Answer:
        if (why := broker.store.state.follows) is not None:
            if RELAYED_FIELD in call.command.ext:
                return _not_leading(why)
            if broker.roles.relays():
                try:
                    return relay.take(call, why, run if answers else None)
                except Refused:
                    if not answers:
                        raise
        return run(_of_client(call, broker))

    return guarded


def _identified(run: Callable[[Call[Any]], Answer], broker: Broker) -> Callable[[Call[Any]], Answer]:
    """Tell who relays to this broker whether it leads, whatever account it has."""

    def telling(call: Call[Any]) -> Answer:
        answer = run(call)
        if RELAYED_FIELD not in call.command.ext or not isinstance(answer, bytes):
            return answer
        leads = broker.store.state.follows is None
        return Reply({RELAYED_FIELD: LEADING if leads else NOT_LEADING}, answer)

    return telling


def _of_client(call: Call[Any], broker: Broker) -> Call[Any]:
    """Return a request that may have been relayed, with the client as its caller."""
    if RELAYED_FIELD not in call.command.ext:
        return call
    return structs.replace(call, caller=caller_behind(broker, call))


def _not_leading(why: str) -> Reply:
    """Return the answer to a relayed request: it was not carried out, and whoever relays it may try again."""
    return Reply(
        {RELAYED_FIELD: NOT_LEADING}, code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"{NOT_LEADING_MARK}{why}"
    )


def _changing(run: Callable[[Call[Any]], Answer], broker: Broker) -> Callable[[Call[Any]], Answer]:
    def guarded(call: Call[Any]) -> Answer:
        if broker.leads:
            return _when_followed(run(call), broker)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=NOT_HERE)

    return guarded


def _when_followed(answer: Answer, broker: Broker) -> Answer:
    """Have the answer to a change wait until the in-sync set has it, where leaders change by themselves."""
    acks = broker.table_acks
    if acks is None:
        return answer
    if isinstance(answer, Generator):
        return _pieces_when_followed(answer, broker)
    if isinstance(answer, After):
        first, then = answer
        return After(_one_after_the_other(first, acks), then)
    if isinstance(answer, Later) or (isinstance(answer, Reply) and answer.code):
        return answer
    return After(acks.wait(), lambda: answer)


def _pieces_when_followed(pieces: InPieces[Answer], broker: Broker) -> InPieces[Answer]:
    answer = yield from pieces
    return _when_followed(answer, broker)


def _one_after_the_other(saved: Pending, acks: TableAcks) -> Pending:
    both = Pending()

    def was_saved(error: Refused | None) -> None:
        if error is not None:
            both.finish(error)
            return
        try:
            acks.wait().when_done(both.finish)
        except Refused as refused:
            both.finish(refused)

    saved.when_done(was_saved)
    return both
