"""What the session factories for threads and for asyncio share."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from metaq.clock import SYSTEM, Clock
from metaq.errors import ClientClosed, ConfigError, MetaqError, NoRoute
from metaq.metaq1.config import ConsumerConfig, MetaClientConfig, server_address
from metaq.metaq1.consuming.base import ConsumerBase
from metaq.metaq1.consuming.fetches import storage_of
from metaq.metaq1.consuming.message_ids import LruMessageIdCache, MessageIdCache
from metaq.metaq1.consuming.rejecting import RejectConsumptionHandler
from metaq.metaq1.conversation import answers
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.base import DefaultTopic
from metaq.metaq1.shared.core import CLOSE_SECONDS, FactoryCore
from metaq.metaq1.shared.figures import ask_stats
from metaq.metaq1.shared.links import ConnectionPace, Link
from metaq.metaq1.storages.local_file import LocalFileOffsetStorage
from metaq.metaq1.storages.storage import OffsetStorage
from metaq.net.address import local_address


class Child(Protocol):
    """A producer or consumer of a factory."""

    _closed: bool

    async def _end(self) -> None:
        """In the loop: what comes before the connections are closed. Bounded by `CLOSE_SECONDS`, for all children together."""
        ...


Made = TypeVar("Made", bound=Child)


Consumer = TypeVar("Consumer", bound=ConsumerBase)


def broadcast_group(group: str) -> str:
    """Return the group of this machine's broadcast consumers, as Java's client names it: with the machine's address."""
    return f"{group}-{local_address().replace('.', '-').replace(':', '-')}"


class SessionFactoryBase:
    """One session factory."""

    def __init__(self, config: MetaClientConfig, *, pace: ConnectionPace | None = None, clock: Clock = SYSTEM) -> None:
        """Connect to nothing yet: the first `publish` does.

        Args: config: settings. pace: times of connections, for tests. clock: for names.
        Raises TypeError; ConfigError: ZooKeeper is wanted, and kazoo is not installed.
        """
        self._open = False
        self._core = self._make_core(config, pace, clock)
        self._default = DefaultTopic()
        self._ids = LruMessageIdCache(config.message_ids_cache_size)
        self._children: set[Child] = set()
        self._lock = threading.Lock()
        self._open = True
        _open.add(self)

    def _make_core(self, config: MetaClientConfig, pace: ConnectionPace | None, clock: Clock) -> FactoryCore:
        """Raises TypeError, ConfigError."""
        if not isinstance(config, MetaClientConfig):
            raise TypeError(f"config is {config!r:.100}: pass a MetaClientConfig")
        return FactoryCore(config, pace, clock)

    @property
    def config(self) -> MetaClientConfig:
        """The settings that it was made with."""
        return self._core.config

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down."""
        return not self._open

    def _adopt(self, make: Callable[[Callable[[Child], object]], Made]) -> Made:
        """Return the child that `make` makes; it gets what the child calls when it is closed."""
        self._core.check_open()
        child = make(self._forget)
        with self._lock:
            self._children.add(child)
        return child

    def _consumer(
        self,
        kind: Callable[..., Consumer],
        config: ConsumerConfig,
        storage: OffsetStorage | None,
        recover: str | RejectConsumptionHandler,
        ids: MessageIdCache | None,
        *,
        broadcast: bool = False,
    ) -> Consumer:
        """Return a new consumer of a class. Raises TypeError, ConfigError, ClientClosed, ClientForked."""
        self._core.check_open()
        if not isinstance(config, ConsumerConfig):
            raise TypeError(f"config is {config!r:.100}: pass a ConsumerConfig")
        if storage is not None:
            storage_of(storage)
        group = config.group
        if broadcast:
            group = broadcast_group(group)
            storage = storage or LocalFileOffsetStorage(self.config.offsets_path)
        cache = self._ids if ids is None else ids
        return self._adopt(lambda closed: kind(self._core, config, storage, recover, cache, group, closed))

    def _forget(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)

    async def _partitions(self, topic: str) -> list[Partition]:
        return list(await self._core.routes.partitions(topic))

    async def _stats(self, item: str | None, broker: str | None) -> dict[str, dict[str, str]]:
        """In the loop. Raises NoRoute: no such server is connected."""
        wanted = None if broker is None else server_address(broker)
        links = [link for link in await self._core.routes.servers() if wanted in (None, link.address)]
        if wanted is not None and not links:
            raise NoRoute(f"{wanted} is no server that this session factory is connected to")
        figures = await asyncio.gather(*(self._stats_of(link, item) for link in links))
        return {link.address: one for link, one in zip(links, figures, strict=True)}

    @staticmethod
    async def _stats_of(link: Link, item: str | None) -> dict[str, str]:
        action = f"tell figures of {item}" if item is not None else "tell its figures"
        return answers.figures_of(await ask_stats(link, item, action), link.address, action)

    @staticmethod
    def _checked_item(item: str | None) -> None:
        if item == "config":
            raise ConfigError("`stats config` answers a file and no figures")
        if item is not None:
            check_topic_word(item)

    def _begin_shutdown(self) -> Coroutine[Any, Any, None] | None:
        """Refuse what comes from now on. Returns what is still to be done in the loop; None: nothing a second time, or in a forked
        child."""
        if not self._open or not self._core.in_own_process:
            return None
        self._open = False
        self._core.end_calls()
        with self._lock:
            children, self._children = self._children, set()
        for child in children:
            child._closed = True  # noqa: SLF001  the protocol of a factory and its children
        return self._core.close([child._end for child in children])  # noqa: SLF001

    def __del__(self) -> None:
        if self._open and self._core.in_own_process:
            warnings.warn(f"{type(self).__name__} was not shut down", ResourceWarning, stacklevel=2)
            closing = self._begin_shutdown()
            if closing is not None:
                with contextlib.suppress(ClientClosed):  # the interpreter exits
                    self._core.thread.start(closing)


_open: weakref.WeakSet[SessionFactoryBase] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """Before the background thread ends: send what a program that forgets its factories has handed in."""
    for factory in list(_open):
        closing = factory._begin_shutdown()  # noqa: SLF001  of this module
        if closing is not None:
            with contextlib.suppress(MetaqError, RuntimeError, TimeoutError):
                factory._core.thread.run(closing, CLOSE_SECONDS)  # noqa: SLF001
