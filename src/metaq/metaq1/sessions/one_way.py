"""Session factories whose producers do not wait for the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from metaq.clock import SYSTEM, Clock
from metaq.metaq1.config import MetaClientConfig
from metaq.metaq1.producing.backlog import Backlog
from metaq.metaq1.producing.one_way import WINDOW, AsyncMessageProducer, IgnoreMessageProcessor, OneWayBase
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.backlogs import SharedBacklog
from metaq.metaq1.sessions.base import SessionFactoryBase
from metaq.metaq1.sessions.factory import MetaMessageSessionFactory
from metaq.metaq1.shared.links import ConnectionPace

Producer = TypeVar("Producer", bound=OneWayBase)


class OneWaySessions(SessionFactoryBase):
    """What the factories of one-way producers for threads and for asyncio share."""

    def __init__(self, config: MetaClientConfig, *, pace: ConnectionPace | None = None, clock: Clock = SYSTEM) -> None:
        super().__init__(config, pace=pace, clock=clock)
        folder = Path(config.async_storage_path).expanduser()
        core, default = self._core, self._default  # not the factory itself, which would then never be forgotten
        self._backlog = SharedBacklog(core, lambda: Backlog(core, default, folder))

    def _one_way(
        self,
        kind: Callable[..., Producer],
        selector: PartitionSelector | None,
        window: int,
        processor: IgnoreMessageProcessor | None,
    ) -> Producer:
        """Return a new producer of a class. Raises ClientClosed, ClientForked, ConfigError, TypeError."""
        backlog = self._backlog.get()
        return self._adopt(
            lambda closed: kind(
                self._core, self._default, selector, closed, backlog=backlog, window=window, processor=processor
            )
        )


class AsyncMetaMessageSessionFactory(OneWaySessions, MetaMessageSessionFactory):
    """A session factory that makes one-way producers, too. What they could not send waits in files under `async_storage_path`,
    which belong to one factory at a time: give each process a folder of its own."""

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
        return self._one_way(AsyncMessageProducer, selector, window, ignore_processor)
