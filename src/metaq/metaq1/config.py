"""Settings of session factories and consumers, under the names of MetaQ 1.x in Python's spelling.

Durations are in seconds, where Java's have `InMills` in their names. All values are frozen: make another with
`msgspec.structs.replace`. Each class raises ConfigError for a value out of bounds and TypeError for one of a wrong type.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct, field

from metaq.address import join_address, split_address
from metaq.client.identity.options import check_flag, check_whole, checked_seconds
from metaq.errors import ConfigError
from metaq.wire.metaq1.commands import PORT
from metaq.wire.metaq1.frame import HEAD_BYTES

SCHEME: Final = "meta://"
MAX_OFFSET: Final = 2**63 - 1
"""Offset by which a consumer asks for a partition's end."""
NEVER_SKIP: Final = 2**31 - 1
"""`max_fetch_retries` of a consumer that never passes over a message that fails."""
DEFAULT = "DEFAULT"
"""`load_balance_strategy_type`: each member gets consecutive partitions."""
CONSIST = "CONSIST"
"""`load_balance_strategy_type`: partitions go to members by consistent hashing, so that few move when one comes or goes."""
READ_FROM: Final = ("master_first", "random", "slave_first")
_FORBIDDEN: Final = frozenset("~!#$%^&*()+=`'\",;/?[]<>.: ")
"""Characters that Java's client refuses in the name of a group."""

LoadBalanceStrategy: TypeAlias = Callable[[str, str, Sequence[str], Sequence[str]], Sequence[str]]
"""Assigns partitions: (topic, own consumer id, consumers of the group, partitions), both sorted as text, to the partitions of
the own consumer. All members of a group must use the same."""


def cpus() -> int:
    """Return the number of processors, Java's default for threads."""
    return os.cpu_count() or 1


def server_address(url: str) -> str:
    """Return `host:port` of `meta://host:port`, where scheme and port may be missing. Raises ConfigError."""
    rest = url.removeprefix(SCHEME).rstrip("/")
    try:
        return join_address(*split_address(rest))
    except ConfigError:
        bare = rest.removeprefix("[").removesuffix("]")
        # A host alone; an IPv6 address without a port has brackets.
        if bare and "/" not in rest and (":" not in rest or (rest != bare and not rest.endswith(":"))):
            return join_address(bare, PORT)
        raise ConfigError(f"{url!r} is no address of a MetaQ 1.x server: need {SCHEME}host:port") from None


class ZKConfig(Struct, frozen=True, kw_only=True):
    """Address and times of ZooKeeper, in which brokers of MetaQ 1.x register. Needs pymetaq[zookeeper]."""

    zk_root: str = "/meta"
    """Path of the node under which everything of the cluster is; the servers have it as `zk.zkRoot`."""
    zk_connect: str = "localhost:2181"
    """Addresses of the ZooKeeper servers, `host:port`, separated by `,`."""
    zk_session_timeout: float = 30.0
    """Seconds without contact after which ZooKeeper ends the session of a client, so that others take over its partitions."""
    zk_connection_timeout: float = 30.0
    """Seconds that a call waits for a connection to ZooKeeper."""
    zk_sync_time: float = 5.0
    """Seconds between two attempts of a rebalance that could not be completed."""

    def __post_init__(self) -> None:
        for name in ("zk_root", "zk_connect"):
            check_text(name, getattr(self, name))
        if not self.zk_connect.strip():
            raise ConfigError("zk_connect is empty: need host:port of ZooKeeper, several separated by commas")
        for name in ("zk_session_timeout", "zk_connection_timeout", "zk_sync_time"):
            checked_seconds(name, getattr(self, name), least=0.001)


class MetaClientConfig(Struct, frozen=True, kw_only=True):
    """Settings of a session factory. Either `server_url` or `zk_config` is needed."""

    server_url: str | None = None
    """Address of the only server to use, `meta://host:port`; ZooKeeper is then not used."""
    zk_config: ZKConfig | None = None
    """The ZooKeeper in which brokers are found; needed if `server_url` is not given."""
    recover_message_interval: float = 300.0
    """Seconds between two attempts with messages in local files: those that a consumer rejected, and those that a one-way producer
    could not send. Java: recoverMessageIntervalInMills."""
    recover_thread_count: int = field(default_factory=cpus)
    """Threads that work on messages in local files (`recover_message_interval`). Default: the number of processors."""
    partitions_info: Mapping[str, str] = {}
    """Fixed layout of topics for ordered producers: `topic.num.TOPIC` → `brokerId:count;brokerId:count`, the number of partitions at
    each broker."""
    max_message_bytes: int = 1 << 20
    """Largest frame that is sent, in bytes, with its header of 20 bytes. Not more than `maxTransferSize` of the servers, since no get
    returns a larger one."""
    max_read_buffer: int = 2 << 20
    """Largest body of a message, in bytes, that consumers accept. Java: notify.remoting.max_read_buffer_size."""
    max_pending_messages: int = 100_000
    """Number of sends of this factory without a response; above it a further send raises BufferFull."""
    max_pending_bytes: int = 64 << 20
    """Bytes of sends of this factory without a response; above it a further send raises BufferFull. Java:
    metaq.network.max_schedule_written_bytes, by default a third of the heap."""
    max_reconnect_times: int = 350
    """Failed attempts after which a broken connection is not opened again until it is needed. Java:
    metaq.client.network.max.reconnect.times."""
    loopback_connection: bool = False
    """Connect to servers of this machine by its loopback address. Java: metaq.client.loopback.connection.enable."""
    callback_threads: int = 4
    """Threads that call the callbacks of sends. 0: the client's own thread calls them, so they must not block."""
    message_ids_cache_size: int = 4096
    """Number of ids of consumed messages that are remembered, so that repeated messages are left out. Java:
    metaq.consumer.message_ids.lru_cache.size."""
    recover_path: str = "~/.meta_recover"
    """Folder for messages that a consumer has rejected. Java: meta.recover.path."""
    local_message_path: str = "~/.meta_localmessage"
    """Folder for messages that an ordered producer could not send. Java: meta.localmessage.path."""
    async_storage_path: str = "~/.meta_async_storage"
    """Folder for messages that a one-way producer could not send. Java: meta.async.storage.path."""
    offsets_path: str = "~/.meta_offsets"
    """Path of the file with the offsets of broadcast consumers."""
    save_to_local_when_failed: bool = False
    """Whether an ordered producer also saves messages that a server refuses, in `local_message_path`. Java:
    meta.ordered.saveToLocalWhenFailed."""

    def __post_init__(self) -> None:
        self._check_servers()
        checked_seconds("recover_message_interval", self.recover_message_interval, least=0.001)
        for name, least in _CLIENT_NUMBERS.items():
            check_number(name, getattr(self, name), least)
        for name in ("loopback_connection", "save_to_local_when_failed"):
            check_flag(name, getattr(self, name))
        for name in ("recover_path", "local_message_path", "async_storage_path", "offsets_path"):
            check_text(name, getattr(self, name))

    def _check_servers(self) -> None:
        if self.server_url is not None:
            check_text("server_url", self.server_url)
            server_address(self.server_url)
        elif self.zk_config is None:
            raise ConfigError(
                "no zk config offered: give zk_config=ZKConfig(zk_connect='host:port'), or server_url='meta://host:port' of "
                "one server"
            )
        if self.zk_config is not None and not isinstance(self.zk_config, ZKConfig):
            raise TypeError(f"zk_config is {self.zk_config!r}: pass a ZKConfig")

    @property
    def address(self) -> str | None:
        """`host:port` of the fixed server; None: brokers are found in ZooKeeper."""
        return None if self.server_url is None else server_address(self.server_url)


class ConsumerConfig(Struct, frozen=True):
    """Settings of a consumer."""

    group: str
    """Name of the consumer group, whose consumers share the partitions of their topics."""
    consumer_id: str | None = None
    """Name of the consumer in its group. Default: made of address, process and time. Two consumers with the same name both get all messages."""
    partition: str | None = None
    """With a fixed server (`server_url`), the only partition to consume, `brokerId-number`; None: all partitions."""
    offset: int = 0
    """Offset at which the consumer begins in a partition for which no offset is stored; `MAX_OFFSET`: at its end."""
    consume_from_max_offset: bool = False
    """Begin at the end of partitions for which no offset is stored, as with `offset=MAX_OFFSET`."""
    always_consume_from_max_offset: bool = False
    """Begin at the end of all partitions at every start, even if offsets are stored."""
    fetch_runner_count: int = field(default_factory=cpus)
    """Threads that fetch messages and call listeners. Default: the number of processors."""
    fetch_timeout: float = 10.0
    """Seconds that one fetch may take. Java: fetchTimeoutInMills."""
    max_delay_fetch_time: float = 5.0
    """Longest pause, in seconds, before the next fetch of a partition without new messages; each pause is longer than the one before
    by a tenth of it. Java: maxDelayFetchTimeInMills."""
    commit_offset_period: float = 5.0
    """Seconds between two commits of offsets. Java: commitOffsetPeriodInMills."""
    max_fetch_retries: int = 5
    """Number of failures after which a message is passed to the reject handler; `NEVER_SKIP`: it is tried for ever."""
    max_increase_fetch_data_retries: int = 5
    """Number of fetches without a complete message after which the size of a fetch is doubled."""
    load_balance_strategy_type: str | LoadBalanceStrategy = DEFAULT
    """"DEFAULT" (consecutive partitions), "CONSIST" (consistent hashing), or a function of your own."""
    read_from: str = READ_FROM[0]
    """Server of a broker id, master or slave, from which messages are fetched: "master_first", "random" or "slave_first"."""
    refuse_shared_consumer_id: bool = False
    """Raise an error if another session has the same consumer id; False: only log a warning."""

    def __post_init__(self) -> None:
        check_consumer_group(self.group)
        if self.consumer_id is not None:
            check_text("consumer_id", self.consumer_id)
            if not self.consumer_id or set(self.consumer_id) & {"/", ",", " ", "\r", "\n", "\0"}:
                raise ConfigError(
                    f"consumer_id={self.consumer_id!r}: it is the name of a node, without blank, comma or slash"
                )
        if self.partition is not None:
            check_text("partition", self.partition)
            number = self.partition.rpartition("-")[2]
            if not number.isdecimal():
                raise ConfigError(f"partition={self.partition!r}: need brokerId-number, such as 0-3")
        for name, least in _CONSUMER_NUMBERS.items():
            check_number(name, getattr(self, name), least)
        if self.offset > MAX_OFFSET:
            raise ConfigError(f"offset={self.offset}: need at most {MAX_OFFSET}")
        for name in ("fetch_timeout", "max_delay_fetch_time", "commit_offset_period"):
            checked_seconds(name, getattr(self, name), least=0.001)
        for name in ("consume_from_max_offset", "always_consume_from_max_offset", "refuse_shared_consumer_id"):
            check_flag(name, getattr(self, name))
        strategy = self.load_balance_strategy_type
        if not callable(strategy) and strategy not in {DEFAULT, CONSIST}:
            raise ConfigError(f"load_balance_strategy_type={strategy!r}: need {DEFAULT!r}, {CONSIST!r} or a function")
        if self.read_from not in READ_FROM:
            raise ConfigError(f"read_from={self.read_from!r}: need one of {', '.join(READ_FROM)}")

    @property
    def first_offset(self) -> int:
        """Where to begin in a partition for which no offset is stored."""
        return MAX_OFFSET if self.consume_from_max_offset or self.always_consume_from_max_offset else self.offset


_CLIENT_NUMBERS: Final = {
    "recover_thread_count": 1,
    "max_message_bytes": HEAD_BYTES + 1,
    "max_read_buffer": 1,
    "max_pending_messages": 1,
    "max_pending_bytes": 1,
    "max_reconnect_times": 0,
    "callback_threads": 0,
    "message_ids_cache_size": 0,
}
_CONSUMER_NUMBERS: Final = {
    "offset": 0,
    "fetch_runner_count": 1,
    "max_fetch_retries": 0,
    "max_increase_fetch_data_retries": 0,
}
"""Option → least value."""


def check_consumer_group(group: str) -> str:
    """Return `group` if Java's clients could have it, too. Raises ConfigError, TypeError."""
    check_text("group", group)
    if not group or not group.isascii() or not group.isprintable() or set(group) & _FORBIDDEN:
        raise ConfigError(
            f"group={group!r}: need a name of ASCII letters and digits, without any of {''.join(sorted(_FORBIDDEN))!r}"
        )
    return group


def check_text(name: str, value: object) -> None:
    """Raise TypeError if a value is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: pass text")


def check_number(name: str, value: int, least: int) -> None:
    """Raise TypeError or ConfigError if a value is no whole number, or less than `least`."""
    check_whole(name, value)
    if value < least:
        raise ConfigError(f"{name}={value}: need {least} or more")
