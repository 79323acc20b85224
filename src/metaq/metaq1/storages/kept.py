"""Messages that wait in a local file: those that could not be sent or consumed, in the order in which they came.

A file belongs to one topic and one name beside it (a group, a partition), and to one process at a time. It is an SQLite database with
a write-ahead log, so that a message costs one sync of the disk. Everything here blocks: call it in a thread of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, unquote

from metaq.durable import disk_fault, make_folder, sync_folder
from metaq.errors import (
    BufferFull,
    ClientClosed,
    MetaqError,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
)
from metaq.metaq1.model.message import Message

log = logging.getLogger("metaq.client")

Result = TypeVar("Result")
SUFFIX: Final = ".sqlite"
_FORMAT: Final = 1
_WORD_CHARS_MAX: Final = 100
_WAL_BYTES_MAX: Final = 4 << 20
"""Size to which the write-ahead log is cut after a checkpoint."""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS message (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL,
    topic TEXT NOT NULL,
    attribute BLOB,
    data BLOB NOT NULL
)"""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class KeptMessage(NamedTuple):
    """One message of a file."""

    number: int
    """Its place in the order; given once in the life of a file."""
    message_id: int
    message: Message


def kept_path(folder: Path, topic: str, name: str) -> Path:
    """Return the file in `folder` of one topic and one name beside it. Any text is a name of one file directly in the folder."""
    return folder / f"{_word(topic)}@{_word(name)}{SUFFIX}"


def kept_name(path: Path) -> str | None:
    """Return the name beside the topic in a path of `kept_path`; None: a long one, or it is no such path."""
    topic, at, name = path.name.removesuffix(SUFFIX).partition("@")
    return unquote(name) if at and topic and path.name.endswith(SUFFIX) and "~" not in name else None


def _word(text: str) -> str:
    word = quote(text, safe="").replace("~", "%7E")
    if len(word) > _WORD_CHARS_MAX:  # file systems take 255 bytes, with the endings of SQLite's own files
        word = f"{word[:30]}~{hashlib.sha256(text.encode()).hexdigest()}"
    return word


class KeptMessages:
    """The messages of one file. For any number of threads, one after the other.

    Args:
        path: of the file, which is made if it is missing, with its folder; see `kept_path`.
        limit: most messages that it takes; None: no limit.

    Raises StoreLocked: another process, or another object of this one, has it; StoreFull, StoreFailed: the disk. A damaged file is
    logged and put aside under another name, and a new one is begun: also later, when the damage shows.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path, self._limit = path, limit
        self._lock = threading.Lock()
        self._count = 0
        self._database: sqlite3.Connection | None = None
        try:
            make_folder(path.parent)
        except OSError as fault:
            raise disk_fault(fault, f"the folder of kept messages {path.parent} cannot be made") from None
        self._healed(self._open)

    def __len__(self) -> int:
        return self._count

    def add(self, message_id: int, message: Message) -> int:
        """Keep a message behind all others, durably, and return its number.

        Raises BufferFull: the limit is reached; StoreFull, StoreFailed: the disk; ClientClosed. Nothing is kept then.
        """
        return self.add_all([(message_id, message)])[0]

    def add_all(self, messages: Iterable[tuple[int, Message]]) -> list[int]:
        """Keep messages in this order, with one sync of the disk for all. Return their numbers, and raise, as `add`; all or none."""
        rows = [
            (message_id, one.topic, None if one.attribute is None else _attribute_bytes(one.attribute), one.data)
            for message_id, one in messages
        ]

        def add() -> list[int]:
            if self._limit is not None and self._count + len(rows) > self._limit:
                raise BufferFull(
                    f"{self.path} keeps {self._count} messages, and may keep {self._limit}: it takes no more until some are sent"
                )
            numbers = []
            with self._opened() as database:
                for row in rows:
                    cursor = database.execute(
                        "INSERT INTO message (message_id, topic, attribute, data) VALUES (?, ?, ?, ?)", row
                    )
                    assert cursor.lastrowid is not None, "a row was inserted"
                    numbers.append(cursor.lastrowid)
            self._count += len(rows)
            return numbers

        return self._locked(add)

    def oldest(self, count: int, after: int = 0) -> list[KeptMessage]:
        """Return the first `count` messages with a number above `after`, or all if there are fewer, in order. Raises StoreFailed,
        ClientClosed."""

        def read() -> list[KeptMessage]:
            rows = self._opened().execute(
                "SELECT number, message_id, topic, attribute, data FROM message WHERE number > ? ORDER BY number LIMIT ?",
                (after, count),
            )
            return [_kept(row) for row in rows]

        return self._locked(read)

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget messages, durably. A number that is not there is passed over. Raises StoreFull, StoreFailed, ClientClosed."""

        def remove() -> None:
            with self._opened() as database:
                gone = database.executemany(
                    "DELETE FROM message WHERE number = ?", [(one,) for one in numbers]
                ).rowcount
            self._count -= max(gone, 0)

        self._locked(remove)

    def close(self) -> None:
        """Let go of the file. Harmless twice."""
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------- the file

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise ClientClosed(f"the kept messages in {self.path} are closed")
        return self._database

    def _locked(self, work: Callable[[], Result]) -> Result:
        with self._lock:
            return self._healed(work)

    def _healed(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns; if the file is found to be damaged, after another has been begun."""
        try:
            return work()
        except _BadRow as error:
            why = str(error)
        except sqlite3.Error as error:
            if _code_of(error) not in _DAMAGED:
                raise self._fault(error) from None
            why = str(error)
        try:
            self._put_aside(why)
            self._open()
            return work()
        except sqlite3.Error as error:
            raise self._fault(error) from None

    def _open(self) -> None:
        self._close()
        is_new = not self.path.exists()
        database = self._database = sqlite3.connect(self.path, timeout=0, check_same_thread=False)
        try:
            # Exclusive before anything is read: then the log needs no memory shared with others, and others are kept out.
            for statement in (
                "PRAGMA locking_mode=EXCLUSIVE",
                "PRAGMA auto_vacuum=FULL",
                "PRAGMA journal_mode=WAL",
                "PRAGMA synchronous=FULL",
                f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}",
            ):
                database.execute(statement).fetchall()
            _check_format(database)
            with database:
                database.execute(_TABLE)
                database.execute(f"PRAGMA user_version={_FORMAT}")
            (self._count,) = database.execute("SELECT count(*) FROM message").fetchone()
            database.execute("SELECT message_id, topic, attribute, data FROM message LIMIT 0")
            if is_new:
                sync_folder(self.path.parent)
        except OSError as fault:
            self._close()
            raise disk_fault(fault, f"{self.path} cannot be made") from None
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with contextlib.suppress(sqlite3.Error):  # what is committed is on disk
                database.close()

    def _put_aside(self, why: str) -> None:
        self._close()
        self._count = 0
        for number in itertools.count(1):
            aside = self.path.with_name(f"{self.path.name}.damaged-{number}")
            if not aside.exists():
                break
        try:
            for ending in ("", "-wal", "-shm", "-journal"):
                part = self.path.with_name(self.path.name + ending)
                if part.exists():
                    part.rename(aside.with_name(aside.name + ending))
            sync_folder(self.path.parent)
        except OSError as fault:
            raise disk_fault(fault, f"{self.path} is damaged ({why}) and cannot be put aside") from None
        log.error(
            "%s is damaged (%s): it is put aside as %s, and a new file is begun. Messages in it are not sent or consumed; "
            "`sqlite3 %s .recover` may show them",
            self.path,
            why,
            aside.name,
            aside,
        )

    def _fault(self, error: sqlite3.Error) -> MetaqError:
        code = _code_of(error)
        if code in _LOCKED:
            return StoreLocked(
                f"{self.path} is in use by another process, or by another session factory of this one: give each a folder of "
                "its own"
            )
        if code in _DAMAGED:
            return StoreCorrupt(f"{self.path} is damaged: {error}. Move it away")
        kind: type[StoreError] = StoreFull if code == sqlite3.SQLITE_FULL else StoreFailed
        return kind(f"{self.path}: {error}. Make room or mend the disk; messages that are kept stay there")


class _BadRow(Exception):
    """The file is a database, and not one of kept messages."""


def _check_format(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in {0, _FORMAT}:
        raise _BadRow(f"it has format {version}, and this version of metaq reads {_FORMAT}")


def _kept(row: tuple[object, ...]) -> KeptMessage:
    number, message_id, topic, attribute, data = row
    if (
        isinstance(number, int)
        and isinstance(message_id, int)
        and isinstance(topic, str)
        and isinstance(data, bytes)
        and isinstance(attribute, bytes | None)
    ):
        with contextlib.suppress(ValueError, MetaqError):
            text = None if attribute is None else attribute.decode("utf-8", "surrogatepass")
            return KeptMessage(number, message_id, Message(topic, data, text))
    raise _BadRow(f"message {number} in it is none")


def _attribute_bytes(attribute: str) -> bytes:
    return attribute.encode("utf-8", "surrogatepass")  # any text comes back, also one that is never sent


def _code_of(error: sqlite3.Error) -> int:
    """SQLite's primary code; an error of the module's own has none."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code == sqlite3.SQLITE_ERROR and "no such" in str(error):  # table or column
        return sqlite3.SQLITE_CORRUPT
    return code & 0xFF
