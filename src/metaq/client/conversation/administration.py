"""Administration requests to one broker."""

from __future__ import annotations

from typing import ClassVar, Final

from metaq.client.conversation.call import Call, Order
from metaq.model import MessageQueue, QueueStats
from metaq.model.leadership import ReplicaState
from metaq.model.quota import QuotaUse
from metaq.model.reload import ReloadedFile
from metaq.model.servers.identity import ServerIdentity
from metaq.model.servers.log_line import LogLine
from metaq.model.servers.option_state import OptionState
from metaq.model.upkeep.cleaning import Cleanable, TopicTrim
from metaq.wire import bodies, extensions, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request

CHANGE_SECONDS: Final = 60.0
"""Longest wait for a change of roles: a slave may have to copy what its master has taken last."""


TRIM_SECONDS: Final = 90.0
"""Longest wait for a trim: a broker waits up to a minute for an archive that needs what goes."""
CLEANING_SECONDS: Final = 60.0
"""Longest wait for a cleaning: hundreds of files may go."""


class CreateTopic(Order, frozen=True):
    """Create or change a topic. `perm`: 4 readable, 2 writable, 6 both. `read_queues`: None: as many as are written."""

    topic: str
    queues: int
    perm: int
    order: bool = False
    read_queues: int | None = None
    sys_flag: int = 0

    @property
    def action(self) -> str:
        return f"create topic {self.topic}"

    def request(self) -> Command:
        header = headers.CreateTopicHeader(
            topic=self.topic,
            read_queues=self.queues if self.read_queues is None else self.read_queues,
            write_queues=self.queues,
            perm=self.perm,
            topic_sys_flag=self.sys_flag,
            order=self.order,
        )
        return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


class DeleteTopic(Order, frozen=True):
    """Delete a topic with its messages. Name servers keep its route until they get `DeleteTopicRoute`."""

    topic: str

    @property
    def action(self) -> str:
        return f"delete topic {self.topic}"

    def request(self) -> Command:
        return request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=self.topic))


class ResetOffsets(Call[dict[MessageQueue, int] | None], frozen=True):
    """Reset the offsets of an online group in a topic (222). The outcome: the new offset per queue.

    `time_ms`: store time of the first message to consume (a RocketMQ takes the message nearest to it, which may be older; the newest
    for a time to come); -1: behind the last. Outcome None: no member is online, or the broker
    is an older one of ours that does not support the request.
    """

    answers = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    group: str
    topic: str
    time_ms: int = -1

    @property
    def action(self) -> str:
        return f"move group {self.group} in topic {self.topic}"

    def request(self) -> Command:
        header = headers.ResetOffsetHeader(
            topic=self.topic, group=self.group, timestamp=self.time_ms, force=True, exact=True
        )
        return request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    def read(self, answer: Command) -> dict[MessageQueue, int] | None:
        return bodies.queue_offsets_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class GetTopicStats(Call[dict[MessageQueue, QueueStats]], frozen=True):
    """Offsets and newest store time of each queue of a topic (202)."""

    topic: str

    @property
    def action(self) -> str:
        return f"tell the offsets of {self.topic}"

    def request(self) -> Command:
        return request(RequestCode.GET_TOPIC_STATS_INFO, headers.TopicHeader(topic=self.topic))

    def read(self, answer: Command) -> dict[MessageQueue, QueueStats]:
        return bodies.topic_stats_of(answer.body)


class ReloadConfiguration(Call[ReloadedFile], frozen=True):
    """Reload the configuration file of one of our brokers (30007)."""

    action = "read its configuration again"
    seconds = 10.0

    def request(self) -> Command:
        return request(RequestCode.RELOAD)

    def read(self, answer: Command) -> ReloadedFile:
        return extensions.reloaded_of(answer.body)


class GetQuotas(Call[list[QuotaUse]], frozen=True):
    """The quotas of one of our servers, and what their subjects take (30018)."""

    action = "tell its quotas"

    def request(self) -> Command:
        return request(RequestCode.QUOTAS)

    def read(self, answer: Command) -> list[QuotaUse]:
        return extensions.quotas_of(answer.body)


class SetQuota(Order, frozen=True):
    """Set the quota of a client, account or address (30019); `limits` None removes it."""

    kind: str
    name: str
    limits: str | None

    @property
    def action(self) -> str:
        return f"{'remove' if self.limits is None else 'set'} the quota of {self.kind} {self.name}"

    def request(self) -> Command:
        return request(
            RequestCode.SET_QUOTA, headers.SetQuotaHeader(kind=self.kind, name=self.name, limits=self.limits)
        )


class ClosePartitions(Call[list[int]], frozen=True):
    """Close partitions of a topic, or, without a range, open all (30010). The outcome: the closed ones."""

    topic: str
    first: int = -1
    last: int = -1

    @property
    def action(self) -> str:
        return f"{'open' if self.first < 0 else 'close'} partitions of {self.topic}"

    def request(self) -> Command:
        header = headers.ClosePartitionsHeader(topic=self.topic, first=self.first, last=self.last)
        return request(RequestCode.CLOSE_PARTITIONS, header)

    def read(self, answer: Command) -> list[int]:
        return extensions.closed_partitions_of(answer.body)


class TrimTopic(Call[TopicTrim], frozen=True):
    """Have messages of a topic before a time (ms), or before an offset, go at one of our brokers (30023). The outcome: what goes.

    Without `force` nothing is done if groups have not read what goes. Raises BrokerError of a RocketMQ, or an earlier one of ours.
    """

    seconds: ClassVar[float] = TRIM_SECONDS

    topic: str
    before_ms: int | None = None
    offset: int | None = None
    queue_id: int | None = None
    dry_run: bool = False
    force: bool = False

    @property
    def action(self) -> str:
        return f"trim topic {self.topic}"

    def request(self) -> Command:
        header = headers.TrimTopicHeader(
            topic=self.topic, before=self.before_ms, offset=self.offset, queue_id=self.queue_id,
            dry_run=self.dry_run, force=self.force,
        )  # fmt: skip
        return request(RequestCode.TRIM_TOPIC, header)

    def read(self, answer: Command) -> TopicTrim:
        return extensions.topic_trim_of(answer.body)


class PreviewCleaning(Call[Cleanable | None], frozen=True):
    """What cleaning by hand would remove at one of our brokers (30024). None: it is a RocketMQ, or an earlier one of ours."""

    action = "tell what may go"
    answers = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    seconds: ClassVar[float] = CLEANING_SECONDS

    def request(self) -> Command:
        return request(RequestCode.PREVIEW_CLEANING)

    def read(self, answer: Command) -> Cleanable | None:
        return extensions.cleanable_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class CleanExpiredFiles(Order, frozen=True):
    """Delete log files whose time is up, at whatever hour (329)."""

    action = "delete expired log files"
    seconds: ClassVar[float] = CLEANING_SECONDS

    def request(self) -> Command:
        return request(RequestCode.DELETE_EXPIRED_COMMITLOG)


class CleanExpiredQueues(Order, frozen=True):
    """Delete what queues have of messages that have left the log (306)."""

    action = "delete expired files of queues"
    seconds: ClassVar[float] = CLEANING_SECONDS

    def request(self) -> Command:
        return request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


class CleanUnusedTopics(Order, frozen=True):
    """Delete the queues of topics that are in no table (316)."""

    action = "delete queues without a topic"
    seconds: ClassVar[float] = CLEANING_SECONDS

    def request(self) -> Command:
        return request(RequestCode.CLEAN_UNUSED_TOPIC)


class GetReplicaState(Call[ReplicaState | None], frozen=True):
    """Role, epochs and log of one of our brokers (30011). Outcome None: it is a RocketMQ, or an earlier one of ours."""

    action = "tell its role"
    answers = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def request(self) -> Command:
        return request(RequestCode.REPLICA_STATE)

    def read(self, answer: Command) -> ReplicaState | None:
        return extensions.replica_state_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class Promote(Call[ReplicaState], frozen=True):
    """Make one of our slaves the master (30012). `role`: its brokerRole then; "": its master's. The outcome: how it leads."""

    action = "become the master"
    seconds: ClassVar[float] = CHANGE_SECONDS

    role: str = ""
    force: bool = False

    def request(self) -> Command:
        return request(RequestCode.PROMOTE, headers.PromoteHeader(role=self.role, force=self.force))

    def read(self, answer: Command) -> ReplicaState:
        return extensions.replica_state_of(answer.body)


class StepDown(Call[ReplicaState], frozen=True):
    """Make one of our masters a slave (30013). The outcome: where its log ends for good."""

    action = "step down"
    seconds: ClassVar[float] = CHANGE_SECONDS

    broker_id: int
    master: str = ""
    """Address of the broker that leads next; "": not known."""

    def request(self) -> Command:
        return request(RequestCode.STEP_DOWN, headers.StepDownHeader(broker_id=self.broker_id, master=self.master))

    def read(self, answer: Command) -> ReplicaState:
        return extensions.replica_state_of(answer.body)


class Identify(Call[ServerIdentity | None], frozen=True):
    """Ask a server of ours which process it is, and for its time (30021). No account is needed. None: a RocketMQ, or an earlier one
    of ours."""

    action = "tell which process it is"
    answers = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def request(self) -> Command:
        return request(RequestCode.IDENTIFY)

    def read(self, answer: Command) -> ServerIdentity | None:
        return extensions.server_identity_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class GetRuntime(Call[dict[str, str]], frozen=True):
    """Runtime info of a broker, under RocketMQ's keys (28)."""

    action = "tell how it is"

    def request(self) -> Command:
        return request(RequestCode.GET_BROKER_RUNTIME_INFO)

    def read(self, answer: Command) -> dict[str, str]:
        return bodies.kv_table_of(answer.body)


class GetSettings(Call[dict[str, str]], frozen=True):
    """Configuration of a broker, under RocketMQ's keys (26)."""

    action = "tell its settings"

    def request(self) -> Command:
        return request(RequestCode.GET_BROKER_CONFIG)

    def read(self, answer: Command) -> dict[str, str]:
        return bodies.settings_of(answer.body)


class GetOptions(Call[list[OptionState] | None], frozen=True):
    """Options of a server of ours, with where their values come from (30022). None: a RocketMQ, or an earlier one of ours."""

    action = "tell its options"
    answers = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def request(self) -> Command:
        return request(RequestCode.OPTIONS)

    def read(self, answer: Command) -> list[OptionState] | None:
        return extensions.option_states_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class GetLogLines(Call[list[LogLine] | None], frozen=True):
    """The last lines of a broker's log (30026). None: a RocketMQ, or an earlier one of ours."""

    action = "tell its log"
    answers = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    count: int
    level: str

    def request(self) -> Command:
        return request(RequestCode.LOG_LINES, headers.LogLinesHeader(count=self.count, level=self.level))

    def read(self, answer: Command) -> list[LogLine] | None:
        return extensions.log_lines_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class ChangeOptions(Order, frozen=True):
    """Change options of a running server: a broker (25), or a name server (318). Ours takes all or none."""

    action = "change its options"

    pairs: dict[str, str]
    namesrv: bool = False
    escaped: bool = False
    """As a RocketMQ reads them, which takes them for Java properties."""

    def request(self) -> Command:
        code = RequestCode.UPDATE_NAMESRV_CONFIG if self.namesrv else RequestCode.UPDATE_BROKER_CONFIG
        return request(code, None, bodies.option_changes(self.pairs, escaped=self.escaped))
