"""Transactions of 1.x clients, asked for and ended by an operator: what goes out, what is read."""

from __future__ import annotations

import pytest

from metaq.client.conversation.staged.staging import EndBranch, ListBranches
from metaq.errors import BadRequest, BrokerError
from metaq.model.transactions.metaq1 import BranchPhase, BranchState
from metaq.wire import staging
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command

STATE = BranchState("XID:7:6731:6231:uqA", BranchPhase.PREPARED, "xa-1@broker-a", "", 5, 2, 100)


def test_requests_are_what_the_page_says() -> None:
    """docs/formats/extensions.md."""
    command = ListBranches("xa-1@a", 7).request()
    assert (command.code, command.ext) == (30008, {"after": "xa-1@a", "count": "7"})
    command = EndBranch(STATE.key, "commit").request()
    assert (command.code, command.ext) == (30009, {"key": STATE.key, "action": "commit"})


def test_answers_are_read() -> None:
    body = staging.branch_list([STATE, STATE])
    assert ListBranches().outcome(Command(ResponseCode.SUCCESS, body=body)) == [STATE, STATE]
    assert b'"phase":"prepared"' in body
    assert EndBranch(STATE.key, "forget").outcome(Command(ResponseCode.SUCCESS)) is None
    with pytest.raises(BadRequest):
        ListBranches().outcome(Command(ResponseCode.SUCCESS, body=b"{}"))
    with pytest.raises(BrokerError, match=r"forget the XA transaction XID:7.*: no"):
        EndBranch(STATE.key, "forget").outcome(Command(ResponseCode.SYSTEM_ERROR, remark="no"), "peer")
