"""The Python client of MetaQ 1.x: for its Java server 1.4.6.2 as well as for brokers of MetaQ that serve that protocol.

    from metaq.metaq1 import MetaClientConfig, MetaMessageSessionFactory, Message, ZKConfig

    config = MetaClientConfig(zk_config=ZKConfig(zk_connect="127.0.0.1:2181"))
    with MetaMessageSessionFactory(config) as factory, factory.create_producer() as producer:
        producer.publish("test")
        print(producer.send_message(Message("test", b"hello")).partition)

`metaq.metaq1.aio` has the same for asyncio. The names are those of the Java client in Python's spelling. What differs: durations are
seconds, a send that fails raises, settings are frozen values.

How it is built. Bytes, decisions and I/O lie apart, and each stands once for threads and asyncio:

- `config`, `model`: values that users make and get. `metaq.wire.metaq1` has lines, frames and figures.
- `conversation`: sans-I/O. `pipeline` numbers commands and finds for each answer who waits for it; `answers` says what an answer
  means, by the command. No socket, no event loop.
- `shared`: one `FactoryCore` for each factory. `Links` has one connection for each server, counted, with heartbeats and
  reconnects; `Routes` says where a topic's partitions are: `FixedRoutes` by one server, `ZookeeperRoutes` by ZooKeeper. All of it
  lives in the background loop of `metaq.client.shared.loop`, which all clients of a process share; coroutines there are the one
  implementation, which facades run (`FactoryCore.run`) or await (`FactoryCore.awaited`).
- `producing`: producers. `base.py` has what both facades share, `producer.py` waits, `producer_async.py` awaits. A message is a
  `put.Put` on its way through the loop; a thread that waits and is alone writes and reads by itself (`direct`), on the connection that
  the loop lends it (`Connection.lent`, `metaq.net.lent`).
- `consuming`: consumers; `rebalance`: which partitions they have; `storages`: where offsets are kept, and messages that wait.
- `xa`: XA producers, on `producing`: branches, and the steps of a transaction manager. `metaq.xa` has such managers.
- Rooms use `shared` and not each other; but `consuming` uses `rebalance` and `storages`, and `producing` `storages`.
- `sessions`: the factories, above all others: nobody imports them. A child of a factory (`sessions.base.Child`) is told of its end in
  the loop, while connections and ZooKeeper are still there.

ZooKeeper: paths and texts of nodes are in `metaq.registry.zookeeper.layout`, for brokers and clients alike; what reads or writes
several nodes blocks, takes a `Session` and lies beside it, one module for a subject (`publishing`). `ZookeeperClient` keeps one
session of a factory, runs such functions in its thread, and tells its listeners of changes. Decisions stay here.
"""

from metaq.metaq1 import aio
from metaq.metaq1.config import (
    CONSIST,
    DEFAULT,
    MAX_OFFSET,
    NEVER_SKIP,
    ConsumerConfig,
    LoadBalanceStrategy,
    MetaClientConfig,
    ZKConfig,
)
from metaq.metaq1.consuming.consumer import MessageConsumer, TopicBrowser
from metaq.metaq1.consuming.message_ids import LruMessageIdCache, MessageIdCache
from metaq.metaq1.consuming.reading import MessageIterator
from metaq.metaq1.consuming.subscriptions import MessageListener
from metaq.metaq1.conversation.xa import Vote, XaCode, Xid
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.model.partition import RANDOM_PARTITION, Partition
from metaq.metaq1.model.received import ReceivedMessage
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.producing.one_way import AsyncMessageProducer, IgnoreMessageProcessor
from metaq.metaq1.producing.ordered import OrderedMessageProducer
from metaq.metaq1.producing.producer import LocalTransaction, MessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector, RandomPartitionSelector, RoundRobinPartitionSelector
from metaq.metaq1.producing.transactions import TransactionState
from metaq.metaq1.sessions.broadcast import MetaBroadcastMessageSessionFactory
from metaq.metaq1.sessions.factory import MetaMessageSessionFactory
from metaq.metaq1.sessions.one_way import AsyncMetaMessageSessionFactory
from metaq.metaq1.sessions.ordered import OrderedMetaMessageSessionFactory
from metaq.metaq1.sessions.xa import XAMetaMessageSessionFactory
from metaq.metaq1.shared.links import ConnectionPace
from metaq.metaq1.storages.local_file import LocalFileOffsetStorage
from metaq.metaq1.storages.sql import MysqlOffsetStorage, PostgresqlOffsetStorage
from metaq.metaq1.storages.storage import OffsetStorage, StoredOffset
from metaq.metaq1.xa.core import XaFlag
from metaq.metaq1.xa.resource import XAMessageProducer, XAResource

__all__ = [
    "CONSIST",
    "DEFAULT",
    "MAX_OFFSET",
    "NEVER_SKIP",
    "RANDOM_PARTITION",
    "AsyncMessageProducer",
    "AsyncMetaMessageSessionFactory",
    "ConnectionPace",
    "ConsumerConfig",
    "IgnoreMessageProcessor",
    "LoadBalanceStrategy",
    "LocalFileOffsetStorage",
    "LocalTransaction",
    "LruMessageIdCache",
    "Message",
    "MessageConsumer",
    "MessageIdCache",
    "MessageIterator",
    "MessageListener",
    "MessageProducer",
    "MetaBroadcastMessageSessionFactory",
    "MetaClientConfig",
    "MetaMessageSessionFactory",
    "MysqlOffsetStorage",
    "OffsetStorage",
    "OrderedMessageProducer",
    "OrderedMetaMessageSessionFactory",
    "Partition",
    "PartitionSelector",
    "PostgresqlOffsetStorage",
    "RandomPartitionSelector",
    "ReceivedMessage",
    "RoundRobinPartitionSelector",
    "SendFuture",
    "SendResult",
    "StoredOffset",
    "TopicBrowser",
    "TransactionState",
    "Vote",
    "XAMessageProducer",
    "XAMetaMessageSessionFactory",
    "XAResource",
    "XaCode",
    "XaFlag",
    "Xid",
    "ZKConfig",
    "aio",
]
