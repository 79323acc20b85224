"""Values that every layer shares. They check themselves when made and know no bytes, files or sockets."""

from metaq.model.clients import ClientConnection, ConsumerView, Heartbeat, QueueLocks
from metaq.model.filters.subscription import SubscriptionData
from metaq.model.group import ConsumeFrom, GroupConfig, MessageModel
from metaq.model.message import Message, SendReceipt, SendStatus, StoredMessage, SysFlag
from metaq.model.progress import DelayProgress
from metaq.model.queue import MessageQueue
from metaq.model.statistics import ConsumeStats, QueueStats
from metaq.model.topics.route import BrokerData, ClusterInfo, QueueData, Route
from metaq.model.topics.topic import Perm, TopicConfig
from metaq.model.topics.version import DataVersion
from metaq.model.transactions.outcome import TransactionOutcome

__all__ = [
    "BrokerData", "ClientConnection", "ClusterInfo", "ConsumeFrom", "ConsumeStats", "ConsumerView", "DataVersion", "DelayProgress",
    "GroupConfig", "Heartbeat", "Message", "MessageModel", "MessageQueue", "Perm", "QueueData", "QueueLocks", "QueueStats",
    "Route", "SendReceipt", "SendStatus", "StoredMessage", "SubscriptionData", "SysFlag", "TopicConfig", "TransactionOutcome",
]  # fmt: skip
