"""Ordered producers: partitions are fixed by configuration, and while one is away its messages wait in a local file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from metaq.errors import BrokerError, ConfigError, ConnectionFailed, MetaqError, NoRoute
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.model.partition import RANDOM_PARTITION, Partition
from metaq.metaq1.producing.backlog import Backlog
from metaq.metaq1.producing.base import SEND_SECONDS, DefaultTopic, ProducerBase
from metaq.metaq1.producing.layouts import LayoutSource, parse_layout
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.facade import ThreadFacade
from metaq.metaq1.storages.kept import KeptMessage, KeptMessages, kept_path
from metaq.wire.metaq1.commands import Code

log = logging.getLogger("metaq.client")

SENT_TO_LOCAL: Final = "send to local"
SHORT_BACKLOG: Final = 20
"""Messages that wait in a file for whose end a send waits itself."""
LOOKS: Final = 3
LOOK_SECONDS: Final = 0.1
WATCH_SECONDS: Final = 1.0
"""Time after which a layout is asked for again."""


class OrderedBacklog(Backlog):
    """A backlog without limit, whose messages go to their own partition or wait. Those that met a closed partition lie together in one
    file of their topic, which is sent before the others; the topic rests at the first failure."""

    def file_of(self, topic: str, partition: Partition) -> KeptMessages | None:
        """Return the file of a partition; None: there is none."""
        found = self._files.get(kept_path(self._folder, topic, str(partition)))
        return None if found is None else found[1]

    def count(self, topic: str, partition: Partition) -> int:
        """Return how many messages wait in a file."""
        file = self.file_of(topic, partition)
        return 0 if file is None else len(file)

    async def ready(self) -> None:
        """Wait until the files of earlier processes are open."""
        await self._found.wait()

    async def store(self, message: Message, partition: Partition, *, closed: bool = False) -> None:
        """Write a message, durably. `closed`: to the file of those that met a closed partition. Raises StoreError."""
        place = RANDOM_PARTITION if closed else partition
        path = kept_path(self._folder, message.topic, str(place))
        await self._do(lambda: self._file(path, place).add(partition.broker_id << 32 | partition.partition, message))
        self.kept += 1

    def begin_sending(self) -> None:
        """Send what waits now, not at the end of the interval."""
        self._wake.set()

    def address_of(self, topic: str, partition: Partition) -> str | None:
        """Return the server of a partition that is available: published, and its server connected."""
        route = self._core.routes.route(topic)
        if route is None:
            return None
        fixed = self._core.config.address
        if fixed is None and partition not in route.partitions:
            return None
        address = fixed or route.addresses[partition.broker_id]
        link = self._core.links.get(address)
        return address if link is not None and link.up is not None else None

    async def send_again(self) -> None:
        topics: dict[str, list[tuple[Partition, KeptMessages]]] = {}
        for path, file in sorted(self._files.items(), key=lambda item: item[1][0]):  # -1--1 first
            topics.setdefault(path.name.partition("@")[0], []).append(file)
        await asyncio.gather(*(self._sent_of(files) for files in topics.values()))

    async def _sent_of(self, files: list[tuple[Partition, KeptMessages]]) -> None:
        for partition, kept in files:
            if len(kept) and not await self._drained(kept, partition):
                return

    async def _send(self, one: KeptMessage, partition: Partition) -> None:
        if partition == RANDOM_PARTITION:
            partition = Partition(one.message_id >> 32, one.message_id & 0xFFFF_FFFF)
        sender, message = self._sender, one.message
        await sender._publish(message.topic)  # noqa: SLF001  a producer of this room
        address = self.address_of(message.topic, partition)
        if address is None:
            raise NoRoute(f"partition {partition} of topic {message.topic} is not available")
        flag, body = message.encoded()
        await sender._put(message, flag, body, partition, address, SEND_SECONDS)  # noqa: SLF001


class OrderedBase(ProducerBase):
    """A producer that sends to fixed partitions, in order.

    Args:
        core: of the factory.
        default: of the factory; has no part in ordered sends.
        selector: chooses among the configured partitions; the same key must give the same partition.
        closed: called once with the producer when it is closed.
        backlog: where messages wait.
        layouts: says which partitions a topic has.

    Raises TypeError: the selector is no function.
    """

    def __init__(
        self,
        core: FactoryCore,
        default: DefaultTopic,
        selector: PartitionSelector,
        closed: Callable[[ProducerBase], object],
        *,
        backlog: OrderedBacklog,
        layouts: LayoutSource,
    ) -> None:
        if not callable(selector):
            raise TypeError(f"selector is {selector!r}: pass a function of topic, partitions and message")
        super().__init__(core, default, selector, closed)
        self._backlog, self._source = backlog, layouts
        self._layouts: dict[str, tuple[Partition, ...]] = {}
        self._asked: dict[str, float] = {}
        self._met_closed: set[tuple[str, Partition]] = set()
        """Partitions that answered 403, until what met it is sent."""

    async def _publish_ordered(self, topic: str) -> None:
        """In the loop. Raises ConfigError: the topic has no layout."""
        await self._backlog.ready()
        await self._learn(topic)
        await self._publish(topic)
        if self._backlog.count(topic, RANDOM_PARTITION):  # of an earlier process: any may have met it
            self._met_closed.update((topic, partition) for partition in self._layouts[topic])

    async def _learn(self, topic: str) -> None:
        """Ask for a topic's layout. Raises ConfigError."""
        self._asked[topic] = asyncio.get_running_loop().time()
        text = await asyncio.to_thread(self._source, topic)
        if text is None:
            raise ConfigError(
                f"topic {topic} has no fixed partitions: set topic.num.{topic}=brokerId:count;brokerId:count in partitions_info or "
                "the partitions_file"
            )
        found = parse_layout(topic, text)
        if self._core.config.address is not None and len({partition.broker_id for partition in found}) > 1:
            raise ConfigError(f"topic.num.{topic}={text}: with server_url there is one broker")
        if found != self._layouts.get(topic, found):
            log.warning("topic %s has other fixed partitions now: %s", topic, text)
        self._layouts[topic] = found

    async def _layout(self, topic: str) -> tuple[Partition, ...]:
        """In the loop: return the configured partitions. What cannot be read anew stays as it was."""
        if topic not in self._layouts:
            raise NoRoute(f"topic {topic} is not published: publish it first")
        if asyncio.get_running_loop().time() - self._asked[topic] >= WATCH_SECONDS:
            try:
                await self._learn(topic)
            except ConfigError as error:
                log.warning("the fixed partitions of topic %s stay as they are: %s", topic, error)
        return self._layouts[topic]

    def _choose(self, message: Message, partitions: tuple[Partition, ...]) -> Partition:
        partition = self._selector(message.topic, partitions, message)
        if partition not in partitions:
            raise ValueError(
                f"the selector chose {partition!r} for topic {message.topic}, which is not configured for it"
            )
        return partition

    async def _send_to(
        self, message: Message, flag: int, body: bytes, partition: Partition, timeout: float
    ) -> SendResult:
        """In the loop: send, or keep."""
        address = self._backlog.address_of(message.topic, partition)
        if address is None or await self._must_wait(message.topic, partition):
            return await self._keep(message, partition)
        try:
            return await self._put(message, flag, body, partition, address, timeout)
        except BrokerError as error:
            if error.code == Code.FORBIDDEN:
                self._met_closed.add((message.topic, partition))
                return await self._keep(message, partition, closed=True)
            if not self._core.config.save_to_local_when_failed:
                raise
        except ConnectionFailed as error:
            if error.sent and not self._core.config.save_to_local_when_failed:
                raise
        except MetaqError:
            if not self._core.config.save_to_local_when_failed:
                raise
        return await self._keep(message, partition)

    async def _must_wait(self, topic: str, partition: Partition) -> bool:
        """Return whether messages before this one still wait after a little patience."""
        for _ in range(LOOKS):
            count = self._before(topic, partition)
            if not count:
                return False
            self._backlog.begin_sending()
            if count > SHORT_BACKLOG:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return self._before(topic, partition) > 0

    def _before(self, topic: str, partition: Partition) -> int:
        closed = self._backlog.count(topic, RANDOM_PARTITION)
        if not closed:
            self._met_closed.discard((topic, partition))
        elif (topic, partition) not in self._met_closed:
            closed = 0
        return closed + self._backlog.count(topic, partition)

    async def _keep(self, message: Message, partition: Partition, *, closed: bool = False) -> SendResult:
        await self._backlog.store(message, partition, closed=closed)
        return SendResult(-1, partition, -1, SENT_TO_LOCAL)


class OrderedMessageProducer(ThreadFacade, OrderedBase):
    """Sends messages of one key in order, also over the outage of a server; made by
    `OrderedMetaMessageSessionFactory.create_producer`.

    Messages of one thread for one partition are stored in the order of the calls. A process that is killed while it sends what has
    waited sends up to 100 of them again, as a block. After `shutdown` the next producer sends what waits in files.
    """

    def publish(self, topic: str) -> None:
        """Learn the topic's fixed partitions and where they are. Raises ConfigError: it has none; and as `MessageProducer.publish`."""
        name = self._checked_topic(topic)
        if name not in self._topics:
            self._core.run(lambda: self._publish_ordered(name))

    def send_message(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendResult:
        """Send and wait until it is stored: at the server, or, with `text` "send to local" and offset -1, in a file under
        `local_message_path`, when its partition is away or closed, or others before it wait there.

        Waits for the disk then. `timeout`: seconds for the answer of the server, 3 by default.

        Raises BrokerError, RequestTimeout, ConnectionFailed: the server failed, and may have stored it;
        with `save_to_local_when_failed` it is kept in the file instead, and may be stored twice. StoreFailed, StoreFull,
        StoreLocked: it is not kept. ValueError: the selector chose none of the configured partitions. InvalidMessage, TypeError,
        NoRoute, ClientClosed, ClientForked.
        """
        message, flag, body = self._checked(message, timeout)
        partitions = self._core.run(lambda: self._layout(message.topic))
        partition = self._choose(message, partitions)
        return self._core.run(lambda: self._send_to(message, flag, body, partition, timeout))
