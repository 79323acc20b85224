"""Transactions at the MetaQ 1.x server, line by line: the recorded transcripts, XA's codes, and what answers wait for."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.servers.metaq1.server import Metaq1Server
from metaq.wire.metaq1.commands import Line
from tests.broker.staged.support import bodies
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.servers.support import SlowDisk
from tests.support import eventually

LOCAL = "TX:10.0.0.5-1373971200000-1:1"
SESSION = "10.0.0.5-1373971200000-1"
XID = "XID:7:6731:6231:uqA"


@pytest.fixture
def opened(tmp_path: pathlib.Path, clock: FakeClock) -> Iterator[tuple[Broker, Metaq1Server]]:
    with open_metaq1_server(tmp_path, clock, settings({"test": 3}, flush_tx_log_at_commit=0)) as one:
        yield one


@pytest.fixture
def text(opened: tuple[Broker, Metaq1Server]) -> TextClient:
    return TextClient(opened[1])


def step(client: TextClient, key: str, word: str, *more: object) -> tuple[int, bytes]:
    return client.ask(" ".join(["transaction", key, SESSION, word, *map(str, more), "-2147483645"]).encode() + b"\r\n")


def put(client: TextClient, key: str, body: bytes, partition: int = 0) -> tuple[int, bytes]:
    return client.ask(f"put test {partition} {len(body)} 0 -1 {key} -2147483644\r\n".encode() + body)


def frames(client: TextClient, partition: int = 0) -> bytes | None:
    """What a get finds; None: nothing."""
    code, body = client.ask(f"get test g {partition} 0 1048576 9\r\n".encode())
    return body if code == 0 else None


def test_a_local_transaction_goes_as_it_was_recorded(opened: tuple[Broker, Metaq1Server], text: TextClient) -> None:
    """Metaq-1x.md 1.10, but for the id, which is positive here; nothing can be got before the commit."""
    assert step(text, LOCAL, "BEGIN", 20) == (200, b"")
    code, told = text.ask(f"put test 0 2 0 1532276279 {LOCAL} -2147483644\r\nt1".encode())
    number, place, position = told.split()
    assert (code, place, position) == (200, b"0", b"-1")
    assert put(text, LOCAL, b"t2", 1)[0] == 200
    assert frames(text) is None
    assert step(text, LOCAL, "COMMIT_ONE_PHASE") == (200, b"")
    assert frames(text) == (2).to_bytes(4, "big") + (1532276279).to_bytes(4, "big") + int(number).to_bytes(8, "big") + (
        bytes(4) + b"t1"
    )
    assert frames(text, 1) is not None
    assert step(text, LOCAL, "COMMIT_ONE_PHASE") == (500, f"Local transaction '{LOCAL}' has not been started.".encode())


def test_an_xa_branch_goes_as_it_was_recorded(text: TextClient) -> None:
    assert step(text, XID, "BEGIN", "uqA") == (200, b"")
    assert put(text, XID, b"x1")[0] == 200
    text.feed(f"transaction {XID} {SESSION} END uqA 7\r\nversion 8\r\n".encode())
    assert [answer.opaque for answer in text.answers()] == [8], "nothing is said to END"
    assert step(text, XID, "PREPARE", "uqA") == (200, b"0")
    assert step(text, "null", "RECOVER", "uqA") == (200, XID.encode())
    assert step(text, "null", "RECOVER", "other") == (200, b"")
    assert step(text, XID, "COMMIT_TWO_PHASE", "uqA") == (200, b"")
    assert frames(text) is not None
    assert step(text, "null", "RECOVER") == (200, b"")


def test_all_keys_are_recovered_with_line_ends_between(text: TextClient) -> None:
    keys = [f"XID:{number}:6731::uqA" for number in (-1, 2147483647)]
    for key in keys:
        step(text, key, "BEGIN")
        put(text, key, b"x")
        step(text, key, "PREPARE")
    assert step(text, "null", "RECOVER", "uqA") == (200, "\r\n".join(keys).encode())


def test_failures_have_the_texts_of_the_original(text: TextClient) -> None:
    """As the original 1.4.6.2 said them."""
    unknown = f"XAException:code=-4,msg=XA transaction '{XID}' has not been started.".encode()
    for word in ("PREPARE", "COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK"):
        assert step(text, XID, word) == (500, unknown)
    assert step(text, XID, "FORGET") == (200, b"")
    assert step(text, LOCAL, "FORGET") == (500, f"XAException:code=-4,msg={LOCAL} is not a valid xid".encode())
    assert step(text, "null", "FORGET") == (500, b"XAException:code=-4,msg=null is not a valid xid")
    assert step(text, LOCAL, "PREPARE") == (
        500, b"XAException:code=-3,msg=Prepare not implemented on Local Transactions.",
    )  # fmt: skip
    assert step(text, LOCAL, "ROLLBACK") == (500, f"Local transaction '{LOCAL}' has not been started.".encode())
    assert put(text, LOCAL, b"a") == (500, f"Local transaction '{LOCAL}' has not been started.".encode())
    assert put(text, XID, b"a") == (500, f"XA transaction '{XID}' has not been started.".encode())
    step(text, LOCAL, "BEGIN")
    assert put(text, LOCAL, b"a", -1) == (500, b"Invalid partition for transaction command:-1")
    assert put(text, LOCAL, b"a", 9) == (500, b"wrong partition 9")
    step(text, XID, "BEGIN")
    assert step(text, XID, "COMMIT_TWO_PHASE") == (
        500, b"XAException:code=-6,msg=Cannot do 2 phase commit if the transaction has not been prepared.",
    )  # fmt: skip
    put(text, XID, b"a")
    step(text, XID, "PREPARE")
    assert step(text, XID, "PREPARE") == (500, b"XAException:code=-6,msg=Cannot call prepare now.")
    assert put(text, XID, b"late")[0] == 500


def test_a_read_only_branch_says_so(text: TextClient) -> None:
    step(text, XID, "BEGIN")
    assert step(text, XID, "PREPARE") == (200, b"3")


def test_a_step_and_the_puts_behind_it_come_in_one_piece_and_are_taken_in_order(text: TextClient) -> None:
    """The original loses such puts: BEGIN is still under way in another thread."""
    lines = [
        f"transaction {LOCAL} {SESSION} BEGIN 1\r\n", f"put test 0 1 0 {LOCAL} 2\r\na", f"put test 0 1 0 {LOCAL} 3\r\nb",
        f"transaction {LOCAL} {SESSION} COMMIT_ONE_PHASE 4\r\n", "get test g 0 0 1024 5\r\n",
    ]  # fmt: skip
    text.feed("".join(lines).encode())
    answers: list[Line] = text.answers()
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5]
    assert len(answers[-1].body) == 2 * 21


def test_the_end_of_a_connection_rolls_its_transactions_back(
    opened: tuple[Broker, Metaq1Server], text: TextClient
) -> None:
    broker, protocol_server = opened
    other = TextClient(protocol_server)
    for key in (LOCAL, XID):
        step(text, key, "BEGIN")
        put(text, key, b"a")
    text.leave()
    assert step(other, LOCAL, "COMMIT_ONE_PHASE")[0] == 500
    assert step(other, XID, "COMMIT_ONE_PHASE") == (200, b"")
    assert bodies(broker, "test", 0) == [b"a"]


def test_statistics_count_transactions(text: TextClient) -> None:
    for key, word in ((LOCAL, "COMMIT_ONE_PHASE"), (XID, "ROLLBACK")):
        step(text, key, "BEGIN")
        put(text, key, b"a")
        step(text, key, word)
    _, body = text.ask(b"stats\r\n")
    for line in (b"tx_begin 1", b"tx_xa_begin 1", b"tx_commit 1", b"tx_rollback 1"):
        assert line + b"\r\n" in body


def test_a_key_of_10_kib_is_refused_and_the_connection_lives(text: TextClient) -> None:
    for key in (f"XID:7:{'61' * 5120}::q", f"XID:7:::{'q' * 10_240}", f"TX:{'s' * 10_240}:1"):
        code, body = step(text, key, "BEGIN")
        assert code == 500
        assert body.startswith(b"XAException:code=-5,msg=the key of a transaction has 10")
        assert len(body) < 300
        assert put(text, key, b"a")[0] == 500
    assert step(text, LOCAL, "BEGIN") == (200, b"")


@pytest.mark.parametrize(
    "line",
    [
        "transaction TX:a:b:1 s BEGIN 1", "transaction TX:s:2147483648 s BEGIN 1", "transaction XID:7:6g:62:q s BEGIN 1",
        "transaction XID:7:616:62:q s BEGIN 1", "transaction XID:7:61:62 s BEGIN 1", "transaction nonsense s BEGIN 1",
        f"transaction {LOCAL} s EXPLODE 1", f"transaction {LOCAL} s BEGIN", f"transaction {LOCAL} s BEGIN 1 2 3 4",
        f"transaction {LOCAL} s BEGIN 99999999999 1", "put test 0 1 0 7 TX:s 1",
    ],
)  # fmt: skip
def test_a_malformed_line_ends_its_connection_and_nothing_else(
    opened: tuple[Broker, Metaq1Server], text: TextClient, line: str
) -> None:
    other = TextClient(opened[1])
    for one in (text, other):
        step(one, LOCAL, "BEGIN")
        put(one, LOCAL, b"a")
    text.feed(line.encode() + b"\r\nx")
    assert text.peer.closed
    assert text.answers() == []
    assert step(other, LOCAL, "COMMIT_ONE_PHASE") == (200, b"")


@pytest.mark.parametrize("local", [True, False])
def test_with_group_commit_a_commit_waits_for_its_messages_whatever_flush_tx_log_at_commit_says(
    tmp_path: pathlib.Path, clock: FakeClock, *, local: bool
) -> None:
    disk = SlowDisk()
    options = settings({"test": 3}, flush_tx_log_at_commit=0, unflush_threshold=0)
    with open_metaq1_server(tmp_path, clock, options, disk=disk) as (_, protocol_server):
        client, key = TextClient(protocol_server), LOCAL if local else XID
        step(client, key, "BEGIN")
        put(client, key, b"a")
        if not local:
            assert step(client, key, "PREPARE") == (200, b"0")
        disk.may_sync.clear()
        try:
            word = "COMMIT_ONE_PHASE" if local else "COMMIT_TWO_PHASE"
            client.feed(f"transaction {key} {SESSION} {word} 3\r\n".encode())
            assert client.answers() == []
        finally:
            disk.may_sync.set()
        eventually(lambda: [answer.opaque for answer in client.answers()] == [3], what="the disk has it")


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_commit_prepare_and_rollback_are_answered_when_flush_tx_log_at_commit_says(
    tmp_path: pathlib.Path, clock: FakeClock, mode: int
) -> None:
    """Puts wait for nothing here; with 1 the steps that end or prepare something do, and so does what is asked behind them."""
    disk = SlowDisk()
    with open_metaq1_server(tmp_path, clock, settings({"test": 3}, flush_tx_log_at_commit=mode), disk=disk) as (
        _,
        protocol_server,
    ):
        client = TextClient(protocol_server)
        try:
            disk.may_sync.clear()
            lines = [
                f"transaction {XID} {SESSION} BEGIN 1\r\n", f"put test 0 1 0 {XID} 2\r\na",
                f"transaction {XID} {SESSION} PREPARE 3\r\n", "version 4\r\n",
            ]  # fmt: skip
            client.feed("".join(lines).encode())
            if mode == 1:
                assert client.answers() == []
            else:
                assert [answer.opaque for answer in client.answers()] == [1, 2, 3, 4]
        finally:
            disk.may_sync.set()
        if mode == 1:
            told: list[Line] = []
            eventually(lambda: told.extend(client.answers()) or len(told) == 4, what="the disk has it")
            assert [answer.opaque for answer in told] == [1, 2, 3, 4]
