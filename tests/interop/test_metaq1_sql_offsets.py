"""Offsets of 1.x groups in real databases."""

from __future__ import annotations

import psycopg
import pymysql
import pytest

from metaq.errors import ConfigError, ConnectionFailed
from metaq.metaq1 import Partition
from metaq.metaq1.storages.mysql import MysqlOffsetStorage
from metaq.metaq1.storages.postgresql import PostgresqlOffsetStorage
from metaq.metaq1.storages.storage import StoredOffset
from tests.interop import postgresql
from tests.interop.mariadb import MariaDbServer

pytestmark = pytest.mark.interop
ONE, OTHER = Partition(0, 0), Partition(0, 1)
PUBLISHED = (
    "CREATE TABLE {q}old{q} (id {key} PRIMARY KEY, topic VARCHAR(255), {q}partition{q} VARCHAR(255), "
    "group_id VARCHAR(255), {q}offset{q} INT NOT NULL, msg_id INT NOT NULL)"
)


def place(address: str) -> tuple[str, int]:
    host, _, port = address.partition("@")[2].partition(":")
    return host, int(port)


@pytest.fixture(params=["mariadb", "postgresql"])
def database(request, tmp_path):
    """How storages are made (of keyword arguments), how raw connections are, and words for the published table."""
    if request.param == "mariadb":
        server = MariaDbServer(tmp_path)
        server.start()
        try:
            host, port = place(server.address)
            with pymysql.connect(host=host, port=port, user="root") as raw:
                raw.cursor().execute("CREATE DATABASE shop")

            def connect():
                return pymysql.connect(host=host, port=port, user="root", database="shop", autocommit=True)

            yield (
                lambda **more: MysqlOffsetStorage(host, port, "root", "hidden", "shop", **more),
                connect,
                ("`", "INT AUTO_INCREMENT"),
            )
        finally:
            server.stop()
    else:
        with postgresql.running() as address:
            host, port = place(address)

            def connect():
                return psycopg.connect(host=host, port=port, user="tester", dbname="postgres", autocommit=True)

            yield (
                lambda **more: PostgresqlOffsetStorage(host, port, "tester", "hidden", **more),
                connect,
                ('"', "SERIAL"),
            )


def test_offsets_are_kept_by_topic_partition_and_group(database):
    make, connect, _ = database
    for more in ({}, {"connect": connect, "table": 'odd "name`'}):
        storage = make(**more)
        storage.create_table()
        storage.create_table()
        assert storage.load("t", "g", ONE) is None
        storage.init_offset("t", "g", ONE, 7)
        storage.init_offset("t", "g", ONE, 8)
        assert storage.load("t", "g", ONE) == StoredOffset("t", ONE, 7, -1)
        saved = [StoredOffset("t", ONE, 2**40, 2**62), StoredOffset("t", OTHER, 5, 6)]
        storage.commit_offset("g", saved)
        storage.close()
        again = make(**more)
        assert [again.load("t", "g", one.partition) for one in saved] == saved
        assert again.load("t", "h", ONE) is None
        again.close()


def test_the_published_table_works_until_a_number_does_not_fit(database):
    """Nothing of the batch is saved then, also by a connection that was given with autocommit."""
    make, connect, (quote, key) = database
    with connect() as raw:
        raw.cursor().execute(PUBLISHED.format(q=quote, key=key))
        if quote == "`":
            raw.commit()
    storage = make(table="old", connect=connect)
    storage.commit_offset("g", [StoredOffset("t", ONE, 2**31 - 1, 1)])
    with pytest.raises(ConfigError, match=r"offset 2147483648 of group g in t 0-1 does not fit.*BIGINT"):
        storage.commit_offset("g", [StoredOffset("t", ONE, 5, 5), StoredOffset("t", OTHER, 2**31, 1)])
    assert storage.load("t", "g", ONE) == StoredOffset("t", ONE, 2**31 - 1, 1)
    storage.close()


def test_a_row_under_the_consumer_id_is_given_to_the_group(database):
    make, _, _ = database
    java = make()
    java.create_table()
    java.init_offset("t", "host-1-2-3", ONE, 77)
    java.close()
    storage = make(java_consumer_ids=["host-1-2-3"])
    assert storage.load("t", "g", ONE) == StoredOffset("t", ONE, 77)
    assert storage.load("t", "host-1-2-3", OTHER) is None
    storage.close()


def test_a_killed_server_is_an_error_each_time_and_found_again_later(tmp_path):
    server = MariaDbServer(tmp_path)
    server.start()
    host, port = place(server.address)
    with pymysql.connect(host=host, port=port, user="root") as raw:
        raw.cursor().execute("CREATE DATABASE shop")
    storage = MysqlOffsetStorage(host, port, "root", "hidden", "shop")
    storage.create_table()
    storage.commit_offset("g", [StoredOffset("t", ONE, 1, 1)])
    server.kill()
    for _ in range(3):
        with pytest.raises(ConnectionFailed, match="see whether the database runs") as failed:
            storage.commit_offset("g", [StoredOffset("t", ONE, 2, 2), StoredOffset("t", OTHER, 2, 2)])
        assert "hidden" not in f"{failed.value} {storage!r}"
    server.start()
    try:
        assert storage.load("t", "g", ONE) == StoredOffset("t", ONE, 1, 1)
        storage.commit_offset("g", [StoredOffset("t", ONE, 3, 3)])
        assert storage.load("t", "g", ONE) == StoredOffset("t", ONE, 3, 3)
        storage.close()
    finally:
        server.stop()


def test_a_server_killed_within_a_batch_has_none_of_it(tmp_path):
    """kill -9 after the first row of two."""
    server = MariaDbServer(tmp_path)
    server.start()
    host, port = place(server.address)
    with pymysql.connect(host=host, port=port, user="root") as raw:
        raw.cursor().execute("CREATE DATABASE shop")
    kills = [False]

    class Killing(pymysql.cursors.Cursor):
        def execute(self, query, args=None):
            done = super().execute(query, args)
            if kills[0] and query.startswith("UPDATE"):
                kills[0] = False
                server.kill()
            return done

    storage = MysqlOffsetStorage(
        connect=lambda: pymysql.connect(host=host, port=port, user="root", database="shop", cursorclass=Killing)
    )
    storage.create_table()
    before = [StoredOffset("t", ONE, 1, 1), StoredOffset("t", OTHER, 1, 1)]
    after = [StoredOffset("t", ONE, 2, 2), StoredOffset("t", OTHER, 2, 2)]
    storage.commit_offset("g", before)
    kills[0] = True
    with pytest.raises(ConnectionFailed):
        storage.commit_offset("g", after)
    server.start()
    try:
        assert [storage.load("t", "g", one.partition) for one in before] == before
        storage.commit_offset("g", after)
        assert [storage.load("t", "g", one.partition) for one in after] == after
        storage.close()
    finally:
        server.stop()
