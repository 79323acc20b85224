"""Clients and groups (35, 38, 40, 203, 204); administration of a broker (17, 26, 202, 207, 208, 215, 220-223, 300,
303, 307-309, 314, 315, 317, 321, 30010, 30014, 30023)."""

from __future__ import annotations

from msgspec import field

from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.wire.headers.codec import Header, Int, Long


class CreateTopicHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    read_queues: Int = field(name="readQueueNums")
    write_queues: Int = field(name="writeQueueNums")
    perm: Int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False


class TopicHeader(Header, kw_only=True):
    """GET_TOPIC_STATS_INFO (202), DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class ReadersHeader(Header, kw_only=True):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str
    metaq1: bool = field(name="metaqGroups", default=False)
    """Ours: instead of the topic's groups, those of MetaQ 1.x that ZooKeeper knows; the topic is empty, of which a RocketMQ has none."""


class DeleteGroupHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group: str = field(name="groupName")
    remove_offset: bool = False


class ConsumeStatsHeader(Header, kw_only=True):
    """GET_CONSUME_STATS (208). Without a topic: all topics in which the group has offsets."""

    consumer_group: str
    topic: str | None = None


class TimeSpanHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str = ""
    """Empty: of no group."""


class CorrectionHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308)."""

    topic: str
    group: str = field(name="compareGroup")
    left_out: str | None = field(name="filterGroups", default=None)
    """Groups that do not count, `,`-separated."""


class AllStatsHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    ordered: bool = field(name="isOrder", default=False)
    """Of ordered topics only."""


class BrokerStatsHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    """What is counted, TOPIC_PUT_NUMS for example."""
    stats_key: str
    """Of what: a topic, `topic@group`, or a cluster."""


class ConsumeQueueHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE (321): `count` units from QueueOffset `index` on, and what a group gets of the queue."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None


class ResetOffsetHeader(Header, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET (220), INVOKE_BROKER_TO_RESET_OFFSET (222).

    The target is the message stored nearest to `timestamp` (ms); -1 is the end of the queue.
    """

    topic: str
    group: str
    timestamp: Long
    force: bool = field(name="isForce", default=False)
    exact: bool | None = field(name="metaqExact", default=None)
    """Ours, with 222: the target is the first message stored at `timestamp` or later."""


class ConsumerStatusHeader(Header, kw_only=True):
    """GET_CONSUMER_STATUS_FROM_CLIENT (221), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    topic: str
    group: str
    client_id: str | None = field(name="clientAddr", default=None)
    """None, or empty: all members."""


class RunningInfoHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    stacks: bool = field(name="jstackEnable", default=False)


class ConsumeDirectlyHeader(Header, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = field(name="msgId", default=None)
    """Id that tells where the message is."""
    broker_name: str | None = None


class CloneOffsetsHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET (314): a group gets the offsets of another."""

    source: str = field(name="srcGroup")
    target: str = field(name="destGroup")
    topic: str | None = None
    """None, or empty: in all topics."""
    offline: bool = False
    """Also of topics that the other group, which is online, does not subscribe to any more."""


class ClosePartitionsHeader(Header, kw_only=True):
    """CLOSE_PARTITIONS (30010), ours: partitions [first, last] answer neither puts nor gets; without both, all open
    again."""

    topic: str
    first: Int = -1
    last: Int = -1
    """Inclusive."""


class LogLinesHeader(Header, kw_only=True):
    """LOG_LINES (30026), ours: the last lines of a broker's log."""

    count: Int
    """1 to 500."""
    level: str = "INFO"
    """Lines of at least this level."""


class TrimTopicHeader(Header, kw_only=True):
    """TRIM_TOPIC (30023), ours: messages of a topic before a time, or before an offset, become unreadable. One of both."""

    topic: str
    before: Long | None = None
    """Store time of the first message that stays, ms."""
    offset: Long | None = None
    """QueueOffset of the first message that stays, in one queue or in each."""
    queue_id: Int | None = None
    """The queue that `offset` is about; missing: each."""
    dry_run: bool = False
    force: bool = False
    """Also if groups have not read what goes."""


class PromoteHeader(Header, kw_only=True):
    """PROMOTE (30012), ours: a slave becomes the master."""

    role: str = ""
    """brokerRole that it has then; by default its master's."""
    force: bool = False
    """Also without its master, which may have records that the slave lacks."""


class StepDownHeader(Header, kw_only=True):
    """STEP_DOWN (30013), ours: a master becomes a slave."""

    broker_id: Int
    """Number that it takes."""
    master: str = ""
    """Address of the broker that leads next; by default it is found at the name servers."""


class JoinInSyncHeader(Header, kw_only=True):
    """JOIN_IN_SYNC (30027), ours: a follower says who it is before it copies the log."""

    member: Int
    """Its brokerId, from 1 on."""
    store: str
    """Token of its store folder."""
    epoch: Int
    """Of the leader that it means."""


class JoinInSyncReply(Header, kw_only=True):
    """The answer to JOIN_IN_SYNC."""

    ticket: Long
    """What its connection shows first."""
    log_end: Long
    """LogOffset at which the leader's log ends."""


class FollowTablesHeader(Header, kw_only=True):
    """FOLLOW_TABLES (30014), ours: what has changed in the tables since change `position` of the feed `feed`."""

    member: Int | None = None
    """Of a group with failover, the number of who asks; None: it is in none."""
    store: str | None = None
    """And the token of its folder."""

    feed: Long = 0
    position: Long = 0
    suspend_ms: Int = field(name="suspendTimeoutMillis", default=0)
    """How long the answer may wait for a change, ms."""


class LogChecksumsHeader(Header, kw_only=True):
    """LOG_CHECKSUMS (30015), ours: checksums of a piece of the log."""

    offset: Long
    """LogOffset at which the first range of 1 MiB begins."""
    stop: Long
    """LogOffset at which the last one ends. 16 are told at most."""


class LogBytesHeader(Header, kw_only=True):
    """LOG_BYTES (30016), ours: a piece of the log."""

    offset: Long
    """LogOffset of the first byte."""
    size: Int
    """1 MiB at most; fewer come where a file ends, or what is durable."""


class RepairLogHeader(Header, kw_only=True):
    """REPAIR_LOG (30017), ours: a broker repairs damaged records of its log from another replica."""

    offset: Long
    """LogOffset at which the first of them begins."""
    size: Int
    """Of all of them, 64 MiB at most."""
    source: str
    """Address of the broker whose records are right."""


class SetQuotaHeader(Header, kw_only=True):
    """SET_QUOTA (30019), ours: sets or removes the quota of a client, account or address."""

    kind: str
    """`client`, `account` or `address`."""
    name: str
    """`*`: every one that has none of its own."""
    limits: str | None = None
    """As `requestsPerSecond=1000,bytesInPerSecond=10485760`; missing: the quota is removed."""


class VersionReplyHeader(Header, kw_only=True):
    """Answers GET_BROKER_CONFIG (26): the DataVersion of the configuration, as JSON."""

    version: str


class UnregisterClientHeader(Header, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40), GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class ProducerGroupHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str
