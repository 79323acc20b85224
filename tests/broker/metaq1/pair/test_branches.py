"""XA branches of a pair: what is prepared at the master is prepared at the slave, which lists and ends it when it takes over."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model.metaq1.pair import BranchCopy, BranchStep, Heard, SyncMessage
from metaq.wire.metaq1.branches import decode_copy, encode_copy
from metaq.wire.metaq1.frame import checksum, frames
from tests.broker.metaq1.pair.support import Slave, frames_of, open_slave
from tests.servers.metaq1.support import open_metaq1_server

KEY = b"XID:7:6731:6231:uqA"
XID = KEY.decode()


def ask(master, wire, line: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """One command, until it is answered."""
    master.client.feed(line + b"\r\n" + body)
    for _ in range(50):
        if found := master.answers():
            (answer,) = found
            return answer
        wire.let_through()
        master.turn()
        master.client.go_on()
        master.tick(0.01)
    raise AssertionError("it is never answered")


def step(master, wire, word: str) -> tuple[int, bytes]:
    return ask(master, wire, b"transaction %b s %b uqA 1" % (KEY, word.encode()))


def begun(master, wire) -> None:
    assert step(master, wire, "BEGIN")[0] == 200
    for partition, body in ((0, b"t1"), (1, b"t2"), (0, b"t3")):
        answer = ask(master, wire, b"put test %d 2 0 %b 5" % (partition, KEY), body)
        assert answer[0] == 200


def prepared(slave: Slave) -> list[str]:
    transactions = slave.broker.metaq1.transactions
    return [str(key) for key in transactions.recover(None)]


def test_what_is_prepared_is_prepared_at_the_slave_and_ends_there_with_the_commit(master, wire, slave) -> None:
    begun(master, wire)
    assert prepared(slave) == []
    assert step(master, wire, "PREPARE") == (200, b"0")
    assert prepared(slave) == [XID]
    assert frames_of(slave.client()) == b""
    assert step(master, wire, "COMMIT_TWO_PHASE") == (200, b"")
    master.settle(wire)
    assert prepared(slave) == []
    for partition in (0, 1):
        assert frames_of(master.client, partition) == frames_of(slave.client(), partition) != b""


@pytest.mark.parametrize("word", ["PREPARE", "BEGIN"])
def test_a_rollback_ends_the_copy(master, wire, slave, word) -> None:
    begun(master, wire)
    step(master, wire, word)
    assert step(master, wire, "ROLLBACK")[0] == 200
    master.settle(wire)
    assert prepared(slave) == []
    assert frames_of(slave.client()) == b""


def test_the_copy_ends_only_when_the_slave_has_the_messages(master, wire, slave) -> None:
    """A crash before that leaves the branch to the transaction manager: nothing is missing then."""
    begun(master, wire)
    step(master, wire, "PREPARE")
    master.client.feed(b"transaction %b s COMMIT_TWO_PHASE uqA 1\r\n" % KEY)
    master.tick()
    steps = [what.step for what in wire.sent if isinstance(what, BranchCopy)]
    assert BranchStep.END not in steps
    assert prepared(slave) == [XID]
    master.settle(wire)
    steps = [what.step for what in wire.sent if isinstance(what, BranchCopy)]
    assert steps[-1] is BranchStep.END


def test_a_branch_whose_messages_the_slave_lacks_is_not_prepared(master, wire, slave) -> None:
    begun(master, wire)
    master.samsa.detach("gone")
    again = master.connect(slave)
    master.settle(again)
    code, text = step(master, again, "PREPARE")
    assert code == 500
    assert text.startswith(b"XAException:code=104,msg=")
    master.settle(again)
    assert prepared(slave) == []
    assert step(master, again, "RECOVER") == (200, b"")


def test_a_slave_that_does_not_answer_has_the_branch_rolled_back(master, wire) -> None:
    begun(master, wire)
    master.client.feed(b"transaction %b s PREPARE uqA 1\r\n" % KEY)
    master.tick(2.5)
    master.client.go_on()
    ((code, text),) = master.answers()
    assert code == 500
    assert text.startswith(b"XAException:code=104,msg=")


def test_with_a_slave_that_keeps_none_a_branch_is_prepared_at_the_master(master, slave, caplog) -> None:
    wire = master.connect(slave)
    wire.instead = lambda what: Heard(500, b"The server do not accept topic") if isinstance(what, BranchCopy) else None
    master.settle(wire)
    begun(master, wire)
    assert step(master, wire, "PREPARE") == (200, b"0")
    assert prepared(slave) == []
    assert "keeps no XA branches" in caplog.text
    assert step(master, wire, "COMMIT_TWO_PHASE") == (200, b"")


def test_a_copy_that_could_not_be_ended_is_ended_when_the_slave_is_back(master, wire, slave) -> None:
    begun(master, wire)
    step(master, wire, "PREPARE")
    wire.instead = lambda what: Heard(503, b"busy") if isinstance(what, BranchCopy) else None
    assert step(master, wire, "COMMIT_TWO_PHASE") == (200, b"")
    master.settle(wire)
    assert prepared(slave) == [XID]
    master.samsa.detach("gone")
    again = master.connect(slave)
    master.settle(again)
    assert prepared(slave) == []


@pytest.mark.parametrize("word", ["COMMIT_TWO_PHASE", "ROLLBACK"])
def test_the_slave_that_takes_over_lists_and_ends_the_branch(tmp_path, master, clock, word) -> None:
    with open_slave(tmp_path / "slave", clock) as slave:
        wire = master.connect(slave)
        master.settle(wire)
        begun(master, wire)
        step(master, wire, "PREPARE")
        ids = [what.message.message_id for what in wire.sent if isinstance(what, BranchCopy) and what.message]
        master.samsa.detach("gone")
    with open_metaq1_server(tmp_path / "slave", clock) as (broker, server):
        leading = Slave(broker, server)
        asked = functools.partial(leading.ask, leading.client())
        assert asked(b"transaction null s RECOVER uqA 1\r\n").body == KEY
        assert asked(b"transaction %b s %b uqA 2\r\n" % (KEY, word.encode())).code == 200
        again = asked(b"transaction %b s %b uqA 3\r\n" % (KEY, word.encode()))
        assert again.code == 500
        assert again.body.startswith(b"XAException:code=-4")
        found = [frames_of(leading.client(), partition) for partition in (0, 1)]
        bodies = [[(one.message_id, one.body) for one in frames(data)] for data in found]
        committed = [[(ids[0], b"t1"), (ids[2], b"t3")], [(ids[1], b"t2")]]
        assert bodies == (committed if word == "COMMIT_TWO_PHASE" else [[], []])


# ------------------------------------------------------------------ wire

GOLDEN = [
    (b"ask\r\n", BranchCopy(BranchStep.ASK)),
    (b"prepare XID:7:6731:6231:uqA\r\n", BranchCopy(BranchStep.PREPARE, XID)),
    (b"end XID:7:6731:6231:uqA\r\n", BranchCopy(BranchStep.END, XID)),
    (
        b"put XID:7:6731:6231:uqA test 0 1 -7\r\nhello",
        BranchCopy(BranchStep.PUT, XID, SyncMessage("test", 0, 1, -7, b"hello", 907060870)),
    ),
]


@pytest.mark.parametrize(("data", "copy"), GOLDEN)
def test_steps_are_written_and_read_as_they_stand_here(data, copy) -> None:
    assert encode_copy(copy) == data
    assert decode_copy(data) == copy


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@given(
    WORDS,
    WORDS,
    st.integers(0, 99),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=50),
)
def test_steps_come_back_as_they_were(key, topic, partition, flag, message_id, body) -> None:
    message = SyncMessage(topic, partition, flag, message_id, body, checksum(body))
    for copy in (BranchCopy(BranchStep.PUT, key, message), BranchCopy(BranchStep.END, key)):
        assert decode_copy(encode_copy(copy)) == copy


@pytest.mark.parametrize(
    "data", [b"", b"ask", b"ask x\r\n", b"prepare\r\n", b"put k t 0 0\r\n", b"put k t 0 0 x\r\n", b"stay\r\n"]
)
def test_what_is_no_step_is_refused(data) -> None:
    with pytest.raises(BadRequest):
        decode_copy(data)


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read(data) -> None:
    try:
        decode_copy(data)
    except BadRequest:
        return
