"""The cores of this process: which clients share one, and what becomes of them in forked children."""

from __future__ import annotations

import os
import threading

from metaq.client.identity import sources
from metaq.client.identity.options import DEFAULT_INSTANCE, ClientOptions
from metaq.client.shared.core import ClientCore
from metaq.client.shared.namespaced_core import NamespacedCore
from metaq.client.shared.namespaces import NamespacedMember
from metaq.client.shared.roles import Member
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError

_cores: dict[tuple[object, ...], ClientCore] = {}
"""Name servers, parts of the client id, account, and settings of TLS → its core."""
_lock = threading.Lock()


def acquire(namesrv: str | None, options: ClientOptions, clock: Clock = SYSTEM) -> ClientCore:
    """Any thread: the core of these name servers and this client id; pair with `release`.

    `namesrv` None: see `sources`. Raises ConfigError: nothing is given, an address is malformed, or clients of this instance
    name sign as another account or connect otherwise; ConnectionFailed: the address server does not answer.
    """
    url = sources.address_server_of(namesrv, options)
    source = (url,) if url is not None else sources.checked_addresses(namesrv)
    addresses: tuple[str, ...] | None = None
    while True:
        with _lock:
            core = _core_of(source, options, addresses, clock)
            if core is not None:
                core.address_server = url
                core.users[options] += 1
                # In the loop, which owns the periodic tasks.
                core.thread.post(core.set_pace)
                return NamespacedCore(core, options.namespace) if options.namespace else core
        # Without the lock, for which other threads wait.
        addresses = source if url is None else sources.fetch_name_servers(url)


def _core_of(
    source: tuple[str, ...], options: ClientOptions, addresses: tuple[str, ...] | None, clock: Clock
) -> ClientCore | None:
    """The core for these options, made if the name servers' addresses are known; None: they are not, and there is none yet.

    Raises ConfigError. Under `_lock`.
    """
    identity = (source, options.client_ip, options.instance_name, options.unit_name)
    # Connections are shared by one account only, and with TLS by those who trust the same.
    key = (*identity, options.credentials, options.tls)
    core = _cores.get(key)
    if core is not None or addresses is None:
        return core
    if options.instance_name != DEFAULT_INSTANCE and any(other[: len(identity)] == identity for other in _cores):
        raise ConfigError(
            f"clients with instance_name={options.instance_name!r} sign as another account in this process, or not at all, or "
            "connect with other settings of TLS, and brokers would take them and this one for one client: give it an "
            "instance_name of its own"
        )
    taken = {other.client_id for other in _cores.values()}
    core = _cores[key] = ClientCore(addresses, options, clock, taken)
    return core


def claim(core: ClientCore, member: Member, options: ClientOptions) -> None:
    """Any thread: make `member` its group's member of this client.

    Raises ConfigError: this client is a member of the group already; the core is released. `options`: what it was acquired with.
    """
    if not core.claim(member):
        # The caller's constructor fails, so nobody else would release the core.
        core.thread.start(release(core, options))
        raise ConfigError(
            f"this process already consumes as group {member.group} under the instance name of this client: "
            "give the second consumer an instance_name of its own"
        )


def fellow_members(core: ClientCore, member: Member) -> list[Member]:
    """Any thread: the other members of the group in this process, which live in cores of other instance names."""
    group = core.namespace.wrapped(member.group)
    core = core.shared()
    with _lock:
        same = [other for other in _cores.values() if other.name_servers.addresses == core.name_servers.addresses]
    found = [fellow for other in same if (fellow := other.member(group)) is not None]
    fellows = [fellow.member if isinstance(fellow, NamespacedMember) else fellow for fellow in found]
    return [fellow for fellow in fellows if fellow is not member]


async def release(core: ClientCore, options: ClientOptions) -> None:
    """In the loop: count one user less; the last one closes the core. `options`: what it was acquired with."""
    core = core.shared()
    with _lock:
        core.users[options] -= 1
        if core.users[options] <= 0:
            del core.users[options]
        if core.users:
            core.set_pace()
            return
        # Out of the table before it closes, so that no new client gets it.
        for key in [key for key, other in _cores.items() if other is core]:
            del _cores[key]
    # Without the lock, for which threads wait that make clients.
    await core.close()


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603  the parent's may be held by a thread that is not here
    _lock = threading.Lock()
    _inherited.extend(_cores.values())
    _cores.clear()


_inherited: list[ClientCore] = []
"""Cores of parent processes: never finalized here, because their sockets are the parent's."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
