"""Transactions: ends of half messages (37), checks begun anew (323); for operators, those of MetaQ 1.x clients (30008,
30009).

Half messages come in as sends do (`messages`); checks (39) go out as notices do (`notices`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from metaq.broker.broker import Broker
from metaq.broker.requests import EndTransaction
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import SysFlag, TransactionOutcome
from metaq.model.access import Action
from metaq.model.transactions.staging import DecisionOutcome
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later, Reply, handles
from metaq.servers.remoting.workspace import Workspace
from metaq.wire import headers, staging
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, reply
from metaq.wire.headers import EndTransactionHeader, ResumeCheckHeader
from metaq.wire.record import parse_offset_id

if TYPE_CHECKING:
    from metaq.broker.metaq1.transactions import Metaq1Transactions

log = logging.getLogger(__name__)

FORGET: Final = "forget"
BRANCH_OUTCOMES: Final = {"commit": DecisionOutcome.COMMIT, "rollback": DecisionOutcome.ROLLBACK}
"""What an operator may ask for an XA branch, beside `FORGET`."""
_OUTCOMES = {
    0: TransactionOutcome.UNKNOWN,
    int(SysFlag.COMMITTED): TransactionOutcome.COMMIT,
    int(SysFlag.ROLLED_BACK): TransactionOutcome.ROLLBACK,
}


class TransactionHandlers:
    """RocketMQ's transactions of half messages."""

    def __init__(self, broker: Broker, workspace: Workspace) -> None:
        self._broker, self._workspace = broker, workspace

    @handles(RequestCode.END_TRANSACTION, EndTransactionHeader, Action.PUBLISH)
    def _end(self, call: Call[EndTransactionHeader]) -> Answer:
        told = self._broker.transactions.end(end_of(call.header), call.caller)
        # Java and Go send this request oneway, Node never.
        if call.oneway:
            return LATER
        # Both wait for the disk: also the answer about an end that came before, which may not be there yet.
        if told:
            self._workspace.acks.extend(encode(reply(call.command, remark=told)))
        else:
            self._workspace.acks.add_done(*call.reply_to)
        return LATER

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader, Action.ADMINISTER)
    def _resume(self, call: Call[ResumeCheckHeader]) -> Reply:
        _, _, log_offset = parse_offset_id(call.header.message_id)
        return Reply(remark=self._broker.transactions.resume(log_offset))


def end_of(header: EndTransactionHeader) -> EndTransaction:
    """Return the request in a header. Raises BadRequest: the outcome is none of commit (8), rollback (12) and unknown
    (0)."""
    outcome = _OUTCOMES.get(header.outcome)
    if outcome is None:
        raise BadRequest(f"commitOrRollback={header.outcome}: 8 commits, 12 rolls back, 0 leaves the transaction open")
    return EndTransaction(
        producer_group=header.producer_group,
        slot=header.half_queue_offset,
        log_offset=header.log_offset,
        outcome=outcome,
        message_id=header.message_id,
    )


class BranchHandlers:
    """XA branches of MetaQ 1.x clients, listed and ended by hand."""

    def __init__(self, broker: Broker, workspace: Workspace) -> None:
        self._services, self._workspace = broker.metaq1, workspace

    @handles(RequestCode.LIST_BRANCHES, headers.ListBranchesHeader, Action.ADMINISTER)
    def _list(self, call: Call[headers.ListBranchesHeader]) -> Answer:
        return staging.branch_list(self._service().listing(call.header.after, max(1, call.header.count)))

    @handles(RequestCode.END_BRANCH, headers.EndBranchHeader, Action.ADMINISTER)
    def _end(self, call: Call[headers.EndBranchHeader]) -> Later:
        key, action = call.header.key, call.header.action
        log.warning("%s: %.20r of the XA transaction %.240r", call.session.remote, action, key)
        if action == FORGET:
            self._service().forget_by_hand(key)
        elif action in BRANCH_OUTCOMES:
            self._service().end_by_hand(key, BRANCH_OUTCOMES[action])
        else:
            raise BadRequest(f"action={action[:40]!r}: there are {', '.join([*BRANCH_OUTCOMES, FORGET])}")
        if not call.oneway:  # it waits for the disk as other decisions do
            self._workspace.acks.extend(encode(reply(call.command, header={"key": key})))
        return LATER

    def _service(self) -> Metaq1Transactions:
        if self._services is None:
            raise Refused(
                Reason.UNAVAILABLE, "this broker serves no clients of MetaQ 1.x: it has no transactions of theirs"
            )
        return self._services.transactions
