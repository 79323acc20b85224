"""Options: one typed table per component, with a text for users at each option. The broker's table is here; those of its store, of MetaQ
1.x and of the name server have modules of their own, and are imported from here.

The field name is RocketMQ's key in snake_case (`flush_disk_type` is `flushDiskType` in a `broker.conf`), so every
original key is an alias without being listed; other spellings are. Documentation and `--print-config` come from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.metaq1_options import Metaq1Options
from metaq.namesrv_options import NamesrvOptions
from metaq.option_table import (
    GIB,
    KIB,
    MIB,
    Applied,
    Change,
    OptionOrigin,
    OptionTable,
    Settings,
    apply,
    camel,
    judge,
    nearest,
    option,
)
from metaq.server_options import (
    LOG_LEVELS,
    AuditOptions,
    FailoverOptions,
    HttpOptions,
    LogOptions,
    PeerOptions,
    QuotaOptions,
)
from metaq.store_options import StoreOptions

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "Applied",
    "BrokerOptions",
    "Change",
    "Metaq1Options",
    "NamesrvOptions",
    "OptionOrigin",
    "OptionTable",
    "Settings",
    "StoreOptions",
    "apply",
    "camel",
    "judge",
    "nearest",
    "option",
]


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(AuditOptions, QuotaOptions, PeerOptions, LogOptions, HttpOptions, FailoverOptions):
    """What `metaq.broker` and its servers obey."""

    section: ClassVar = "broker"

    namesrv_addr: str | None = option(
        None,
        "Addresses of the name servers at which the broker registers, `host:port`, separated by `;`. The flag `-n` and the environment "
        "variable `NAMESRV_ADDR` set it, too; `metaq up` adds its own name server. Unset: an address server is asked, if "
        "fetchNamesrvAddrByAddressServer is on.",
    )
    fetch_namesrv_addr_by_address_server: bool = option(
        False, "Get the addresses of the name servers from the page addressServer, if namesrvAddr is not set."
    )
    address_server: str | None = option(
        None,
        "URL of a page with the addresses of the name servers, `host:port;host:port`, which is read at the start and then every two "
        "minutes. Used only with fetchNamesrvAddrByAddressServer, and if namesrvAddr is not set.",
    )
    listen_port: int = option(
        10911,
        "Port of the remoting server, which speaks RocketMQ's protocol. 0: the system chooses a free port.",
        low=0,
        high=65535,
    )
    vip_port_enable: bool = option(
        False,
        "Listen at port listenPort - 2, too, to which RocketMQ's clients send if their VIP channel is on. Default `true` if the "
        "configuration file is a broker.conf.",
    )
    bind_address: str = option(
        "127.0.0.1",
        "Address on which the broker's servers listen, all but the HTTP server (httpBindAddress). `0.0.0.0` and `::` mean all addresses. "
        "Default `0.0.0.0` if the configuration file is a broker.conf or a server.ini.",
        aliases=("host",),
    )
    metrics_names_max: int = option(
        100,
        "Number of topics, of groups, and of pairs of the two that have series of their own in /metrics (httpPort): those with the most "
        "traffic. All others share one series, `(others)`. 0: all have their own.",
        low=0,
    )
    otel_endpoint: str = option(
        "",
        "URL of an OpenTelemetry collector, such as http://127.0.0.1:4318, to which the broker sends spans of messages that carry a "
        "sampled trace context (docs/opentelemetry.md). Empty: it makes no spans. Needs the extra `otel`.",
    )
    broker_ip1: str | None = option(
        None,
        "IP address by which clients reach the broker; it is registered at the name servers, and is part of message ids. Default: "
        "bindAddress, or if that is `0.0.0.0` or `::` the address of the interface with the default route.",
    )
    broker_ip2: str | None = option(
        None, "IP address by which slaves reach the broker's replication port (haListenPort). Default: brokerIP1."
    )
    advertised_addresses: str = option(
        "",
        "Addresses for clients that cannot reach brokerIP1, separated by `,`: `outside=host:port` for those that connect to the name "
        "server's listener `outside` (its option listeners), and `10.0.0.0/8=host:port` for those that come from this network "
        "(docs/addresses.md). Empty: all clients get brokerIP1.",
    )
    advertised_ha_addresses: str = option(
        "",
        "Addresses of the replication port for slaves that cannot reach brokerIP2, in the form of advertisedAddresses. Empty: all slaves "
        "get brokerIP2.",
    )
    broker_name: str | None = option(
        None, "Name of the broker; a master and its slaves have the same one. Default: the host name."
    )
    broker_cluster_name: str = option("DefaultCluster", "Name of the cluster that the broker belongs to.")
    broker_id: int = option(
        0,
        "Number of the broker among those with the same brokerName: 0 for the master, and a different number from 1 on for each slave. "
        "With failover=zookeeper every broker has its own number, from 1 to 64.",
        low=0,
    )
    broker_role: str = option(
        "ASYNC_MASTER",
        "`ASYNC_MASTER` answers a send when the master has the message, `SYNC_MASTER` when slaves have it as well (inSyncReplicas). "
        "`SLAVE` copies the log of the master with the same brokerName, and refuses sends. With failover=zookeeper it only matters "
        "before there is a group: a `SLAVE` does not create it.",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    )
    ha_listen_port: int | None = option(
        None,
        "Port of the replication server, from which slaves copy the log. Unset: listenPort + 1, or a free port if that one is taken. 0: "
        "the system chooses a free port.",
        low=0,
        high=65535,
    )
    ha_allowed_addresses: str = option(
        "",
        "Addresses of slaves that may copy the log, separated by `,`, in the form of globalWhiteRemoteAddresses (`10.0.0.*`). With "
        "aclEnable slaves that sign (aclCredentials) and addresses in globalWhiteRemoteAddresses may, too. Empty: without aclEnable "
        "every address may.",
    )
    ha_master_address: str | None = option(
        None,
        "Address of the master's replication port, `host:port`, for a broker with brokerRole=SLAVE. Unset: it asks the name servers for "
        "its master.",
    )
    ha_send_heartbeat_interval: int = option(
        5000,
        "Time in ms without data on a replication connection after which master and slave send each other a heartbeat.",
        low=10,
    )
    ha_housekeeping_interval: int = option(
        20_000,
        "Time in ms without data or heartbeats from the other side after which a master or slave closes a replication connection.",
        low=10,
    )
    ha_slave_fallbehind_max: int = option(
        256 * MIB,
        "Number of bytes of the log that a slave may be behind before a SYNC_MASTER does not wait for it any more.",
        low=1,
        hot=True,
    )
    ha_transfer_batch_size: int = option(
        32 * KIB,
        "Number of bytes of the log that a master sends to a slave in one chunk.",
        low=KIB,
        high=4 * MIB - 12,
        hot=True,
    )
    ha_flow_control_enable: bool = option(
        False,
        "Limit the bytes per second that this master sends to a slave which is catching up, to maxHaTransferByteInSecond.",
        hot=True,
    )
    max_ha_transfer_byte_in_second: int = option(
        100 * MIB,
        "Bytes per second that a master sends to a slave that is more than this number of bytes behind; a slave that keeps up is never "
        "slowed down. Used only with haFlowControlEnable.",
        low=64 * KIB,
        hot=True,
    )
    scrub_interval: int = option(
        24,
        "Hours between two comparisons of a slave's log with that of its master, which find damaged records in the background. 0: a slave "
        "does not compare.",
        low=0,
        hot=True,
    )
    max_scrub_byte_in_second: int = option(
        10 * MIB,
        "Bytes per second of its log that a slave reads at most while it compares it with that of its master (scrubInterval).",
        low=64 * KIB,
        hot=True,
    )
    slave_timeout: int = option(
        3000,
        "Longest time in ms that a send waits for slaves at a SYNC_MASTER; then it is answered FLUSH_SLAVE_TIMEOUT, although the master "
        "has the message.",
        low=1,
    )
    in_sync_replicas: int = option(
        2,
        "Number of brokers that must have a message before a SYNC_MASTER answers its send, the master included; 1 means the same as 2. "
        "With failover=zookeeper it has no effect: there all brokers of the in-sync set must have it.",
        low=1,
        high=16,
        hot=True,
    )
    min_in_sync_replicas: int = option(
        1,
        "Number of brokers, the master included, that must be connected and less than haSlaveFallbehindMax behind, or a SYNC_MASTER "
        "refuses sends. With failover=zookeeper it is the smallest size of the in-sync set, below which sends are refused.",
        low=1,
        high=16,
        hot=True,
    )
    broker_permission: int = option(
        6,
        "Permissions of all topics of this broker: 4 read, 2 write, 6 both. Without 2, clients are told not to send here, and sends to "
        "ordered topics are refused; without 4, pulls are refused.",
        low=0,
        high=7,
        hot=True,
    )
    draining: bool = option(
        False,
        "Register every topic as not writable, so that producers use other brokers; messages that are sent here all the "
        "same are stored. `metaq broker drain` sets it before a broker is removed.",
        hot=True,
    )
    acl_enable: bool = option(
        False,
        "Access control: carry out only requests that are signed with the keys of an account and permitted to it (docs/security.md). The "
        "accounts are in the file aclPath.",
    )
    acl_path: str | None = option(
        None,
        "Path of the file with the accounts; `.yml` and `.yaml` files in the folder `acl` beside it are read, too. Default: "
        "`plain_acl.yml` beside the configuration file, or in the folder `conf` of the path in the environment variable ROCKETMQ_HOME. Used only with "
        "aclEnable.",
    )
    acl_metaq1_accounts: str = option(
        "",
        "Accounts for clients of MetaQ 1.x, which cannot sign, by their addresses: `ADDRESSES=ACCOUNT`, separated by `;`, with addresses "
        "in the form of globalWhiteRemoteAddresses. The first entry that matches counts, and whoever connects from there has the rights "
        "of the account. Empty: with aclEnable only addresses in globalWhiteRemoteAddresses are served.",
    )
    acl_compatible: bool = option(
        False,
        "Ask an account for no further right where RocketMQ asks for none: batches, replies, messages by id, locks of queues, ends of "
        "transactions, and offsets (docs/security.md). Used only with aclEnable.",
    )
    acl_credentials: str | None = option(
        None,
        "Path of a file with the `accessKey` and `secretKey` by which this broker signs its requests to other brokers and to name servers, "
        "in the form of RocketMQ's tools.yml. Unset: it does not sign.",
    )
    region_id: str = option(
        "DefaultRegion", "Name of a region, sent with the answer to each send; clients note it in message traces."
    )
    trace_on: bool = option(
        True,
        "Tell clients with the answer to each send whether they may trace messages: with `false` RocketMQ's clients send no traces.",
        hot=True,
    )
    filter_server_nums: int = option(
        0,
        "Number of helper processes that run predicates (filterPredicates) and filters of MetaQ 1.x. 0 means 1 as soon as there is one of "
        "these, and none otherwise.",
        low=0,
        high=256,
    )
    filter_predicates: str = option(
        "",
        "Predicates, Python functions by which subscriptions can filter messages at the broker: `name=module:function`, separated by `;` "
        "(docs/predicates.md). Empty: there are none.",
    )
    filter_predicate_path: str = option(
        "",
        "Folders, separated by `:`, in which the modules of filterPredicates are looked for before the usual places.",
    )
    filter_time_limit: int = option(
        1000,
        "Time in ms that a predicate may take for the messages of one pull; then its helper process is killed and replaced.",
        low=10,
        high=60_000,
        hot=True,
    )
    filter_memory_limit: int = option(
        256 * MIB,
        "Memory in bytes that a helper process of predicates may use beyond what it uses after it has imported them; then it is killed and "
        "replaced.",
        low=64 * MIB,
    )
    trace_topic_enable: bool = option(
        False,
        "Create the topic of message traces (msgTraceTopicName) at the start, with one queue. With `false` the first trace creates it, if "
        "autoCreateTopicEnable is on.",
    )
    msg_trace_topic_name: str = option(
        "RMQ_SYS_TRACE_TOPIC",
        "Name of the topic of message traces. Used only with traceTopicEnable; clients have a setting of their own.",
    )
    store_reply_message_enable: bool = option(
        True,
        "Store replies of request-reply in the topic CLUSTER_REPLY_TOPIC, where CLUSTER is brokerClusterName. With `false` they are only "
        "passed on to the requester.",
    )
    default_topic_queue_nums: int = option(
        8,
        "Number of queues of TBW102, the template of topics that are created by a send: such a topic gets this many, or fewer if the "
        "client asks for fewer. A TBW102 that exists already keeps its number.",
        low=1,
    )
    auto_create_topic_enable: bool = option(
        True, "Create a topic when a client sends to it. With `false` such a send is refused.", hot=True
    )
    restore_lost_topics: bool = option(
        True,
        "At a start, create topics again that are missing in the table of topics although their queues hold messages, as after its file "
        "was lost. Topics that were deleted do not come back. With `false` nobody can read such messages.",
    )
    auto_create_subscription_group: bool = option(
        True,
        "Create a consumer group when its first consumer joins. With `false` consumers of unknown groups are refused.",
        hot=True,
    )
    cluster_topic_enable: bool = option(
        True,
        "Make the topic that has the name of the cluster readable and writable when it is created, at the first start. RocketMQ's tools "
        "need this topic to exist.",
    )
    broker_topic_enable: bool = option(
        True,
        "Make the topic that has the name of the broker readable and writable when it is created, at the first start.",
    )
    reject_transaction_message: bool = option(
        False, "Refuse half messages, so that no transactional messages can be sent to this broker.", hot=True
    )
    transaction_time_out: int = option(
        6000,
        "Age in ms from which on the broker asks the producer of a half message for the outcome of its transaction. A message may have its "
        "own time (CHECK_IMMUNITY_TIME_IN_SECONDS).",
        low=0,
        hot=True,
    )
    transaction_check_interval: int = option(
        60_000,
        "Time in ms between two rounds of asking producers for the outcome of their open transactions.",
        low=10,
        hot=True,
    )
    transaction_check_max: int = option(
        15,
        "Number of times that the producer of a half message is asked for the outcome; then the half message is moved to the topic "
        "TRANS_CHECK_MAX_TIME_TOPIC, and the transaction is given up.",
        low=1,
        hot=True,
    )
    staged_parts_max: int = option(
        20_000,
        "Number of open parts of staged transactions (docs/atomic.md) at this broker; one client may have a quarter of them. The number of "
        "open transactions has the same limit. Above it further ones are refused.",
        low=1,
        hot=True,
    )
    staged_bytes_per_transaction_max: int = option(
        GIB,
        "Bytes that one staged transaction (docs/atomic.md) may hold at this broker; what goes beyond is refused.",
        low=1,
        hot=True,
    )
    staged_bytes_max: int = option(
        8 * GIB,
        "Bytes that all open staged transactions (docs/atomic.md) together may hold at this broker; what goes beyond is refused.",
        low=1,
        hot=True,
    )
    staged_chunks_per_part_max: int = option(
        4096,
        "Number of chunks, each sent by one request, that a part of a staged transaction (docs/atomic.md) may have.",
        low=1,
        hot=True,
    )
    staged_seconds_max: int = option(
        86_400,
        "Seconds after which a staged transaction (docs/atomic.md) is rolled back if it was neither committed nor rolled back. A client "
        "may ask for a shorter time.",
        low=1,
        hot=True,
    )
    transaction_rows_max: int = option(
        10_000,
        "Number of writers of staged transactions (docs/atomic.md), such as Spark queries, whose last committed sequence number is "
        "remembered. Further writers are refused until some are forgotten (`metaq transaction forget`).",
        low=1,
        hot=True,
    )
    enable_property_filter: bool = option(
        True,
        "Allow subscriptions with SQL92 filters. Default `false` if the configuration file is a broker.conf, as in RocketMQ.",
        hot=True,
    )
    filter_support_retry: bool = option(
        False,
        "Apply a group's SQL92 filter to retried messages, too, by the topic that they come from. With `false` they are delivered "
        "unfiltered. Used only with enablePropertyFilter.",
        hot=True,
    )
    filter_data_clean_time_span: int = option(
        86_400_000,
        "Time in ms for which the SQL92 filter of a group is remembered after its last consumer has left.",
        low=1000,
        hot=True,
    )
    long_polling_enable: bool = option(
        True,
        "Hold a pull that finds no message until one arrives, for as long as the client asks. With `false` it is held for "
        "shortPollingTimeMills at most.",
        hot=True,
    )
    short_polling_time_mills: int = option(
        1000,
        "Time in ms for which a pull that finds no message is held with longPollingEnable=false. 0: it is answered at once.",
        low=0,
        hot=True,
    )
    notify_consumer_ids_changed_enable: bool = option(
        True,
        "Notify the consumers of a group when one joins or leaves, so that they rebalance at once. With `false` they notice it at their "
        "next rebalance, every 20 s by default.",
        hot=True,
    )
    rebalance_lock_max_live_time: int = option(
        60_000,
        "Time in ms for which the lock of an orderly consumer on a queue holds after its last renewal. In RocketMQ it is a Java system "
        "property.",
        aliases=("rocketmq.broker.rebalance.lockMaxLiveTime",),  # there it is a property of the Java process
        low=1,
        hot=True,
    )
    queue_locks_max: int = option(
        200_000,
        "Number of locks that orderly consumers may hold on queues, all groups together; one group or host may hold a quarter. Further "
        "locks are not granted, and the log says so.",
        low=1,
        hot=True,
    )
    remote_administration_enable: bool = option(
        False,
        "Accept from other machines what otherwise only callers on the broker's own machine may ask for: to read the configuration file "
        "again, to change options, quotas and roles, to stop the broker. Default `true` with `--insecure`. With aclEnable it has no "
        "effect: accounts with `admin` may.",
    )
    slave_read_enable: bool = option(
        False,
        "Send consumers that are far behind to a slave, and back to the master later (accessMessageInMemoryMaxRatio). It must be on at "
        "master and slave.",
        hot=True,
    )
    flush_consumer_offset_interval: int = option(
        5000, "Time in ms between two saves of the consumer offsets that were committed.", low=10
    )
    log_level: str = option(
        "info",
        "Least severe level of lines that are written to the log; logLevels sets others for parts of it.",
        choices=LOG_LEVELS,
        hot=True,
    )
    register_broker_timeout_mills: int = option(
        6000,
        "Longest time in ms that the broker waits for a name server's answer to its registration.",
        low=100,
        high=60_000,
    )
    register_name_server_period: int = option(
        30_000,
        "Time in ms between two registrations at the name servers. Changes of topics are registered at once.",
        low=1000,
        high=60_000,
    )
    held_pulls_max: int = option(
        100_000,
        "Number of pulls that may wait for messages (long polling), of all clients together; one client may have a quarter. Further pulls "
        "are answered at once.",
        low=1,
    )
    unflushed_bytes_max: int = option(
        512 * MIB,
        "Bytes of the commit log that may wait to be synced to disk. Above half of it the answers to sends wait for the disk, above all of "
        "it sends are refused (SYSTEM_BUSY).",
        low=MIB,
        hot=True,
    )
    busy_poll_micros: int | None = option(
        None,
        "Time in µs that the broker polls busily for the next request if a single connection is active, which shortens its round trips. 0: "
        "never. Unset: 50, or 0 on a machine with one core.",
        low=0,
        high=1000,
    )
    audit_log_topic: str | None = option(
        None,
        "Topic of this broker to which each line of the audit logs is sent, too (docs/formats/audit-log.md). Unset: to none. Used only "
        "with auditLogEnable.",
    )
    auto_create_groups_max: int = option(
        10_000,
        "Number of consumer groups at the broker up to which a joining consumer may create one; one client may create a quarter. 0: none "
        "can be created this way.",
        low=0,
        hot=True,
    )
    auto_create_groups_per_minute: int = option(
        600,
        "Number of consumer groups that joining consumers may create per minute. A client that has created a quarter of them leaves the "
        "last quarter to others.",
        low=0,
        hot=True,
    )
    auto_create_topics_max: int = option(
        10_000,
        "Number of topics at the broker up to which a send may create one; one client may create a quarter. 0: none can be created this "
        "way.",
        low=0,
        hot=True,
    )
    auto_create_topics_per_minute: int = option(
        600,
        "Number of topics that sends may create per minute. A client that has created a quarter of them leaves the last quarter to others.",
        low=0,
        hot=True,
    )
