"""Values that every layer shares. They check themselves when made and know no bytes, files or sockets."""

from metaq.model.clients import (
    ClientConnection,
    ConsumeFrom,
    ConsumerView,
    GroupConfig,
    Heartbeat,
    MessageModel,
    QueueLocks,
)
from metaq.model.filters.subscription import SubscriptionData
from metaq.model.message import Message, SendReceipt, SendStatus, StoredMessage, SysFlag, TransactionOutcome
from metaq.model.queue import ConsumeStats, DelayProgress, MessageQueue, QueueStats
from metaq.model.topics.route import BrokerData, ClusterInfo, QueueData, Route
from metaq.model.topics.topic import DataVersion, Perm, TopicConfig

__all__ = [
    "BrokerData", "ClientConnection", "ClusterInfo", "ConsumeFrom", "ConsumeStats", "ConsumerView", "DataVersion", "DelayProgress",
    "GroupConfig", "Heartbeat", "Message", "MessageModel", "MessageQueue", "Perm", "QueueData", "QueueLocks", "QueueStats",
    "Route", "SendReceipt", "SendStatus", "StoredMessage", "SubscriptionData", "SysFlag", "TopicConfig", "TransactionOutcome",
]  # fmt: skip
