"""Producers for threads."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from metaq.errors import MetaqError
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.producing.base import SEND_SECONDS
from metaq.metaq1.producing.direct import send_directly
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.producing.publishing import PublishingProducer
from metaq.metaq1.producing.transactions import LocalTransactionCore, TransactionState, TransactionView

log = logging.getLogger("metaq.client")


class MessageProducer(PublishingProducer):
    """Sends messages of MetaQ 1.x from any number of threads; made by `MetaMessageSessionFactory.create_producer`.

    A send is one put: it is not repeated. Whoever repeats one after RequestTimeout, or after ConnectionFailed with `sent`, may
    store it twice. `shutdown` gives up the topics; sends under way still end.
    """

    def send_message(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendResult:
        """Send and wait until the server has stored it; in a transaction of this thread, until it belongs to that.

        Args: message: what to send. timeout: seconds for the whole send, 3 by default.

        Raises:
            InvalidMessage: too large (`max_message_bytes`), or no text. TypeError.
            NoRoute: the topic is not published, or no server that is up has it.
            BrokerError: the server refuses it: `code` 403, its partition is closed; else 500.
            RequestTimeout, ConnectionFailed: `sent` says whether the server may have stored it.
            BufferFull, ClientClosed, ClientForked; TransactionEnded; ClientError: in a callback that must not wait.
        """
        message, flag, body = self._checked(message, timeout)
        self._core.check_may_wait()
        transaction = self._transaction()
        if transaction is None:
            partition, address = self._place(message)
            result = send_directly(self._core, message.topic, flag, body, partition, address, timeout)
            if result is None:
                return self._put(message, flag, body, partition, address, timeout).result()
            return result
        return self._join(transaction, message, flag, body, timeout, awaited=True).result()

    def submit(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendFuture:
        """Send without waiting: the outcome is in the future, and in what is given to its `add_done_callback`.

        `timeout`: seconds for the whole send, 3 by default.

        Messages of one thread for one partition go out in the order of the calls, and a broker of MetaQ stores them so. The original
        server handles those under way in any order: whoever needs one waits for each. Raises and puts into the future what
        `send_message` raises. In a transaction a message that fails makes the commit fail.
        """
        message, flag, body = self._checked(message, timeout)
        transaction = self._transaction()
        if transaction is None:
            return self._submit(message, flag, body, timeout)
        self._core.check_may_wait()
        return self._join(transaction, message, flag, body, timeout, awaited=False)

    def _join(
        self,
        transaction: LocalTransactionCore,
        message: Message,
        flag: int,
        body: bytes,
        timeout: float,
        *,
        awaited: bool,
    ) -> SendFuture:
        route = transaction.routes.get(message.topic)
        if route is None:
            route = self._core.run(lambda: self._transactional_route(transaction, message.topic))
        return self._started(transaction, message, flag, body, route, timeout, awaited=awaited)

    def begin_transaction(self, *, timeout: float = 0.0) -> None:
        """Begin a transaction of this thread: its sends belong to it, until `commit` or `rollback`.

        Args: timeout: seconds after which the server rolls it back; 0: never, as long as the connection lives.
        Raises ClientError: the thread is in one already; ConfigError, ClientClosed, ClientForked.
        """
        self._new_transaction(timeout).enter()

    def commit(self) -> None:
        """End the transaction of this thread: its messages become visible, those of one partition side by side.

        Raises TransactionFailed: it is rolled back, or in doubt (`state`). ClientError: there is none. ClientClosed.
        """
        transaction = self._own_transaction()
        try:
            self._core.run(transaction.commit)
        finally:
            transaction.leave()

    def rollback(self) -> None:
        """End the transaction of this thread: none of its messages becomes visible. Raises as `commit`."""
        transaction = self._own_transaction()
        try:
            self._core.run(transaction.rollback)
        finally:
            transaction.leave()

    def transaction(self, *, timeout: float = 0.0) -> LocalTransaction:
        """A transaction as a block; leaving it commits, leaving it by an exception rolls back:

            with producer.transaction():
                producer.send_message(Message("orders", b"..."))
                producer.send_message(Message("stock", b"..."))

        All messages go to partitions of one broker. Args and errors as of `begin_transaction` and `commit`.
        """
        return LocalTransaction(self, self._new_transaction(timeout))


class LocalTransaction(TransactionView):
    """A local transaction of a thread, as a block. Made by `MessageProducer.transaction`."""

    def __init__(self, producer: MessageProducer, core: LocalTransactionCore) -> None:
        super().__init__(core)
        self._producer = producer

    def __enter__(self) -> Self:
        self._transaction.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transaction.state is not TransactionState.OPEN:  # ended inside the block, by the producer
            self._transaction.leave()
        elif error is None:
            self._producer.commit()
        else:
            try:
                self._producer.rollback()
            except MetaqError as failure:  # the block's own error is the one to be raised
                log.warning("%s", failure)
