"""Options: one typed table per component, a sentence for each.

The field name is RocketMQ's key in snake_case (`flush_disk_type` is `flushDiskType` in a `broker.conf`), so every
original key is an alias without being listed; other spellings are. Documentation and `--print-config` come from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.option_table import (
    GIB,
    KIB,
    MIB,
    Applied,
    Change,
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

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "Applied",
    "BrokerOptions",
    "Change",
    "Metaq1Options",
    "NamesrvOptions",
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
class StoreOptions(OptionTable):
    """What `metaq.store` obeys."""

    section: ClassVar = "store"

    store_path_root_dir: str = option("~/store", "Folder of all store files.", aliases=("data",))
    store_path_commit_log: str | None = option(None, "Folder of the commit log; by default `commitlog` under the root.")
    store_path_consume_queue: str | None = option(None, "Folder of the consume queues; by default `consumequeue`.")
    store_path_index: str | None = option(None, "Folder of the index files; by default `index`.")
    store_checkpoint: str | None = option(None, "The checkpoint file; by default `checkpoint`.")
    abort_file: str | None = option(None, "The file whose presence means that there was no clean stop; `abort`.")
    mapped_file_size_commit_log: int = option(
        GIB,
        "Size of one commit-log file in bytes; an existing folder must have files of this size.",
        aliases=("mapedFileSizeCommitLog",),  # RocketMQ 3's spelling, found in many files
        low=64 * KIB,
    )
    mapped_file_size_consume_queue: int = option(
        6_000_000,
        "Size of one consume-queue file in bytes, rounded up to whole units of 20.",
        aliases=("mapedFileSizeConsumeQueue",),
        low=20,
    )
    max_hash_slot_num: int = option(5_000_000, "Hash slots of one index file.", low=1)
    max_index_num: int = option(20_000_000, "Entries of one index file.", low=2)
    message_index_enable: bool = option(True, "Keep the index by key and unique id.")
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "SYNC_FLUSH answers a send after its fsync, ASYNC_FLUSH once it is in the page cache. `groupCommitEnable=true` is SYNC_FLUSH.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = option(500, "Longest time in ms that the log stays unflushed.", low=1, hot=True)
    flush_interval_consume_queue: int = option(1000, "Milliseconds between flushes of the consume queues.", low=1)
    sync_flush_timeout: int = option(5000, "Milliseconds a SYNC_FLUSH send waits before FLUSH_DISK_TIMEOUT.", low=1)
    max_message_size: int = option(4 * MIB, "Largest body in bytes; for a batch, of all together.", low=1, hot=True)
    file_reserved_time: int = option(72, "Hours that messages are kept.", low=0, hot=True)
    delete_when: str = option(
        "04",
        "Hours of the day, `;`-separated, at which expired files are deleted. One that no day has, such as 99, never comes.",
        hot=True,
        form=(r" *[0-9]{1,2} *(?:; *(?:[0-9]{1,2})? *)*", "hours, such as 04 or 04;16"),
    )
    disk_max_used_space_ratio: int = option(
        75, "Percent of the disk above which expired files go at once.", low=10, high=95, hot=True
    )
    clean_file_forcibly_enable: bool = option(
        True,
        "Above diskSpaceCleanForciblyRatio of the disk, delete the oldest files though they have not expired. `false`: nothing goes "
        "before its time, and messages are refused when the disk is full.",
        hot=True,
    )
    disk_space_clean_forcibly_ratio: float = option(
        0.85,
        "Share of the disk above which the oldest files go early (cleanFileForciblyEnable). A system property in RocketMQ.",
        low=0.3,
        high=0.99,
        hot=True,
    )
    disk_space_warning_level_ratio: float = option(
        0.9,
        "Share of the disk above which no message is taken until there is room again. A system property in RocketMQ.",
        low=0.35,
        high=0.99,
        hot=True,
    )
    clean_resource_interval: int = option(10_000, "Milliseconds between two looks at what may be deleted.", low=10)
    max_transfer_bytes_on_message_in_memory: int = option(262_144, "Bytes of one pull of recent messages.", hot=True)
    max_transfer_count_on_message_in_memory: int = option(32, "Messages of one pull of recent messages.", hot=True)
    max_transfer_bytes_on_message_in_disk: int = option(65_536, "Bytes of one pull of old messages.", hot=True)
    max_transfer_count_on_message_in_disk: int = option(8, "Messages of one pull of old messages.", hot=True)
    access_message_in_memory_max_ratio: int = option(
        40, "Percent of the machine's memory behind the log's end that counts as recent.", low=0, high=100, hot=True
    )
    hot_bytes: int = option(
        256 * MIB,
        "Bytes behind the log's end that are read through the mapping; by pread what is older, or was there before the start.",
        low=0,
    )
    default_query_max_num: int = option(32, "Records of a look-up by unique id.", low=1)
    max_msgs_num_batch: int = option(64, "Records of a look-up by key.", low=1)
    check_crc_on_recover: bool = option(True, "Verify body checksums while recovering.", aliases=("checkCRCOnRecover",))
    refuse_damaged_log: bool = option(
        False,
        "Do not start on a log that is damaged in front of whole messages. Else the damage is stepped over, and an error in the "
        "log names file, place, topic and queue.",
    )
    load_queues_in_parallel: bool = option(
        False, "Look at the files of several topics at a time when a store is opened: for many queues on a slow disk."
    )
    message_delay_level: str = option(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "The delays that a delay level stands for. Messages at a level that is removed wait until it is back.",
    )
    flush_delay_offset_interval: int = option(10_000, "Milliseconds between saves of the delay positions.", low=10)


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(AuditOptions, QuotaOptions, PeerOptions, LogOptions, HttpOptions, FailoverOptions):
    """What `metaq.broker` and its servers obey."""

    section: ClassVar = "broker"

    namesrv_addr: str | None = option(None, "Name servers to register at, `host:port`, `;`-separated.")
    fetch_namesrv_addr_by_address_server: bool = option(
        False, "Have the addressServer say where the name servers are, where namesrvAddr does not."
    )
    address_server: str | None = option(
        None, "URL of the page with the name servers' addresses, `host:port;host:port`; read every two minutes."
    )
    listen_port: int = option(10911, "Port of the remoting server; 0 takes a free one.", low=0, high=65535)
    vip_port_enable: bool = option(
        False,
        "Serve listenPort - 2 too, for clients that send to the VIP port; on when the file is a broker.conf.",
    )
    bind_address: str = option("127.0.0.1", "Address that the servers listen on.", aliases=("host",))
    metrics_names_max: int = option(
        100,
        "Topics, groups, and pairs of them that /metrics names, those with the most traffic; the others are one sum. 0: all.",
        low=0,
    )
    otel_endpoint: str = option(
        "",
        "URL of an OpenTelemetry collector, such as http://127.0.0.1:4318: it gets spans of messages that carry a sampled trace "
        "(docs/opentelemetry.md). Empty: nobody does. It needs the extra `otel`.",
    )
    broker_ip1: str | None = option(None, "Address that clients are told; by default the first that is not loopback.")
    broker_ip2: str | None = option(None, "Address that slaves are told; by default that of clients.")
    advertised_addresses: str = option(
        "",
        "Addresses for clients that reach brokerIP1 not, each by the name of the name server's listener where they come in, or by "
        "the network they come from: `outside=host:port,10.0.0.0/8=host:port` (docs/addresses.md).",
    )
    advertised_ha_addresses: str = option(
        "", "The same for slaves: addresses of the replication port, by where they come in at the name server."
    )
    broker_name: str | None = option(None, "Name of the broker; by default the host name.")
    broker_cluster_name: str = option("DefaultCluster", "Name of the cluster that the broker joins.")
    broker_id: int = option(0, "0 for the master, another number for each of its slaves.", low=0)
    broker_role: str = option(
        "ASYNC_MASTER",
        "SYNC_MASTER answers a send when a slave has it too; SLAVE copies the master of its brokerName and takes no messages.",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    )
    ha_listen_port: int | None = option(
        None,
        "Port from which slaves copy; by default listenPort + 1, or a free one where that is taken; 0 takes a free one.",
        low=0,
        high=65535,
    )
    ha_allowed_addresses: str = option(
        "",
        "Addresses that may copy the log, `,`-separated, as in globalWhiteRemoteAddresses; nobody else may then. With aclEnable also "
        "those of white lists, and of slaves that sign (aclCredentials). Empty without aclEnable: everybody.",
    )
    ha_master_address: str | None = option(
        None, "Of a slave: where its master sends copies, `host:port`; by default what the name servers say."
    )
    ha_send_heartbeat_interval: int = option(
        5000, "Milliseconds of silence after which master and slave tell each other that they are there.", low=10
    )
    ha_housekeeping_interval: int = option(
        20_000, "Milliseconds of silence after which master and slave leave each other.", low=10
    )
    ha_slave_fallbehind_max: int = option(
        256 * MIB, "Bytes that a slave may be behind and still be waited for by a SYNC_MASTER.", low=1, hot=True
    )
    ha_transfer_batch_size: int = option(
        32 * KIB, "Bytes of the log that a master sends in one chunk.", low=KIB, high=4 * MIB - 12, hot=True
    )
    ha_flow_control_enable: bool = option(
        False, "Send a slave that catches up no more than maxHaTransferByteInSecond.", hot=True
    )
    max_ha_transfer_byte_in_second: int = option(
        100 * MIB,
        "With haFlowControlEnable: bytes a second to a slave that is further behind than that; one that keeps up is never held up.",
        low=64 * KIB,
        hot=True,
    )
    scrub_interval: int = option(
        24,
        "Of a slave: hours between two comparisons of its log with its master's, in the background; 0: none.",
        low=0,
        hot=True,
    )
    max_scrub_byte_in_second: int = option(
        10 * MIB, "Bytes of its log that a slave compares in a second, at most.", low=64 * KIB, hot=True
    )
    slave_timeout: int = option(
        3000, "Milliseconds a SYNC_MASTER's send waits for a slave before FLUSH_SLAVE_TIMEOUT.", low=1
    )
    in_sync_replicas: int = option(
        2,
        "Brokers that must have a send before a SYNC_MASTER answers it, itself included.",
        low=1,
        high=16,
        hot=True,
    )
    min_in_sync_replicas: int = option(
        1,
        "Brokers that must be there and near, itself included, for a SYNC_MASTER to take a send at all.",
        low=1,
        high=16,
        hot=True,
    )
    broker_permission: int = option(6, "4 readable, 2 writable, 6 both.", low=0, high=7, hot=True)
    draining: bool = option(
        False,
        "Announce every topic as not writable and take what is sent all the same (`metaq broker drain`).",
        hot=True,
    )
    acl_enable: bool = option(
        False, "Do only what accounts are allowed to whose clients sign their requests (docs/security.md)."
    )
    acl_path: str | None = option(
        None,
        "The file of accounts; those in the folder `acl` beside it are read, too. By default `plain_acl.yml` beside the file of "
        "`-c`, or in `conf` of ROCKETMQ_HOME.",
    )
    acl_metaq1_accounts: str = option(
        "",
        "Accounts by which clients of MetaQ 1.x are judged, as they cannot sign: `ADDRESSES=ACCOUNT`, `;`-separated, addresses as in "
        "globalWhiteRemoteAddresses; the first entry that matches counts. Whoever can connect from there is that account.",
    )
    acl_compatible: bool = option(
        False,
        "Ask for no right where RocketMQ asks for none: batches, replies, messages by id, locks, ends of transactions, positions.",
    )
    acl_credentials: str | None = option(
        None,
        "File with the `accessKey` and `secretKey` by which this broker signs what it asks others, as RocketMQ's tools.yml.",
    )
    region_id: str = option("DefaultRegion", "Region named in send answers and message traces.")
    trace_on: bool = option(True, "What send answers say about message tracing.", hot=True)
    filter_server_nums: int = option(
        0, "Helper processes that run predicates; 1 as soon as one is registered.", low=0, high=256
    )
    filter_predicates: str = option(
        "", "Predicates that subscriptions can name: `name=module:function`, `;`-separated (docs/predicates.md)."
    )
    filter_predicate_path: str = option("", "Folders in which their modules are looked for first, as in PYTHONPATH.")
    filter_time_limit: int = option(
        1000, "Milliseconds that a predicate may take for the messages of one pull.", low=10, high=60_000, hot=True
    )
    filter_memory_limit: int = option(
        256 * MIB,
        "Bytes that a helper process may take beyond what it has after importing the predicates.",
        low=64 * MIB,
    )
    trace_topic_enable: bool = option(
        False,
        "Have the topic of message traces from the start, with one queue; else its first trace makes it, if that may.",
    )
    msg_trace_topic_name: str = option("RMQ_SYS_TRACE_TOPIC", "Name of that topic.")
    store_reply_message_enable: bool = option(
        True, "Store the replies to requests too, in CLUSTER_REPLY_TOPIC; off, they are only handed on."
    )
    default_topic_queue_nums: int = option(8, "Queues of the template topic TBW102.", low=1)
    auto_create_topic_enable: bool = option(True, "Create a topic when somebody sends to it.", hot=True)
    restore_lost_topics: bool = option(
        True, "At a start, give a topic back to queues that hold messages and have none, unless it was deleted."
    )
    auto_create_subscription_group: bool = option(True, "Create a consumer group when somebody joins it.", hot=True)
    cluster_topic_enable: bool = option(True, "Make the topic named like the cluster readable and writable.")
    broker_topic_enable: bool = option(True, "Make the topic named like the broker readable and writable.")
    reject_transaction_message: bool = option(False, "Refuse half messages (transactions).", hot=True)
    transaction_time_out: int = option(
        6000, "Milliseconds from its birth on in which a half message's producer is not asked.", low=0, hot=True
    )
    transaction_check_interval: int = option(
        60_000, "Milliseconds between rounds of asking producers what became of their transactions.", low=10, hot=True
    )
    transaction_check_max: int = option(
        15, "Checks after which a half message goes to TRANS_CHECK_MAX_TIME_TOPIC.", low=1, hot=True
    )
    staged_parts_max: int = option(
        20_000,
        "Parts of staged transactions at this broker together; one peer may have a quarter of them.",
        low=1,
        hot=True,
    )
    staged_bytes_per_transaction_max: int = option(
        GIB, "Bytes that one transaction may stage at this broker.", low=1, hot=True
    )
    staged_bytes_max: int = option(8 * GIB, "Bytes staged by all transactions together.", low=1, hot=True)
    staged_chunks_per_part_max: int = option(4096, "Chunks of one part of a staged transaction.", low=1, hot=True)
    staged_seconds_max: int = option(
        86_400, "Seconds after which a staged transaction that nobody has decided is rolled back.", low=1, hot=True
    )
    transaction_rows_max: int = option(
        10_000, "Writers of staged transactions whose last sequence number is remembered.", low=1, hot=True
    )
    enable_property_filter: bool = option(
        True, "Take SQL92 filters; off when the file is a broker.conf that does not say otherwise.", hot=True
    )
    filter_support_retry: bool = option(
        False, "Hold a retried message to its group's SQL92 filter for the topic that it comes from.", hot=True
    )
    filter_data_clean_time_span: int = option(
        86_400_000, "Milliseconds for which the SQL92 filter of a group that is gone is remembered.", low=1000, hot=True
    )
    long_polling_enable: bool = option(True, "Hold pulls that find nothing.", hot=True)
    short_polling_time_mills: int = option(1000, "Milliseconds a pull is held with long polling off.", low=0, hot=True)
    notify_consumer_ids_changed_enable: bool = option(True, "Tell consumers when a group's members change.", hot=True)
    rebalance_lock_max_live_time: int = option(
        60_000,
        "Milliseconds after its last renewal that an orderly consumer's lock on a queue holds.",
        aliases=("rocketmq.broker.rebalance.lockMaxLiveTime",),  # there it is a property of the Java process
        low=1,
        hot=True,
    )
    queue_locks_max: int = option(
        200_000, "Locks on queues of all groups together; more are not granted, which the log says.", low=1, hot=True
    )
    remote_administration_enable: bool = option(
        False,
        "Let other machines have the configuration file read again, too; on with --insecure. With aclEnable, accounts with `admin` may.",
    )
    slave_read_enable: bool = option(False, "Suggest a slave to consumers that are far behind.", hot=True)
    flush_consumer_offset_interval: int = option(5000, "Milliseconds between saves of consumer offsets.", low=10)
    log_level: str = option("info", "How much of the log is written.", choices=LOG_LEVELS, hot=True)
    register_broker_timeout_mills: int = option(
        6000, "Milliseconds that a name server may take to answer a registration.", low=100, high=60_000
    )
    register_name_server_period: int = option(30_000, "Milliseconds between registrations.", low=1000, high=60_000)
    held_pulls_max: int = option(
        100_000, "Held pulls of all peers together, of one client a quarter; more are answered at once.", low=1
    )
    unflushed_bytes_max: int = option(
        512 * MIB,
        "Bytes that may wait for the disk: above half, answers to sends wait too; above all, SYSTEM_BUSY.",
        low=MIB,
        hot=True,
    )
    busy_poll_micros: int | None = option(
        None,
        "Microseconds to wait awake for the next request of a lone connection while that pays; 0: never. Unset: 50, or 0 on a "
        "single core.",
        low=0,
        high=1000,
    )
    audit_log_topic: str | None = option(
        None, "Topic of this broker that gets each line of the audit log, too; by default none."
    )
    auto_create_groups_max: int = option(
        10_000, "Groups that clients may create by joining, in all; one client a quarter.", low=0, hot=True
    )
    auto_create_groups_per_minute: int = option(
        600, "Groups that clients may create in a minute; one client leaves a quarter to others.", low=0, hot=True
    )
    auto_create_topics_max: int = option(
        10_000, "Topics that sends may create in all; one client a quarter.", low=0, hot=True
    )
    auto_create_topics_per_minute: int = option(
        600, "Topics that sends may create in a minute; one client leaves a quarter to others.", low=0, hot=True
    )


@dataclass(frozen=True, kw_only=True)
class Metaq1Options(OptionTable):
    """What the MetaQ 1.x server, and all that a broker does for MetaQ 1.x, obey: [system] and [zookeeper] of a
    `server.ini`.

    `app/config_files/server_ini.py` says which of them set options of broker and store too. Options of single topics stand in
    `model/metaq1/settings.py`.
    """

    section: ClassVar = "metaq1"

    enable: bool = option(False, "Serve MetaQ 1.x; on when a server.ini is loaded.")
    broker_id: int = option(
        0, "Number of the broker, unique under its ZooKeeper root; in ids of messages and partitions.", low=0, high=1023
    )
    host_name: str | None = option(None, "Address that 1.x clients are told; by default brokerIP1's.")
    server_port: int = option(8123, "Port of the MetaQ 1.x server; 0 takes a free one.", low=0, high=65535)
    slave_id: int | None = option(
        None,
        "Number of this broker among the asynchronous slaves of brokerId: it copies the messages of that broker, an original or ours, by "
        "the text protocol, and takes none. By default it is a master. In an async_slave.properties (`--metaslave FILE`), too.",
        low=0,
        high=999_999_999,
    )
    slave_group: str | None = option(
        None, "Group under which such a slave gets messages of its master; by default `meta-slave-group_` and slaveId."
    )
    slave_max_delay_in_mills: int = option(
        500,
        "Longest pause in ms before such a slave asks again for messages of a partition that had none.",
        low=10,
        high=3_600_000,
    )
    auto_sync_master_config: bool = option(
        False,
        "Have such a slave take over the topic sections of its master's server.ini, whenever that changes, into its own, and reload it.",
    )
    dashboard_http_port: int = option(
        8120, "Port of the HTTP server with the pages of 1.x and its gateway: httpPort.", low=0, high=65535
    )
    num_partitions: int = option(1, "Partitions of a topic whose section says nothing.", low=1, high=65_536, hot=True)
    data_path: str = option("~/meta", "Folder of all store files: storePathRootDir, when a server.ini is loaded.")
    data_log_path: str | None = option(
        None, "Folder of the log, which holds transactions too: `commitlog` in it; by default dataPath."
    )
    unflush_threshold: int = option(
        1000,
        "Messages of a partition that may be answered before they are synced; with 0 and 1 each answer waits for it.",
        low=-1,
        hot=True,
    )
    unflush_interval: int = option(
        10_000, "Longest time in ms that messages stay unsynced; of all topics the shortest counts.", low=1, hot=True
    )
    max_segment_size: int = option(
        GIB, "Size of one commit-log file: mappedFileSizeCommitLog, when a server.ini is loaded.", low=64 * KIB
    )
    max_transfer_size: int = option(
        MIB, "Largest answer to a get in bytes, hence also the largest frame (20 bytes and the body) of a put.",
        low=1024, high=16 * MIB, hot=True,
    )  # fmt: skip
    get_process_thread_count: int | None = option(None, "Taken with a notice: this broker has no such threads.", low=0)
    put_process_thread_count: int | None = option(None, "Taken with a notice: this broker has no such threads.", low=0)
    delete_policy: str = option(
        "delete,168", "What becomes of old messages, and when: `delete,168`, `archive,72`, `archive,72,true`.", hot=True
    )
    delete_when: str = option(
        "0 0 6,18 * * ?", "When that is done: a Quartz cron (second minute hour day month weekday).", hot=True
    )
    archive_path: str | None = option(
        None, "Folder of the archives that `archive` policies write; by default `archive` in the store's folder."
    )
    quartz_thread_count: int = option(5, "Archives that are written at the same time.", low=1, high=64)
    max_checkpoints: int = option(
        3, "Taken with a notice: checkpoints of transactions are records of the log, the newest counts.", low=1
    )
    checkpoint_interval: int = option(
        3_600_000, "Milliseconds between two checkpoints of transactions: bounds what a start must look through.",
        low=1000, hot=True,
    )  # fmt: skip
    max_tx_timeout_timer_capacity: int = option(
        30_000, "Transactions with a time-out that may be open; BEGIN of more is refused.", low=1, hot=True
    )
    max_tx_timeout_in_seconds: int = option(
        60, "Longest time-out of a transaction in seconds; a longer one is cut.", low=1, hot=True
    )
    flush_tx_log_at_commit: int = option(
        1,
        "0: answers of transactions wait for no sync, 1: prepare, commit and rollback wait, 2: a sync each second.",
        low=0,
        high=2,
        hot=True,
    )
    accept_publish: bool = option(True, "Topics take messages, where their section does not say otherwise.", hot=True)
    accept_subscribe: bool = option(True, "Topics hand out messages, where theirs does not say otherwise.", hot=True)
    stat: bool = option(False, "Count topics for `stats`, where their section does not say otherwise.", hot=True)
    update_consumer_offsets: bool = option(
        False, "Move a consumer that is beyond a partition's end to the end.", hot=True
    )
    load_message_stores_in_parallel: bool = option(
        False,
        "Look at the files of several topics at a time at a start: loadQueuesInParallel.",
        aliases=("meta.loadMessageStoresInParallel",),
    )
    fast_boot: bool = option(
        False, "Verify no body checksums while recovering: checkCRCOnRecover=false.", aliases=("meta.fast_boot",)
    )
    app_class_path: str | None = option(None, "Folders in which the modules of server-side filters are looked for.")
    zk_connect: str | None = option(
        None, "ZooKeeper servers, `host:port`, `,`-separated; none: the broker is alone.", aliases=("zk.zkConnect",)
    )
    zk_root: str = option("/meta", "Path under which brokers and clients meet.", aliases=("zk.zkRoot",))
    zk_enable: bool = option(True, "Register brokers and topics in ZooKeeper.", aliases=("zk.zkEnable",))
    zk_session_timeout_ms: int = option(
        30_000, "Milliseconds after which ZooKeeper forgets a broker that it cannot hear.", low=100,
        aliases=("zk.zkSessionTimeoutMs",),
    )  # fmt: skip
    zk_connection_timeout_ms: int = option(
        30_000, "Milliseconds that connecting to ZooKeeper may take before the log says so.", low=100,
        aliases=("zk.zkConnectionTimeoutMs",),
    )  # fmt: skip
    zk_sync_time_ms: int = option(
        5000, "Milliseconds between leaving ZooKeeper and closing connections, at a stop.", low=0,
        aliases=("zk.zkSyncTimeMs",),
    )  # fmt: skip
    offset_database: str | None = option(
        None,
        "Database in which groups of MetaQ 1.x keep offsets, `mysql://user@host:port/database` or `postgresql://...`, so that `metaq group "
        "show` knows how far they are; beside those in ZooKeeper. Without a password.",
    )
    offset_password_file: str | None = option(None, "File with the password for offsetDatabase.")
    offset_table: str = option("meta_topic_partition_group_offset", "Table with these offsets.")


@dataclass(frozen=True, kw_only=True)
class NamesrvOptions(AuditOptions, QuotaOptions, PeerOptions, LogOptions, HttpOptions):
    """What `metaq.namesrv` and its server obey."""

    section: ClassVar = "namesrv"

    listen_port: int = option(9876, "Port of the name server; 0 takes a free one.", low=0, high=65535)
    bind_address: str = option("127.0.0.1", "Address that the server listens on.", aliases=("host",))
    listeners: str = option(
        "",
        "Further addresses to listen on, with names by which brokers' advertisedAddresses tell who comes in there: "
        "`outside=0.0.0.0:9877`, several joined by `,`.",
    )
    address_page: str = option(
        "",
        "Name servers' addresses, `host:port;host:port`, that the HTTP page /rocketmq/nsaddr at addressPagePort tells; by default "
        "this one's.",
        hot=True,
    )
    address_page_port: int | None = option(
        None,
        "Port of that page, for clients and brokers with an address server; 0 takes a free one. By default there is none.",
        low=0,
        high=65535,
    )
    kv_config_path: str | None = option(None, "The file of the KV configuration.")
    order_message_enable: bool = option(False, "Add ORDER_TOPIC_CONFIG to routes.", hot=True)
    remote_administration_enable: bool = option(
        False,
        "Let other machines change routes, write permissions and the KV configuration, too (`metaq topic delete`, mqadmin); "
        "on with --insecure. With aclEnable, accounts with `admin` may, and nobody else.",
    )
    acl_enable: bool = option(
        False,
        "Register brokers and change routes for accounts with `admin` only, and look up for any account (docs/security.md). In a "
        "broker.conf that `metaq up` reads, `aclEnable` is the broker's.",
    )
    acl_path: str | None = option(
        None, "The file of accounts, as that of a broker; both may have the same one. By default as there."
    )
    acl_lookups_open: bool = option(
        False, "With aclEnable, answer look-ups of routes, clusters and topics to everybody, signed or not."
    )
    broker_lease_ms: int = option(120_000, "A broker that was not heard of for this long is dropped.", low=1000)
    log_level: str = option(
        "info", "How much of the log is written; in `metaq up` the broker's counts.", choices=LOG_LEVELS, hot=True
    )
