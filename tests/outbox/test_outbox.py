"""The outbox: messages are sent if the transaction commits, in order, by one sender at a time, until they are parked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import json
import threading

import pytest

import metaq
from metaq import aio
from metaq.cli.commands import run as run_command
from metaq.errors import ConfigError, ConnectionFailed, InvalidMessage
from metaq.metaq1 import Message as Metaq1Message
from metaq.outbox import PARKED, SENT, WAITING, AsyncOutboxSender, Outbox, OutboxSender, Rules
from metaq.outbox.entry import METAQ1, ROCKETMQ, metaq1_message, rocketmq_message
from metaq.outbox.work import Work
from tests.outbox.databases import KINDS, connect, run, running, until


class Recorder:
    """An outlet that takes messages down, and fails those that it is told to."""

    def __init__(self, protocol=ROCKETMQ):
        self.protocol, self.bodies, self.fails, self.ids = protocol, [], {}, []

    def prepare(self, topic):
        pass

    def submit(self, entry):
        body = (rocketmq_message(entry)[0].body if self.protocol == ROCKETMQ else metaq1_message(entry).data).decode()
        if error := self.fails.get(body):
            raise error
        self.bodies.append(body)
        self.ids.append(entry.message_id)
        future = concurrent.futures.Future()
        future.set_result(None)
        return future

    def check(self, result):
        pass


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("database")) as url:
        yield url


@pytest.fixture
def database(server):
    """An outbox whose table is empty, and how one connects."""
    outbox = Outbox()
    with contextlib.closing(connect(server)) as connection:
        outbox.create_table(connection)
        outbox.create_table(connection)
        run(connection, "DELETE FROM metaq_outbox")
        connection.commit()
    return outbox, lambda: connect(server)


def add(database, *bodies, key=None):
    outbox, opened = database
    with contextlib.closing(opened()) as connection:
        ids = [outbox.add(connection, metaq.Message("orders", body.encode()), ordering_key=key) for body in bodies]
        connection.commit()
    return ids


def listed(database, **which):
    outbox, opened = database
    with contextlib.closing(opened()) as connection:
        return outbox.listed(connection, **which)


def test_what_is_rolled_back_is_not_sent(database):
    outbox, opened = database
    recorder = Recorder()
    with contextlib.closing(opened()) as connection:
        outbox.add(connection, metaq.Message("orders", b"never"))
        connection.rollback()
    add(database, "a", "b")
    sender = OutboxSender(outbox, opened, recorder)
    assert sender.run_once()
    assert not sender.run_once()
    assert recorder.bodies == ["a", "b"]
    assert listed(database) == []
    assert sender.sent == 2


def test_all_of_a_message_survives_the_table(database):
    outbox, opened = database
    message = metaq.Message("orders", b"\0\xff", "paid", ("k1", "k2"), 7, 3, False, {"region": "eu"})
    with contextlib.closing(opened()) as connection:
        message_id = outbox.add(connection, message, ordering_key="ключ")
        outbox.add(connection, Metaq1Message("orders", b"\0", "attr"))
        given = outbox.add(connection, Metaq1Message("orders", b"\0"))
        [first, second, third] = outbox.listed(connection)
    assert rocketmq_message(first) == (message, "ключ")
    assert first.message_id == message_id
    assert len(message_id) == 32
    assert metaq1_message(second).attribute == "attr"
    assert metaq1_message(third).attribute == f"metaq-outbox={given}"


def test_a_failed_message_waits_and_holds_back_its_lane_only(database):
    """Those behind it in its lane keep their place; it is tried again after a pause, and parked after its last try."""
    outbox, opened = database
    add(database, "a1", "a2", "a3", key="a")
    add(database, "b1", "b2", key="b")
    recorder = Recorder()
    recorder.fails["a2"] = ConnectionFailed("away")
    sender = OutboxSender(outbox, opened, recorder, Rules(pause=0.0, tries_max=2))
    assert sender.run_once()
    assert recorder.bodies == ["a1", "b1", "b2"]
    [failed, behind] = listed(database)
    assert (failed.state, failed.tries, failed.error) == (WAITING, 1, "ConnectionFailed: away")
    assert behind.tries == 0
    while sender.run_once():
        pass
    assert recorder.bodies == ["a1", "b1", "b2", "a3"]
    [parked] = listed(database, state=PARKED)
    assert parked.tries == 2
    recorder.fails.clear()
    with contextlib.closing(opened()) as connection:
        assert outbox.resend(connection, [parked.message_id, "none"]) == 1
        connection.commit()
    sender.run_once()
    assert recorder.bodies[-1] == "a2"
    assert recorder.ids[-1] == parked.message_id


def test_a_message_that_waits_for_its_next_try_is_not_due(database):
    outbox, opened = database
    add(database, "a1", "a2", key="a")
    recorder = Recorder()
    recorder.fails["a1"] = ConnectionFailed("away")
    sender = OutboxSender(outbox, opened, recorder, Rules(pause=3600.0, pause_max=3600.0))
    assert sender.run_once()
    assert not sender.run_once()
    assert recorder.bodies == []


def test_a_message_that_no_broker_takes_is_parked_at_once(database):
    outbox, opened = database
    add(database, "a")
    recorder = Recorder()
    recorder.fails["a"] = InvalidMessage("too large")
    OutboxSender(outbox, opened, recorder).run_once()
    assert [entry.state for entry in listed(database)] == [PARKED]


def test_several_senders_share_the_work_and_keep_the_order(database):
    """Each message is sent once, and each lane in order, with four senders at once."""
    outbox, opened = database
    for number in range(30):
        for key in "abc":
            add(database, f"{key}{number:03}", key=key)
        add(database, f"-{number:03}")
    recorder, rules = Recorder(), Rules(batch=7, poll=0.01)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(OutboxSender(outbox, opened, recorder, rules))
        until(lambda: not listed(database), "all is sent")
    assert sorted(recorder.bodies) == sorted(f"{key}{number:03}" for key in "abc-" for number in range(30))
    for key in "abc":
        mine = [body for body in recorder.bodies if body[0] == key]
        assert mine == sorted(mine)


def test_a_lane_that_is_leased_is_nobody_elses(database):
    """Also not the messages that are added behind, and those of another lane are free."""
    outbox, opened = database
    add(database, "a1", key="a")
    recorder, other = Recorder(), Recorder()
    inside = OutboxSender(outbox, opened, recorder)
    second = OutboxSender(outbox, opened, other)
    plain = recorder.submit

    def submit(entry):
        add(database, "a2", key="a")
        add(database, "b1", key="b")
        assert second.run_once()
        return plain(entry)

    recorder.submit = submit
    inside.run_once()
    assert (recorder.bodies, other.bodies) == (["a1"], ["b1"])
    second.run_once()
    assert other.bodies == ["b1", "a2"]


def test_sent_rows_are_kept_as_long_as_wanted(database):
    outbox, opened = database
    add(database, "a")
    sender = OutboxSender(outbox, opened, Recorder(), Rules(keep=3600.0))
    sender.run_once()
    assert [entry.state for entry in listed(database)] == [SENT]
    with contextlib.closing(opened()) as connection:
        run(connection, "UPDATE metaq_outbox SET ended_ms = ended_ms - 3700000")
        connection.commit()
    sender.run_once()
    assert listed(database) == []


def test_messages_of_a_generation_without_a_producer_are_left(database):
    outbox, opened = database
    with contextlib.closing(opened()) as connection:
        outbox.add(connection, Metaq1Message("orders", b"old"))
        connection.commit()
    assert not OutboxSender(outbox, opened, Recorder()).run_once()
    old = Recorder(METAQ1)
    assert OutboxSender(outbox, opened, [Recorder(), old]).run_once()
    assert old.bodies == ["old"]


def test_a_deadlock_behind_a_send_does_not_send_it_again(database, monkeypatch):
    """What the driver raises while outcomes are recorded is met by recording them once more."""
    outbox, opened = database
    add(database, "a", "b")
    recorder, settle, fails = Recorder(), Work.settle, [True]

    def settle_later(work, target, outcomes):
        if fails:
            run(target, "DELETE FROM metaq_outbox")
            raise OSError(fails.pop())
        settle(work, target, outcomes)

    monkeypatch.setattr(Work, "settle", settle_later)
    sender = OutboxSender(outbox, opened, recorder)
    sender.run_once()
    assert (recorder.bodies, sender.sent, listed(database)) == (["a", "b"], 2, [])


def test_a_database_that_is_away_is_waited_for(database, caplog):
    outbox, opened = database
    add(database, "a")
    away = threading.Event()

    def connect_later():
        if not away.is_set():
            away.set()
            raise OSError("away")
        return opened()

    recorder = Recorder()
    with OutboxSender(outbox, connect_later, recorder, Rules(poll=0.01)):
        until(lambda: recorder.bodies, "it is sent")
    assert "cannot be worked on: away" in caplog.text


def test_to_a_broker_under_its_own_id(database, metaq_broker):
    outbox, opened = database
    [message_id] = add(database, "real")
    with metaq.Producer(metaq_broker.namesrv) as producer:
        OutboxSender(outbox, opened, producer).run_once()
    with metaq.Reader(metaq_broker.namesrv, "orders", start="earliest", stop_at_end=True) as reader:
        assert message_id in [message.message_id for message in reader]


def test_commands(database, server, capsys, monkeypatch):
    ids = add(database, "a", "b", "c")
    monkeypatch.setenv("METAQ_DATABASE", server)
    assert run_command(["outbox", "list", "--json", "--count", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)["messages"]
    assert [one["message_id"] for one in shown] == ids[:2]
    assert run_command(["outbox", "drop", "--yes", ids[0], ids[1]]) == 0
    assert capsys.readouterr().out == "2 messages dropped\n"
    assert run_command(["outbox", "drop", "--yes", "--json", ids[0]]) == 3
    assert json.loads(capsys.readouterr().out) == {"done": 0, "asked": 1}
    with contextlib.closing(database[1]()) as connection:
        run(connection, "UPDATE metaq_outbox SET state = 'parked', tries = 9")
        connection.commit()
    assert run_command(["outbox", "resend", "--parked"]) == 0
    assert [(entry.state, entry.tries) for entry in listed(database)] == [(WAITING, 0)]
    assert run_command(["outbox", "resend"]) == 2
    assert run_command(["outbox", "list", "--state", "nonsense"]) == 2


def test_only_the_dropping_of_messages_that_exist_is_asked_about(database, server, capsys, monkeypatch):
    [message_id] = add(database, "a")
    monkeypatch.setenv("METAQ_DATABASE", server)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run_command(["outbox", "drop", "nobody"]) == 3
    assert capsys.readouterr() == ("0 messages dropped\n", "")
    assert run_command(["outbox", "drop", "--parked"]) == 0
    assert capsys.readouterr() == ("0 messages dropped\n", "")
    assert run_command(["outbox", "drop"]) == 2
    assert "[y/N]" not in capsys.readouterr().err
    assert run_command(["outbox", "drop", "nobody", message_id]) == 1
    assert "Drop 1 message, for good?" in capsys.readouterr().err
    assert [entry.message_id for entry in listed(database)] == [message_id]


def test_a_password_is_not_shown(capsys, monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("geheim\n")
    line = [
        "outbox",
        "list",
        "--database",
        "mysql://root@127.0.0.1:1/shop",
        "--password-file",
        str(tmp_path / "secret"),
    ]
    assert run_command(line) == 1
    said = capsys.readouterr().err
    assert "mysql://root@127.0.0.1:1/shop" in said
    assert "geheim" not in said


def test_autocommit_is_refused(tmp_path):
    import sqlite3

    alone = contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None))
    with alone as connection, pytest.raises(ConfigError, match="autocommit"):
        Outbox().add(connection, metaq.Message("orders", b"a"))


def test_a_path_is_no_url_of_a_database(capsys):
    """The command says which URLs it takes, SQLite's too."""
    assert run_command(["outbox", "list", "--database", "shop.db"]) == 2
    assert "need mysql://user@host:port/database, postgresql://..., or sqlite:///path" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"tries_max": 0}, {"timeout": 40.0}, {"poll": 0}, {"keep": -1}])
def test_impossible_rules(wrong):
    with pytest.raises(ConfigError):
        Rules(**wrong)


def test_a_commit_of_a_session_wakes_the_sender(tmp_path):
    """Long before it would look by itself."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import sessionmaker

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    outbox, recorder, session = Outbox(), Recorder(), sessionmaker(engine)
    with session() as opened:
        outbox.create_table(opened)
    with OutboxSender(outbox, session, recorder, Rules(poll=3600.0)):
        for body in ("a", "b"):
            with session() as opened:
                outbox.add(opened, metaq.Message("orders", body.encode()))
                opened.commit()
            until(lambda wanted=body: wanted in recorder.bodies, "it is sent")
    engine.dispose()


def test_with_asyncio(tmp_path, metaq_broker):
    """A session, a producer and a sender of asyncio, with a broker."""
    pytest.importorskip("aiosqlite")
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    async def main():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
        session, outbox = async_sessionmaker(engine), Outbox()
        async with session() as opened:
            await opened.run_sync(outbox.create_table)
        rules = Rules(poll=3600.0)
        async with (
            aio.Producer(metaq_broker.namesrv) as producer,
            AsyncOutboxSender(outbox, session, producer, rules) as sender,
        ):
            async with session() as opened:
                message_id = await outbox.add_async(opened, metaq.Message("orders-async", b"a"), ordering_key="k")
                await opened.commit()
            while not sender.sent:
                await asyncio.sleep(0.01)
        await engine.dispose()
        return message_id

    message_id = asyncio.run(main())
    with metaq.Reader(metaq_broker.namesrv, "orders-async", start="earliest", stop_at_end=True) as reader:
        assert [message.message_id for message in reader] == [message_id]
