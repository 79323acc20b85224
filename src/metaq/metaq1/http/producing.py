"""Producers over HTTP, for threads; and what those for asyncio share with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metaq.errors import ClientClosed, InvalidMessage
from metaq.metaq1.conversation import answers
from metaq.metaq1.http.core import HttpCore
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.model.partition import RANDOM_PARTITION, Partition
from metaq.metaq1.producing.base import SendingBase
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.shared.core import FLUSH_SECONDS
from metaq.metaq1.shared.facade import ThreadFacade
from metaq.metaq1.shared.links import Link
from metaq.wire.metaq1.commands import PutLine
from metaq.wire.metaq1.frame import checksum


class HttpProducing(SendingBase):
    """What producers over HTTP share. Args: core: of the factory. closed: called once with the producer when it is closed."""

    _core: HttpCore

    def __init__(self, core: HttpCore, closed: Callable[[Any], object]) -> None:
        self._core, self._tell_closed, self._closed = core, closed, False
        self._links: dict[str, Link] = {}
        self._sending: set[asyncio.Task[SendResult]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down, by itself or with its factory."""
        return self._closed

    async def _end(self) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=FLUSH_SECONDS)
        for task in self._sending:
            task.cancel()
        links, self._links = self._links, {}
        for link in links.values():
            self._core.links.release(link)

    def _submit(self, message: Message, partition: Partition | str, timeout: float | None) -> SendFuture:
        """Any thread: hand a message in. Raises what a send raises before anything is sent."""
        seconds = self._core.config.timeout if timeout is None else timeout
        message, flag, body = self._checked(message, seconds)
        try:
            place = Partition.parse(str(partition))
        except ValueError as error:
            raise InvalidMessage(str(error)) from None
        size = len(body)
        self._core.admit(size)
        future = SendFuture(self._core.callbacks, self._core.wakes)

        def transfer(done: asyncio.Task[SendResult]) -> None:
            self._sending.discard(done)
            self._core.done(size)
            if done.cancelled():
                future.set_exception(ClientClosed("the session factory was closed"))
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        line = PutLine(message.topic, place.partition, flag, body, 0, checksum(body))

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(self._send(line, place, seconds))
            self._sending.add(task)
            task.add_done_callback(transfer)

        self._core.hand_in(begin)
        return future

    async def _send(self, line: PutLine, partition: Partition, timeout: float) -> SendResult:
        """In the loop."""
        address, action = self._core.address_of(line.topic, partition), f"send to topic {line.topic}"
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._core.links.acquire(address)
        answer = await link.ask(lambda _: line, action, timeout)
        return answers.stored(answer, link.address, action, partition.broker_id)


class HttpMessageProducer(ThreadFacade, HttpProducing):
    """Sends messages of MetaQ 1.x by HTTP, from any number of threads; made by `HttpMessageSessionFactory.create_producer`.

    A send is one request: it is not repeated. Whoever repeats one after RequestTimeout, or after ConnectionFailed with `sent`, may
    store it twice. There are neither topics to publish nor transactions: a gateway knows none.
    """

    def send_message(
        self, message: Message, partition: Partition | str = RANDOM_PARTITION, *, timeout: float | None = None
    ) -> SendResult:
        """Send and wait until the server has stored it.

        Args:
            message: what to send.
            partition: where it goes; its broker id goes along for what balances load. -1-N: at the broker behind the URL; --1: any of it.
            timeout: seconds; None: the factory's.

        Raises:
            InvalidMessage: too large (`max_message_bytes`), or no partition. TypeError.
            BrokerError: the server refuses it: `code` 403, its partition is closed; else 500; or that of what is between.
            RequestTimeout, ConnectionFailed: `sent` says whether the server may have stored it. RemoteProtocolError: no gateway answers.
            BufferFull, ClientClosed, ClientForked; ClientError: in a callback that must not wait.
        """
        self._core.check_may_wait()
        return self._submit(message, partition, timeout).result()

    def submit(
        self, message: Message, partition: Partition | str = RANDOM_PARTITION, *, timeout: float | None = None
    ) -> SendFuture:
        """Send without waiting; arguments and errors as of `send_message`. Messages under way are stored in any order."""
        return self._submit(message, partition, timeout)
