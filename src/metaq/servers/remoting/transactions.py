"""Ends of transactions (37), and half messages that are to be asked about again (323). Half messages come in as sends do, checks (39) go out as notices do."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.broker.requests import EndTransaction
from metaq.errors import BadRequest
from metaq.model import SysFlag, TransactionOutcome
from metaq.model.access import Action
from metaq.servers.remoting.handlers import LATER, Answer, Call, Reply, handles
from metaq.servers.remoting.session import Workspace
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, reply
from metaq.wire.headers import EndTransactionHeader, ResumeCheckHeader
from metaq.wire.record import parse_offset_id

_OUTCOMES = {
    0: TransactionOutcome.UNKNOWN,
    int(SysFlag.COMMITTED): TransactionOutcome.COMMIT,
    int(SysFlag.ROLLED_BACK): TransactionOutcome.ROLLBACK,
}


class TransactionHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker, workspace: Workspace) -> None:
        self._broker, self._workspace = broker, workspace

    @handles(RequestCode.END_TRANSACTION, EndTransactionHeader, Action.PUBLISH)
    def _end(self, call: Call[EndTransactionHeader]) -> Answer:
        told = self._broker.transactions.end(end_of(call.header), call.caller)
        if call.oneway:
            return LATER
        if told:  # also of an end that came before, and may not be on the disk yet
            self._workspace.acks.extend(encode(reply(call.command, remark=told)))
        else:
            self._workspace.acks.add_done(*call.reply_to)
        return LATER

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader, Action.ADMINISTER)
    def _resume(self, call: Call[ResumeCheckHeader]) -> Reply:
        _, _, log_offset = parse_offset_id(call.header.message_id)
        return Reply(remark=self._broker.transactions.resume(log_offset))


def end_of(header: EndTransactionHeader) -> EndTransaction:
    """What a client asks for with this header. Raises BadRequest: an outcome that there is not."""
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
