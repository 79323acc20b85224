"""Idempotence: a message has one effect, whatever comes again, fails, or comes twice at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace

import pytest

import metaq
from metaq.errors import ConfigError
from metaq.idempotence import Idempotence, message_key
from metaq.metaq1 import Message as Metaq1Message
from tests.outbox.databases import KINDS, connect, run, running
from tests.support import PATIENCE


def message(key):
    return SimpleNamespace(message_id=key)


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("database")) as url:
        yield url


@pytest.fixture
def opened(server):
    with contextlib.closing(connect(server)) as connection:
        Idempotence("g").create_table(connection)
        run(connection, "CREATE TABLE IF NOT EXISTS effects (name VARCHAR(50))")
        run(connection, "DELETE FROM effects")
        run(connection, "DELETE FROM metaq_seen")
        connection.commit()
    return lambda: connect(server)


def effects(opened):
    with contextlib.closing(opened()) as connection:
        return sorted(name for (name,) in run(connection, "SELECT name FROM effects"))


def test_a_redelivery_is_skipped_and_each_group_has_its_own(opened):
    for group in ("billing", "mailing"):
        seen = Idempotence(group)

        @seen.handler(opened)
        def handle(received, connection, group=group):
            run(connection, "INSERT INTO effects (name) VALUES (?)", f"{group} {received.message_id}")
            return "done"

        assert handle(message("1")) == "done"
        assert handle(message("1")) is None
        assert handle(message("2")) == "done"
    assert effects(opened) == ["billing 1", "billing 2", "mailing 1", "mailing 2"]


@pytest.mark.parametrize("error", [ValueError("no"), metaq.Later(), KeyboardInterrupt()])
def test_what_raises_is_rolled_back_and_comes_again(opened, error):
    seen, fails = Idempotence("g"), [True]

    @seen.handler(opened)
    def handle(received, connection):
        run(connection, "INSERT INTO effects (name) VALUES (?)", received.message_id)
        if fails.pop() if fails else False:
            raise error

    with pytest.raises(type(error)):
        handle(message("1"))
    assert effects(opened) == []
    handle(message("1"))
    handle(message("1"))
    assert effects(opened) == ["1"]


@pytest.mark.parametrize("commits", [True, False])
def test_two_at_once_have_one_effect(opened, commits):
    """The second waits for the end of the first: it skips if that commits, and handles if that is rolled back."""
    seen, second_done, results = Idempotence("g"), threading.Event(), []

    def second():
        with contextlib.closing(opened()) as connection, seen.once(connection, message("1")) as first:
            results.append(first)
            if first:
                run(connection, "INSERT INTO effects (name) VALUES (?)", "second")
        second_done.set()

    with contextlib.closing(opened()) as connection:
        assert seen.first(connection, message("1"))
        run(connection, "INSERT INTO effects (name) VALUES (?)", "first")
        thread = threading.Thread(target=second)
        thread.start()
        assert not second_done.wait(0.3), "it waits"
        if commits:
            connection.commit()
        else:
            connection.rollback()
        thread.join(PATIENCE)
    assert results == [not commits]
    assert effects(opened) == (["first"] if commits else ["second"])


def test_keys_of_any_kind(opened):
    """Keys that differ in case, in accents or far behind are two; blanks at the end count."""
    seen = Idempotence("g", key=lambda received: received.message_id)
    keys = ["a", "A", "á", "a ", "x" * 300, "x" * 301, "\ud800"]
    with contextlib.closing(opened()) as connection:
        assert [seen.first(connection, message(key)) for key in keys] == [True] * len(keys)
        assert [seen.first(connection, message(key)) for key in keys] == [False] * len(keys)
        with pytest.raises(ValueError, match="empty"):
            seen.first(connection, message(""))


def test_old_keys_are_forgotten_in_batches(opened):
    seen = Idempotence("g")
    with contextlib.closing(opened()) as connection:
        for number in range(25):
            seen.first(connection, message(str(number)))
        Idempotence("other").first(connection, message("1"))
        run(connection, "UPDATE metaq_seen SET seen_ms = seen_ms - 100000")
        seen.first(connection, message("new"))
        connection.commit()
        assert seen.expire(connection, keep=50.0, batch=10, batches_max=1) == 10
        assert seen.expire(connection, keep=50.0, batch=10) == 15
        left = run(connection, "SELECT consumer_group, message_key FROM metaq_seen ORDER BY consumer_group")
        assert [tuple(row) for row in left] == [("g", "new"), ("other", "1")]


def test_keys_by_default():
    """The producer's id, also of a copy that a retry has made; of 1.x the outbox's, or the server's."""
    received = SimpleNamespace(properties={"UNIQ_KEY": "U", "ORIGIN_MESSAGE_ID": "O"}, message_id="U")
    assert message_key(received) == "U"
    assert message_key(SimpleNamespace(properties={"ORIGIN_MESSAGE_ID": "O"}, message_id="P")) == "O"
    assert message_key(SimpleNamespace(properties={}, message_id="P")) == "P"
    assert message_key(Metaq1Message("t", b"", "metaq-outbox=AB")) == "AB"
    assert message_key(SimpleNamespace(attribute="tag", id=-17)) == "-17"
    with pytest.raises(TypeError, match="key function"):
        message_key(object())


@pytest.mark.parametrize("wrong", [{"group": ""}, {"group": "g", "table": "a;b"}, {"group": "g", "table": "a b"}])
def test_impossible_names(wrong):
    with pytest.raises(ConfigError):
        Idempotence(**wrong)


def test_with_a_consumer_that_fails_once(opened, server, metaq_broker):
    """A retried message of a real consumer is a copy with the same key; a reset of the group changes nothing."""
    topic = f"idem-{server.partition(':')[0]}"
    seen, tries = Idempotence("idem"), []

    @seen.handler(opened)
    def handle(received, connection):
        tries.append(received.message_id)
        run(connection, "INSERT INTO effects (name) VALUES (?)", received.body.decode())
        if len(tries) == 1:
            raise metaq.Later(1)

    with metaq.Producer(metaq_broker.namesrv) as producer:
        receipt = producer.send(topic, b"a")
    with metaq.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        for received in consumer:
            with received:
                handle(received)
            if tries.count(receipt.message_id) == 2:
                break
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        for received in reader:
            handle(received)
    assert tries == [receipt.message_id] * 2
    assert effects(opened) == ["a"]


def test_with_sqlalchemy(tmp_path):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import sessionmaker

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    seen, session, done = Idempotence("g"), sessionmaker(engine), []
    with session() as opened:
        seen.create_table(opened)

    @seen.handler(session)
    def handle(received, opened):
        opened.execute(sqlalchemy.text("SELECT 1"))
        done.append(received.message_id)

    for key in ("1", "1", "2"):
        handle(message(key))
    assert done == ["1", "2"]
    seen.handler(engine.connect)(handle)
    with engine.connect() as connection:
        assert not seen.first(connection, message("1"))
        assert seen.expire(connection, keep=0.0, batch=1) in {1, 2}
    alone = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with alone, pytest.raises(ConfigError, match="autocommit"):
        seen.first(alone, message("1"))
    engine.dispose()


def test_with_asyncio(tmp_path):
    pytest.importorskip("aiosqlite")
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    async def main():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
        seen, session, done = Idempotence("g"), async_sessionmaker(engine), []
        async with session() as opened:
            await opened.run_sync(seen.create_table)

        @seen.handler(session)
        async def handle(received, opened):
            done.append(received.message_id)
            if done.count(received.message_id) == 1:
                raise ValueError("once")

        for key in ("1", "1", "1"):
            with contextlib.suppress(ValueError):
                await handle(message(key))
        with pytest.raises(TypeError, match="asynchronous"):
            async with session() as opened:
                seen.first(opened, message("2"))
        await engine.dispose()
        return done

    assert asyncio.run(main()) == ["1", "1"]
