"""Addresses as texts, and the one under which other machines see us."""

from __future__ import annotations

import functools
import ipaddress
import socket

from metaq.errors import ConfigError


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    # Six digits are enough to see that it is no port; `int` of a very long text is slow, and refused above 4 300
    # digits.
    if not colon or not host or not port.isdecimal() or not 0 <= int(port[:6]) <= 65535:
        raise ConfigError(f"the address {text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(host: str) -> bool:
    """Return whether a peer's host is an IP address, and not unknown or a path."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a peer's host (as in `Peer.address`) is this machine itself."""
    try:
        # A link-local IPv6 address comes with its zone behind `%`.
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    # A socket that listens on `::` has its IPv4 peers as ::ffff:127.0.0.1.
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


# An address of RFC 5737, for documentation only: connecting a datagram socket sends nothing, the kernel only picks a route.
_ANY_PUBLIC = ("192.0.2.1", 9)
LOOPBACK = "127.0.0.1"


@functools.cache
def local_address() -> str:
    """Return the IPv4 address of the interface that leads outside; the loopback address on a machine without
    network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_PUBLIC)
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address


def address_of(name: object) -> tuple[str, int]:
    """Return host and port of a socket's name, as a transport has it; ("", 0) of a peer that has gone again."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
