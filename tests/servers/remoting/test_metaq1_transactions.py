"""Transactions of 1.x clients at the remoting server (30008, 30009): listed page by page, ended by hand, and refused."""

from __future__ import annotations

import pathlib

import pytest

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model.metaq1.partition import PartitionPut
from metaq.model.transactions.metaq1 import BranchPhase, BranchState
from metaq.servers.metaq1.transactions import TransactionSteps
from metaq.wire import headers, staging
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.metaq1.commands import PutLine, Reader, TransactionLine
from tests.broker.metaq1.test_partitions import settings
from tests.broker.staged.support import bodies
from tests.broker.support import BORN_HOST, FakeChannel
from tests.servers.support import Client, open_server

XID = "XID:7:6731:6231:uqA"


def say(broker: Broker, channel: FakeChannel, line: str, body: bytes = b"") -> bytes | None:
    """A line of a 1.x client."""
    assert broker.xa is not None
    handlers = TransactionSteps(broker.xa)
    read, _ = Reader(1 << 20).next(line.encode() + b"\r\n" + body)
    if isinstance(read, TransactionLine):
        return handlers.step(read, channel)
    assert isinstance(read, PutLine)
    put = PartitionPut(
        topic=read.topic, partition=read.partition, body=read.body, flag=read.flag, checksum=read.checksum,
        born_host=BORN_HOST,
    )  # fmt: skip
    return handlers.put(read, put, channel)


def prepare(broker: Broker, channel: FakeChannel, xid: str) -> None:
    say(broker, channel, f"transaction {xid} s BEGIN 1")
    say(broker, channel, f"put test 0 1 0 {xid} 2", b"a")
    assert say(broker, channel, f"transaction {xid} s PREPARE 3") == b"0"


def listing(client: Client, after: str = "", count: int = 100) -> list[BranchState]:
    answer = client.ask(RequestCode.LIST_BRANCHES, headers.ListBranchesHeader(after=after, count=count))
    assert answer.code == 0, answer.remark
    return staging.branch_list_of(answer.body)


def end(client: Client, key: str, action: str) -> tuple[int, str | None]:
    answer = client.ask(RequestCode.END_BRANCH, headers.EndBranchHeader(key=key, action=action))
    return answer.code, answer.remark


def test_operators_list_what_is_open_or_prepared_page_by_page(tmp_path: pathlib.Path, clock: FakeClock) -> None:
    channel = FakeChannel("10.1.1.1:4711")
    with open_server(tmp_path, clock, metaq1=settings(test=2)) as (broker, server):
        client = Client(server)
        assert listing(client) == []
        for number in range(3):
            say(broker, channel, f"transaction TX:s:{number} s BEGIN 1")
            prepare(broker, channel, f"XID:7:0{number}::uqA")
        say(broker, channel, "put test 0 3 0 TX:s:0 2", b"abc")
        found = listing(client)
        assert len(found) == 6
        first, rest = listing(client, count=2), listing(client, after=found[1].transaction)
        assert first + rest == found
        states = {state.key: state for state in found}
        local, prepared = states["TX:s:0"], states["XID:7:02::uqA"]
        assert (local.phase, local.client, local.messages) == (BranchPhase.OPEN, "10.1.1.1:4711", 1)
        assert (prepared.phase, prepared.messages, prepared.since_ms) == (BranchPhase.PREPARED, 1, clock.now_ms())


@pytest.mark.parametrize("action", ["commit", "rollback"])
def test_an_operator_ends_a_branch_whose_manager_is_told_and_forgets(
    tmp_path: pathlib.Path, clock: FakeClock, action: str
) -> None:
    channel = FakeChannel()
    with open_server(tmp_path, clock, metaq1=settings(test=2)) as (broker, server):
        client = Client(server)
        prepare(broker, channel, XID)
        assert end(client, XID, action) == (0, None)
        assert bodies(broker, "test", 0) == ([b"a"] if action == "commit" else [])
        code = 7 if action == "commit" else 6
        with pytest.raises(Refused, match=f"^XAException:code={code},msg=XA transaction '{XID}' was "):
            say(broker, channel, f"transaction {XID} s COMMIT_TWO_PHASE 4")
        assert say(broker, channel, "transaction null s RECOVER uqA 5") == XID.encode()
        assert end(client, XID, action)[0] == ResponseCode.SYSTEM_ERROR
        assert end(client, XID, "forget") == (0, None)
        assert say(broker, channel, "transaction null s RECOVER uqA 6") == b""


def test_what_cannot_be_ended_by_hand_is_refused_and_says_why(tmp_path: pathlib.Path, clock: FakeClock) -> None:
    channel = FakeChannel()
    with open_server(tmp_path, clock, metaq1=settings(test=2)) as (broker, server):
        client = Client(server)
        say(broker, channel, f"transaction {XID} s BEGIN 1")
        for key, action, told in [
            (XID, "commit", "is prepared"),
            (XID, "forget", "was ended by hand"),
            ("XID:1:zz::q", "commit", "names no transaction"),
            (XID, "explode", "there are commit, rollback, forget"),
        ]:
            code, remark = end(client, key, action)
            assert code != 0
            assert told in (remark or "")


def test_a_broker_without_the_text_server_says_that_it_has_no_such_transactions(client: Client) -> None:
    answer = client.ask(RequestCode.LIST_BRANCHES, headers.ListBranchesHeader())
    assert answer.code != 0
    assert "MetaQ 1.x" in (answer.remark or "")
