"""`AsyncOutboxSender`: a task that sends what is in an outbox."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Self

from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.outbox.entry import Entry
from metaq.outbox.outbox import Outbox, Waker
from metaq.outbox.outlets import outlets_of
from metaq.outbox.sender import LOG, SETTLE_TRIES
from metaq.outbox.work import Database, Rules, Work


class AsyncOutboxSender:
    """As `OutboxSender`, in an event loop: `async with`. `connect` makes SQLAlchemy's AsyncSession or AsyncConnection; producers are
    those of `metaq.aio` and `metaq.metaq1.aio`.

    `sent`, `failed`, `parked`: number of messages that this sender has sent, of tries that failed, and of messages that it has
    parked.
    """

    def __init__(self, outbox: Outbox, connect: Callable[[], Any], producers: Any, rules: Rules | None = None) -> None:
        self._outbox, self._connect, self._rules = outbox, connect, rules or Rules()
        self._outlets, self._database = outlets_of(producers), Database()
        self._log = RateLimitedLog(LOG)
        self._awake = asyncio.Event()
        self._closing = False
        self.sent = self.failed = self.parked = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._waker = Waker(lambda: None if loop.is_closed() else loop.call_soon_threadsafe(self._awake.set))
        self._outbox._watched_by(self._waker)  # noqa: SLF001  senders are parts of it
        self._task = loop.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self._awake.set()
        await self._task

    async def run_once(self) -> bool:
        """Lease messages and send them. Returns False: there were none. Raises what the driver raises."""
        work = Work(self._outbox.table, self._rules, list(self._outlets), self._database)
        opened = self._connect()
        target = await opened if inspect.isawaitable(opened) else opened
        try:
            found = bool(await target.run_sync(work.begin))
            while not self._closing and (step := work.step()):
                outcomes = await asyncio.gather(*map(self._sent, step))
                await self._settle(work, target, outcomes)
            await target.run_sync(work.end)
        finally:
            self.sent, self.failed, self.parked = (
                self.sent + work.sent, self.failed + work.failed, self.parked + work.parked
            )  # fmt: skip
            await target.close()
        return found

    async def _settle(self, work: Work, target: Any, outcomes: list[tuple[Entry, Exception | None]]) -> None:
        for left in reversed(range(SETTLE_TRIES)):
            try:
                await target.run_sync(work.settle, outcomes)
                return
            except Exception:
                if not left:
                    raise
                await target.rollback()

    async def _sent(self, entry: Entry) -> tuple[Entry, Exception | None]:
        outlet = self._outlets[entry.protocol]
        try:
            async with asyncio.timeout(self._rules.timeout):
                ready = outlet.prepare(entry.topic)
                if inspect.isawaitable(ready):
                    await ready
                outlet.check(await outlet.submit(entry))
        except (MetaqError, TimeoutError, ValueError, TypeError) as error:
            self._log.warning("failed", "message %s for topic %s: %s", entry.message_id, entry.topic, error)
            return entry, error
        return entry, None

    async def _run(self) -> None:
        while not self._closing:
            self._awake.clear()
            try:
                found = await self.run_once()
            except Exception as error:  # noqa: BLE001  whatever a driver raises: the task must not end
                self._log.warning("database", "the table %s cannot be worked on: %s", self._outbox.table, error)
                found = False
            if not found and not self._closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._rules.poll):
                        await self._awake.wait()
