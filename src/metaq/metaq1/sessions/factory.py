"""Session factories for threads."""

from __future__ import annotations

from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.consuming.consumer import MessageConsumer, TopicBrowser
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.reading import BROWSER_BYTES, BROWSER_SECONDS
from metaq.metaq1.consuming.rejecting import LOCAL, RejectConsumptionHandler
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.producer import MessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.ending import ThreadSessions
from metaq.metaq1.storages.storage import OffsetStorage


class MetaMessageSessionFactory(ThreadSessions):
    """Makes producers and consumers, which share its connections: one to each server. One for a whole program is enough.

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

    def create_consumer(
        self,
        config: ConsumerConfig,
        offset_storage: OffsetStorage | None = None,
        *,
        recover: str | RejectConsumptionHandler = LOCAL,
        message_ids: MessageIdCache | None = None,
    ) -> MessageConsumer:
        """Return a new consumer.

        Args:
            config: its settings; `group` is needed.
            offset_storage: where its offsets are kept; None: in ZooKeeper, or with a fixed server in the file `offsets_path`. The
                consumer closes it.
            recover: what becomes of messages that fail too often: "local": they wait in a file of `recover_path` and are tried again
                each `recover_message_interval`; "drop"; or a function of message and consumer.
            message_ids: ids by which repetitions are left out; None: those of this factory.

        Raises ConfigError, TypeError, ClientClosed, ClientForked.
        """
        return self._consumer(MessageConsumer, config, offset_storage, recover, message_ids)

    def create_topic_browser(
        self, topic: str, max_size: int = BROWSER_BYTES, *, timeout: float = BROWSER_SECONDS
    ) -> TopicBrowser:
        """Return what iterates over all messages of a topic.

        Args: max_size: bytes of each get, 1 MiB by default. timeout: seconds for each, 5 by default.
        Raises TypeError, ConfigError, InvalidMessage, ClientClosed, ClientForked.
        """
        self._core.check_open()
        return TopicBrowser(self._core, topic, max_size, timeout)

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
