"""Local transactions: messages for several partitions of one broker, which become visible together or not at all.

A transaction lives in one connection: the server rolls it back when that ends. It is begun by its first message, which chooses
the broker. It belongs to the thread or task that began it, and to the tasks that one starts meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import logging
import math
import threading
from typing import Final

from metaq.client.identity.options import checked_seconds
from metaq.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    MetaqError,
    NoRoute,
    RequestTimeout,
    TransactionEnded,
    TransactionFailed,
)
from metaq.metaq1.conversation import answers
from metaq.metaq1.conversation.answers import Reply
from metaq.metaq1.conversation.pipeline import Make
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import Link
from metaq.metaq1.shared.routes import TopicRoute
from metaq.model.transactions.metaq1 import TransactionKey
from metaq.wire.metaq1.commands import PutLine, Step, TransactionLine
from metaq.wire.metaq1.frame import checksum

log = logging.getLogger("metaq.client")

STEP_SECONDS: Final = 5.0
"""Longest wait for the answer to a step, as in Java."""
_UNKNOWN_THERE: Final = "has not been started"
"""A server's word for a transaction that it does not have, ours and the original's."""

_current: contextvars.ContextVar[tuple[LocalTransactionCore, ...]] = contextvars.ContextVar(
    "metaq1_transactions", default=()
)
"""Those that the thread or task is in, of different producers."""


class TransactionState(enum.Enum):
    """State of a local transaction, or of an XA branch."""

    OPEN = "open"
    """Messages come to it, or may come."""
    ENDED = "ended, and waits for its transaction manager"
    """Of an XA branch."""
    COMMITTED = "committed"
    """All its messages are delivered."""
    ROLLED_BACK = "rolled back"
    """None of its messages is delivered."""
    UNKNOWN = "in an unknown state"
    """The server's answer is lost: all of its messages are delivered, or none."""


class LocalTransactionCore:
    """One local transaction of a producer. The coroutines belong to the background loop.

    Args:
        producer: whose it is, whatever that is.
        core: of its factory.
        key: its name at the server.
        session_id: of the producer.
        timeout: seconds after which the server rolls it back; 0: never.
    """

    def __init__(
        self, producer: object, core: FactoryCore, key: TransactionKey, session_id: str, timeout: float
    ) -> None:
        self._producer, self._core, self.key, self._session_id = producer, core, key, session_id
        # Whole seconds on the wire; a fraction must not become 0, which is for ever.
        self._timeout = math.ceil(checked_seconds("timeout", timeout, least=0.0))
        self.state = TransactionState.OPEN
        self.messages = 0
        """Messages in it, so far."""
        self.lock = threading.Lock()
        """Guards `broker_id` while the first message chooses it."""
        self.broker_id: int | None = None
        """The broker of all its messages; None before the first one."""
        self.routes: dict[str, TopicRoute] = {}
        """Topic → where its messages may go, as it was when the first of them came."""
        self._link: Link | None = None
        self._number: int | None = None
        self._begun: asyncio.Task[None] | None = None
        self._puts: set[asyncio.Task[object]] = set()
        self._lacks: MetaqError | None = None
        """Why a message is not in it whose sender did not wait, and so may not know that."""
        self._owner = _owner()

    @property
    def begun(self) -> bool:
        """The server knows it, and it has not ended."""
        return self._begun is not None and self.state is TransactionState.OPEN

    # -------------------------------------------------------------- in the loop

    async def send(
        self,
        message: Message,
        flag: int,
        body: bytes,
        partition: Partition,
        address: str,
        timeout: float,
        *,
        awaited: bool,
    ) -> SendResult:
        """Put a message into it; begin it at the server if it is the first. Raises what a send raises, and TransactionEnded.

        Args: awaited: the sender waits. Of other messages one that fails makes the commit fail.
        """
        self._check_open()
        task = asyncio.current_task()
        assert task is not None
        self._puts.add(task)
        try:
            if self._begun is None:
                self._begun = asyncio.get_running_loop().create_task(self._begin(address))
                # Whoever waits for it may have given up: asyncio would report the error as lost.
                self._begun.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Shielded: others wait for it, too.
            await asyncio.shield(self._begun)
            link, action = self._place(), f"send to topic {message.topic} in transaction {self.key}"
            crc = checksum(body)

            def put(opaque: int) -> PutLine:
                return PutLine(
                    message.topic, partition.partition, flag, body, opaque, crc, transactional=True, key=self.key
                )

            result = answers.stored(
                await self._ask(link, put, action, timeout), link.address, action, partition.broker_id
            )
            self.messages += 1
            return result
        except MetaqError as error:
            if not awaited:
                self._lacks = self._lacks or error
            raise
        finally:
            self._puts.discard(task)

    async def _begin(self, address: str) -> None:
        link = self._core.links.get(address)
        if link is None:
            raise NoRoute(f"{address} has left since a partition there was chosen for transaction {self.key}")
        connection = await link.connected(STEP_SECONDS)
        self._link, self._number = link, connection.number
        await self._step(link, Step.BEGIN, self._timeout or None)

    async def commit(self) -> None:
        """End it: all its messages become visible. Raises TransactionFailed: it was not, or is in doubt; TransactionEnded."""
        self._check_open()
        self.state = TransactionState.UNKNOWN
        await self._settled()
        if self._lacks is not None:
            self.state = TransactionState.OPEN
            await self.rollback()
            raise self._failed(TransactionState.ROLLED_BACK, self._lacks) from self._lacks
        if self._link is None:
            self.state = TransactionState.COMMITTED  # of nothing
            return
        try:
            await self._step(self._link, Step.COMMIT_ONE_PHASE)
        except BrokerError as error:
            if _UNKNOWN_THERE in error.remark:
                raise self._failed(TransactionState.ROLLED_BACK, error) from error
            raise self._failed(TransactionState.UNKNOWN, error) from error
        except (ConnectionFailed, RequestTimeout) as error:
            raise self._failed(
                TransactionState.UNKNOWN if error.sent else TransactionState.ROLLED_BACK, error
            ) from error
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        """End it: none of its messages becomes visible. Raises TransactionFailed: the server has not confirmed that, and does it by
        itself; TransactionEnded."""
        self._check_open()
        self.state = TransactionState.ROLLED_BACK
        await self._settled()
        if self._link is None:
            return
        try:
            await self._step(self._link, Step.ROLLBACK)
        except BrokerError as error:
            if _UNKNOWN_THERE not in error.remark:
                raise self._failed(TransactionState.UNKNOWN, error) from error
        except RequestTimeout as error:
            raise self._failed(TransactionState.UNKNOWN, error) from error
        except ConnectionFailed:
            log.debug("%s was rolled back by the end of its connection", self.key)

    async def _settled(self) -> None:
        """Wait for the messages under way: the original server handles commands of one connection in any order."""
        if self._puts:
            await asyncio.wait(self._puts)

    async def _step(self, link: Link, step: Step, timeout: int | None = None) -> None:
        action = f"{step.value.partition('_')[0].lower()} transaction {self.key}"

        def line(opaque: int) -> TransactionLine:
            return TransactionLine(self.key, self._session_id, step, opaque, timeout)

        answers.result_of(await self._ask(link, line, action, STEP_SECONDS), link.address, action)

    async def _ask(self, link: Link, make: Make, action: str, timeout: float) -> Reply:
        return await link.ask(make, action, timeout, self._number)

    def _place(self) -> Link:
        assert self._link is not None, "it has begun"
        return self._link

    # -------------------------------------------------------------- any thread

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise TransactionEnded(f"transaction {self.key} is {self.state.value}: another message needs another one")

    def _failed(self, state: TransactionState, error: MetaqError) -> TransactionFailed:
        self.state = state
        if state is TransactionState.ROLLED_BACK:
            text = f"transaction {self.key} is rolled back: {error}. Nothing of it will be delivered: do it again"
        else:
            text = f"what became of transaction {self.key} is unknown: {error}. All of it is delivered, or nothing"
        return TransactionFailed(
            text, str(self.key), "rolled back" if state is TransactionState.ROLLED_BACK else "unknown"
        )

    def is_of(self, producer: object) -> bool:
        """Return whether a send of `producer` here and now belongs to it.

        One that has ended keeps the sends of its owner and of nobody else: tasks that it started may live longer.
        """
        return self._producer is producer and (self.state is TransactionState.OPEN or self._owner == _owner())

    def enter(self) -> None:
        """Bind it to the calling thread or task. Raises ClientError: that is in one of this producer already."""
        if current(self._producer) is not None:
            raise ClientError(
                "a transaction of this producer has begun here already: commit it or roll it back first, they do not nest"
            )
        _current.set((*_current.get(), self))

    def leave(self) -> None:
        """Unbind it."""
        _current.set(tuple(one for one in _current.get() if one is not self))


def current(producer: object) -> LocalTransactionCore | None:
    """Return the transaction of this producer that the calling thread or task is in."""
    begun = _current.get()
    return next((one for one in begun if one.is_of(producer)), None) if begun else None


def _owner() -> object:
    """Return the calling task, or else the thread."""
    with contextlib.suppress(RuntimeError):
        if (task := asyncio.current_task()) is not None:
            return task
    return threading.get_ident()


class TransactionView:
    """What users see of a transaction, whichever facade it has."""

    def __init__(self, core: LocalTransactionCore) -> None:
        self._transaction = core

    @property
    def key(self) -> str:
        """Name of the transaction at the server, as text."""
        return str(self._transaction.key)

    @property
    def state(self) -> TransactionState:
        """How far it is: OPEN, COMMITTED, ROLLED_BACK, or UNKNOWN: its end was sent, and no answer came."""
        return self._transaction.state

    @property
    def messages(self) -> int:
        """Number of messages in it so far."""
        return self._transaction.messages
