"""Changes into real MariaDB and PostgreSQL servers; crashes at every statement. The oracle is the database's own answer."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.errors import ChangesBroken, ConfigError, MetaqError
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.changes.to_database import DatabaseTarget, dialect_of
from metaq.sql.address import address_of
from tests.interop import mariadb, postgresql
from tests.pipelines.changes import bodies
from tests.pipelines.changes.batches import body, rows_of

pytestmark = pytest.mark.interop
QUERY = "12345678-query"


@pytest.fixture(scope="module", params=["mysql", "postgresql"])
def server(request, tmp_path_factory):
    """`kind://user@host:port` of a server."""
    if request.param == "mysql":
        pytest.importorskip("pymysql", reason="pymysql is not installed: it comes with the extra mysql")
        with mariadb.running(tmp_path_factory.mktemp("mariadb")) as address:
            yield f"mysql://{address}"
    else:
        pytest.importorskip("psycopg", reason="psycopg is not installed: it comes with the extra postgres")
        with postgresql.running() as address:
            yield f"postgresql://{address}"


class Database:
    """An empty database, and the pipeline's target in it."""

    def __init__(self, server: str) -> None:
        kind = server.partition(":")[0]
        self.url = f"{server}/changes" if kind == "mysql" else f"{server}/postgres?options=-csearch_path%3Dchanges"
        self.dialect = dialect_of(address_of(self.url, "", os.environ))
        admin = dialect_of(
            address_of(f"{server}/{'information_schema' if kind == 'mysql' else 'postgres'}", "", os.environ)
        )
        with contextlib.closing(admin.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA IF EXISTS changes" + ("" if kind == "mysql" else " CASCADE"))
            cursor.execute("CREATE SCHEMA changes" + (" CHARACTER SET utf8mb4" if kind == "mysql" else ""))
            connection.commit()

    def options(self, **more) -> ChangesOptions:
        return ChangesOptions(**{"topics": "t", "folder": "x", "target": self.url, "create_table": True, **more})

    def target(self, dialect=None, **more) -> DatabaseTarget:
        return DatabaseTarget(Path("/x/pipe"), self.options(**more), FakeClock(), dialect)

    def run(self, sql: str) -> list[tuple]:
        with contextlib.closing(self.dialect.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
        return rows

    def rows(self, columns: str = "id, a", table: str = "t") -> list[tuple]:
        return self.run(f"SELECT {columns} FROM {table} ORDER BY 1")


@pytest.fixture
def database(server) -> Database:
    return Database(server)


def apply(target, options, batch, messages, *, query=QUERY):
    """One micro-batch. Returns what was done; None if it was applied before."""
    if target.has(query, batch):
        return None

    def judge(problems, *, last):
        fatal = [one for one in problems if options.policies[one.what] == "stop"]
        if fatal:
            raise ChangesBroken(str(fatal[0]))

    return target.apply_rows(query, batch, rows_of(options, messages, last=target.last), judge)


def test_batches_become_rows(database):
    """Tables and columns are made, updates of some columns leave the others, deletes remove, repeats are nothing."""
    options, target = database.options(), database.target()
    apply(target, options, 1, [body("insert", n, 1, {"a": n, "b": "x"}) for n in range(4)])
    done = apply(
        target, options, 2,
        [body("update", 1, 2, {"a": 10}), body("delete", 2, 2), body("insert", 3, 2, {"a": 30}), body("update", 9, 1, {"b": "z"}),
         body("update", 1, 2, {"a": 99}), body("update", 1, 3, {"new": 1.5})],
    )  # fmt: skip
    assert (done.applied, done.puts, done.deletes, done.repeats, done.problems) == (5, 3, 1, 1, [])
    assert database.rows("id, a, b, new") == [
        (0, 0, "x", None), (1, 10, "x", 1.5), (3, 30, None, None), (9, None, "z", None),
    ]  # fmt: skip


def test_values_are_what_the_source_had(database):
    """Canal's texts and Debezium's schema in columns of their types; names and texts of any kind."""
    options = database.options(key_columns="id", sequence_scope="none", target_table="{schema} {table}'%s")
    name = database.dialect.quote("shop orders'%s").replace("%%", "%")
    target = database.target(key_columns="id", sequence_scope="none", target_table="{schema} {table}'%s")
    tricky = bodies.CANAL_INSERT["data"][0] | {"state": "'; DROP TABLE x; -- \\ %s é 𝄞"}
    apply(target, options, 1, [bodies.as_bytes(bodies.CANAL_INSERT | {"data": [tricky]})])
    ((number, state, amount, made, photo),) = database.rows("id, state, amount, made, photo", name)
    assert (number, state, amount) == (1, "'; DROP TABLE x; -- \\ %s é 𝄞", decimal.Decimal("12.50"))
    assert (made, bytes(photo)) == (dt.datetime.fromisoformat("2026-03-01 10:00"), b"\x00\xff")


def test_a_batch_that_comes_again_changes_nothing(database):
    """Spark had not written its commit down; also not when somebody has changed the table meanwhile."""
    options = database.options(sequence_scope="none")
    apply(database.target(sequence_scope="none"), options, 1, [body("insert", 1, 1, {"a": 1})])
    database.run("UPDATE t SET a = 5")
    target = database.target(sequence_scope="none")
    assert apply(target, options, 1, [body("insert", 1, 1, {"a": 1})]) is None
    assert database.rows() == [(1, 5)]
    apply(target, options, 2, [body("update", 1, 2, {"a": 2})])
    with pytest.raises(ConfigError, match=r"has batch 2 of pipe, and the checkpoint is about to do batch 1"):
        apply(target, options, 1, [])


def test_a_checkpoint_that_did_not_write_the_tables_is_refused(database, tmp_path):
    """Old changes would be applied over new ones."""
    apply(database.target(), database.options(), 1, [body("insert", 1, 1, {"a": 1})])
    with pytest.raises(ConfigError, match="is new or empty: old changes would be applied over new ones"):
        database.target().guard(tmp_path)
    database.target(target_name="other").guard(tmp_path)


def test_gaps_and_steps_back_leave_the_tables_alone(database):
    """Where they stop, nothing of the batch is there; where they are reported, what is older is left out, also of deleted keys."""
    options, target = database.options(dense=True), database.target(dense=True)
    apply(target, options, 1, [body("insert", 1, 1, {"a": 1}), body("insert", 2, 1, {"a": 1}), body("delete", 2, 2)])
    with pytest.raises(ChangesBroken, match="comes after 1: something between them is missing"):
        apply(target, options, 2, [body("insert", 3, 1, {"a": 3}), body("update", 1, 3, {"a": 3})])
    assert database.rows() == [(1, 1)]
    options = database.options(dense=True, on_gap="report")
    done = apply(
        target, options, 2, [body("update", 1, 3, {"a": 3}), body("update", 1, 2, {"a": 2}), body("insert", 2, 1)]
    )
    assert sorted(one.what for one in done.problems) == ["gap", "step_back", "step_back"]
    assert database.rows() == [(1, 3)]


def test_what_a_table_lacks_is_named(database):
    """Nothing is made that was not allowed, and no row is found by what is no key."""
    options, target = database.options(), database.target(create_table=False)
    message = [body("insert", 1, 1, {"a": 1, "b": 2})]
    with pytest.raises(
        ConfigError, match=r"shop\.t is to be written to t in .*, and there is no such table: make it, or set"
    ):
        apply(target, options, 1, message)
    database.run("CREATE TABLE t (id BIGINT, a BIGINT)")
    with pytest.raises(ConfigError, match="and there is no column b: make it, or set createTable"):
        apply(target, options, 1, message)
    database.run("ALTER TABLE t ADD b BIGINT")
    with pytest.raises(ConfigError, match="has no primary key or unique index of just id"):
        apply(target, options, 1, message)
    database.run("CREATE UNIQUE INDEX one ON t (id)")
    apply(target, options, 1, message)
    assert database.rows("id, a, b") == [(1, 1, 2)]


def test_another_unique_index_is_refused_where_it_would_do_harm(database):
    """MariaDB's upsert would change the row of another key; PostgreSQL's fails."""
    database.run("CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT UNIQUE)")
    options, target = database.options(), database.target()
    with pytest.raises(MetaqError, match=r"another unique index, of a|duplicate key value"):
        apply(target, options, 1, [body("insert", 1, 1, {"a": 1}), body("insert", 2, 1, {"a": 1})])
    assert database.rows() == []


def test_two_sources_do_not_share_a_table(database):
    """Their keys would be each other's."""
    messages = [body("insert", 1, 1, table="s1.t"), body("insert", 1, 1, table="s2.t")]
    with pytest.raises(ConfigError, match=r"s1\.t and s2\.t would both be written to t"):
        apply(database.target(), database.options(), 1, messages)


def test_no_password_is_told(database):
    """Wherever it came from."""
    url = re.sub(r"@.*", ":geheim@127.0.0.1:1/x", database.url)
    with pytest.raises(MetaqError, match="could not be prepared") as caught:
        DatabaseTarget(Path("pipe"), database.options(target=url))
    assert "geheim" not in str(caught.value)
    assert "geheim" not in repr(address_of(url, "", {}))


class Crash(BaseException):
    """A process that is gone."""


class Crashing:
    """A dialect whose connections end at the n-th call: before a statement, before a commit, or behind a commit."""

    def __init__(self, dialect, left: int) -> None:
        self._dialect, self.left, self.done = dialect, left, 0

    def __getattr__(self, name):
        return getattr(self._dialect, name)

    def step(self) -> None:
        if self.left == self.done:
            raise Crash
        self.done += 1

    def connect(self):
        return CrashingConnection(self._dialect.connect(), self)


class CrashingConnection:
    def __init__(self, connection, crash) -> None:
        self._connection, self._crash = connection, crash

    def cursor(self):
        return CrashingCursor(self._connection.cursor(), self._crash)

    def commit(self):
        self._crash.step()
        self._connection.commit()
        self._crash.step()

    def close(self):
        self._connection.close()


class CrashingCursor:
    def __init__(self, cursor, crash) -> None:
        self._cursor, self._crash = cursor, crash

    def __getattr__(self, name):
        return getattr(self._cursor, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._cursor.close()

    def execute(self, *args):
        self._crash.step()
        return self._cursor.execute(*args)

    def executemany(self, *args):
        self._crash.step()
        return self._cursor.executemany(*args)


BATCHES = [
    [body("insert", n, 1, {"a": n}) for n in range(4)],
    [body("update", 1, 2, {"b": "x"}), body("delete", 2, 2), body("insert", 2, 3, {"a": 9}), body("delete", 3, 2)],
]
STATES = [[(0, 0), (1, 1), (2, 2), (3, 3)], [(0, 0), (1, 1), (2, 9)]]


def run(target, options) -> None:
    """What a start of the pipeline does: all batches, from the one that Spark had not committed."""
    for number, messages in enumerate(BATCHES, 1):
        with contextlib.suppress(ConfigError):  # Spark would not ask for a batch so old.
            apply(target, options, number, messages)


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.long
def test_a_crash_at_any_statement_costs_nothing(server):
    """Before or behind each statement and each commit: the tables are as after a whole batch, and the next start goes on."""
    ended = False
    for point in range(200):
        database = Database(server)
        options, crash = database.options(), Crashing(database.dialect, point)
        try:
            run(database.target(crash), options)
        except Crash:
            pass
        else:
            ended = True
        if database.run("SELECT 1 FROM information_schema.tables WHERE table_name = 't' AND table_schema = 'changes'"):
            assert database.rows() in ([], *STATES), point
        run(database.target(), options)
        assert database.rows() == STATES[-1], point
        assert database.rows("id, b") == [(0, None), (1, "x"), (2, None)], point
        if ended:
            break
    assert ended
    assert point == crash.done > 20


@pytest.mark.all
@pytest.mark.long
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["insert", "update", "delete"]), st.integers(0, 4), st.integers(0, 12), st.sampled_from("ab")),
            max_size=8,
        ),
        max_size=4,
    )
)  # fmt: skip
def test_tables_are_what_a_dict_would_be(server, all_batches):
    """Random changes with repeats and steps back, in any batches."""
    database = Database(server)
    options, target = database.options(), database.target()
    apply(target, options, 0, [body("insert", 100, 0, {"a": 0, "b": 0})])
    state, applied = {100: {"a": 0, "b": 0}}, {}
    for number, changes in enumerate(all_batches, 1):
        apply(target, options, number, [body(op, key, seq, {column: seq}) for op, key, seq, column in changes])
        for op, key, seq, column in changes:
            if seq <= applied.get(key, -1):
                continue
            applied[key] = seq
            if op == "delete":
                state.pop(key, None)
            else:
                state[key] = {**(state.get(key, {}) if op == "update" else {}), column: seq}
    assert database.rows("id, a, b") == [(key, row.get("a"), row.get("b")) for key, row in sorted(state.items())]
