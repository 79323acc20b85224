"""Transactions of several messages for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from metaq.client.conversation import driver
from metaq.client.producing.atomic import AtomicBase, AtomicResult, Waiting, Way
from metaq.client.shared.messages import NO_KEYS, Selector, as_message
from metaq.client.shared.values import Sent_contra
from metaq.model import Message, MessageQueue, TransactionOutcome

Result = TypeVar("Result")


class Atomic(AtomicBase, Generic[Sent_contra]):
    """`metaq.Atomic` for asyncio. Use it with `async with`. Safe from many tasks.

    A task that is cancelled while it waits for the end does not stop that.
    """

    async def send(
        self,
        topic: str | Message,
        body: Sent_contra | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        flag: int = 0,
        properties: dict[str, str] | None = None,
        strict: bool = False,
    ) -> str:
        """Add a message to the transaction; returns its id. As `metaq.Atomic.send`."""
        message = as_message(topic, body, tag, keys, flag=flag, properties=properties, serialize=self._outlet.serialize)
        return await self._wait(self._sending(message, Way(ordering_key, selector, queue, strict)))

    async def prepare(self) -> None:
        """Store everything, at every broker, and decide nothing. As `metaq.Atomic.prepare`."""
        await self._wait(self._preparing())

    async def commit(self) -> AtomicResult:
        """End it: all its messages are delivered. As `metaq.Atomic.commit`."""
        return await self._wait(self._deciding(TransactionOutcome.COMMIT, self._timeout))

    async def rollback(self) -> AtomicResult:
        """End it: none of its messages is delivered. As `metaq.Atomic.rollback`."""
        return await self._wait(self._deciding(TransactionOutcome.ROLLBACK, self._timeout))

    async def _wait(self, work: Waiting[Result]) -> Result:
        return await driver.converse_async(work, _awaited)

    async def __aenter__(self) -> Self:
        self._check_going_on()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wait(self._leaving(error))


async def _awaited(future: concurrent.futures.Future[Any]) -> object:
    # A cancelled task does not stop the request, for which other tasks may wait, too.
    return await asyncio.shield(asyncio.wrap_future(future))
