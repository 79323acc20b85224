"""`Idempotence`: records keys in the user's transaction, as a call, a block or a decorator."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from metaq.client.identity.options import check_whole, checked_seconds
from metaq.errors import ConfigError
from metaq.idempotence import table as tables
from metaq.idempotence.keys import column_text, message_key
from metaq.sql.statements import checked_table, statements_of

KEEP_SECONDS = 7 * 86_400.0
BATCH_ROWS = 1000


class Idempotence:
    """Which messages a group has handled, in a table of the database that its handlers write to.

    Works on DB-API connections of SQLite, MariaDB, MySQL and PostgreSQL, and on connections and sessions of SQLAlchemy, the
    asynchronous ones too. It holds no connection, and can be used by any number of threads and processes. Of deliveries of one
    message at once exactly one is committed: the others wait in the database for the end of its transaction, and find the key
    recorded; if it was rolled back, the next one handles it. Under SQLite they wait as long as their connections' `timeout`,
    and raise what the driver raises then: the message comes again.

    Args:
        group: the consumer group; each handles a message once.
        table: its name, perhaps with a schema.
        key: of a message; by default `message_key`.

    Raises ConfigError, TypeError.
    """

    def __init__(self, group: str, *, table: str = "metaq_seen", key: Callable[[Any], str] = message_key) -> None:
        if not isinstance(group, str) or not group:
            raise ConfigError(f"group={group!r}: name the consumer group")
        if not callable(key):
            raise TypeError(f"key is {key!r}: pass a function of a message that returns text")
        self.group, self.table = group, checked_table(table)
        self._group, self._key = column_text(group), key

    def create_table(self, target: Any) -> None:
        """Create the table unless it is there, and commit. Raises what `first` raises of a connection, and what the driver raises.

        Args: target: a DB-API connection, or a connection or session of SQLAlchemy.
        """
        tables.create(statements_of(target), self.table)
        target.commit()

    def first(self, target: Any, message: Any) -> bool:
        """Record a message in the transaction of a connection or session, which is not ended here. Returns False: it was
        recorded before, so do not handle it again.

        Call it before the handler's own statements. Raises TypeError, ValueError: the key; ConfigError: the connection commits
        by itself; and what the driver raises.
        """
        return tables.record(statements_of(target), self.table, self._group, column_text(self._key(message)))

    async def first_async(self, target: Any, message: Any) -> bool:
        """As `first`, on SQLAlchemy's AsyncSession or AsyncConnection."""
        return bool(await target.run_sync(self._first_in, message))

    def _first_in(self, target: Any, message: Any) -> bool:
        return self.first(target, message)

    @contextlib.contextmanager
    def once(self, target: Any, message: Any) -> Iterator[bool]:
        """A block whose statements are committed together with the record, or rolled back if it raises:

        with seen.once(connection, message) as first:
            if first:
                connection.execute(...)

        Raises as `first`.
        """
        try:
            yield self.first(target, message)
            target.commit()
        except BaseException:
            # What the block raised is what the caller must see, also where the connection is lost.
            with contextlib.suppress(Exception):
                target.rollback()
            raise

    @contextlib.asynccontextmanager
    async def once_async(self, target: Any, message: Any) -> AsyncIterator[bool]:
        """As `once`, on SQLAlchemy's AsyncSession or AsyncConnection."""
        try:
            yield await self.first_async(target, message)
            await target.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                await target.rollback()
            raise

    def handler(self, connect: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[[Any], Any]]:
        """Make a handler of messages out of a function of a message and a connection, or session:

            @seen.handler(sessionmaker(engine))
            def bill(message, session): ...

        Each call opens one by `connect`, commits it and closes it. A message that was handled is skipped. What the function
        raises, verdicts such as `metaq.Later` too, rolls back and is passed on: the message comes again. For an `async def`
        `connect` makes an AsyncSession or AsyncConnection.
        """

        def decorate(function: Callable[..., Any]) -> Callable[[Any], Any]:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def handle_async(message: Any) -> Any:
                    opened = connect()
                    # `engine.connect()` must be awaited, a session need not.
                    target = await opened if inspect.isawaitable(opened) else opened
                    try:
                        async with self.once_async(target, message) as first:
                            return await function(message, target) if first else None
                    finally:
                        await target.close()

                return _of_message(handle_async)

            @functools.wraps(function)
            def handle(message: Any) -> Any:
                target = connect()
                try:
                    with self.once(target, message) as first:
                        return function(message, target) if first else None
                finally:
                    target.close()

            return _of_message(handle)

        return decorate

    def expire(
        self, target: Any, *, keep: float = KEEP_SECONDS, batch: int = BATCH_ROWS, batches_max: int | None = None
    ) -> int:
        """Forget keys that were recorded more than `keep` seconds ago, `batch` at a time, each committed. Returns their number.

        Args:
            target: a connection or session, as of `create_table`; it is committed.
            keep: seconds, 7 days by default; longer than a message may come again: retries, resets and outages of producers included.
            batch: rows per statement, 1000 by default.
            batches_max: most batches of this call; None: until none is left.

        Raises ConfigError, TypeError: no such number; and what the driver raises.
        """
        checked_seconds("keep", keep, least=0.0)
        check_whole("batch", batch)
        if batch < 1:
            raise ConfigError(f"batch={batch}: need at least 1")
        on, total, batches = statements_of(target), 0, 0
        before = on.now_ms() - round(keep * 1000)
        while batches_max is None or batches < batches_max:
            # A session of SQLAlchemy has another connection after a commit.
            count = tables.forget(statements_of(target), self.table, self._group, before, batch)
            target.commit()
            total, batches = total + count, batches + 1
            if count < batch:
                break
        return total


def _of_message(handle: Any) -> Callable[[Any], Any]:
    """Return a handler whose signature is its own: consumers look whether it can be called with one message."""
    del handle.__wrapped__
    return handle  # type: ignore[no-any-return]
