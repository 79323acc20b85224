"""Session factories whose producers keep an order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError
from metaq.metaq1.config import MetaClientConfig
from metaq.metaq1.producing.layouts import LayoutSource, from_file, from_mapping
from metaq.metaq1.producing.ordered import OrderedBacklog, OrderedBase, OrderedMessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.backlogs import SharedBacklog
from metaq.metaq1.sessions.base import SessionFactoryBase
from metaq.metaq1.sessions.ending import ThreadSessions
from metaq.metaq1.shared.links import ConnectionPace

Producer = TypeVar("Producer", bound=OrderedBase)


class OrderedFactoryBase(SessionFactoryBase):
    """What the factories of ordered producers for threads and for asyncio share."""

    def __init__(
        self,
        config: MetaClientConfig,
        *,
        partitions_file: str | Path | None = None,
        order_config: LayoutSource | None = None,
        pace: ConnectionPace | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make a factory; the layout comes from one of three places.

        Args:
            config: settings, with `partitions_info` if there is neither of the others.
            partitions_file: properties or ini file with lines `topic.num.TOPIC=brokerId:count;...`; a change is seen within a
                second of sending.
            order_config: returns the layout of a topic, such as `lambda topic: admin.topic_order(topic).layout` with a
                `metaq.admin.Admin`: what `metaq topic order set` has put into the name servers.

        Raises ConfigError: there is no layout, or two places for it; TypeError.
        """
        super().__init__(config, pace=pace, clock=clock)
        given = [bool(config.partitions_info), partitions_file is not None, order_config is not None]
        if sum(given) != 1:
            self._open = False
            raise ConfigError("an ordered producer needs one of partitions_info, partitions_file and order_config")
        self._layouts = (
            order_config
            if order_config is not None
            else from_mapping(config.partitions_info)
            if partitions_file is None
            else from_file(Path(partitions_file))
        )
        folder = Path(config.local_message_path).expanduser()
        core, default = self._core, self._default  # not the factory itself, which would then never be forgotten
        self._backlog = SharedBacklog(core, lambda: OrderedBacklog(core, default, folder, None))

    def _ordered(self, kind: Callable[..., Producer], selector: PartitionSelector) -> Producer:
        """Return a new producer of a class. Raises ClientClosed, ClientForked, TypeError."""
        backlog = self._backlog.get()
        return self._adopt(
            lambda closed: kind(self._core, self._default, selector, closed, backlog=backlog, layouts=self._layouts)
        )


class OrderedMetaMessageSessionFactory(ThreadSessions, OrderedFactoryBase):
    """Makes ordered producers. What they could not send waits in files under `local_message_path`, which belong to one factory at a
    time: give each process a folder of its own."""

    def create_producer(self, selector: PartitionSelector) -> OrderedMessageProducer:
        """Return a new ordered producer. `selector`: chooses among the configured partitions, by the message alone.

        Raises ClientClosed, ClientForked, TypeError.
        """
        return self._ordered(OrderedMessageProducer, selector)
