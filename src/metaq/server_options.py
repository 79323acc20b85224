"""Options that every server has, a broker as a name server: limits of its peers, quotas, the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.option_table import GIB, KIB, MIB, OptionTable, option


@dataclass(frozen=True, kw_only=True)
class PeerOptions(OptionTable):
    """What the peers of a server may take, one of them and all together."""

    server_channel_max_idle_time_seconds: int = option(120, "A silent connection is closed after this.", low=1)
    server_socket_backlog: int = option(
        1024, "Connections that may wait at a port to be accepted; the system may allow fewer.", low=1, high=65_535
    )
    server_socket_snd_buf_size: int = option(
        0,
        "Bytes that the system may keep of answers to one connection (SO_SNDBUF); 0: as it finds best.",
        low=0,
        high=GIB,
    )
    server_socket_rcv_buf_size: int = option(
        0, "Bytes that it may keep of what one connection sends (SO_RCVBUF); 0: as it finds best.", low=0, high=GIB
    )
    frame_bytes_max: int = option(16 * MIB, "Largest frame that a peer may send.", low=4 * KIB)
    connections_max: int = option(10_000, "Connections of all peers together.", low=1, hot=True)
    unanswered_bytes_max: int = option(
        64 * MIB,
        "Answer bytes that may wait for one peer before it is closed, and at a broker for the disk before sends are refused.",
        low=64 * KIB,
        hot=True,
    )
    unanswered_bytes_max_total: int = option(
        256 * MIB,
        "Answer bytes that all peers together may leave unread before the one with the most is closed.",
        low=MIB,
    )
    half_read_bytes_max: int = option(
        256 * MIB, "Bytes of unfinished frames, all peers together, before the largest is closed.", low=MIB
    )
    peer_bytes_max: int = option(
        512 * MIB,
        "Memory in bytes that all peers together make the process keep before the one that keeps the most is closed.",
        low=16 * MIB,
    )


@dataclass(frozen=True, kw_only=True)
class QuotaOptions(OptionTable):
    """Limits of clients, accounts and addresses, where no quota says otherwise."""

    quota_per_client: str = option(
        "",
        "Limits of each client by its id, such as `requestsPerSecond=1000,bytesInPerSecond=10M` (docs/limits.md); `metaq quota` sets "
        "others while a broker runs.",
    )
    quota_per_account: str = option("", "Limits of each account of access control; otherwise as quotaPerClient.")
    quota_per_address: str = option(
        "", "Limits of each address that clients connect from, such as `connections=100,connectionsPerSecond=20`."
    )
    quota_wait_max: int = option(
        2000,
        "Longest time in ms that who is above a quota waits for an answer; who would wait longer is refused (SYSTEM_BUSY).",
        low=100,
        high=30_000,
    )


LOG_LEVELS = ("debug", "info", "warning", "error")
_LEVEL_OF_PART = rf"metaq(\.\w+)*=({'|'.join(LOG_LEVELS)})"


@dataclass(frozen=True, kw_only=True)
class LogOptions(OptionTable):
    """Parts of the log."""

    log_levels: str = option(
        "",
        "Other levels of parts of the log than logLevel: `metaq.broker=debug,metaq.net=warning`. The parts are the names in the log's "
        "lines, with all that begins with such a name and a dot.",
        form=(rf"{_LEVEL_OF_PART}(,{_LEVEL_OF_PART})*", "metaq.PART=LEVEL, `,`-separated, as metaq.broker=debug"),
        hot=True,
    )


@dataclass(frozen=True, kw_only=True)
class AuditOptions(OptionTable):
    """The audit log."""

    audit_log_enable: bool = option(
        True,
        "Note administrative and refused requests in files (docs/formats/audit-log.md); made by the first of them.",
    )
    audit_log_path: str | None = option(
        None, "Folder of these files; by default `audit` in the store's folder, or in that of the KV configuration."
    )
    audit_log_file_size: int = option(
        16 * MIB, "Size in bytes at which such a file is put aside.", low=64 * KIB, high=GIB
    )
    audit_log_files: int = option(
        8, "Files that are kept beside the one that is written, of each of the two logs.", low=0, high=1000
    )


@dataclass(frozen=True, kw_only=True)
class HttpOptions(OptionTable):
    """The HTTP server."""

    http_port: int | None = option(
        None,
        "Port of the HTTP server (docs/http.md; of a name server docs/monitoring.md); 0 takes a free one. By default there is none. "
        "It needs the extra `http`. In a broker.conf that `metaq up` reads, `httpPort` is the broker's.",
        low=0,
        high=65535,
    )
    http_bind_address: str = option("127.0.0.1", "Address that the HTTP server listens on, whatever bindAddress says.")


@dataclass(frozen=True, kw_only=True)
class FailoverOptions(OptionTable):
    """How the brokers of one name agree on their leader (docs/failover.md)."""

    failover: str = option(
        "off",
        "`zookeeper`: the brokers of one brokerName choose their leader themselves; `off`: it is configured, and changed by hand.",
    )
    failover_zookeeper: str | None = option(
        None,
        "ZooKeeper in which they agree, `host:port`, `,`-separated, with a path (chroot) at the end if there is one.",
    )
    failover_zookeeper_auth: str = option(
        "",
        "What the broker shows to ZooKeeper, as `digest:user:password`; its nodes are only open to it then.",
        secret=True,
    )
    failover_session_timeout: int = option(
        6000,
        "Milliseconds after which ZooKeeper takes a silent broker for dead; within what its tickTime allows (2 to 20 ticks).",
        low=200,
        high=600_000,
    )
    in_sync_timeout: int = option(
        10_000, "Milliseconds that a follower may lack something before it leaves the in-sync set.", low=100
    )
    failover_adopt: bool = option(
        False,
        "Begin the group anew with this broker's log, where ZooKeeper has lost its data or has older ones. Only with the longest log, "
        "while no other broker of the group runs; for one start.",
    )
