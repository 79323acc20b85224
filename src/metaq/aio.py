"""MetaQ for asyncio: the classes of `metaq` with `await` where those wait.

    async with aio.Producer("localhost:9876") as producer:
        await producer.send("orders", b"...")

    async with aio.Consumer("localhost:9876", group="mailer", topics="orders") as consumer:
        async for message in consumer:
            async with message:
                await handle(message)

They work in any event loop, several at once too: the client itself lives in a thread of its own
(metaq.client.shared.loop), so heartbeats and offset commits go on while your loop is busy. This module only hands out
names: each class stands beside its blocking twin, and those in which nothing waits are the same here.
"""

from metaq.client.consumer.consumer_async import Consumer
from metaq.client.consumer.membership.offset_store import GenerationStore, OffsetStore
from metaq.client.consumer.pull_async import PullConsumer
from metaq.client.consumer.pull_base import PulledBatch
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.consumer.reader_async import Reader
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause, Reject
from metaq.client.consumer.received.replying import ReplyFuture
from metaq.client.consumer.received_batch import ReceivedBatch
from metaq.client.producing.arrow_sent import ArrowSent
from metaq.client.producing.atomic import AtomicResult
from metaq.client.producing.atomic_async import Atomic
from metaq.client.producing.producer_async import Producer
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.serializers import Json, Serializer, Text
from metaq.client.transactions.transaction import TransactionResult
from metaq.client.transactions.transaction_async import Transaction, TransactionProducer
from metaq.model import Message, MessageQueue, SendReceipt, SendStatus, StoredMessage, TransactionOutcome
from metaq.model.transactions.staging import Phase

__all__ = [
    "ArrowSent",
    "Atomic",
    "AtomicResult",
    "Consumer",
    "GenerationStore",
    "Json",
    "Later",
    "Message",
    "MessageQueue",
    "OffsetStore",
    "Pause",
    "Phase",
    "Producer",
    "PullConsumer",
    "PulledBatch",
    "ReadMessage",
    "Reader",
    "ReceivedBatch",
    "ReceivedMessage",
    "Reject",
    "ReplyFuture",
    "SendFuture",
    "SendReceipt",
    "SendStatus",
    "Serializer",
    "StoredMessage",
    "Text",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
]  # fmt: skip
