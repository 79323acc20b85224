"""Target: tables of MariaDB, MySQL or PostgreSQL, a batch in one transaction together with its batch id.

    metaq_changes_progress (pipeline, query, batch, state)     the batch applied last, and the known tables and columns
    metaq_changes_keys (id, pipeline, seq, gone_ms)            with sequenceScope = key: the sequence applied last of each key

A COMMIT whose answer was lost does no harm: a retry, by this run or the next, first asks the database which batch it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, MetaqError
from metaq.pipelines.changes import kinds
from metaq.pipelines.changes.change import Problem, Sequence_
from metaq.pipelines.changes.dialect import Dialect
from metaq.pipelines.changes.folding import KEY, Final, Folded, Put, fold
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.changes.reading import CHANGE, ORDER, Notes, change_in
from metaq.pipelines.changes.target import Applied, Judge, joined_columns
from metaq.pipelines.checkpoints import query_id
from metaq.sql.address import Address, DatabaseAway, address_of, driver_text

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE_SECONDS = 1.0
"""Pause between two tries to reach the database."""
PROGRESS, KEYS = "metaq_changes_progress", "metaq_changes_keys"
_SOME = 500
"""Keys per SELECT."""


class DatabaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the target."""

    target: str
    """Name in the database."""
    key: list[str]
    columns: dict[str, str]
    """Name → kind."""


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline's state in the database, JSON in metaq_changes_progress."""

    query: str
    """Id of the streaming query."""
    batch: int
    """Batch applied last."""
    tables: dict[str, DatabaseTable] = {}
    """Source's name of a table → the target's."""
    last: dict[str, list[int]] = {}
    """Scope → sequence applied last, if they are checked by queue."""


class DatabaseTarget:
    """Target in a database. Connects for each batch: hours may pass between two, and servers drop idle connections."""

    def __init__(
        self,
        place: Path,
        options: ChangesOptions,
        clock: Clock = SYSTEM,
        dialect: Dialect | None = None,
        pause: Callable[[float], object] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            place: the pipeline's folder; its name is the pipeline's in the database, unless targetName is given.
            options: of the pipeline.
            clock: times of retries and deletions.
            dialect: instead of the one that the address names.
            pause: waits for so many seconds.
            stopping: whether to stop waiting for the database.

        Raises: ConfigError: the driver is not installed, or the address is wrong. MetaqError: the database refuses.
        """
        address = address_of(options.target, options.password_env, os.environ)
        self._sql = dialect or dialect_of(address)
        self._options, self._clock, self._where = options, clock, address
        self._name = options.target_name or place.name
        self._checked: set[str] = set()
        self._over = threading.Event()
        self._pause, self._stopping = pause or self._over.wait, stopping
        self._sent = Applied()
        """Figures of the batch whose COMMIT was sent last."""
        with self._connected("prepared") as (connection, cursor):
            self._make_own_tables(cursor)
            if options.forget_deleted_seconds:
                before = clock.now_ms() - round(options.forget_deleted_seconds * 1000)
                cursor.execute(f"DELETE FROM {KEYS} WHERE pipeline = %s AND gone_ms < %s", (self._name, before))  # noqa: S608
            connection.commit()
            self._state = self._read(cursor)

    def guard(self, checkpoint: Path) -> None:
        query = query_id(checkpoint)
        if self._state is not None and self._state.query != query:
            which = f"belongs to another query ({query})" if query else "is new or empty"
            raise ConfigError(
                f"the tables in {self._where} were written as {self._name} by the query {self._state.query}, and the checkpoint "
                f"{checkpoint} {which}: old changes would be applied over new ones. Give the old checkpoint; or another "
                "targetName, and empty tables"
            )

    @property
    def last(self) -> Mapping[str, Sequence_]:
        return {name: tuple(numbers) for name, numbers in (self._state.last if self._state else {}).items()}

    def has(self, query: str, batch: int) -> bool:
        return self._patiently(lambda: self._has(query, batch))

    def _has(self, query: str, batch: int) -> bool:
        with self._connected("read") as (_, cursor):
            state = self._state = self._read(cursor)
        if state is None or state.query != query or state.batch < batch:
            return False
        if state.batch > batch:
            raise ConfigError(
                f"{self._where} has batch {state.batch} of {self._name}, and the checkpoint is about to do batch {batch}: it is "
                "an older copy. Give the newest checkpoint"
            )
        return True

    def apply(self, query: str, batch: int, rows: Any, judge: Judge) -> Applied:
        """Apply a batch, a DataFrame of `ROW_SCHEMA`. Collected to the driver: one transaction is one connection."""
        return self.apply_rows(query, batch, rows.toArrow().to_pylist(), judge)

    def apply_rows(self, query: str, batch: int, rows: list[dict[str, Any]], judge: Judge) -> Applied:
        """Apply a batch of rows of `ROW_SCHEMA`.

        Raises: ConfigError: a table or column is missing and may not be created, or the key has no unique index. MetaqError:
            the database refuses, or is away for longer than `retrySeconds`. What `judge` raises. In each case no row has
            changed, only tables and columns may be new; if the database was lost during the COMMIT, the next start finds out.
        """
        tries = itertools.count()

        def tried() -> Applied:
            # The previous try may have been committed, and only the answer to its COMMIT was lost.
            if next(tries) and self._has(query, batch):
                return self._sent
            return self._try(query, batch, rows, judge)

        return self._patiently(tried)

    def _patiently(self, act: Callable[[], T]) -> T:
        """Call `act`, with retries while the database is away. Raises what it raises, or MetaqError after `retrySeconds`."""
        began, said = self._clock.monotonic(), False
        while True:
            try:
                return act()
            except DatabaseAway as fault:
                left = self._options.retry_seconds - (self._clock.monotonic() - began)
                if left <= 0 or self._over.is_set() or self._stopping():
                    raise MetaqError(
                        f"{fault}. That went on for {self._clock.monotonic() - began:.0f} s (retrySeconds). No change is lost: when "
                        "the database is there again, start again, and it goes on from where it was"
                    ) from None
                if not said:
                    _LOG.warning("changes: %s; trying again for %.0f s", fault, left)
                    said = True
                self._pause(min(PAUSE_SECONDS, left))

    def _try(self, query: str, batch: int, rows: list[dict[str, Any]], judge: Judge) -> Applied:
        notes = Notes.of([row for row in rows if row["note"] != CHANGE])
        judge(notes.problems, last=False)
        if not notes.messages:
            return Applied()
        before = self._state.tables if self._state is not None else {}
        columns, _ = joined_columns(
            {name: table.columns for name, table in before.items()},
            {name: tuple(table.key) for name, table in before.items()},
            notes,
        )
        tables = {name: self._table(name, before.get(name), notes, columns[name]) for name in columns}
        self._one_source_each(tables)
        with self._connected(f"given batch {batch}") as (connection, cursor):
            for name in sorted(notes.keys):
                self._make_fit(cursor, name, tables[name])
            connection.commit()  # MariaDB commits at each CREATE or ALTER anyway.
            # Locks the row: of two runs with one targetName the second sees the first one's batch.
            if self._read(cursor, "FOR UPDATE") != self._state:
                raise MetaqError(
                    f"somebody else writes to {self._where} as {self._name}: batch {batch} was not applied"
                )
            done = self._applied(cursor, rows, notes, tables, judge)
            last = {**(self._state.last if self._state is not None else {}), **notes.last}
            state = TargetState(query=query, batch=batch, tables=tables, last=last)
            self._save(cursor, state)
            # Before the COMMIT: if only its answer is lost, the next try finds the batch and returns these figures.
            self._sent = done
            connection.commit()
            # Only after the COMMIT: until then the database has the old state, which the next try compares.
            self._state = state
        return done

    def close(self) -> None:
        """Wake a batch that waits for its database; no connection is open between batches."""
        self._over.set()

    # -------------------------------------------------------------- a batch
    def _applied(
        self,
        cursor: Any,
        rows: list[dict[str, Any]],
        notes: Notes,
        tables: Mapping[str, DatabaseTable],
        judge: Judge,
    ) -> Applied:
        # Rows come from the tasks in any order. Their buckets are only of use to the snapshot.
        changes = sorted(
            (row for row in rows if row["note"] == CHANGE),
            key=lambda row: tuple(row[name] for name in ORDER if name != "bucket"),
        )
        by_key = self._options.sequence_scope == KEY
        folds: dict[str, Folded] = {}
        for name, group in itertools.groupby(changes, lambda row: row["source"]):
            mine = [change_in(row) for row in group]
            known = self._known(cursor, name, {change.key_text for _, change in mine}) if by_key else {}
            folds[name] = fold(mine, known, by_key=by_key, dense=self._options.dense)
        problems: list[Problem] = [*notes.problems, *(one for found in folds.values() for one in found.problems)]
        judge(problems, last=True)
        deletes = 0
        for name, folded in folds.items():
            self._write(cursor, tables[name], list(folded.finals.values()))
            deletes += sum(final.put is Put.NOTHING for final in folded.finals.values())
            if by_key:
                self._remember(cursor, name, folded.finals)
        return Applied(
            messages=notes.messages, others=notes.others, problems=problems, deletes=deletes,
            applied=sum(folded.applied for folded in folds.values()),
            puts=sum(len(folded.finals) for folded in folds.values()) - deletes,
            repeats=notes.repeats + sum(folded.repeats for folded in folds.values()),
        )  # fmt: skip

    def _write(self, cursor: Any, table: DatabaseTable, finals: list[Final]) -> None:
        quote = self._sql.quote
        where = " AND ".join(f"{quote(name)} = %s" for name in table.key)
        gone = [self._values(table, final.key, table.key) for final in finals if final.put is Put.NOTHING]
        if gone:
            cursor.executemany(f"DELETE FROM {quote(table.target)} WHERE {where}", gone)  # noqa: S608  names are quoted
        whole = list(table.columns)
        full: list[Sequence[Any]] = []
        for final in finals:
            if final.put is Put.ROW or (final.put is Put.COLUMNS and all(name in final.row for name in whole)):
                full.append(self._values(table, final.row, whole))
            elif final.put is Put.COLUMNS:
                self._write_columns(cursor, table, final, where)
        if full:
            cursor.executemany(self._sql.upsert(table.target, whole, table.key), full)

    def _write_columns(self, cursor: Any, table: DatabaseTable, final: Final, where: str) -> None:
        """Update some columns of a row. Not by an upsert, which would need a value for every NOT NULL column."""
        quote = self._sql.quote
        names = [name for name in table.columns if name in final.row]
        rest = [name for name in names if name not in table.key]
        key = self._values(table, final.row, table.key)
        if rest:
            sets = ", ".join(f"{quote(name)} = %s" for name in rest)
            cursor.execute(
                f"UPDATE {quote(table.target)} SET {sets} WHERE {where}",  # noqa: S608  names are quoted
                [*self._values(table, final.row, rest), *key],
            )
            if cursor.rowcount:
                return
        # No such row: the update makes it, of the columns that it has.
        cursor.execute(self._sql.upsert(table.target, names, table.key), self._values(table, final.row, names))

    def _values(self, table: DatabaseTable, row: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        return [self._sql.value(kinds.python_value(row.get(name), table.columns[name])) for name in names]

    # -------------------------------------------------------------- sequences of keys
    def _known(self, cursor: Any, table: str, keys: set[str]) -> dict[str, Sequence_]:
        names = {self._id(table, key): key for key in sorted(keys)}
        found: dict[str, Sequence_] = {}
        ids = iter(names)
        while some := list(itertools.islice(ids, _SOME)):
            places = ", ".join(["%s"] * len(some))
            cursor.execute(f"SELECT id, seq FROM {KEYS} WHERE id IN ({places})", some)  # noqa: S608
            found |= {names[one]: tuple(msgspec.json.decode(text)) for one, text in cursor.fetchall()}
        return found

    def _remember(self, cursor: Any, table: str, finals: Mapping[str, Final]) -> None:
        now = self._clock.now_ms()
        rows = [
            (
                self._id(table, key),
                self._name,
                kinds.json_text(final.sequence),
                now if final.put is Put.NOTHING else None,
            )
            for key, final in finals.items()
            if final.sequence is not None
        ]
        if rows:
            cursor.executemany(self._sql.upsert(KEYS, ("id", "pipeline", "seq", "gone_ms"), ("id",)), rows)

    def _id(self, table: str, key: str) -> str:
        # A hash, because keys are of any length and an index is not.
        return hashlib.sha256(f"{self._name}\0{table}\0{key}".encode()).hexdigest()

    # -------------------------------------------------------------- tables
    def _table(
        self, source: str, known: DatabaseTable | None, notes: Notes, columns: Mapping[str, str]
    ) -> DatabaseTable:
        if known is not None:
            return msgspec.structs.replace(known, columns=dict(columns))
        schema, _, name = source.rpartition(".")
        target = (self._options.target_table or "{table}").replace("{table}", name).replace("{schema}", schema)
        (key,) = notes.keys[source]
        return DatabaseTable(target=target, key=list(key), columns=dict(columns))

    def _one_source_each(self, tables: Mapping[str, DatabaseTable]) -> None:
        seen: dict[str, str] = {}
        for source, table in sorted(tables.items()):
            # MySQL's table names heed case or not, by the server's file system: names that differ in it alone are
            # refused.
            other = seen.setdefault(table.target.lower(), source)
            if other != source:
                raise ConfigError(
                    f"{other} and {source} would both be written to {table.target}: set targetTable = "
                    "{schema}_{table}, or choose one of them with tables"
                )

    def _make_fit(self, cursor: Any, source: str, table: DatabaseTable) -> None:
        """Check a table's columns and key; create missing ones, if the options allow it. Raises ConfigError."""
        quote, target = self._sql.quote, table.target
        there = self._sql.columns(cursor, target)
        missing = [name for name in table.columns if name.lower() not in {one.lower() for one in there}]
        if missing and not self._options.create_table:
            what = f"no column {', '.join(missing)}" if there else "no such table"
            raise ConfigError(
                f"{source} is to be written to {target} in {self._where}, and there is {what}: make it, or set createTable"
            )
        types = [
            f"{quote(name)} {self._sql.column_type(table.columns[name], key=name in table.key)}" for name in missing
        ]
        if missing and not there:
            key = ", ".join(quote(name) for name in table.key)
            cursor.execute(f"CREATE TABLE {quote(target)} ({', '.join(types)}, PRIMARY KEY ({key}))", ())
        elif missing:
            cursor.execute(f"ALTER TABLE {quote(target)} {', '.join(f'ADD COLUMN {one}' for one in types)}", ())
        if target not in self._checked:
            self._check_key(cursor, table)
            self._checked.add(target)

    def _check_key(self, cursor: Any, table: DatabaseTable) -> None:
        key = {name.lower() for name in table.key}
        indexes = [{name.lower() for name in one} for one in self._sql.unique_indexes(cursor, table.target)]
        if key not in indexes:
            raise ConfigError(
                f"{table.target} in {self._where} has no primary key or unique index of just {', '.join(table.key)}: rows are "
                "found by it"
            )
        if self._sql.upsert_needs_one_index and any(one != key for one in indexes):
            other = next(one for one in indexes if one != key)
            raise ConfigError(
                f"{table.target} in {self._where} has another unique index, of {', '.join(sorted(other))}: an upsert could "
                "change a row of another key by it. Make it an index that is not unique"
            )

    # -------------------------------------------------------------- its own tables
    def _make_own_tables(self, cursor: Any) -> None:
        sql = self._sql
        for name, columns in (
            (PROGRESS, f"pipeline {sql.key_text_type} PRIMARY KEY, query VARCHAR(64) NOT NULL, batch BIGINT NOT NULL, state {sql.text_type} NOT NULL"),
            (KEYS, f"id CHAR(64) PRIMARY KEY, pipeline {sql.key_text_type} NOT NULL, seq {sql.text_type} NOT NULL, gone_ms BIGINT"),
        ):  # fmt: skip
            if not sql.columns(cursor, name):
                cursor.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})", ())

    def _read(self, cursor: Any, lock: str = "") -> TargetState | None:
        cursor.execute(f"SELECT state FROM {PROGRESS} WHERE pipeline = %s {lock}", (self._name,))  # noqa: S608
        row = cursor.fetchone()
        return msgspec.json.decode(row[0], type=TargetState) if row is not None else None

    def _save(self, cursor: Any, state: TargetState) -> None:
        columns = ("pipeline", "query", "batch", "state")
        values = (self._name, state.query, state.batch, msgspec.json.encode(state).decode())
        cursor.execute(self._sql.upsert(PROGRESS, columns, ("pipeline",)), values)

    @contextlib.contextmanager
    def _connected(self, doing: str) -> Iterator[tuple[Any, Any]]:
        """Open a connection for a block; closing it rolls back what was not committed.

        Raises DatabaseAway, MetaqError: for a driver's fault inside.
        """
        connection = None
        try:
            connection = self._sql.connect()
            with connection.cursor() as cursor:
                yield connection, cursor
        except self._sql.errors as fault:
            kind = DatabaseAway if self._sql.passes(fault) else MetaqError
            raise kind(f"{self._where} could not be {doing}: {driver_text(fault, self._where)}") from None
        finally:
            if connection is not None:
                with contextlib.suppress(*self._sql.errors):
                    connection.close()


def dialect_of(address: Address) -> Dialect:
    """Return the dialect of a database. Imports its driver: only the one that is used must be installed.

    Raises ConfigError: the driver is not installed; the text names the extra.
    """
    try:
        if address.kind == "mysql":
            from metaq.pipelines.changes.mariadb import MariaDb

            return MariaDb(address)
        from metaq.pipelines.changes.postgresql import PostgreSql

        return PostgreSql(address)
    except ImportError as fault:
        extra = "mysql" if address.kind == "mysql" else "postgres"
        raise ConfigError(f"target {address.kind} needs {fault.name}: pip install 'pymetaq[{extra}]'") from None


def try_to_reach(address: Address) -> None:
    """Connect once. Raises: ConfigError: the driver is not installed. MetaqError: the database is away, or refuses."""
    dialect = dialect_of(address)
    try:
        dialect.connect().close()
    except dialect.errors as fault:
        raise MetaqError(f"{address} could not be reached: {driver_text(fault, address)}") from None
