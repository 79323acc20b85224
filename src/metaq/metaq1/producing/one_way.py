"""Producers that do not wait for the server: what both facades share, and that for threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeAlias

from metaq.client.identity.options import check_whole
from metaq.errors import BufferFull, ConfigError, MetaqError
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.model.partition import RANDOM_PARTITION, Partition
from metaq.metaq1.producing.backlog import Backlog
from metaq.metaq1.producing.base import SEND_SECONDS, DefaultTopic, ProducerBase
from metaq.metaq1.producing.publishing import PublishingProducer
from metaq.metaq1.producing.selectors import PartitionSelector, chosen
from metaq.metaq1.shared.core import FactoryCore

log = logging.getLogger("metaq.client")

WINDOW: Final = 20_000
"""Units that may be under way, as in Java."""
UNIT_BYTES: Final = 4096

IgnoreMessageProcessor: TypeAlias = Callable[[Message, Partition], object]
"""Gets (message, the partition it was for) of what is not sent. Called in a callback thread of the factory, or, with
`callback_threads=0`, in the client's own, where it must not block."""


class OneWayBase(ProducerBase):
    """A producer whose sends return before the server has them.

    Args:
        core: of the factory.
        default: the factory's default topic.
        selector: chooses partitions.
        closed: called once with the producer when it is closed.
        backlog: where messages wait that are not sent.
        window: units that may be under way.
        processor: takes what is not sent; None: the backlog does.

    Raises ConfigError: the window is below 1. TypeError: the processor or the selector is no function.
    """

    def __init__(
        self,
        core: FactoryCore,
        default: DefaultTopic,
        selector: PartitionSelector | None,
        closed: Callable[[ProducerBase], object],
        *,
        backlog: Backlog,
        window: int,
        processor: IgnoreMessageProcessor | None,
    ) -> None:
        check_whole("window", window)
        if window < 1:
            raise ConfigError(f"window={window}: need 1 or more")
        if processor is not None and not callable(processor):
            raise TypeError(f"processor is {processor!r}: pass a function of message and partition")
        super().__init__(core, default, selector, closed)
        self._backlog, self._window, self._processor = backlog, window, processor
        self._units = 0
        self._under_way: dict[int, tuple[Message, Partition]] = {}
        self._units_lock = threading.Lock()

    @property
    def ignored(self) -> int:
        """Messages of the factory's one-way producers that were kept in files since it was made."""
        return self._backlog.kept

    @property
    def dropped(self) -> int:
        """Messages of these producers that are lost, since files were full or could not be written. Each is in the log."""
        return self._backlog.dropped

    def send_message(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendResult:
        """Hand a message over and return at once: id -1, offset -1, the partition that was chosen (-1 with a fixed server).

        What cannot be sent now, since `window` units are under way (one for each full 4 KiB of a body, at least one), goes to the
        ignore processor; so does what the server refuses or does not answer within `timeout` seconds. By default it is kept in a
        file under `async_storage_path`, at most 500 000 messages for each topic and partition, and sent again each
        `recover_message_interval`. The file is written in another thread, a moment later: a process that is killed loses what
        is under way. What the server had and did not acknowledge is stored twice.

        Raises InvalidMessage, TypeError, NoRoute, ClientClosed, ClientForked, and what the selector raises.
        """
        message, flag, body = self._checked(message, timeout)
        route = self._route(message.topic)
        partition = chosen(self._selector, message, route.partitions, tuple(route.addresses))
        self._hand_over(message, flag, body, partition, route.addresses[partition.broker_id], timeout)
        return SendResult(-1, partition, -1)

    def async_send_message(self, message: Message, *, timeout: float = SEND_SECONDS) -> None:
        """Send as `send_message`, and keep the message where that raises NoRoute or the selector's error, too.

        Unlike Java's, which drops it without a word, an invalid message raises InvalidMessage or TypeError here. Raises
        ClientClosed, ClientForked.
        """
        message, flag, body = self._checked(message, timeout)
        try:
            route = self._route(message.topic)
            partition = chosen(self._selector, message, route.partitions, tuple(route.addresses))
        except Exception as error:  # noqa: BLE001  a selector raises anything, and the message is safe
            log.debug("a message for topic %s is kept: %s", message.topic, error)
            self._ignore(message, RANDOM_PARTITION)
            return
        self._hand_over(message, flag, body, partition, route.addresses[partition.broker_id], timeout)

    def _hand_over(
        self, message: Message, flag: int, body: bytes, partition: Partition, address: str, timeout: float
    ) -> None:
        units = max(1, len(body) // UNIT_BYTES)
        with self._units_lock:
            fits = self._units + units <= self._window
            if fits:
                self._units += units
        if not fits:
            self._ignore(message, partition)
            return
        try:
            future = self._put(message, flag, body, partition, address, timeout)
        except BufferFull:
            self._free(units)
            self._ignore(message, partition)
            return
        self._under_way[id(future)] = (message, partition)

        def settle(done: Future[SendResult]) -> None:
            self._free(units)
            if self._under_way.pop(id(future), None) is not None and isinstance(done.exception(), MetaqError):
                self._ignore(message, partition)

        future.settled(settle)

    def _free(self, units: int) -> None:
        with self._units_lock:
            self._units -= units

    def _ignore(self, message: Message, partition: Partition) -> None:
        processor = self._processor
        if processor is None:
            self._backlog.keep(message, partition)
        else:

            def process() -> None:
                try:
                    processor(message, partition)
                except Exception:
                    log.exception("the ignore processor raised: a message for topic %s is lost", message.topic)

            self._core.callbacks.do(process)

    async def _end(self) -> None:
        if self._core.closed:  # what has no answer by now gets none: it is kept before the files are closed
            for key in list(self._under_way):
                waiting = self._under_way.pop(key, None)
                if waiting is not None:
                    self._ignore(*waiting)
        await super()._end()


class AsyncMessageProducer(OneWayBase, PublishingProducer):
    """Sends without waiting, from any number of threads; made by `AsyncMetaMessageSessionFactory.create_async_producer`.

    "Async" is the word of MetaQ 1.x for it; `metaq.metaq1.aio` has one for asyncio. After `shutdown` sends under way still end, or are
    kept.
    """
