"""Options of a broker's store. Part of `metaq.options`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.option_table import GIB, KIB, MIB, OptionTable, option


@dataclass(frozen=True, kw_only=True)
class StoreOptions(OptionTable):
    """What `metaq.store` obeys."""

    section: ClassVar = "store"

    store_path_root_dir: str = option(
        "~/store",
        "Folder that holds the store: the messages, their queues and index, and the tables of topics, groups and offsets. The flag "
        "`--data` sets it, too; `metaq up` uses `./metaq-data` by default.",
        aliases=("data",),
    )
    store_path_commit_log: str | None = option(
        None,
        "Folder of the commit log, which holds the messages of all topics. Default: `commitlog` in storePathRootDir.",
    )
    store_path_consume_queue: str | None = option(
        None,
        "Folder of the consume queues, which say where in the commit log the messages of a queue are. Default: `consumequeue` in "
        "storePathRootDir.",
    )
    store_path_index: str | None = option(
        None,
        "Folder of the index files, by which messages are found by key or unique id. Default: `index` in storePathRootDir.",
    )
    store_checkpoint: str | None = option(
        None,
        "Path of the checkpoint file, which says up to where commit log, consume queues and index are synced to disk. Default: "
        "`checkpoint` in storePathRootDir.",
    )
    abort_file: str | None = option(
        None,
        "Path of a file that exists while the broker runs: if it is there at a start, the last run did not end cleanly. Default: "
        "`abort` in storePathRootDir.",
    )
    mapped_file_size_commit_log: int = option(
        GIB,
        "Size of one commit-log file in bytes. It cannot be changed once the store has files: unset, the size of these files is used, "
        "and with another value the broker does not start. `metaq up` makes files of 64 MiB.",
        aliases=("mapedFileSizeCommitLog",),  # RocketMQ 3's spelling, found in many files
        low=64 * KIB,
    )
    mapped_file_size_consume_queue: int = option(
        6_000_000,
        "Size of one consume-queue file in bytes, rounded up to a multiple of 20, the size of an entry. It cannot be changed once the "
        "store has files: unset, the size of these files is used.",
        aliases=("mapedFileSizeConsumeQueue",),
        low=20,
    )
    max_hash_slot_num: int = option(
        5_000_000,
        "Number of hash slots in one index file, 4 bytes each. Do not change it once the store has index files: messages are not found "
        "in files with another number.",
        low=1,
    )
    max_index_num: int = option(
        20_000_000,
        "Number of entries in one index file, 20 bytes each; a message has one for its unique id and one for each key. Do not change it "
        "once the store has index files: messages are not found in files with another number.",
        low=2,
    )
    message_index_enable: bool = option(
        True,
        "Write the index, by which messages are found by key and unique id. With `false` such queries find nothing.",
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "When a send is answered: with `SYNC_FLUSH` after its message is synced to disk, with `ASYNC_FLUSH` as soon as it is in the page "
        "cache, so that a power cut may lose it. `groupCommitEnable=true` is another spelling of SYNC_FLUSH.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = option(
        500, "Longest time in ms for which new messages in the commit log stay unsynced.", low=1, hot=True
    )
    flush_interval_consume_queue: int = option(
        1000,
        "Time in ms between two syncs of the consume queues. A start after a crash rebuilds from the commit log what was not synced.",
        low=1,
    )
    sync_flush_timeout: int = option(
        5000,
        "Longest time in ms that a send waits for its sync with flushDiskType=SYNC_FLUSH; then it is answered FLUSH_DISK_TIMEOUT, "
        "although the message is in the log.",
        low=1,
    )
    max_message_size: int = option(
        4 * MIB,
        "Largest body of a message in bytes, and of a batch as a whole. A larger send is refused.",
        low=1,
        hot=True,
    )
    file_reserved_time: int = option(
        72,
        "Hours for which messages are kept. A commit-log file expires this long after its newest message, and is deleted in the hours of "
        "deleteWhen.",
        low=0,
        hot=True,
    )
    delete_when: str = option(
        "04",
        "Hours of the day, in local time and separated by `;`, in which expired commit-log files are deleted: `04`, or `04;16`. With an "
        "hour that no day has, such as `99`, they are only deleted when the disk is fuller than diskMaxUsedSpaceRatio.",
        hot=True,
        form=(r" *[0-9]{1,2} *(?:; *(?:[0-9]{1,2})? *)*", "hours, such as 04 or 04;16"),
    )
    disk_max_used_space_ratio: int = option(
        75,
        "Percentage of the disk that may be in use; above it, expired commit-log files are deleted at any hour, whatever deleteWhen says.",
        low=10,
        high=95,
        hot=True,
    )
    clean_file_forcibly_enable: bool = option(
        True,
        "Delete the oldest commit-log files before they expire while the disk is fuller than diskSpaceCleanForciblyRatio. With `false` no "
        "file is deleted before it expires, and sends are refused when the disk is full (diskSpaceWarningLevelRatio).",
        hot=True,
    )
    disk_space_clean_forcibly_ratio: float = option(
        0.85,
        "Fraction of the disk in use above which the oldest commit-log files are deleted before they expire; used only with "
        "cleanFileForciblyEnable. In RocketMQ it is a Java system property (`rocketmq.broker.diskSpaceCleanForciblyRatio`).",
        low=0.3,
        high=0.99,
        hot=True,
    )
    disk_space_warning_level_ratio: float = option(
        0.9,
        "Fraction of the disk in use above which sends are refused until there is room again. In RocketMQ it is a Java system property "
        "(`rocketmq.broker.diskSpaceWarningLevelRatio`).",
        low=0.35,
        high=0.99,
        hot=True,
    )
    clean_resource_interval: int = option(
        10_000, "Time in ms between two checks of which files may be deleted, and of how full the disk is.", low=10
    )
    max_transfer_bytes_on_message_in_memory: int = option(
        262_144,
        "Largest answer in bytes to a pull of recent messages (accessMessageInMemoryMaxRatio). Clients of MetaQ for Python may ask for "
        "more.",
        hot=True,
    )
    max_transfer_count_on_message_in_memory: int = option(
        32,
        "Largest number of messages in the answer to a pull of recent messages (accessMessageInMemoryMaxRatio). Clients of MetaQ for "
        "Python may ask for more.",
        hot=True,
    )
    max_transfer_bytes_on_message_in_disk: int = option(
        65_536,
        "Largest answer in bytes to a pull of old messages (accessMessageInMemoryMaxRatio). Clients of MetaQ for Python may ask for more.",
        hot=True,
    )
    max_transfer_count_on_message_in_disk: int = option(
        8,
        "Largest number of messages in the answer to a pull of old messages (accessMessageInMemoryMaxRatio). Clients of MetaQ for Python "
        "may ask for more.",
        hot=True,
    )
    access_message_in_memory_max_ratio: int = option(
        40,
        "Percentage of the machine's memory: the newest messages in the commit log, up to this many bytes, count as recent, all others as "
        "old. This decides how much one pull gets (maxTransferBytesOnMessageInMemory and the three like it), and whether a consumer is "
        "sent to a slave (slaveReadEnable).",
        low=0,
        high=100,
        hot=True,
    )
    hot_bytes: int = option(
        256 * MIB,
        "Number of bytes at the end of the commit log that are read through its memory mapping. Older messages, and those from before the "
        "last start, are read by system calls in other threads, so that a slow disk does not delay other clients.",
        low=0,
    )
    default_query_max_num: int = option(
        32, "Largest number of messages that a query by unique id returns; also bounded by maxMsgsNumBatch.", low=1
    )
    max_msgs_num_batch: int = option(
        64, "Largest number of messages that a query by key returns, whatever the client asks for.", low=1
    )
    check_crc_on_recover: bool = option(
        True,
        "Verify the checksums of message bodies when the store is recovered at a start. `false` makes the recovery after a crash faster.",
        aliases=("checkCRCOnRecover",),
    )
    refuse_damaged_log: bool = option(
        False,
        "Refuse to start if the commit log is damaged in a place that has intact messages behind it. With `false` the damage is skipped, "
        "and an error in the log names the file, the place in it, the topic and the queue.",
    )
    load_queues_in_parallel: bool = option(
        False,
        "Open the consume queues of several topics at the same time at a start. This makes a start with many queues on a slow disk "
        "faster.",
    )
    message_delay_level: str = option(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the delay levels 1, 2, 3 and so on, separated by blanks, in `s`, `m`, `h` or `d`. Messages that wait at a level which "
        "was removed stay there until the level exists again.",
    )
    flush_delay_offset_interval: int = option(
        10_000,
        "Time in ms between two saves of the file that says which delayed messages were delivered (`config/delayOffset.json`).",
        low=10,
    )
