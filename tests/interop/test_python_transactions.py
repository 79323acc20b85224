"""Transactions of our Python client on our broker, and in `make test-all` on RocketMQ's own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq import Message, Told, TransactionOutcome, TransactionProducer, aio
from metaq.admin import Admin
from tests.differential import foreign
from tests.differential.program import Event, ForeignProgram
from tests.interop.conftest import PEERS
from tests.interop.servers import Server
from tests.support import PATIENCE, environment, eventually, process, read_line, run_metaq

QUICK = ("transactionCheckInterval=500", "transactionTimeOut=500")
_names = itertools.count()


@pytest.fixture(scope="module", params=["metaq", pytest.param("rocketmq", marks=pytest.mark.all)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that asks after half a second."""
    running: Server = PEERS[request.param](tmp_path_factory.mktemp(request.param), options=QUICK)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def topic(server: Server) -> str:
    """One that exists."""
    name = f"tx_{os.getpid()}_{next(_names)}"
    with Admin(server.namesrv) as admin:
        admin.create_topic(name, queues=4)
        eventually(lambda: admin.describe_topic(name).queues)
    return name


def delivered(server: Server, topic: str) -> list[metaq.StoredMessage]:
    with metaq.Reader(server.namesrv, topic, stop_at_end=True) as reader:
        return list(reader)


def wait_for(server: Server, topic: str, *bodies: bytes) -> list[metaq.StoredMessage]:
    """All messages of the topic, once these are among them."""

    def found() -> list[metaq.StoredMessage] | None:
        messages = delivered(server, topic)
        return messages if {message.body for message in messages} >= set(bodies) else None

    return eventually(found, what=f"{bodies} in {topic}")


def test_committed_messages_are_delivered_and_others_never(server: Server, topic: str) -> None:
    """Unseen before the end; then as it was sent, once, in the queue of its key."""
    with TransactionProducer(server.namesrv, group=topic, check=lambda _: None, timeout=PATIENCE) as producer:
        with producer.transaction(topic, b"yes" * 2000, tag="t", keys=["k"], flag=7, properties={"a": "5"}) as tx:
            assert delivered(server, topic) == []
        with contextlib.suppress(KeyError), producer.transaction(topic, b"no"):
            raise KeyError
        plain = producer.send(topic, b"plain", ordering_key="key")
        with producer.transaction(topic, b"keyed", ordering_key="key"):
            pass
        result = producer.send_in_transaction(Message(topic, b"listener"), lambda tx: True)
        assert (result.status, result.told) == (metaq.SendStatus.SEND_OK, Told.HANDED_OVER)
        messages = wait_for(server, topic, b"yes" * 2000, b"plain", b"keyed", b"listener")
    assert len(messages) == 4
    by_body = {message.body: message for message in messages}
    first = by_body[b"yes" * 2000]
    assert (first.message_id, first.tag, first.keys, first.flag) == (tx.id, "t", ("k",), 7)
    assert first.properties["a"] == "5"
    assert by_body[b"keyed"].queue == plain.queue == by_body[b"plain"].queue


def test_confirmed_ends_are_answered(server: Server, topic: str) -> None:
    """Both brokers answer a commit and a rollback that asks for it; the message is there when the block is left."""
    with TransactionProducer(
        server.namesrv, group=topic, check=lambda _: None, timeout=PATIENCE, confirm=True
    ) as producer:
        with producer.transaction(topic, b"x") as tx:
            pass
        assert tx.result is not None
        assert tx.result.told is Told.CONFIRMED
        with producer.transaction(topic, b"y") as tx:
            assert tx.rollback().told is Told.CONFIRMED
        assert [message.body for message in wait_for(server, topic, b"x")] == [b"x"]


def test_end_of_something_else_is_refused(server: Server, topic: str) -> None:
    """Another group's transaction cannot be ended: the broker says so, and the message is not delivered."""
    with (
        TransactionProducer(server.namesrv, group=topic, check=lambda _: True, timeout=PATIENCE) as mine,
        TransactionProducer(
            server.namesrv, group=f"{topic}_2", check=lambda _: None, timeout=PATIENCE, confirm=True
        ) as other,
    ):
        own = mine.transaction(topic, b"x", check_after=PATIENCE).begin()
        forged = other.transaction(topic, b"y", check_after=PATIENCE).begin()
        forged._begun = own._begun
        assert forged.commit().told is Told.REFUSED
        assert delivered(server, topic) == []
        own.commit()
        assert [message.body for message in wait_for(server, topic, b"x")] == [b"x"]


def test_check_settles_what_was_left_unknown(server: Server, topic: str) -> None:
    """By what it says: deliver, forget, ask again. It gets the message as it will be delivered."""
    asked: dict[bytes, list[metaq.StoredMessage]] = {}

    def check(message: metaq.StoredMessage) -> bool | None:
        asked.setdefault(message.body, []).append(message)
        if message.body == b"no":
            return False
        return True if message.body == b"yes" or len(asked[message.body]) > 1 else None

    with TransactionProducer(server.namesrv, group=topic, check=check, timeout=PATIENCE) as producer:
        ids = {}
        for body in (b"yes", b"no", b"later"):
            with producer.transaction(topic, body, tag="t", keys=["k"]) as tx:
                tx.unknown()
            ids[body] = tx.id
        messages = wait_for(server, topic, b"yes", b"later")
        eventually(lambda: b"no" in asked, what="the other is asked about")
    assert {message.body: message.message_id for message in messages} == {b"yes": ids[b"yes"], b"later": ids[b"later"]}
    message = asked[b"no"][0]
    assert (message.topic, message.message_id, message.tag, message.keys) == (topic, ids[b"no"], "t", ("k",))
    assert len(asked[b"later"]) == 2


def test_transaction_that_outlasts_its_check_is_delivered_once(server: Server, topic: str) -> None:
    """Asked while it goes on: not decided. The commit then names the place to which the check has moved the message."""
    asked: list[object] = []
    with TransactionProducer(server.namesrv, group=topic, check=asked.append, timeout=PATIENCE) as producer:
        with producer.transaction(topic, b"slow") as tx:
            before = tx._begun.half
            eventually(lambda: tx._begun.half != before, what="a check comes")
        with producer.transaction(topic, b"asked") as mark:
            mark.unknown()
        wait_for(server, topic, b"slow")
        # A round of checks that asks about this one has passed the other: it is not open any more.
        eventually(lambda: len(asked) >= 2, what="the next rounds")
        assert [message.body for message in delivered(server, topic)] == [b"slow"]
    assert {message.body for message in asked} == {b"asked"}


def test_asyncio_check_settles(server: Server, topic: str) -> None:
    async def main() -> None:
        async def check(message: metaq.StoredMessage) -> bool:
            await asyncio.sleep(0)
            return message.body == b"yes"

        async with aio.TransactionProducer(server.namesrv, group=topic, check=check, timeout=PATIENCE) as producer:
            for body in (b"yes", b"no"):
                async with producer.transaction(topic, body) as tx:
                    tx.unknown()
            async with producer.transaction(topic, b"plain"):
                pass
            messages = await asyncio.to_thread(wait_for, server, topic, b"yes", b"plain")
            assert len(messages) == 2

    asyncio.run(main())


MEMBER = """
import sqlite3, sys, time
import metaq

namesrv, group, path, role = sys.argv[1:]
database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)

def was_stored(message):
    found = database.execute("SELECT 1 FROM done WHERE id = ?", (message.message_id,)).fetchone()
    print("asked", message.body.decode(), flush=True)
    return found is not None

with metaq.TransactionProducer(namesrv, group=group, check=was_stored) as producer:
    if role == "works":
        for body in (b"committed", b"not committed"):
            tx = producer.transaction(group, body).begin()
            if body == b"committed":
                database.execute("INSERT INTO done VALUES (?)", (tx.id,))
        print("now", flush=True)
    else:
        print("ready", flush=True)
    sys.stdin.read()
"""


def test_another_process_of_the_group_answers_for_one_that_was_killed(
    server: Server, topic: str, tmp_path: Path
) -> None:
    """kill -9 between the local commit and its word to the broker: the message appears, once; that of a transaction that
    was not committed never does. The other process has never sent anything."""
    path = str(tmp_path / "local.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE done (id TEXT PRIMARY KEY)")
    command = [sys.executable, "-c", MEMBER, server.namesrv, topic, path]
    options = {"stdin": subprocess.PIPE, "env": environment()}
    with process(*command, "works", **options) as worker:
        read_line(worker, "now")
        with Admin(server.namesrv) as admin:
            [instance] = admin.group_producers(topic)
            assert instance.language == "PYTHON"
        worker.kill()
        worker.wait(PATIENCE)
    with process(*command, "waits", **options) as other:
        read_line(other, "ready")
        shown = eventually(
            lambda: (
                done if not (done := run_metaq("group", "producers", topic, "-n", server.namesrv)).returncode else None
            ),
            what="the instance",
        )
        assert "PYTHON" in shown.stdout
        assert [message.body for message in wait_for(server, topic, b"committed")] == [b"committed"]
        read_line(other, "asked not committed")
    assert [message.body for message in delivered(server, topic)] == [b"committed"]


def test_transactions_in_a_namespace(server: Server, topic: str) -> None:
    """Topic and group are wrapped for the brokers, in half message, end, heartbeat and answer; the check sees plain names."""
    with Admin(server.namesrv) as admin:
        admin.create_topic(f"ns%{topic}", queues=1)
        asked: list[str] = []

        def check(message: metaq.StoredMessage) -> bool:
            asked.append(message.topic)
            return True

        with TransactionProducer(
            server.namesrv, group=topic, check=check, timeout=PATIENCE, namespace="ns", confirm=True
        ) as producer:
            with producer.transaction(topic, b"direct") as tx:
                pass
            assert tx.result is not None
            assert tx.result.told is Told.CONFIRMED
            with producer.transaction(topic, b"asked") as tx:
                tx.unknown()
            assert eventually(lambda: admin.group_producers(f"ns%{topic}"))
            wait_for(server, f"ns%{topic}", b"direct", b"asked")
    assert asked == [topic]
    assert delivered(server, topic) == []


def test_python_and_java_answer_for_each_other(server: Server, topic: str, tmp_path: Path) -> None:
    """One group, two languages: whoever lives is asked about what the other began."""
    asked_java: list[str] = []

    def answer(event: Event) -> str:
        asked_java.append(event["body"])
        return "COMMIT_MESSAGE"

    def java(folder: str, execute: str) -> ForeignProgram:
        (tmp_path / folder).mkdir()
        program = foreign.java_4(tmp_path / folder)
        program.when("p", "execute", lambda event: execute)
        program.when("p", "check", answer)
        program.call(
            "producer", name="p", namesrv=server.namesrv, group=topic, transactions=True,
            options={"sendMsgTimeout": int(PATIENCE * 1000)},
        )  # fmt: skip
        program.call("queues", name="p", topic=topic)  # By that it meets the broker.
        return program

    dying = java("dying", "UNKNOW")
    try:
        sent = dying.call("send_in_transaction", name="p", topic=topic, body="from Java", keys="k")
    finally:
        dying.kill()
    asked: list[metaq.StoredMessage] = []

    def check(message: metaq.StoredMessage) -> bool:
        asked.append(message)
        return True

    with TransactionProducer(server.namesrv, group=topic, check=check, timeout=PATIENCE) as producer:
        [message] = wait_for(server, topic, b"from Java")
        assert (asked[-1].message_id, asked[-1].keys) == (message.message_id, ("k",))
        assert message.message_id in str(sent)
        orphan = producer.transaction(topic, b"from Python").begin()
    heir = java("heir", "UNKNOW")
    try:
        messages = wait_for(server, topic, b"from Java", b"from Python")
        assert {message.body: message.message_id for message in messages}[b"from Python"] == orphan.id
        assert len(messages) == 2
        assert set(asked_java) == {"from Python"}
    finally:
        heir.kill()


def test_too_large_a_message_is_refused_before_the_block(server: Server, topic: str) -> None:
    """By the broker, whatever the client allows: nothing is begun, and the producer goes on."""
    with TransactionProducer(
        server.namesrv, group=topic, check=lambda _: None, timeout=PATIENCE, max_message_bytes=8 << 20
    ) as producer:
        refused = pytest.raises(metaq.BrokerError, match="illegal")
        with refused, producer.transaction(topic, os.urandom(5 << 20)):
            raise AssertionError("the block was entered")
        with producer.transaction(topic, b"fits"):
            pass
        assert [message.body for message in wait_for(server, topic, b"fits")] == [b"fits"]


def test_end_survives_a_cut_connection(server: Server, topic: str) -> None:
    """The connection ends between the half message and its end: a new one is made."""
    with TransactionProducer(server.namesrv, group=topic, check=lambda _: None, timeout=PATIENCE) as producer:
        with producer.transaction(topic, b"x", check_after=PATIENCE) as tx:
            transport = producer._core.transport
            session = transport._sessions[producer.master_address(tx.receipt.queue.broker)]
            producer._core.thread.post(session.peer.close, "the test says so")
            eventually(lambda: session.lost, what="it is closed")
        assert tx.result is not None
        assert (tx.result.told, tx.outcome) == (Told.HANDED_OVER, TransactionOutcome.COMMIT)
        wait_for(server, topic, b"x")
