"""Every administrative operation as a typed function, over the remoting protocol: they work on RocketMQ 4.x too.

`Admin` is what programs and the command line use; the functions behind it are in `topics`, `order`, `groups`, `group_changes`,
`figures`, `growth`, `messages`, `tracks`, `traces`, `transactions`, `brokers`, `replicas` and `upkeep`.
"""

from metaq.admin.acl import AccountNotFound
from metaq.admin.admin import Admin
from metaq.admin.branches import BranchList
from metaq.admin.brokers import BrokerNotFound, BrokerStatus
from metaq.admin.configuring.changing import ChangedOption
from metaq.admin.configuring.reading import OptionDifferences, ServerOptions
from metaq.admin.figures.activity import Activity, GroupActivity, TopicActivity, TopicRate
from metaq.admin.figures.metaq1 import Metaq1Figures, Metaq1Partition, Metaq1Topic, Metaq1Traffic
from metaq.admin.figures.sizes import MessagesSize
from metaq.admin.figures.topic_figures import QueueFigures, TopicFigures
from metaq.admin.group_changes import GroupInUse, GroupOnline
from metaq.admin.groups import (
    GroupNotFound,
    GroupOfMetaq1,
    GroupProgress,
    MovedProgress,
    PartlyMoved,
    ProducerInstance,
    QueueProgress,
)
from metaq.admin.growth.adding import AddedBroker
from metaq.admin.growth.drain import Drained, DrainProgress
from metaq.admin.growth.moving import MovedTopic, MoveProgress
from metaq.admin.growth.places import BrokerReplicas, Refusal, Unfinished
from metaq.admin.growth.removing import RemovedBroker
from metaq.admin.growth.work import OpenWork
from metaq.admin.members import DirectConsumption, MemberNotFound, RunningMember
from metaq.admin.messages import FoundMessages, MessageNotFound
from metaq.admin.monitoring.judging import Metaq1Gap, SeenServer, UnknownFigure
from metaq.admin.monitoring.reading import WatchedServer
from metaq.admin.offsets.copying import CopiedOffset, CopyOutcome, OffsetSelection
from metaq.admin.offsets.places import OffsetsInDatabase, OffsetsInZookeeper
from metaq.admin.order import TopicOrder
from metaq.admin.quota import QuotaNotFound
from metaq.admin.replicas import NoSuchReplica, Replica
from metaq.admin.rolling.moving import HandOverPhase, HandOverProgress, MovedLeader
from metaq.admin.rolling.plan import BrokerProcess
from metaq.admin.rolling.restarting import RestartedBroker, RestartedCluster, RollingPhase, RollingProgress
from metaq.admin.rolling.standing import FailoverGroup, FailoverMember
from metaq.admin.several import HalfDone, NothingDone
from metaq.admin.topics import TopicDetails, TopicInUse, TopicNotFound
from metaq.admin.traces import MessageTrace, TraceEvent, TraceNotFound
from metaq.admin.tracks import GroupTrack, MessageTrack, TrackState
from metaq.admin.transactions import EndedTransaction, StagedTransaction, TransactionList, TransactionNotFound
from metaq.admin.upkeep.cleaning import CleanedBroker, UnreadMessages
from metaq.admin.upkeep.restarting import RestartPhase, RestartProgress
from metaq.admin.upkeep.scrubbing import FailedRepair, PairScrub, ScrubProgress
from metaq.client.conversation.scrubbing.comparison import NotComparable
from metaq.model.acl.accounts import AccountView, AclView
from metaq.model.acl.judgement import AccessExplanation
from metaq.model.filters.subscription import GroupFilter
from metaq.model.inspection import (
    ConsumedDirectly,
    ConsumeVerdict,
    MemberQueue,
    MemberRates,
    MemberState,
    QueueUnit,
    QueueUnits,
)
from metaq.model.leadership import CutTail, Epoch, GroupRole, ReplicaState, SlaveState
from metaq.model.quota import QuotaLimits, QuotaUse
from metaq.model.reload import ReloadedFile
from metaq.model.scrub import DamagedSide, LogDifference
from metaq.model.servers.log_line import LogLine
from metaq.model.servers.option_state import OptionState
from metaq.model.transactions.metaq1 import BranchPhase, BranchState
from metaq.model.transactions.staging import (
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    PartState,
    Phase,
    TransactionDecision,
    TransactionRow,
    TransactionState,
)
from metaq.model.upkeep.cleaning import Cleanable, CleanableFiles, QueueTrim, TopicTrim, UnreadInQueue
from metaq.registry.offset_table import PartitionOffset

__all__ = [
    "AccessExplanation",
    "AccountNotFound",
    "AccountView",
    "AclView",
    "Activity",
    "AddedBroker",
    "Admin",
    "BranchList",
    "BranchPhase",
    "BranchState",
    "BrokerNotFound",
    "BrokerProcess",
    "BrokerReplicas",
    "BrokerStatus",
    "ChangedOption",
    "Cleanable",
    "CleanableFiles",
    "CleanedBroker",
    "ConsumeVerdict",
    "ConsumedDirectly",
    "CopiedOffset",
    "CopyOutcome",
    "CutTail",
    "DamagedSide",
    "DecisionOutcome",
    "DirectConsumption",
    "DrainProgress",
    "Drained",
    "EndedTransaction",
    "Epoch",
    "FailedRepair",
    "FailoverGroup",
    "FailoverMember",
    "FoundMessages",
    "GroupActivity",
    "GroupFilter",
    "GroupInUse",
    "GroupNotFound",
    "GroupOfMetaq1",
    "GroupOnline",
    "GroupProgress",
    "GroupRole",
    "GroupTrack",
    "HalfDone",
    "HandOverPhase",
    "HandOverProgress",
    "LogDifference",
    "LogLine",
    "ManifestPart",
    "MemberNotFound",
    "MemberQueue",
    "MemberRates",
    "MemberState",
    "MessageNotFound",
    "MessageTrace",
    "MessageTrack",
    "MessagesSize",
    "Metaq1Figures",
    "Metaq1Gap",
    "Metaq1Partition",
    "Metaq1Topic",
    "Metaq1Traffic",
    "MoveProgress",
    "MovedLeader",
    "MovedProgress",
    "MovedTopic",
    "NoSuchReplica",
    "NotComparable",
    "NothingDone",
    "OffsetSelection",
    "OffsetsInDatabase",
    "OffsetsInZookeeper",
    "OpenWork",
    "OptionDifferences",
    "OptionState",
    "PairScrub",
    "PartLifetime",
    "PartSeal",
    "PartState",
    "PartitionOffset",
    "PartlyMoved",
    "Phase",
    "ProducerInstance",
    "QueueFigures",
    "QueueProgress",
    "QueueTrim",
    "QueueUnit",
    "QueueUnits",
    "QuotaLimits",
    "QuotaNotFound",
    "QuotaUse",
    "Refusal",
    "ReloadedFile",
    "RemovedBroker",
    "Replica",
    "ReplicaState",
    "RestartPhase",
    "RestartProgress",
    "RestartedBroker",
    "RestartedCluster",
    "RollingPhase",
    "RollingProgress",
    "RunningMember",
    "ScrubProgress",
    "SeenServer",
    "ServerOptions",
    "SlaveState",
    "StagedTransaction",
    "TopicActivity",
    "TopicDetails",
    "TopicFigures",
    "TopicInUse",
    "TopicNotFound",
    "TopicOrder",
    "TopicRate",
    "TopicTrim",
    "TraceEvent",
    "TraceNotFound",
    "TrackState",
    "TransactionDecision",
    "TransactionList",
    "TransactionNotFound",
    "TransactionRow",
    "TransactionState",
    "Unfinished",
    "UnknownFigure",
    "UnreadInQueue",
    "UnreadMessages",
    "WatchedServer",
]
