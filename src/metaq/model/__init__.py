"""Values that every layer shares. They check themselves when made and know no bytes, files or sockets."""

from metaq.model.clients import ClientConnection, ConsumerView, Heartbeat, QueueLocks
from metaq.model.group import ConsumeFrom, GroupConfig, MessageModel
from metaq.model.message import Message, SendReceipt, SendStatus, StoredMessage, SysFlag
from metaq.model.progress import DelayProgress
from metaq.model.queue import MessageQueue
from metaq.model.route import BrokerData, ClusterInfo, QueueData, Route
from metaq.model.statistics import ConsumeStats, QueueStats
from metaq.model.subscription import SubscriptionData
from metaq.model.topic import Perm, TopicConfig
from metaq.model.transactions import TransactionOutcome
from metaq.model.version import DataVersion

__all__ = [
    "BrokerData", "ClientConnection", "ClusterInfo", "ConsumeFrom", "ConsumeStats", "ConsumerView", "DataVersion", "DelayProgress",
    "GroupConfig", "Heartbeat", "Message", "MessageModel", "MessageQueue", "Perm", "QueueData", "QueueLocks", "QueueStats",
    "Route", "SendReceipt", "SendStatus", "StoredMessage", "SubscriptionData", "SysFlag", "TopicConfig", "TransactionOutcome",
]  # fmt: skip
