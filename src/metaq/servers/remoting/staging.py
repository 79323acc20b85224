"""Staged transactions (30000 to 30006, ours: docs/formats/staging.md).

Answers about a transaction wait for the disk as acknowledgements of sends do: nobody acts on a decision that a power
cut could take back.
"""

from __future__ import annotations

import logging
from typing import Any

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.requests import Apply, Decide, SealPart, Stage
from metaq.errors import BadRequest, Reason, Refused
from metaq.model.access import Action
from metaq.model.transactions.staging import PartLifetime, PartSeal
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later, handles
from metaq.servers.remoting.session import session_of
from metaq.servers.remoting.workspace import Workspace
from metaq.wire import headers, staging
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, reply

log = logging.getLogger(__name__)

LIST_COUNT_MAX = 1000


class StagingHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker, workspace: Workspace) -> None:
        self._service, self._workspace = broker.staging, workspace
        self._name = broker.environment.name

    @handles(RequestCode.STAGE, headers.StageHeader, Action.PUBLISH)
    def _stage(self, call: Call[headers.StageHeader]) -> Later:
        self._check_meant(call.header.broker)
        session = session_of(call)
        asked = stage_of(call.header, call.command.body, session.born_host)
        return self._acknowledge(call, staging.staged(self._service.stage(asked, call.caller, session)))

    @handles(RequestCode.SEAL, headers.SealPartHeader, Action.PUBLISH)
    def _seal(self, call: Call[headers.SealPartHeader]) -> Later:
        header = call.header
        self._check_meant(header.broker)
        seal = PartSeal(header.chunks, header.rows, header.bytes, header.crc)
        self._service.seal(SealPart(transaction=header.transaction, part=header.part, seal=seal), call.caller)
        return self._acknowledge(call, b"")

    @handles(RequestCode.DECIDE, headers.StagedTransactionHeader, Action.PUBLISH)
    def _decide(self, call: Call[headers.StagedTransactionHeader]) -> Later:
        self._check_meant(call.header.broker)
        if call.header.settle:
            return self._acknowledge(call, staging.decided(self._service.settle(call.header.transaction, call.caller)))
        asked = decide_of(call.header.transaction, staging.decide_body_of(call.command.body))
        return self._acknowledge(call, staging.decided(self._service.decide(asked, call.caller)))

    @handles(RequestCode.APPLY, headers.StagedTransactionHeader, Action.PUBLISH)
    def _apply(self, call: Call[headers.StagedTransactionHeader]) -> Later:
        self._check_meant(call.header.broker)
        body = staging.apply_body_of(call.command.body)
        asked = Apply(transaction=call.header.transaction, decision=body.decision, confirmed=body.confirmed)
        state = self._service.apply(asked, call.caller)
        # A client repeats APPLY while chunks remain: decision and parts, the same each time, are left out.
        return self._acknowledge(call, staging.transaction_state(structs.replace(state, decision=None, parts=())))

    @handles(RequestCode.STAGED_STATE, headers.StagedSubjectHeader, Action.OBSERVE)
    def _state(self, call: Call[headers.StagedSubjectHeader]) -> Later:
        self._check_meant(call.header.broker)
        subject = subject_of(call.header)
        if call.header.row is not None:
            return self._acknowledge(call, staging.row_state(self._service.row(subject)))
        return self._acknowledge(call, staging.transaction_state(self._service.state(subject)))

    @handles(RequestCode.FORGET_STAGED, headers.StagedSubjectHeader, Action.ADMINISTER)
    def _forget(self, call: Call[headers.StagedSubjectHeader]) -> Later:
        self._check_meant(call.header.broker)
        subject = subject_of(call.header)
        log.warning("%s has %.240r of staged transactions forgotten", call.session.remote, subject)
        self._service.forget(subject)
        return self._acknowledge(call, b"")

    # Who knows the id of a transaction may end it: with access control only administrators get lists of them.
    @handles(RequestCode.LIST_STAGED, headers.ListStagedHeader, Action.ADMINISTER)
    def _list(self, call: Call[headers.ListStagedHeader]) -> Answer:
        count = max(1, min(call.header.count, LIST_COUNT_MAX))
        if call.header.rows:
            return staging.row_list(self._service.rows(call.header.after, count))
        return staging.transaction_list(self._service.listing(call.header.after, count))

    def _check_meant(self, broker: str | None) -> None:
        """Check the broker's name in a request. Raises Refused: it is for the broker that was at this address
        before."""
        if broker is not None and broker != self._name:
            raise Refused(
                Reason.UNAVAILABLE, f"this is the broker {self._name}, not {broker[:127]!r}: look its address up again"
            )

    def _acknowledge(self, call: Call[Any], body: bytes) -> Later:
        """Answer when the log is as durable as the broker promises. The ext field in it marks an answer that `HeldAcks`
        may rewrite."""
        if not call.oneway:
            row = getattr(call.header, "row", None)
            ext = {"row": row} if row is not None else {"transactionId": call.header.transaction}
            self._workspace.acks.extend(encode(reply(call.command, header=ext, body=body)))
        return LATER


def stage_of(header: headers.StageHeader, body: bytes | memoryview, born_host: bytes) -> Stage:
    """Return the request in a header and body. Raises BadRequest."""
    try:
        lifetime = PartLifetime(header.lifetime)
    except ValueError:
        known = ", ".join(one.value for one in PartLifetime)
        raise BadRequest(f"lifetime={header.lifetime[:40]!r}: there are {known}") from None
    if header.seconds < 0:
        raise BadRequest(f"seconds={header.seconds}: 0 or more are wanted")
    chunks, decide = staging.sections_of(body)
    return Stage(
        transaction=header.transaction,
        chunks=chunks,
        born_ms=header.born_ms,
        born_host=born_host,
        lifetime=lifetime,
        seconds=header.seconds,
        decide=None if decide is None else decide_of(header.transaction, decide),
    )


def decide_of(transaction: str, body: staging.DecideBody) -> Decide:
    """Return the request in a body."""
    return Decide(transaction=transaction, outcome=body.outcome, parts=body.parts, row=body.row, sequence=body.sequence)


def subject_of(header: headers.StagedSubjectHeader) -> str:
    """Return the transaction or the row that a request is about. Raises BadRequest: it names none, or both."""
    if (header.transaction is None) == (header.row is None):
        raise BadRequest("name a transactionId or a row, one of both")
    return header.transaction if header.transaction is not None else header.row or ""
