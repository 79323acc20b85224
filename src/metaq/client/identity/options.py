"""Options of every client: its identity, and its intervals.

Producers, consumers and readers take these as keyword arguments beside their own. They are one frozen value inside.
RocketMQ's names for them are in docs/client.md.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection
from typing import Any, TypedDict, Unpack

from msgspec import Struct

from metaq.client.identity.access import ENVIRONMENT, Access
from metaq.client.identity.names import Namespace, checked
from metaq.errors import ConfigError
from metaq.model.acl.secret import Credentials
from metaq.model.topics.topic import check_group
from metaq.net.page import checked_url
from metaq.net.tls.settings import ENVIRONMENT as TLS_ENVIRONMENT
from metaq.net.tls.settings import TlsSettings, tls_settings

DEFAULT_INSTANCE = "DEFAULT"
_ID_CHARS_MAX = 255


class ClientArguments(TypedDict, total=False):
    """Keyword arguments of every client: producers, consumers, readers, `Admin`. All are optional.

    TLS arguments that are not given are read from METAQ_TLS (1), METAQ_TLS_CA, METAQ_TLS_CERT, METAQ_TLS_KEY, METAQ_TLS_KEY_PASSWORD,
    METAQ_TLS_VERIFY and METAQ_TLS_CRL.
    """

    instance_name: str
    """Clients of one process with the same name share connections, heartbeats and route polls. Two members of one consumer group in
    one process need different names. "DEFAULT" by default."""
    client_ip: str | None
    """The first part of the client id. None, the default: this machine's address."""
    unit_name: str
    """The last part of the client id, for machines that serve several units; "" by default."""
    unit_mode: bool
    """Whether topics and groups that are created for this client are marked as those of a unit; False by default."""
    namespace: str
    """Prefix of every topic and group, `ns%topic` at the brokers: the client adds it to requests and removes it from what comes in.
    "" by default."""
    poll_name_server_interval: float
    """Seconds between two requests for the routes in use, 30 by default. Of clients that share connections the shortest one counts."""
    poll_name_server_inteval: float
    """The same as `poll_name_server_interval`, in RocketMQ 3's spelling."""
    heartbeat_broker_interval: float
    """Seconds between two heartbeats to each broker, 30 by default. Of clients that share connections the shortest one counts."""
    client_callback_executor_threads: int
    """Threads that call the functions of `add_done_callback`, 4 by default. 0: the client's own thread calls them, so they must not
    block."""
    address_server: str | None
    """URL of a page with the addresses of the name servers, which is read at the first use and then every two minutes. None, the
    default: METAQ_ADDRESS_SERVER. Used only if neither the client is given name servers nor NAMESRV_ADDR is set."""
    access_key: str | None
    """The account with which requests are signed, for brokers with access control. Clients with different accounts share no
    connection. If this, `secret_key`, `security_token` and `acl_file` are None, the environment counts: METAQ_ACCESS_KEY,
    METAQ_SECRET_KEY, METAQ_SECURITY_TOKEN, METAQ_ACL_FILE."""
    secret_key: str | None
    """The account's secret."""
    security_token: str | None
    """The token of a temporary account."""
    acl_file: str | None
    """Path of a file with these three keys instead, in the form of RocketMQ's `tools.yml`."""
    tls: bool | None
    """Whether to connect to name servers and brokers with TLS. None, the default: yes if METAQ_TLS is 1."""
    ca: str | os.PathLike[str] | None
    """Path of a PEM file with the certificates that are trusted. None, the default: METAQ_TLS_CA, without it those of the system."""
    cert: str | os.PathLike[str] | None
    """Path of a PEM file with the certificate that this client shows if a server asks. None, the default: METAQ_TLS_CERT."""
    key: str | os.PathLike[str] | None
    """Path of a PEM file with its key. None, the default: METAQ_TLS_KEY, without it the file of the certificate."""
    key_password: str | None
    """Password of the key. None, the default: METAQ_TLS_KEY_PASSWORD."""
    tls_verify: str | None
    """What is checked of a server's certificate. `full`: who issued it, and that it is for the host or address to which the client
    connects; `ca`: only the former; `none`: nothing. None, the default: METAQ_TLS_VERIFY, without it `full`."""
    crl: str | os.PathLike[str] | None
    """Path of a PEM file with lists of revoked certificates, one of each authority. A server whose certificate is in one of them is
    refused. None, the default: METAQ_TLS_CRL."""


class ClientOptions(Struct, frozen=True, kw_only=True):
    """The checked `ClientArguments`. Intervals in seconds."""

    instance_name: str = DEFAULT_INSTANCE
    client_ip: str | None = None
    unit_name: str = ""
    unit_mode: bool = False
    namespace: Namespace = Namespace()
    poll_name_server_interval: float = 30.0
    heartbeat_broker_interval: float = 30.0
    client_callback_executor_threads: int = 4
    address_server: str | None = None
    credentials: Credentials | None = None
    """What requests are signed with; None: they are not signed."""
    tls: TlsSettings | None = None
    """How connections are made; None: without TLS."""

    def client_id(self, host: str, instance: str | None = None) -> str:
        """Return the client id, as RocketMQ's clients make it: `host@instance`, with `@unit` if there is one.

        Args:
            host: this machine's address, unless `client_ip` says otherwise.
            instance: instead of the instance name.
        """
        parts = [self.client_ip or host, instance or self.instance_name, self.unit_name]
        return "@".join(parts[: 3 if self.unit_name else 2])

    def unused_client_id(self, host: str, process: int, now_ms: int, taken: Collection[str]) -> str:
        """Return the client id of a new core. As in RocketMQ, DEFAULT becomes `process#time`: otherwise all processes of a
        machine would be one client to the brokers.

        Args:
            taken: ids of the process's other cores, of which two may be made within one millisecond.
        """
        if self.instance_name != DEFAULT_INSTANCE:
            return self.client_id(host)
        found = (self.client_id(host, f"{process}#{ms}") for ms in itertools.count(now_ms))
        return next(one for one in found if one not in taken)


def client_options(**arguments: Unpack[ClientArguments]) -> ClientOptions:
    """Check the keyword arguments of a client.

    Raises ConfigError: a value out of bounds; TypeError: a wrong type, or an unknown argument.
    """
    given: dict[str, Any] = dict(arguments)
    unknown = given.keys() - ClientArguments.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {', '.join(sorted(map(repr, unknown)))}")
    if "poll_name_server_inteval" in given:  # RocketMQ 3 spells it so.
        other = given.pop("poll_name_server_inteval")
        given.setdefault("poll_name_server_interval", other)
    for name in ("poll_name_server_interval", "heartbeat_broker_interval"):
        if name in given:
            given[name] = _seconds(name, given[name])
    for name in ("instance_name", "client_ip", "unit_name"):
        if given.get(name) is not None:
            _check_part(name, given[name])
    if given.get("address_server") is not None:
        if not isinstance(given["address_server"], str):
            raise TypeError(f"address_server is {given['address_server']!r}: pass a URL")
        given["address_server"] = checked_url(given["address_server"])
    threads = given.get("client_callback_executor_threads", 0)
    check_whole("client_callback_executor_threads", threads)
    if threads < 0:
        raise ConfigError(f"client_callback_executor_threads={threads}: need 0 or more")
    check_flag("unit_mode", given.get("unit_mode", False))
    if given.get("namespace"):
        given["namespace"] = Namespace(checked(check_group, given["namespace"]))
    else:
        given.pop("namespace", None)
    account = Access(**{name: given.pop(name, None) for name in ENVIRONMENT})
    tls = tls_settings({name: given.pop(name, None) for name in TLS_ENVIRONMENT})
    return ClientOptions(**given, credentials=account.credentials(), tls=tls)


def check_whole(name: str, value: object) -> None:
    """Raise TypeError for a fraction. Otherwise only brokers would notice, and refuse it again and again."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}: need a whole number")


def check_flag(name: str, value: object) -> None:
    """Raise TypeError for anything but a bool: a text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: pass True or False")


def checked_seconds(name: str, value: object, *, least: float) -> float:
    """Return a number of seconds. Raises ConfigError, TypeError: it is none, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: need a number of seconds")
    if not math.isfinite(value) or value < least:
        raise ConfigError(f"{name}={value!r}: need at least {least:g} s")
    return float(value)


def _seconds(name: str, value: object) -> float:
    if value == 0:
        raise ConfigError(f"{name}={value!r}: need a positive number of seconds")
    return checked_seconds(name, value, least=0.0)


def _check_part(name: str, value: object) -> None:
    """Check a part of the client id, which brokers show, and which names the folder of local offsets."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: pass text")
    if (not value and name != "unit_name") or len(value) > _ID_CHARS_MAX:
        raise ConfigError(f"{name} has {len(value)} characters: need 1 to {_ID_CHARS_MAX}")
    if any(char.isspace() or char in "/\\\0" or not char.isprintable() for char in value):
        raise ConfigError(f"{name}={value!r}: blanks, slashes and control characters cannot be part of a client id")
