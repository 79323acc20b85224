"""`Outbox`: the table as users and operators see it."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, InvalidMessage
from metaq.outbox import table as tables
from metaq.outbox.entry import PARKED, SENT, WAITING, Entry, packed
from metaq.sql.statements import checked_table, statements_of

TABLE: Final = "metaq_outbox"
STATES: Final = (WAITING, PARKED, SENT)
_LANE_CHARS_MAX = 255


class Outbox:
    """Messages that wait in a table of the user's database. Holds no connection; for any number of threads and processes.

    Its calls take a DB-API connection of SQLite, MariaDB, MySQL or PostgreSQL, or a connection or session of SQLAlchemy, and run in
    its transaction. They raise TypeError, ConfigError: it is none, or commits by itself; and what the driver raises.

    Args: table: its name, perhaps with a schema.
    """

    def __init__(self, *, table: str = TABLE, clock: Clock = SYSTEM) -> None:
        self.table, self._clock = checked_table(table), clock
        self._wakers: weakref.WeakSet[Waker] = weakref.WeakSet()
        self._lock = threading.Lock()

    def create_table(self, target: Any) -> None:
        """Create the table unless it is there, and commit. `target`: a connection or session that may create tables."""
        tables.create(statements_of(target), self.table)
        target.commit()

    def add(self, target: Any, message: Any, *, ordering_key: str | None = None) -> str:
        """Have a message sent once the transaction of a connection or session is committed. Returns its id.

        A commit of a SQLAlchemy session wakes senders of this process; others look every second, or when `wake` is called.

        Args:
            target: the connection or session whose transaction it belongs to.
            message: a `metaq.Message` or a `metaq.metaq1.Message`.
            ordering_key: messages of one topic and key are sent in the order in which they were added, by one sender at a time, and a
                RocketMQ producer sends them to one queue.

        Raises TypeError, InvalidMessage: a message that can never be sent.
        """
        if ordering_key is not None and (not isinstance(ordering_key, str) or not ordering_key):
            raise InvalidMessage(f"ordering_key is {ordering_key!r}: pass text or None")
        protocol, topic, content = packed(message, ordering_key)
        message_id = self._clock.token().upper()
        lane = "" if ordering_key is None else _lane(topic, ordering_key)
        tables.add(statements_of(target), self.table, message_id, protocol, topic, lane, content)
        self._wake_at_commit(target)
        return message_id

    async def add_async(self, target: Any, message: Any, *, ordering_key: str | None = None) -> str:
        """As `add`, on SQLAlchemy's AsyncSession or AsyncConnection. Await it before the commit."""
        return str(await target.run_sync(lambda sync: self.add(sync, message, ordering_key=ordering_key)))

    def wake(self) -> None:
        """Have the senders of this process look at once: something was committed."""
        with self._lock:
            wakers = list(self._wakers)
        for waker in wakers:
            waker.wake()

    def listed(
        self, target: Any, *, state: str | None = None, topic: str | None = None, after: int = 0, count: int = 100
    ) -> list[Entry]:
        """Return at most `count` messages behind position `after`, in order. Empty: there are none.

        Args:
            target: a connection or session.
            state: only those that are `WAITING`, `SENT` or `PARKED`; None: all.
            topic: only those of a topic; None: of all.
            after: `Entry.position` of the last one of the page before; 0: from the first one on.

        Raises ConfigError: no such state.
        """
        if state is not None and state not in STATES:
            raise ConfigError(f"state={state!r}: need one of {', '.join(STATES)}")
        return tables.listed(statements_of(target), self.table, state, topic, after, count)

    def existing(self, target: Any, message_ids: Iterable[str]) -> list[str]:
        """Return the ids of those that the table has, whatever their state. Empty: none."""
        return tables.existing(statements_of(target), self.table, list(message_ids))

    def resend(self, target: Any, message_ids: Iterable[str]) -> int:
        """Have messages sent anew, under their ids, whatever their state. Those that are being sent are left out. Returns how many."""
        return tables.resend(statements_of(target), self.table, list(message_ids))

    def drop(self, target: Any, message_ids: Iterable[str]) -> int:
        """Delete messages, unsent ones too. Those that are being sent are left out. Returns how many."""
        return tables.drop(statements_of(target), self.table, list(message_ids))

    def _watched_by(self, waker: Waker) -> None:
        """Tell a sender of commits, as long as it lives. Senders call it."""
        with self._lock:
            self._wakers.add(waker)

    def _wake_at_commit(self, target: Any) -> None:
        info = getattr(target, "info", None)
        if not hasattr(target, "get_bind") or not isinstance(info, dict) or self in info:
            return
        from sqlalchemy import event

        info[self] = True
        event.listen(target, "after_commit", lambda _session: self.wake())


class Waker:
    """What a sender leaves with its outbox. Args: wake: called in any thread."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake


def _lane(topic: str, key: str) -> str:
    lane = f"{topic}:{key}"
    if len(lane) <= _LANE_CHARS_MAX and lane.isascii() and lane.isprintable():
        return lane
    return f"sha256:{hashlib.sha256(lane.encode('utf-8', 'surrogatepass')).hexdigest()}"
