"""Options of MetaQ 1.x: of its server, and of all that a broker does for its clients. Part of `metaq.options`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.option_table import GIB, KIB, MIB, OptionTable, option


@dataclass(frozen=True, kw_only=True)
class Metaq1Options(OptionTable):
    """What the MetaQ 1.x server, and all that a broker does for MetaQ 1.x, obey: [system] and [zookeeper] of a
    `server.ini`.

    `app/config_files/server_ini.py` says which of them set options of broker and store too. Options of single topics stand in
    `model/metaq1/settings.py`.
    """

    section: ClassVar = "metaq1"

    enable: bool = option(
        False,
        "Serve clients of MetaQ 1.x; without it no other option of this section has an effect. Default `true` if the configuration file "
        "is a server.ini, or with `--metaslave`.",
    )
    broker_id: int = option(
        0,
        "Number of the broker for clients of MetaQ 1.x, unique under its zkRoot. It is part of the ids of messages and of the names of "
        "partitions, such as `0-3`. In `[broker]` and a broker.conf brokerId is another number.",
        low=0,
        high=1023,
    )
    host_name: str | None = option(
        None,
        "Address of the broker for clients of MetaQ 1.x, registered in ZooKeeper. Default: brokerIP1. An IP address here also sets brokerIP1, "
        "if that is not set.",
    )
    server_port: int = option(
        8123, "Port of the MetaQ 1.x server. 0: the system chooses a free port.", low=0, high=65535
    )
    slave_id: int | None = option(
        None,
        "Makes this broker an asynchronous slave with this number: it copies the messages of the broker with the same brokerId, an "
        "original MetaQ 1.x server or one of ours, by the protocol of MetaQ 1.x, and refuses puts (docs/metaq1-slaves.md). Unset: it is "
        "a master. It can also be in the async_slave.properties of `--metaslave FILE`.",
        low=0,
        high=999_999_999,
    )
    slave_group: str | None = option(
        None,
        "Consumer group that an asynchronous slave uses in its gets from the master. Default: `meta-slave-group_` followed by slaveId. "
        "Used only with slaveId.",
    )
    slave_max_delay_in_mills: int = option(
        500,
        "Longest pause in ms before an asynchronous slave asks its master again for a partition that had no new messages. Used only with "
        "slaveId.",
        low=10,
        high=3_600_000,
    )
    auto_sync_master_config: bool = option(
        False,
        "Copy the topic sections of the master's server.ini into the server.ini of this asynchronous slave whenever they change, and "
        "reload it. Used only with slaveId.",
    )
    dashboard_http_port: int = option(
        8120,
        "Port of the HTTP server with the web pages and the HTTP gateway of MetaQ 1.x (docs/metaq1-http.md). It sets httpPort, and needs "
        "the extra `http`. 0: the system chooses a free port.",
        low=0,
        high=65535,
    )
    num_partitions: int = option(
        1, "Number of partitions of a topic whose section does not set numPartitions.", low=1, high=65_536, hot=True
    )
    data_path: str = option(
        "~/meta",
        "Folder that holds the store. It sets storePathRootDir; the default does so only if a server.ini is loaded.",
    )
    data_log_path: str | None = option(
        None,
        "Folder in which the subfolder `commitlog` holds the commit log, transactions included. It sets storePathCommitLog. Default: "
        "dataPath.",
    )
    unflush_threshold: int = option(
        1000,
        "Number of messages of a partition that may be answered before they are synced to disk; the answer to the next one waits. With 0 "
        "and 1 each answer waits for the disk. The section of a topic may set its own value.",
        low=-1,
        hot=True,
    )
    unflush_interval: int = option(
        10_000,
        "Longest time in ms for which messages stay unsynced. It sets flushIntervalCommitLog; of [system] and all topics the shortest "
        "counts, since they share one log.",
        low=1,
        hot=True,
    )
    max_segment_size: int = option(
        GIB,
        "Size of one commit-log file in bytes. It sets mappedFileSizeCommitLog, and cannot be changed once the store has files.",
        low=64 * KIB,
    )
    max_transfer_size: int = option(
        MIB,
        "Largest answer to a get in bytes. A put whose message needs more, 20 bytes and the body, is refused, since no client could get "
        "it.",
        low=1024,
        high=16 * MIB,
        hot=True,
    )
    get_process_thread_count: int | None = option(
        None, "Without effect, with a notice in the log: this broker has no thread pool for gets.", low=0
    )
    put_process_thread_count: int | None = option(
        None, "Without effect, with a notice in the log: this broker has no thread pool for puts.", low=0
    )
    delete_policy: str = option(
        "delete,168",
        "How long messages are kept, and what then happens: `delete,168` deletes them after 168 hours, `archive,72` writes them to an "
        "archive first, `archive,72,true` to a compressed one. Units `s`, `m` and `h` may follow the number. The section of a topic may "
        "set its own policy.",
        hot=True,
    )
    delete_when: str = option(
        "0 0 6,18 * * ?",
        "Times at which deletePolicy is applied: a Quartz cron expression in local time, with second, minute, hour, day of the month, "
        "month, and day of the week.",
        hot=True,
    )
    archive_path: str | None = option(
        None,
        "Folder in which the deletePolicy `archive` writes its archives. Default: `archive` in the folder of the store.",
    )
    quartz_thread_count: int = option(
        5, "Number of archives that are written at the same time (deletePolicy `archive`).", low=1, high=64
    )
    max_checkpoints: int = option(
        3,
        "Without effect, with a notice in the log: checkpoints of transactions are records of the commit log, and the newest one counts.",
        low=1,
    )
    checkpoint_interval: int = option(
        3_600_000,
        "Time in ms between two checkpoints of transactions. A start has to read the log only from the last one on.",
        low=1000,
        hot=True,
    )
    max_tx_timeout_timer_capacity: int = option(
        30_000,
        "Number of open transactions of MetaQ 1.x with a time-out; further ones cannot be begun until some have ended.",
        low=1,
        hot=True,
    )
    max_tx_timeout_in_seconds: int = option(
        60,
        "Longest time-out of a transaction of MetaQ 1.x in seconds; a longer one is shortened to it. The broker rolls a transaction back "
        "when its time-out is over.",
        low=1,
        hot=True,
    )
    flush_tx_log_at_commit: int = option(
        1,
        "When prepare, commit and rollback of transactions are synced to disk: 1 before they are answered, 2 once a second, 0 together "
        "with other messages (unflushInterval).",
        low=0,
        high=2,
        hot=True,
    )
    accept_publish: bool = option(
        True,
        "Whether clients of MetaQ 1.x may put messages into topics whose section does not set acceptPublish.",
        hot=True,
    )
    accept_subscribe: bool = option(
        True,
        "Whether clients of MetaQ 1.x may get messages of topics whose section does not set acceptSubscribe.",
        hot=True,
    )
    stat: bool = option(
        False,
        "Collect statistics of topics for the command `stats` of MetaQ 1.x, for topics whose section does not set stat.",
        hot=True,
    )
    update_consumer_offsets: bool = option(
        False,
        "Move a consumer whose offset is beyond the end of a partition to the end. With `false` its gets are answered 404 until the "
        "partition is longer.",
        hot=True,
    )
    load_message_stores_in_parallel: bool = option(
        False,
        "Open the queues of several topics at the same time at a start. It sets loadQueuesInParallel.",
        aliases=("meta.loadMessageStoresInParallel",),
    )
    fast_boot: bool = option(
        False,
        "Do not verify the checksums of message bodies when the store is recovered at a start. It sets checkCRCOnRecover=false.",
        aliases=("meta.fast_boot",),
    )
    app_class_path: str | None = option(
        None,
        "Folders, separated by `:`, in which the modules of server-side filters (`group.NAME` in the section of a topic) are looked for "
        "first. Default: the folder `provided` beside the folder of the server.ini, if it exists.",
    )
    zk_connect: str | None = option(
        None,
        "ZooKeeper servers in which the broker registers for clients of MetaQ 1.x, `host:port`, separated by `,`; needs the extra "
        "`zookeeper`. Empty: it does not register.",
        aliases=("zk.zkConnect",),
    )
    zk_root: str = option(
        "/meta",
        "Path in ZooKeeper under which brokers register; clients of MetaQ 1.x must have the same one.",
        aliases=("zk.zkRoot",),
    )
    zk_enable: bool = option(
        True,
        "Register the broker and its topics in ZooKeeper. With `false` zkConnect has no effect, and clients must know the broker's address.",
        aliases=("zk.zkEnable",),
    )
    zk_session_timeout_ms: int = option(
        30_000,
        "Time in ms after which ZooKeeper ends the session of a broker that it does not hear from, and removes its registration.",
        low=100,
        aliases=("zk.zkSessionTimeoutMs",),
    )
    zk_connection_timeout_ms: int = option(
        30_000,
        "Time in ms after which the log reports that a lost connection to ZooKeeper is not back. At a start it reports after a second that there is "
        "none.",
        low=100,
        aliases=("zk.zkConnectionTimeoutMs",),
    )
    zk_sync_time_ms: int = option(
        5000,
        "Time in ms that a broker which stops waits between removing its registration from ZooKeeper and closing the connections of its "
        "clients.",
        low=0,
        aliases=("zk.zkSyncTimeMs",),
    )
    offset_database: str | None = option(
        None,
        "URL, without a password, of the database in which consumer groups of MetaQ 1.x keep their offsets, "
        "`mysql://user@host:port/database` or `postgresql://...` (docs/metaq1-offsets.md). The broker reads it, in addition to the offsets "
        "in ZooKeeper, so that `metaq group show` tells the progress of these groups.",
    )
    offset_password_file: str | None = option(
        None, "Path of a file with the password for offsetDatabase, which must not be in its URL."
    )
    offset_table: str = option(
        "meta_topic_partition_group_offset", "Name of the table in offsetDatabase that holds the offsets."
    )
