"""Session factories whose producers do not wait for the server."""

from __future__ import annotations

import threading
from pathlib import Path

from metaq.clock import SYSTEM, Clock
from metaq.metaq1.config import MetaClientConfig
from metaq.metaq1.producing.backlog import Backlog
from metaq.metaq1.producing.base import DefaultTopic
from metaq.metaq1.producing.one_way import WINDOW, AsyncMessageProducer, IgnoreMessageProcessor
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.factory import MetaMessageSessionFactory
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import Pace


class SharedBacklog:
    """The backlog of a factory, made with its first one-way producer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backlog: Backlog | None = None

    def get(self, core: FactoryCore, default: DefaultTopic) -> Backlog:
        with self._lock:
            if self._backlog is None:
                self._backlog = Backlog(core, default, Path(core.config.async_storage_path).expanduser())
                core.last_ends.append(self._backlog._end)  # noqa: SLF001  as of a factory's children
            return self._backlog


class AsyncMetaMessageSessionFactory(MetaMessageSessionFactory):
    """A session factory that makes one-way producers, too. What they could not send waits in files under `async_storage_path`,
    which belong to one factory at a time: give each process a folder of its own."""

    def __init__(self, config: MetaClientConfig, *, pace: Pace | None = None, clock: Clock = SYSTEM) -> None:
        super().__init__(config, pace=pace, clock=clock)
        self._backlog = SharedBacklog()

    def create_async_producer(
        self,
        selector: PartitionSelector | None = None,
        *,
        window: int = WINDOW,
        ignore_processor: IgnoreMessageProcessor | None = None,
    ) -> AsyncMessageProducer:
        """Return a new one-way producer.

        Args:
            selector: chooses partitions; None: one after the other.
            window: units of 4 KiB, at least one for a message, that may be under way.
            ignore_processor: takes what is not sent; None: it is kept in files and sent again.

        Raises ClientClosed, ClientForked, ConfigError, TypeError.
        """
        self._core.check_open()
        backlog = self._backlog.get(self._core, self._default)
        return self._adopt(
            lambda closed: AsyncMessageProducer(
                self._core, self._default, selector, closed, backlog=backlog, window=window, processor=ignore_processor
            )
        )
