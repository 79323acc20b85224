"""Producers for asyncio."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from metaq.errors import ClientError, MetaqError
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.producing.base import SEND_SECONDS
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.producing.publishing import AsyncPublishingProducer
from metaq.metaq1.producing.transactions import LocalTransactionCore, TransactionState, TransactionView

log = logging.getLogger("metaq.client")


class MessageProducer(AsyncPublishingProducer):
    """`metaq.metaq1.MessageProducer` for asyncio: what waits there is awaited here. Made by
    `MetaMessageSessionFactory.create_producer`."""

    async def send_message(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendResult:
        """Send and wait until it is stored. As `metaq.metaq1.MessageProducer.send_message`. A task that is cancelled meanwhile does
        not stop the send."""
        message, flag, body = self._checked(message, timeout)
        transaction = self._transaction()
        if transaction is None:
            return await self._submit(message, flag, body, timeout)
        route = transaction.routes.get(message.topic)
        if route is None:
            route = await self._core.awaited(lambda: self._transactional_route(transaction, message.topic))
        return await self._started(transaction, message, flag, body, route, timeout, awaited=True)

    def submit(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendFuture:
        """Send without waiting; the future can be awaited. As `metaq.metaq1.MessageProducer.submit`, but not in a
        transaction: ClientError."""
        message, flag, body = self._checked(message, timeout)
        if self._transaction() is not None:
            raise ClientError(
                "a message in a transaction is awaited: await send_message(...), several by asyncio.gather"
            )
        return self._submit(message, flag, body, timeout)

    async def begin_transaction(self, *, timeout: float = 0.0) -> None:
        """Begin a transaction of this task. As `metaq.metaq1.MessageProducer.begin_transaction`."""
        self._new_transaction(timeout).enter()

    async def commit(self) -> None:
        """End the transaction of this task. As `metaq.metaq1.MessageProducer.commit`."""
        transaction = self._own_transaction()
        try:
            await self._core.awaited(transaction.commit)
        finally:
            transaction.leave()

    async def rollback(self) -> None:
        """End the transaction of this task. As `metaq.metaq1.MessageProducer.rollback`."""
        transaction = self._own_transaction()
        try:
            await self._core.awaited(transaction.rollback)
        finally:
            transaction.leave()

    def transaction(self, *, timeout: float = 0.0) -> LocalTransaction:
        """A transaction as a block, `async with`. As `metaq.metaq1.MessageProducer.transaction`."""
        return LocalTransaction(self, self._new_transaction(timeout))


class LocalTransaction(TransactionView):
    """`metaq.metaq1.LocalTransaction` for asyncio, with `async with`. Made by `MessageProducer.transaction`."""

    def __init__(self, producer: MessageProducer, core: LocalTransactionCore) -> None:
        super().__init__(core)
        self._producer = producer

    async def __aenter__(self) -> Self:
        self._transaction.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transaction.state is not TransactionState.OPEN:  # ended inside the block, by the producer
            self._transaction.leave()
        elif error is None:
            await self._producer.commit()
        else:
            try:
                await self._producer.rollback()
            except MetaqError as failure:  # the block's own error is the one to be raised
                log.warning("%s", failure)
