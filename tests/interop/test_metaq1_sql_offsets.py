"""Offsets of 1.x groups in MariaDB and PostgreSQL. tests/registry/test_offset_table.py has the table's rules, in SQLite."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metaq.errors import ConfigError, ConnectionFailed, MetaqError
from metaq.metaq1 import (
    ConsumerConfig,
    LruMessageIdCache,
    Message,
    MetaClientConfig,
    MetaMessageSessionFactory,
    MysqlOffsetStorage,
    Partition,
    PostgresqlOffsetStorage,
    StoredOffset,
    ZKConfig,
)
from metaq.metaq1.storages import sql
from metaq.metaq1.storages.sql import SqlOffsetStorage
from metaq.metaq1.storages.storage import BulkLoading
from metaq.registry.offset_table import TABLE
from metaq.sql.opening import Database, opened
from tests.interop.mariadb import MariaDbServer
from tests.interop.metaq1 import OriginalServer, OurServer, Zookeeper
from tests.interop.postgresql import PostgresqlServer
from tests.support import ROOT, eventually

pytestmark = pytest.mark.interop
P0, P1 = Partition(0, 0), Partition(0, 1)
PUBLISHED = (
    "CREATE TABLE {q}old{q} (id {key} PRIMARY KEY, topic VARCHAR(255), {q}partition{q} VARCHAR(255), "
    "group_id VARCHAR(255), {q}offset{q} INT NOT NULL, msg_id INT NOT NULL)"
)
SECRET = "hidden"


class Running(NamedTuple):
    """A database server, and how its storages are made."""

    server: MariaDbServer | PostgresqlServer
    url: str
    cls: type[SqlOffsetStorage]
    quote: str
    key: str
    """Type of the published table's id."""

    def storage(self, **more: Any) -> SqlOffsetStorage:
        return self.cls(self.url, password=SECRET, **more)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with opened(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            found = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return found


@pytest.fixture(params=["mariadb", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    if request.param == "mariadb":
        server = MariaDbServer(tmp_path)
        server.start()
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop)
            with opened(f"mysql://{server.address}/information_schema") as connection:
                connection.cursor().execute("CREATE DATABASE shop")
            yield Running(server, f"mysql://{server.address}/shop", MysqlOffsetStorage, "`", "INT AUTO_INCREMENT")
    else:
        other = PostgresqlServer()
        with contextlib.ExitStack() as stack:
            stack.callback(other.remove)
            other.start()
            stack.callback(other.stop)
            yield Running(other, f"postgresql://{other.address}/postgres", PostgresqlOffsetStorage, '"', "SERIAL")


def test_offsets_are_kept_by_topic_partition_and_group(database: Running) -> None:
    for more in ({}, {"table": "Other_Offsets"}):
        storage = database.storage(**more)
        assert isinstance(storage, BulkLoading)
        storage.create_table()
        storage.create_table()
        assert storage.load("t", "g", P0) is None
        storage.init_offset("t", "g", P0, 7)
        storage.init_offset("t", "g", P0, 8)
        assert storage.load("t", "g", P0) == StoredOffset("t", P0, 7, -1)
        saved = [StoredOffset("t", P0, 2**40, 2**62), StoredOffset("t", P1, 5, -(2**62))]
        storage.commit_offset("g", saved)
        # Words that differ in case are two.
        storage.commit_offset("G", [StoredOffset("T", P0, 1, 1)])
        storage.close()
        again = database.storage(**more)
        wanted = {("t", P0): saved[0], ("t", P1): saved[1]}
        assert again.load_many("g", [("t", P0), ("t", P1), ("t", Partition(0, 2))]) == wanted
        assert again.load("t", "G", P0) is None
        assert SECRET not in repr(again)
        again.close()


def test_the_index_is_used_and_made_once(database: Running) -> None:
    storage = database.storage()
    for _ in range(2):
        storage.create_table()
    storage.close()
    if database.quote == "`":
        found = database.run(
            "SELECT column_name FROM information_schema.statistics WHERE index_name = 'meta_topic_partition_group_offset_group' "
            "ORDER BY seq_in_index"
        )
        assert [name for (name,) in found] == ["group_id", "topic", "partition"]
    else:
        [(definition,)] = database.run(
            "SELECT indexdef FROM pg_indexes WHERE indexname = 'meta_topic_partition_group_offset_group'"
        )
        assert definition.endswith("(group_id, topic, partition)"), definition


def test_the_published_table_works_until_an_offset_does_not_fit(
    database: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """D25. Nothing of the batch is saved then. Message ids, none of which fit, are saved as unknown."""
    database.run(PUBLISHED.format(q=database.quote, key=database.key))
    storage = database.storage(table="old")
    storage.create_table()
    with caplog.at_level(logging.WARNING):
        storage.commit_offset("g", [StoredOffset("t", P0, 2**31 - 1, 2**31 - 1)])
        assert storage.load("t", "g", P0) == StoredOffset("t", P0, 2**31 - 1, 2**31 - 1)
        assert not caplog.records
        for message_id in (2**31, -(2**31) - 1):
            storage.commit_offset("g", [StoredOffset("t", P0, 9, message_id)])
            assert storage.load("t", "g", P0) == StoredOffset("t", P0, 9, -1)
    assert ["BIGINT" in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(ConfigError, match=r"offset 2147483648 of group g in t 0-1 does not fit.*BIGINT"):
        storage.commit_offset("g", [StoredOffset("t", P0, 5, 5), StoredOffset("t", P1, 2**31, 1)])
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 9, -1)
    storage.close()


def test_connections_of_the_application(database: Running) -> None:
    """Made by its own function, without autocommit."""
    make = Database(database.url).connect
    storage = database.cls(connect=make)
    storage.create_table()
    storage.commit_offset("g", [StoredOffset("t", P0, 5, 5)])
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 5, 5)
    storage.close()

    def by_itself() -> Any:
        made = make()
        if callable(getattr(made, "autocommit", None)):
            made.autocommit(True)
        else:
            made.autocommit = True
        return made

    with pytest.raises(ConfigError, match="turn autocommit off"):
        database.cls(connect=by_itself).load("t", "g", P0)


def test_what_a_storage_refuses(database: Running) -> None:
    other = PostgresqlOffsetStorage if database.cls is MysqlOffsetStorage else MysqlOffsetStorage
    for make, said in (
        (lambda: other(database.url), "need "),
        (lambda: database.cls(), "one of database and connect"),
        (lambda: database.cls(database.url, connect=print), "one of database and connect"),
        (lambda: database.cls("oracle://x@y/z"), "need mysql"),
        (lambda: database.cls(database.url, table='odd "name"'), "letters"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()
    storage = database.storage()
    with pytest.raises(MetaqError, match="offset-table --create"):
        storage.load("t", "g", P0)
    with pytest.raises(ValueError, match="0 or more"):
        storage.commit_offset("g", [StoredOffset("t", P0, -1)])


def test_a_row_under_the_consumer_id_is_given_to_the_group(database: Running) -> None:
    java = database.storage()
    java.create_table()
    java.init_offset("t", "host-1-2-3", P0, 77)
    java.close()
    storage = database.storage(java_consumer_ids=["host-1-2-3"])
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 77)
    assert storage.load("t", "host-1-2-3", P0) is None
    storage.close()


def test_a_killed_server_is_an_error_each_time_and_found_again_later(database: Running) -> None:
    storage = database.storage()
    storage.create_table()
    storage.commit_offset("g", [StoredOffset("t", P0, 1, 1)])
    database.server.kill()
    for _ in range(3):
        with pytest.raises(ConnectionFailed, match="see whether the database runs") as failed:
            storage.commit_offset("g", [StoredOffset("t", P0, 2, 2), StoredOffset("t", P1, 2, 2)])
        assert SECRET not in f"{failed.value} {storage!r}"
    database.server.start()
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 1, 1)
    database.server.kill()
    database.server.start()
    # The connection that it had kept is gone: that alone is no error.
    storage.commit_offset("g", [StoredOffset("t", P0, 3, 3)])
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 3, 3)
    storage.close()


def test_a_server_killed_within_a_batch_has_none_of_it(database: Running) -> None:
    """After the first row of two."""
    kills = [False]

    class Killing:
        def execute(self, query: Any, *values: Any, **more: Any) -> Any:
            done = super().execute(query, *values, **more)  # type: ignore[misc]
            if kills[0] and query.startswith("UPDATE"):
                kills[0] = False
                database.server.kill()
            return done

    def connect() -> Any:
        connection = Database(database.url).connect()
        factory = "cursorclass" if database.quote == "`" else "cursor_factory"
        setattr(connection, factory, type("KillingCursor", (Killing, getattr(connection, factory)), {}))
        return connection

    storage = database.cls(connect=connect)
    storage.create_table()
    before = [StoredOffset("t", P0, 1, 1), StoredOffset("t", P1, 1, 1)]
    after = [StoredOffset("t", P0, 2, 2), StoredOffset("t", P1, 2, 2)]
    storage.commit_offset("g", before)
    kills[0] = True
    with pytest.raises(ConnectionFailed):
        storage.commit_offset("g", after)
    assert not kills[0]
    database.server.start()
    assert [storage.load("t", "g", one.partition) for one in before] == before
    storage.commit_offset("g", after)
    assert [storage.load("t", "g", one.partition) for one in after] == after
    storage.close()


def test_statements_that_take_too_long_end(database: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that stands still, or whose table is locked. Once it goes on, the next commit succeeds."""
    monkeypatch.setattr(sql, "ANSWER_SECONDS", 1.0)
    storage = database.storage()
    storage.create_table()
    saved = [StoredOffset("t", P0, 1, 1)]
    storage.commit_offset("g", saved)
    if isinstance(database.server, MariaDbServer):
        with database.server.paused(), pytest.raises(ConnectionFailed, match="timed out"):
            storage.commit_offset("g", saved)
    else:
        with opened(database.url) as connection:
            connection.execute(f"LOCK TABLE {TABLE}")
            with pytest.raises(MetaqError, match="statement timeout"):
                storage.commit_offset("g", saved)
    storage.commit_offset("g", [StoredOffset("t", P0, 2, 2)])
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 2, 2)
    storage.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    with OurServer(
        tmp_path_factory.mktemp("broker"), None, {"mysql": {"numPartitions": 2}, "postgresql": {"numPartitions": 2}}
    ) as running:
        yield running


class Heard:
    """A listener that keeps bodies, in the order of each partition."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, message: Any) -> None:
        self.bodies.append(message.data)


def send(factory: MetaMessageSessionFactory, topic: str, bodies: list[bytes]) -> None:
    """In turn to the two partitions."""
    for number in (0, 1):
        with factory.create_producer(lambda *_, number=number: Partition(-1, number)) as producer:
            producer.publish(topic)
            for body in bodies[number::2]:
                producer.send_message(Message(topic, body))


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%03d" % number for number in range(first, last)]


def test_consumption_goes_on_while_the_database_is_away_and_nothing_is_lost(
    database: Running, broker: OurServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages are handled without it; what was handled is saved once it is back, so that the next consumer begins behind. One that
    begins while it is away waits for it, instead of beginning anywhere."""
    config = MetaClientConfig(server_url=f"meta://{broker.text}")
    topic, group = database.cls.kind, "away"
    settings = ConsumerConfig(group, commit_offset_period=0.1, max_delay_fetch_time=0.1, offset=0)
    storage = database.storage()
    storage.create_table()

    def saved() -> dict[tuple[str, Partition], StoredOffset]:
        with contextlib.closing(database.storage()) as other:
            return other.load_many(group, [(topic, P0), (topic, P1)])

    def begun(factory: MetaMessageSessionFactory, heard: Heard) -> Any:
        # Another process would know no message ids.
        consumer = factory.create_consumer(settings, database.storage(), message_ids=LruMessageIdCache())
        consumer.subscribe(topic, 1 << 20, heard)
        consumer.complete_subscribe()
        return consumer

    with MetaMessageSessionFactory(config) as factory:
        first = Heard()
        consumer = begun(factory, first)
        ends = _consumed_over_an_outage(factory, database, first, saved, caplog)
        # Ends while the database is away, with messages that are handled and not saved: they come again.
        database.server.kill()
        send(factory, database.cls.kind, numbered(20, 24))
        eventually(lambda: set(numbered(20, 24)) <= set(first.bodies))
        consumer.shutdown()
        second = Heard()
        consumer = begun(factory, second)
        send(factory, database.cls.kind, numbered(24, 28))
        eventually(lambda: any("are not known" in record.getMessage() for record in caplog.records))
        assert second.bodies == []
        database.server.start()
        eventually(lambda: set(second.bodies) >= set(numbered(20, 28)))
        assert sorted(second.bodies) == numbered(20, 28)
        consumer.shutdown()
        assert {key: one.offset > ends[key] for key, one in saved().items()} == dict.fromkeys(ends, True)
        third = Heard()
        consumer = begun(factory, third)
        send(factory, database.cls.kind, numbered(28, 30))
        eventually(lambda: len(third.bodies) == 2)
        assert sorted(third.bodies) == numbered(28, 30)


def _consumed_over_an_outage(
    factory: MetaMessageSessionFactory,
    database: Running,
    heard: Heard,
    saved: Callable[[], dict[tuple[str, Partition], StoredOffset]],
    caplog: pytest.LogCaptureFixture,
) -> dict[tuple[str, Partition], int]:
    """Return what is saved after the outage."""
    send(factory, database.cls.kind, numbered(0, 10))
    eventually(lambda: len(heard.bodies) >= 10 and len(saved()) == 2)
    eventually(lambda: all(one.message_id > 0 for one in saved().values()))
    before = saved()
    database.server.kill()
    with caplog.at_level(logging.WARNING):
        send(factory, database.cls.kind, numbered(10, 20))
        eventually(lambda: set(numbered(10, 20)) <= set(heard.bodies))
        eventually(lambda: any("cannot be read or written" in record.getMessage() for record in caplog.records))
    database.server.start()
    frames = 20 + 3
    ends = {key: one.offset + 5 * frames for key, one in before.items()}
    eventually(lambda: {key: one.offset for key, one in saved().items()} == ends)
    assert sorted(heard.bodies) == numbered(0, 20)
    return ends


def test_a_group_at_the_original_server_shares_its_partitions_and_its_table(
    database: Running, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """A second consumer goes on where the first one was, in the partitions that it gets; a third one behind both."""
    root = f"/sql-{database.cls.kind}"
    folder = tmp_path / "original"
    folder.mkdir()
    made = OriginalServer(
        folder, zookeeper, {"t": {"numPartitions": 4}}, {"unflushThreshold": 0}, registry={"zk.zkRoot": root}
    )
    with made, contextlib.ExitStack() as stack:
        zk = ZKConfig(zk_connect=zookeeper.address, zk_root=root, zk_sync_time=0.2)
        config = MetaClientConfig(zk_config=zk, recover_path=str(tmp_path / "recover"))
        factory = stack.enter_context(MetaMessageSessionFactory(config))
        eventually(lambda: len(factory.get_partitions("t")) == 4, what="the server is registered")
        producer = stack.enter_context(factory.create_producer())
        producer.publish("t")

        def sent(first: int, last: int) -> None:
            for body in numbered(first, last):
                producer.send_message(Message("t", body))

        def begun(heard: Heard) -> Any:
            other = stack.enter_context(MetaMessageSessionFactory(config))
            settings = ConsumerConfig("g", commit_offset_period=0.1, max_delay_fetch_time=0.1, offset=0)
            consumer = other.create_consumer(settings, database.storage(), message_ids=LruMessageIdCache())
            consumer.subscribe("t", 1 << 20, heard)
            consumer.complete_subscribe()
            return consumer

        database.storage().create_table()
        with zookeeper.nodes() as nodes:

            def owners() -> set[str]:
                tree = nodes.tree(f"{root}/consumers/g/owners")
                return {str(node.text) for node in tree.values() if node.text}

            first, second, third = Heard(), Heard(), Heard()
            one = begun(first)
            sent(0, 20)
            eventually(lambda: len(first.bodies) == 20)
            two = begun(second)
            eventually(lambda: len(owners()) == 2, what="both have partitions")
            sent(20, 60)
            eventually(lambda: {*first.bodies, *second.bodies} == set(numbered(0, 60)))
            assert second.bodies
            assert not set(second.bodies) & set(numbered(0, 20))
            one.shutdown()
            two.shutdown()
            assert len(database.run("SELECT 1 FROM meta_topic_partition_group_offset WHERE group_id = 'g'")) == 4
            assert not any("offsets" in path for path in nodes.tree(f"{root}/consumers/g"))
        begun(third)
        sent(60, 64)
        eventually(lambda: len(third.bodies) == 4)
        assert sorted(third.bodies) == numbered(60, 64)


def test_the_program_of_the_page_runs(database: Running, broker: OurServer) -> None:
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "metaq1-offsets.md").read_text(), re.DOTALL)
    name = database.cls.__name__
    block = block.replace("MysqlOffsetStorage", name).replace("mysql://shop@db.example/shop", database.url)
    with MetaMessageSessionFactory(MetaClientConfig(server_url=f"meta://{broker.text}")) as factory:
        exec(block, {"password": SECRET, "factory": factory})
    assert database.run("SELECT 1 FROM meta_topic_partition_group_offset") == []
