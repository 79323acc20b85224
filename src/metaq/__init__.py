"""MetaQ: durable messages for Python, on the wire of RocketMQ, with Spark as its data pipeline.

    import metaq

    with metaq.Producer("localhost:9876") as producer:
        producer.send("orders", b"...")

`metaq.aio` has the same classes for asyncio, `metaq.metaq1` the client of MetaQ 1.x, `metaq.spark` the Spark source, and `metaq.testing` a broker for
tests. `import metaq` loads none of them: each name is loaded when it is first used, so a client does not load Spark, and a broker loads no client.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaq import admin as admin
    from metaq import aio as aio
    from metaq import idempotence as idempotence
    from metaq import logging_handler as logging_handler
    from metaq import metaq1 as metaq1
    from metaq import outbox as outbox
    from metaq import spark as spark
    from metaq import testing as testing
    from metaq import xa as xa
    from metaq.client.consumer.consumer import Consumer as Consumer
    from metaq.client.consumer.membership.offset_store import GenerationStore as GenerationStore
    from metaq.client.consumer.membership.offset_store import OffsetStore as OffsetStore
    from metaq.client.consumer.pull_base import PulledBatch as PulledBatch
    from metaq.client.consumer.pull_consumer import PullConsumer as PullConsumer
    from metaq.client.consumer.read_message import ReadMessage as ReadMessage
    from metaq.client.consumer.reader import Reader as Reader
    from metaq.client.consumer.received.message import ReceivedMessage as ReceivedMessage
    from metaq.client.consumer.received.outcome import Later as Later
    from metaq.client.consumer.received.outcome import Pause as Pause
    from metaq.client.consumer.received.outcome import Reject as Reject
    from metaq.client.consumer.received.replying import ReplyFuture as ReplyFuture
    from metaq.client.consumer.received_batch import ReceivedBatch as ReceivedBatch
    from metaq.client.identity.options import ClientArguments as ClientArguments
    from metaq.client.observing.metrics import ClientMetrics as ClientMetrics
    from metaq.client.observing.observing import ObservedArguments as ObservedArguments
    from metaq.client.producing.arrow_sent import ArrowSent as ArrowSent
    from metaq.client.producing.atomic import Atomic as Atomic
    from metaq.client.producing.atomic import AtomicResult as AtomicResult
    from metaq.client.producing.producer import Producer as Producer
    from metaq.client.shared.futures import SendFuture as SendFuture
    from metaq.client.shared.serializers import Json as Json
    from metaq.client.shared.serializers import Serializer as Serializer
    from metaq.client.shared.serializers import Text as Text
    from metaq.client.transactions.transaction import Told as Told
    from metaq.client.transactions.transaction import Transaction as Transaction
    from metaq.client.transactions.transaction import TransactionProducer as TransactionProducer
    from metaq.client.transactions.transaction import TransactionResult as TransactionResult
    from metaq.errors import AccessDenied as AccessDenied
    from metaq.errors import BrokerError as BrokerError
    from metaq.errors import BufferFull as BufferFull
    from metaq.errors import ClientClosed as ClientClosed
    from metaq.errors import ClientError as ClientError
    from metaq.errors import ClientForked as ClientForked
    from metaq.errors import ConfigError as ConfigError
    from metaq.errors import ConnectionFailed as ConnectionFailed
    from metaq.errors import InvalidMessage as InvalidMessage
    from metaq.errors import MetaqError as MetaqError
    from metaq.errors import NoRoute as NoRoute
    from metaq.errors import NotSupported as NotSupported
    from metaq.errors import OffsetOutOfRange as OffsetOutOfRange
    from metaq.errors import RequestTimeout as RequestTimeout
    from metaq.errors import RowsNotSent as RowsNotSent
    from metaq.errors import SendFailed as SendFailed
    from metaq.errors import TransactionEnded as TransactionEnded
    from metaq.errors import TransactionFailed as TransactionFailed
    from metaq.logging_handler.handler import MetaQHandler as MetaQHandler
    from metaq.logging_handler.metaq1 import MetaQ1Handler as MetaQ1Handler
    from metaq.model import Message as Message
    from metaq.model import MessageQueue as MessageQueue
    from metaq.model import SendReceipt as SendReceipt
    from metaq.model import SendStatus as SendStatus
    from metaq.model import StoredMessage as StoredMessage
    from metaq.model import TransactionOutcome as TransactionOutcome
    from metaq.model.filters.predicates import Predicate as Predicate
    from metaq.model.filters.sql import Sql as Sql
    from metaq.model.transactions.staging import Phase as Phase

__version__ = "0.1.0"

_HOMES = {
    "metaq.client.consumer.pull_base": ("PulledBatch",),
    "metaq.client.consumer.received.replying": ("ReplyFuture",),
    "metaq.client.consumer.membership.offset_store": ("GenerationStore", "OffsetStore"),
    "metaq.client.producing.arrow_sent": ("ArrowSent",),
    "metaq.client.observing.observing": ("ObservedArguments",),
    "metaq.client.identity.options": ("ClientArguments",),
    "metaq.client.observing.metrics": ("ClientMetrics",),
    "metaq.client.producing.atomic": ("Atomic", "AtomicResult"),
    "metaq.client.consumer.consumer": ("Consumer",),
    "metaq.client.consumer.received.outcome": ("Later", "Pause", "Reject"),
    "metaq.client.consumer.pull_consumer": ("PullConsumer",),
    "metaq.client.consumer.received.message": ("ReceivedMessage",),
    "metaq.client.consumer.received_batch": ("ReceivedBatch",),
    "metaq.client.shared.futures": ("SendFuture",),
    "metaq.client.producing.producer": ("Producer",),
    "metaq.client.consumer.reader": ("Reader",),
    "metaq.client.consumer.read_message": ("ReadMessage",),
    "metaq.client.shared.serializers": ("Json", "Serializer", "Text"),
    "metaq.client.transactions.transaction": ("Told", "Transaction", "TransactionProducer", "TransactionResult"),
    "metaq.errors": (
        "AccessDenied", "BrokerError", "BufferFull", "ClientClosed", "ClientError", "ClientForked", "ConfigError", "ConnectionFailed", "InvalidMessage",
        "MetaqError", "NoRoute", "NotSupported", "OffsetOutOfRange", "RequestTimeout", "RowsNotSent", "SendFailed", "TransactionEnded", "TransactionFailed",
    ),
    "metaq.logging_handler.handler": ("MetaQHandler",),
    "metaq.logging_handler.metaq1": ("MetaQ1Handler",),
    "metaq.model": ("Message", "MessageQueue", "SendReceipt", "SendStatus", "StoredMessage", "TransactionOutcome"),
    "metaq.model.filters.predicates": ("Predicate",),
    "metaq.model.filters.sql": ("Sql",),
    "metaq.model.transactions.staging": ("Phase",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("admin", "aio", "idempotence", "logging_handler", "metaq1", "outbox", "spark", "testing", "xa")

__all__ = [*_HOME_OF, *_MODULES, "__version__"]  # noqa: PLE0604  all are strings


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"metaq.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'metaq' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
