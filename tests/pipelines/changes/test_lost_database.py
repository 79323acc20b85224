"""A database that goes away in the middle of a batch of changes: the run waits for it, and whether it comes back in time or not, each
change is applied once. The servers are real, and so are the ways in which they let go. The oracle is the database's own answer.
"""

from __future__ import annotations

import logging

import pytest

from metaq.clock import FakeClock
from metaq.errors import MetaqError
from metaq.pipelines.changes.to_database import DatabaseTarget
from tests.interop import mariadb
from tests.pipelines.changes.batches import body
from tests.pipelines.changes.test_databases import (
    BATCHES,
    STATES,
    Crashing,
    CrashingConnection,
    Database,
    apply,
    database,  # noqa: F401  a fixture
    server,  # noqa: F401  a fixture
)

pytestmark = [pytest.mark.slow, pytest.mark.interop]


class Cutting(Crashing):
    """A dialect whose connection the server ends, for real, before the n-th statement or commit; or whose commit's answer is lost."""

    def __init__(self, dialect, left: int) -> None:
        super().__init__(dialect, left)
        self._number = 0

    def connect(self):
        connection = self._dialect.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()" if self.is_mysql else "SELECT pg_backend_pid()")
            (self._number,) = cursor.fetchone()
        return CuttingConnection(connection, self)

    @property
    def is_mysql(self) -> bool:
        return self.upsert_needs_one_index

    def step(self, *, behind_commit: bool = False) -> None:
        self.done += 1
        if self.done != self.left:
            return
        if behind_commit:
            raise self._lost()
        admin = self._dialect.connect()
        with admin.cursor() as cursor:
            cursor.execute(f"KILL {self._number}" if self.is_mysql else f"SELECT pg_terminate_backend({self._number})")
        admin.close()

    def _lost(self) -> Exception:
        if self.is_mysql:
            import pymysql

            return pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
        import psycopg

        return psycopg.OperationalError("server closed the connection unexpectedly")


class CuttingConnection(CrashingConnection):
    def commit(self):
        self._crash.step()
        self._connection.commit()
        self._crash.step(behind_commit=True)


def run(target, options, numbers=(1, 2)) -> None:
    for number in numbers:
        apply(target, options, number, BATCHES[number - 1])


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((12, 13, 14), id="some"),
        pytest.param(range(1, 60), id="every", marks=[pytest.mark.slow, pytest.mark.all, pytest.mark.long]),
    ],
)
def test_a_connection_that_is_lost_at_any_statement_is_made_anew_and_each_change_is_applied_once(
    server,  # noqa: F811
    points,
):
    """Before each statement, before each commit, and with the answer to a commit: the same run goes on."""
    for point in points:
        one = Database(server)
        options, clock, cutting = one.options(dense=True), FakeClock(), Cutting(one.dialect, -1)
        target = DatabaseTarget(one_place(), options, clock, cutting, clock.advance)
        cutting.done, cutting.left = 0, point
        run(target, options)
        assert one.rows() == STATES[-1], point
        assert one.rows("id, b") == [(0, None), (1, "x"), (2, None)], point
        assert clock.monotonic() <= FakeClock().monotonic() + 1
        if cutting.done < point:
            assert point > 20
            return
    assert points != range(1, 60)


def one_place():
    from pathlib import Path

    return Path("/x/pipe")


def test_a_fault_that_will_not_pass_is_told_at_once(database, monkeypatch):  # noqa: F811
    """No table, and none may be made: nobody waits for that."""
    options, clock = database.options(), FakeClock()
    target = DatabaseTarget(one_place(), options, clock, database.dialect, clock.advance)
    apply(target, options, 1, [body("insert", 1, 1, {"a": 1})])
    database.run("ALTER TABLE t ADD CONSTRAINT few CHECK (a < 5)")
    began = clock.monotonic()
    with pytest.raises(MetaqError, match="could not be given batch 2"):
        apply(target, options, 2, [body("insert", 2, 1, {"a": 9})])
    assert clock.monotonic() == began
    assert database.rows() == [(1, 1)]


def test_a_server_that_is_killed_is_waited_for_or_the_next_run_goes_on(tmp_path, caplog):
    """kill -9 in the middle of a batch: one error that names the database and says what to do; the next run has it all, once. A server
    that is back within `retrySeconds` ends no run."""
    pytest.importorskip("pymysql", reason="pymysql is not installed: it comes with the extra mysql")
    running = mariadb.MariaDbServer(tmp_path)
    running.start()
    try:
        one = Database(f"mysql://{running.address}")
        options, clock = one.options(dense=True, retry_seconds=20.0), FakeClock()
        began = clock.monotonic()
        killing = Crashing(one.dialect, -1)
        killing.step = lambda: kill(killing, running)
        target = DatabaseTarget(one_place(), options, clock, killing, clock.advance)
        run(target, options, [1])
        killing.done, killing.left = 0, 8
        with pytest.raises(MetaqError, match=r"mysql://root@127.0.0.1:\d+/changes could not be ") as told:
            run(target, options, [2])
        assert clock.monotonic() == began + 20
        assert (
            "That went on for 20 s (retrySeconds). No change is lost: when the database is there again, start again"
            in str(told.value)
        )
        assert caplog.text.count("; trying again for 20 s") == 1
        running.start()
        assert one.rows() == STATES[0]
        run(DatabaseTarget(one_place(), options, clock, one.dialect), options, [2])
        assert one.rows() == STATES[1]

        target = DatabaseTarget(one_place(), options, clock, killing, lambda _: running.start())
        killing.done, killing.left = 0, 8
        with caplog.at_level(logging.WARNING):
            apply(target, options, 3, [body("update", 1, 3, {"a": 77})])
        assert one.rows() == [(0, 0), (1, 77), (2, 9)]
        stopping = DatabaseTarget(one_place(), options, clock, killing, clock.advance, lambda: True)
        killing.done, killing.left = 0, 1
        moment = clock.monotonic()
        with pytest.raises(MetaqError, match="No change is lost"):
            apply(stopping, options, 4, [body("update", 1, 4, {"a": 78})])
        assert clock.monotonic() == moment
    finally:
        running.kill()


def kill(killing: Crashing, running: mariadb.MariaDbServer) -> None:
    killing.done += 1
    if killing.done == killing.left:
        running.kill()
