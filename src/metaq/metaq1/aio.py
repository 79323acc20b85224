"""MetaQ 1.x for asyncio: the classes of `metaq.metaq1` with `await` where those wait.

    async with aio.MetaMessageSessionFactory(config) as factory:
        producer = factory.create_producer()
        await producer.publish("test")
        result = await producer.send_message(Message("test", b"hello"))

They work in any event loop: the client lives in a thread of its own (`metaq.client.shared.loop`).
"""

from metaq.metaq1.consuming.consumer_async import MessageConsumer, TopicBrowser
from metaq.metaq1.producing.one_way_async import AsyncMessageProducer
from metaq.metaq1.producing.ordered_async import OrderedMessageProducer
from metaq.metaq1.producing.producer_async import LocalTransaction, MessageProducer
from metaq.metaq1.sessions.broadcast_async import MetaBroadcastMessageSessionFactory
from metaq.metaq1.sessions.factory_async import MetaMessageSessionFactory
from metaq.metaq1.sessions.one_way_async import AsyncMetaMessageSessionFactory
from metaq.metaq1.sessions.ordered_async import OrderedMetaMessageSessionFactory
from metaq.metaq1.sessions.xa_async import XAMetaMessageSessionFactory
from metaq.metaq1.xa.resource_async import XAMessageProducer, XAResource

__all__ = [
    "AsyncMessageProducer",
    "AsyncMetaMessageSessionFactory",
    "LocalTransaction",
    "MessageConsumer",
    "MessageProducer",
    "MetaBroadcastMessageSessionFactory",
    "MetaMessageSessionFactory",
    "OrderedMessageProducer",
    "OrderedMetaMessageSessionFactory",
    "TopicBrowser",
    "XAMessageProducer",
    "XAMetaMessageSessionFactory",
    "XAResource",
]
