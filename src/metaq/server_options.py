"""Options that every server has, a broker as a name server: limits of its peers, quotas, the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.option_table import GIB, KIB, MIB, OptionTable, option


@dataclass(frozen=True, kw_only=True)
class PeerOptions(OptionTable):
    """What the peers of a server may take, one of them and all together."""

    server_channel_max_idle_time_seconds: int = option(
        120, "Seconds without data in either direction after which a connection is closed.", low=1
    )
    server_socket_backlog: int = option(
        1024,
        "Number of new connections that may wait at a port until the server accepts them; the system may allow fewer.",
        low=1,
        high=65_535,
    )
    server_socket_snd_buf_size: int = option(
        0,
        "Size in bytes of the system's send buffer of each connection (SO_SNDBUF). 0: the system chooses.",
        low=0,
        high=GIB,
    )
    server_socket_rcv_buf_size: int = option(
        0,
        "Size in bytes of the system's receive buffer of each connection (SO_RCVBUF). 0: the system chooses.",
        low=0,
        high=GIB,
    )
    frame_bytes_max: int = option(
        16 * MIB,
        "Largest request in bytes, as one frame of the remoting protocol; a connection that sends a larger one is closed.",
        low=4 * KIB,
    )
    connections_max: int = option(
        10_000, "Number of open connections of all clients together; further ones are closed at once.", low=1, hot=True
    )
    unanswered_bytes_max: int = option(
        64 * MIB,
        "Bytes of answers that one client may leave unread; above it, its connection is closed. At a broker also the bytes of answers that "
        "may wait for the disk; above it, sends are refused (SYSTEM_BUSY).",
        low=64 * KIB,
        hot=True,
    )
    unanswered_bytes_max_total: int = option(
        256 * MIB,
        "Bytes of answers that all clients together may leave unread; above it, the connection that leaves the most is closed.",
        low=MIB,
    )
    half_read_bytes_max: int = option(
        256 * MIB,
        "Bytes of requests that were received in part, of all clients together; above it, the connection that holds the most is closed.",
        low=MIB,
    )
    peer_bytes_max: int = option(
        512 * MIB,
        "Memory in bytes that all clients together may make the server use; above it, the connection that holds the most is closed. What "
        "counts is in docs/configuration.md, under Memory that clients take.",
        low=16 * MIB,
    )


@dataclass(frozen=True, kw_only=True)
class QuotaOptions(OptionTable):
    """Limits of clients, accounts and addresses, where no quota says otherwise."""

    quota_per_client: str = option(
        "",
        "Limits of each client, told apart by client id, such as `requestsPerSecond=1000,bytesInPerSecond=10M` (docs/limits.md). At a "
        "broker `metaq quota` sets other limits while it runs. Empty: no limits.",
    )
    quota_per_account: str = option(
        "",
        "Limits of each account of access control, in the form of quotaPerClient (docs/limits.md). Empty: no limits.",
    )
    quota_per_address: str = option(
        "",
        "Limits of each address that clients connect from, such as `connections=100,connectionsPerSecond=20` (docs/limits.md). Empty: no "
        "limits.",
    )
    quota_wait_max: int = option(
        2000,
        "Longest time in ms by which a request above a quota is delayed; one that would have to wait longer is refused (SYSTEM_BUSY).",
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
        "Levels for parts of the log instead of logLevel: `metaq.broker=debug,metaq.net=warning`. A part is a name in the lines of the log, "
        "or the beginning of names up to a dot. Empty: logLevel counts for all.",
        form=(rf"{_LEVEL_OF_PART}(,{_LEVEL_OF_PART})*", "metaq.PART=LEVEL, `,`-separated, as metaq.broker=debug"),
        hot=True,
    )


@dataclass(frozen=True, kw_only=True)
class AuditOptions(OptionTable):
    """The audit log."""

    audit_log_enable: bool = option(
        True,
        "Write administrative requests, and requests that were refused, to the audit logs, two files of their own "
        "(docs/formats/audit-log.md). The first such request creates them.",
    )
    audit_log_path: str | None = option(
        None,
        "Folder of the audit logs. Default: `audit` in the folder of the store, at a name server beside its KV configuration. Used only "
        "with auditLogEnable.",
    )
    audit_log_file_size: int = option(
        16 * MIB,
        "Size in bytes at which an audit log is renamed and a new file begun.",
        low=64 * KIB,
        high=GIB,
    )
    audit_log_files: int = option(
        8,
        "Number of older files that are kept of each of the two audit logs, beside the one that is written.",
        low=0,
        high=1000,
    )


@dataclass(frozen=True, kw_only=True)
class HttpOptions(OptionTable):
    """The HTTP server."""

    http_port: int | None = option(
        None,
        "Port of the HTTP server: of a broker with the HTTP API, /metrics and health checks (docs/http.md), of a name server with /metrics "
        "and health checks (docs/monitoring.md). Unset: there is none. 0: the system chooses a free port. Needs the extra `http`. In a "
        "broker.conf that `metaq up` reads, httpPort is the broker's.",
        low=0,
        high=65535,
    )
    http_bind_address: str = option(
        "127.0.0.1",
        "Address on which the HTTP server (httpPort) listens; bindAddress has no effect on it. `0.0.0.0` and `::` mean all addresses.",
    )


@dataclass(frozen=True, kw_only=True)
class FailoverOptions(OptionTable):
    """How the brokers of one name agree on their leader (docs/failover.md)."""

    failover: str = option(
        "off",
        "`zookeeper`: the brokers with this brokerName choose their leader themselves, through a ZooKeeper (docs/failover.md). `off`: the "
        "master is configured (brokerRole), and changed by `metaq broker promote`.",
    )
    failover_zookeeper: str | None = option(
        None,
        "ZooKeeper servers of failover=zookeeper, `host:port`, separated by `,`; a path (chroot) may follow at the end, and must exist. "
        "Needs the extra `zookeeper`.",
    )
    failover_zookeeper_auth: str = option(
        "",
        "User and password by which the brokers of failover=zookeeper log in to ZooKeeper, `digest:user:password`: then nobody else can "
        "read or change their nodes. Only in a file, not by `-o`. Empty: the nodes are open to everybody.",
        secret=True,
    )
    failover_session_timeout: int = option(
        6000,
        "Time in ms after which ZooKeeper takes a silent broker of failover=zookeeper for dead, so that another one may lead. ZooKeeper "
        "allows 2 to 20 times its tickTime.",
        low=200,
        high=600_000,
    )
    in_sync_timeout: int = option(
        10_000,
        "Time in ms that a follower may lack messages before the leader takes it out of the in-sync set and goes on without it. Used only "
        "with failover=zookeeper.",
        low=100,
    )
    failover_adopt: bool = option(
        False,
        "Begin the group of failover=zookeeper anew with this broker's log, if ZooKeeper has lost its data or was restored from an old backup "
        "(docs/failure-procedures.md). Set it for one start, at the broker with the longest log, while no other broker of the group runs.",
    )
