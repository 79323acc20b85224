"""Options of a name server. Part of `metaq.options`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.option_table import option
from metaq.server_options import LOG_LEVELS, AuditOptions, HttpOptions, LogOptions, PeerOptions, QuotaOptions


@dataclass(frozen=True, kw_only=True)
class NamesrvOptions(AuditOptions, QuotaOptions, PeerOptions, LogOptions, HttpOptions):
    """What `metaq.namesrv` and its server obey."""

    section: ClassVar = "namesrv"

    listen_port: int = option(9876, "Port of the name server. 0: the system chooses a free port.", low=0, high=65535)
    bind_address: str = option(
        "127.0.0.1",
        "Address on which the name server listens. `0.0.0.0` and `::` mean all addresses. Default `0.0.0.0` if the configuration file is a "
        "namesrv.properties.",
        aliases=("host",),
    )
    listeners: str = option(
        "",
        "Further addresses on which the name server listens, each with a name: `outside=0.0.0.0:9877`, separated by `,`. Clients that "
        "connect there get the broker addresses which the brokers' advertisedAddresses have for this name (docs/addresses.md).",
    )
    address_page: str = option(
        "",
        "Addresses of name servers, `host:port;host:port`, that the page /rocketmq/nsaddr at addressPagePort shows. Empty: the address of "
        "this name server.",
        hot=True,
    )
    address_page_port: int | None = option(
        None,
        "Port of an HTTP page /rocketmq/nsaddr with the addresses of the name servers, which clients and brokers read as their address "
        "server. Unset: there is no page. 0: the system chooses a free port.",
        low=0,
        high=65535,
    )
    kv_config_path: str | None = option(
        None,
        "Path of the file with the KV configuration, such as the layouts of ordered topics. Default: `~/namesrv/kvConfig.json`; `--data` "
        "names another folder.",
    )
    order_message_enable: bool = option(
        False,
        "Send the layout of an ordered topic (ORDER_TOPIC_CONFIG of the KV configuration: how many queues each broker has) to clients with "
        "its route.",
        hot=True,
    )
    remote_administration_enable: bool = option(
        False,
        "Accept from other machines changes of routes, write permissions and the KV configuration (`metaq topic delete`, mqadmin), which "
        "otherwise only callers on the name server's own machine may make. Default `true` with `--insecure`. With aclEnable it has no "
        "effect: accounts with `admin` may, and nobody else.",
    )
    acl_enable: bool = option(
        False,
        "Access control: brokers can be registered and routes changed only by accounts with `admin`, and looked up by any account "
        "(docs/security.md). In a broker.conf that `metaq up` reads, aclEnable is the broker's.",
    )
    acl_path: str | None = option(
        None,
        "Path of the file with the accounts, in the form of a broker's; both may use the same file. Default: as for a broker. Used only "
        "with aclEnable.",
    )
    acl_lookups_open: bool = option(
        False,
        "Answer look-ups of routes, clusters and topics to everybody, signed or not. Used only with aclEnable.",
    )
    broker_lease_ms: int = option(
        120_000,
        "Time in ms after the last registration of a broker at which it is removed from the routes, unless it has registered again.",
        low=1000,
    )
    log_level: str = option(
        "info",
        "Least severe level of lines that are written to the name server's log. In `metaq up` the broker's logLevel counts instead.",
        choices=LOG_LEVELS,
        hot=True,
    )
