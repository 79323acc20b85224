"""The table of offsets of 1.x groups, in SQLite. tests/interop/test_metaq1_sql_offsets.py has MariaDB and PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from metaq.errors import ConfigError, ConnectionFailed, MetaqError
from metaq.registry.offset_table import TABLE, OffsetTable, PartitionOffset, statements_to_make
from metaq.sql.opening import Database, OwnConnections
from metaq.sql.statements import MYSQL, POSTGRESQL, SQLITE

A, B = PartitionOffset("g", "t", "0-0", 100, 7), PartitionOffset("g", "t", "0-1", 200, -5468926395948204032)


@pytest.fixture
def url(tmp_path):
    sqlite3.connect(tmp_path / "o.db").close()
    return f"sqlite:///{tmp_path / 'o.db'}"


@pytest.fixture
def table(url):
    made = OffsetTable(Database(url))
    made.create()
    with contextlib.closing(made):
        yield made


def rows(url):
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
        return raw.execute(f'SELECT topic, "partition", group_id, "offset", msg_id FROM {TABLE} ORDER BY id').fetchall()


def test_rows_are_inserted_updated_and_found_by_topic_partition_and_group(table, url):
    table.create()
    assert table.load("g", [("t", "0-0")]) == {}
    table.save([A, B])
    table.save(
        [
            PartitionOffset("g", "t", "0-0", 150, 8),
            PartitionOffset("h", "t", "0-0", 1),
            PartitionOffset("g", "u", "0-0", 2),
        ]
    )
    assert sorted(rows(url), key=lambda row: (row[2], row[0])) == [
        ("t", "0-0", "g", 150, 8),
        ("t", "0-1", "g", 200, -5468926395948204032),
        ("u", "0-0", "g", 2, -1),
        ("t", "0-0", "h", 1, -1),
    ]
    assert table.load("g", [("t", "0-1"), ("t", "0-2"), ("u", "0-0")]) == {
        ("t", "0-1"): B,
        ("u", "0-0"): PartitionOffset("g", "u", "0-0", 2),
    }
    assert table.groups() == ["g", "h"]
    assert [one.offset for one in table.rows()] == [150, 200, 2, 1]
    assert [one.offset for one in table.rows("g", "t")] == [150, 200]
    assert [one.offset for one in table.rows(topic="u")] == [2]


def test_many_partitions_are_read_in_pieces(table):
    many = [PartitionOffset("g", "t", f"0-{number}", number) for number in range(1000)]
    table.save(many)
    assert set(table.load("g", [("t", f"0-{number}") for number in range(1000)]).values()) == set(many)


def test_add_never_overwrites(table, url):
    table.save([A])
    assert table.add([PartitionOffset("g", "t", "0-0", 5), B]) == {("g", "t", "0-0"): A}
    assert rows(url) == [("t", "0-0", "g", 100, 7), ("t", "0-1", "g", 200, B.message_id)]


def test_of_rows_that_two_have_inserted_the_oldest_counts(table, url):
    """So that one that came too late is never seen."""
    table.save([A])
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
        raw.execute(
            f'INSERT INTO {TABLE} (topic, "partition", group_id, "offset", msg_id) VALUES (?, ?, ?, ?, ?)',
            ("t", "0-0", "g", 3, 3),
        )
        raw.commit()
    assert table.load("g", [("t", "0-0")]) == {("t", "0-0"): A}
    assert table.rows() == [A]
    table.save([PartitionOffset("g", "t", "0-0", 170, 9)])
    assert [row[3] for row in rows(url)] == [170, 3]


def test_rows_under_another_name_are_given_to_a_group_that_has_none(table, url):
    table.save(
        [
            PartitionOffset("host-1", "t", "0-0", 70, 1),
            PartitionOffset("host-1", "t", "0-1", 71, 1),
            PartitionOffset("g", "t", "0-1", 200),
        ]
    )
    found = table.load("g", [("t", "0-0"), ("t", "0-1")], adopt=["host-0", "host-1"])
    assert found == {
        ("t", "0-0"): PartitionOffset("g", "t", "0-0", 70, 1),
        ("t", "0-1"): PartitionOffset("g", "t", "0-1", 200),
    }
    assert [row[2:4] for row in rows(url)] == [("g", 70), ("host-1", 71), ("g", 200)]


def test_a_batch_is_saved_whole_or_not_at_all(url):
    """A fault at the second row; the next call has a new connection."""
    failing = [False]

    class Cursor(sqlite3.Cursor):
        def execute(self, sql, values=()):
            if failing[0] and values[-1:] == ("g",) and "INSERT" in sql and "0-1" in values:
                raise sqlite3.OperationalError("disk full")
            return super().execute(sql, values)

    class Connection(sqlite3.Connection):
        def cursor(self):
            return super().cursor(Cursor)

    made = []

    def connect():
        made.append(sqlite3.connect(url.removeprefix("sqlite:///"), factory=Connection))
        return made[-1]

    table = OffsetTable(OwnConnections(connect))
    table.create()
    failing[0] = True
    with pytest.raises(ConnectionFailed, match=r"disk full.*offset-table --create"):
        table.save([A, B])
    # The first try was on a connection that was kept: the second, on a new one, had the same fault.
    assert (len(made), rows(url)) == (2, [])
    failing[0] = False
    table.save([A, B])
    assert (len(made), len(rows(url))) == (3, 2)
    table.close()


def test_a_connection_that_was_lost_meanwhile_is_made_again_without_an_error(url):
    made = []

    def connect():
        made.append(sqlite3.connect(url.removeprefix("sqlite:///")))
        return made[-1]

    table = OffsetTable(OwnConnections(connect))
    table.create()
    made[0].close()
    table.save([A])
    assert (len(made), table.rows()) == (2, [A])
    table.close()


def test_a_missing_table_is_named_with_what_to_do(url):
    table = OffsetTable(Database(url))
    with pytest.raises(MetaqError, match=f"table {TABLE} .*no such table.*metaq meta1 offset-table --create"):
        table.rows()


def test_names_that_would_need_quotes_are_refused(url):
    for name in ('odd"', "a b", "", "a.b.c", "a;"):
        with pytest.raises(ConfigError, match="letters, digits and underscores"):
            OffsetTable(Database(url), name)


def test_a_connection_that_commits_by_itself_is_refused(url):
    table = OffsetTable(OwnConnections(lambda: sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)))
    with pytest.raises(ConfigError, match="turn autocommit off"):
        table.groups()


def test_statements_of_each_database_quote_all_names():
    mysql, (made, index) = statements_to_make(MYSQL, "shop.offsets"), statements_to_make(POSTGRESQL, "shop.offsets")
    assert mysql[0].startswith("CREATE TABLE IF NOT EXISTS `shop`.`offsets` (`id` BIGINT NOT NULL AUTO_INCREMENT")
    assert "`offset` BIGINT NOT NULL, `msg_id` BIGINT NOT NULL" in mysql[0]
    assert "INDEX `shop_offsets_group` (`group_id`, `topic`, `partition`)" in mysql[0]
    assert '"offset" BIGINT NOT NULL, "msg_id" BIGINT NOT NULL' in made
    assert (
        index
        == 'CREATE INDEX IF NOT EXISTS "shop_offsets_group" ON "shop"."offsets" ("group_id", "topic", "partition")'
    )
    # A name that the database would cut is none that another table has.
    assert f'"{"a" * 57}_group" ON "{"a" * 63}"' in statements_to_make(POSTGRESQL, "a" * 63)[1]
    assert len(statements_to_make(SQLITE)) == 2
