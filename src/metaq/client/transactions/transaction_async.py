"""`metaq.aio.TransactionProducer` and its transactions: `metaq.client.transactions.transaction` for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from metaq.client.producing.accumulator import BatchStream
from metaq.client.producing.producer_async import Producer
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.messages import Selector
from metaq.client.shared.values import Sent_contra
from metaq.client.transactions.checks import Answer, AsyncCheck, AwaitedChecks, PoolLimits, check_function, outcome_of
from metaq.client.transactions.transaction import HalfSend, TransactionBase, TransactionProducerBase, TransactionResult
from metaq.model import Message, MessageQueue, SendReceipt, TransactionOutcome

Result = TypeVar("Result")


class Transaction(TransactionBase):
    """One transaction of a `TransactionProducer`. Use it with `async with`.

    `commit`, `rollback` and `unknown` decide at once; await what they return to know that the broker has got it.
    """

    _producer: TransactionProducer

    async def begin(self) -> Self:
        """Store the message unseen. As `metaq.Transaction.begin`."""
        self._producer._check_open()  # noqa: SLF001  a part of the producer
        self._producer._live_here()  # noqa: SLF001
        self._check_new()
        self._stored(await self._producer._send_half(self._wanted))  # noqa: SLF001
        if (error := self._not_safe()) is not None:
            await self.rollback()
            raise error
        return self

    def commit(self) -> Awaitable[TransactionResult]:
        """End it: consumers get the message. Raises TransactionEnded: it ended otherwise before."""
        return _shielded(self._decide(TransactionOutcome.COMMIT))

    def rollback(self) -> Awaitable[TransactionResult]:
        """End it: nobody gets the message. Raises TransactionEnded: it ended otherwise before."""
        return _shielded(self._decide(TransactionOutcome.ROLLBACK))

    def unknown(self) -> Awaitable[TransactionResult]:
        """End it here without an outcome: the broker will ask, and `check` settles it. Raises TransactionEnded."""
        return _shielded(self._decide(TransactionOutcome.UNKNOWN))

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _shielded(self._left(error))


AsyncExecute = Callable[[Transaction], Awaitable[Answer]]


class TransactionProducer(TransactionProducerBase[Transaction, Sent_contra], Producer[Sent_contra]):
    """`metaq.TransactionProducer` for asyncio: `check` is awaited in the event loop in which the producer is made, entered
    or first used."""

    _pool: AwaitedChecks

    def _check_kind(self, check: Callable[..., Any]) -> None:
        check_function(check, "check", awaited=True)

    def _new_pool(self, check: AsyncCheck, limits: PoolLimits) -> AwaitedChecks:
        pool = AwaitedChecks(self._core, self.group, limits, check)
        with contextlib.suppress(RuntimeError):  # Made before the loop runs.
            pool.live_in(asyncio.get_running_loop())
        return pool

    def _new_transaction(self, wanted: HalfSend) -> Transaction:
        return Transaction(self, wanted)

    def _live_here(self) -> None:
        self._pool.live_in(asyncio.get_running_loop())

    async def _send_half(self, wanted: HalfSend) -> SendReceipt:
        def hand_in(stream: BatchStream) -> SendFuture:
            return self._hand_in_half(wanted, stream)

        topic = wanted.message.topic
        return await (await self._handed_in(topic, wanted.ordering_key, wanted.selector, wanted.queue, hand_in))

    async def send_in_transaction(
        self,
        message: Message,
        execute: AsyncExecute,
        *,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> TransactionResult:
        """Store `message` unseen, await `execute(tx)`, end as it says. As `metaq.TransactionProducer.send_in_transaction`."""
        check_function(execute, "execute", awaited=True)
        wanted = self._wanted(message, ordering_key, selector, queue, timeout=timeout, check_after=check_after)
        self._check_open()
        self._live_here()
        tx = self._new_transaction(wanted)
        tx._stored(await self._send_half(wanted))  # noqa: SLF001  a part of the producer
        if tx._not_safe() is not None:  # noqa: SLF001
            return await tx.rollback()
        try:
            return await _shielded(tx._executed(outcome_of(await execute(tx))))  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  whatever the application's own code raises
            return await _shielded(tx._execute_failed(error))  # noqa: SLF001
        except BaseException as error:
            tx._left(error)  # noqa: SLF001
            raise

    async def __aenter__(self) -> Self:
        self._live_here()
        return self


def _shielded(ending: concurrent.futures.Future[Result]) -> Awaitable[Result]:
    """Awaits the end of a transaction; who gives up waiting does not end that."""
    return asyncio.shield(asyncio.wrap_future(ending))
