"""Session factories for threads."""

from __future__ import annotations

from typing import Self

from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.producer import MessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.base import SessionFactoryBase
from metaq.metaq1.shared.core import CLOSE_SECONDS


class MetaMessageSessionFactory(SessionFactoryBase):
    """Makes producers, which share its connections: one to each server. One for a whole program is enough.

        config = MetaClientConfig(zk_config=ZKConfig(zk_connect="127.0.0.1:2181"))
        with MetaMessageSessionFactory(config) as factory, factory.create_producer() as producer:
            producer.publish("test")
            result = producer.send_message(Message("test", b"hello"))

    Leaving the block shuts it down, and all that it has made.
    """

    def create_producer(self, selector: PartitionSelector | None = None) -> MessageProducer:
        """Return a new producer. `selector`: chooses partitions; None: one after the other.

        Raises ClientClosed, ClientForked, TypeError.
        """
        return self._adopt(lambda closed: MessageProducer(self._core, self._default, selector, closed))

    def get_partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that may be published to now, by broker id and number.

        With a fixed server its broker id is -1, and only partitions are known that have been written to. Raises
        ConnectionFailed, RequestTimeout: ZooKeeper or the server does not answer; InvalidMessage, ClientClosed, ClientForked.
        """
        check_topic_word(topic)
        return self._core.run(lambda: self._partitions(topic))

    def get_stats(self, item: str | None = None, *, broker: str | None = None) -> dict[str, dict[str, str]]:
        """Return server (`host:port`) → figure → value, of the servers that are connected: those of published topics.

        Args:
            item: a topic, or `topics`, `offsets`, `realtime`, `help`, `reset`; None: figures of the server.
            broker: of this one alone, `meta://host:port`.

        Raises NoRoute: `broker` is not connected; RequestTimeout, ConnectionFailed, BrokerError, RemoteProtocolError; ConfigError,
        InvalidMessage, ClientClosed, ClientForked.
        """
        self._checked_item(item)
        return self._core.run(lambda: self._stats(item, broker))

    def shutdown(self) -> None:
        """Close connections, producers and consumers. Waits for sends under way, up to 5 s; then they fail with ClientClosed.

        Servers roll back local transactions that have not ended.
        """
        self._core.check_may_wait()
        closing = self._begin_shutdown()
        if closing is not None:
            self._core.thread.run(closing, 2 * CLOSE_SECONDS)
            self._core.callbacks.close()

    close = shutdown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
