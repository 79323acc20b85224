"""Every administrative operation as a typed function, over the remoting protocol: they work on RocketMQ 4.x too.

`Admin` is what programs and the command line use; the functions behind it are in `topics`, `order`, `groups`, `group_changes`,
`figures`, `growth`, `messages`, `tracks`, `traces`, `transactions`, `brokers`, `replicas` and `upkeep`.
"""

from metaq.admin.acl import AccountNotFound
from metaq.admin.admin import Admin
from metaq.admin.brokers import BrokerStatus
from metaq.admin.figures.activity import Activity, GroupActivity, TopicActivity
from metaq.admin.figures.topic_figures import QueueFigures, TopicFigures
from metaq.admin.group_changes import GroupInUse, GroupOnline
from metaq.admin.groups import GroupProgress, PartlyMoved, QueueProgress
from metaq.admin.growth.adding import AddedBroker
from metaq.admin.growth.drain import Drained, DrainProgress
from metaq.admin.growth.moving import MovedTopic, MoveProgress
from metaq.admin.growth.places import Refusal, Unfinished
from metaq.admin.growth.removing import RemovedBroker
from metaq.admin.growth.work import OpenWork
from metaq.admin.messages import FoundMessages, MessageNotFound
from metaq.admin.order import TopicOrder
from metaq.admin.replicas import NoSuchReplica, Replica
from metaq.admin.several import HalfDone, NothingDone
from metaq.admin.topics import TopicDetails, TopicInUse, TopicNotFound
from metaq.admin.traces import MessageTrace, TraceEvent, TraceNotFound
from metaq.admin.tracks import GroupTrack, MessageTrack, TrackState
from metaq.admin.transactions import StagedTransaction, TransactionNotFound
from metaq.admin.upkeep.cleaning import CleanedBroker, UnreadMessages
from metaq.admin.upkeep.scrubbing import FailedRepair, PairScrub, ScrubProgress

__all__ = [
    "AccountNotFound", "Activity", "AddedBroker", "Admin", "BrokerStatus", "CleanedBroker", "DrainProgress", "Drained", "FailedRepair", "FoundMessages", "GroupActivity", "GroupInUse", "GroupOnline", "GroupProgress", "GroupTrack", "HalfDone", "MessageNotFound", "MessageTrace", "MessageTrack", "MoveProgress", "MovedTopic", "NoSuchReplica", "NothingDone", "OpenWork", "PairScrub", "PartlyMoved", "QueueFigures", "QueueProgress", "Refusal", "RemovedBroker", "Replica", "ScrubProgress", "StagedTransaction", "TopicActivity", "TopicDetails", "TopicFigures", "TopicInUse", "TopicNotFound", "TopicOrder", "TraceEvent", "TraceNotFound", "TrackState", "TransactionNotFound", "Unfinished", "UnreadMessages",
]  # fmt: skip
