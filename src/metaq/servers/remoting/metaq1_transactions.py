"""Transactions of MetaQ 1.x clients for operators (30008, 30009, ours alone): listed, and ended by hand."""

from __future__ import annotations

import logging
from typing import Final

from metaq.broker.broker import Broker
from metaq.broker.metaq1.transactions import LISTED_MAX, Metaq1Transactions
from metaq.errors import BadRequest, Reason, Refused
from metaq.model.access import Action
from metaq.model.transactions.staging import Outcome
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later, handles
from metaq.servers.remoting.session import Workspace
from metaq.wire import headers, staging
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, reply

log = logging.getLogger(__name__)

FORGET: Final = "forget"
OUTCOMES: Final = {"commit": Outcome.COMMIT, "rollback": Outcome.ROLLBACK}


class BranchHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker, workspace: Workspace) -> None:
        self._branches, self._workspace = broker.xa, workspace

    @handles(RequestCode.LIST_BRANCHES, headers.ListBranchesHeader, Action.OBSERVE)
    def _list(self, call: Call[headers.ListBranchesHeader]) -> Answer:
        count = max(1, min(call.header.count, LISTED_MAX))
        return staging.branch_list(self._service().listing(call.header.after, count))

    @handles(RequestCode.END_BRANCH, headers.EndBranchHeader, Action.ADMINISTER)
    def _end(self, call: Call[headers.EndBranchHeader]) -> Later:
        key, action = call.header.key, call.header.action
        log.warning("%s: %.20r of the XA transaction %.240r", call.session.remote, action, key)
        if action == FORGET:
            self._service().forget_by_hand(key)
        elif action in OUTCOMES:
            self._service().end_by_hand(key, OUTCOMES[action])
        else:
            raise BadRequest(f"action={action[:40]!r}: there are {', '.join([*OUTCOMES, FORGET])}")
        if not call.oneway:  # it waits for the disk as other decisions do
            self._workspace.acks.extend(encode(reply(call.command, header={"key": key})))
        return LATER

    def _service(self) -> Metaq1Transactions:
        if self._branches is None:
            raise Refused(
                Reason.UNAVAILABLE, "this broker serves no clients of MetaQ 1.x: it has no transactions of theirs"
            )
        return self._branches
