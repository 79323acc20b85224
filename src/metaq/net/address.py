"""Addresses as texts, and the one under which other machines see us."""

from __future__ import annotations

import functools
import ipaddress
import socket

from metaq.address import join_address, split_address

__all__ = [
    "LOOPBACK",
    "address_of",
    "is_address",
    "is_loopback",
    "join_address",
    "local_address",
    "split_address",
]

_HOSTS_KEPT = 1024
"""Hosts whose answers are remembered: reading an address takes 3 µs, and each connection needs it."""


@functools.lru_cache(_HOSTS_KEPT)
def is_address(host: str) -> bool:
    """Return whether a peer's host is an IP address, and not unknown or a path."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


@functools.lru_cache(_HOSTS_KEPT)
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


# Addresses of RFC 5737 and RFC 3849, for documentation only: connecting a datagram socket sends nothing, the kernel only picks a route.
_ANY_PUBLIC = ("192.0.2.1", 9)
_ANY_PUBLIC_V6 = ("2001:db8::1", 9)
_MAPPED = "::ffff:"
LOOPBACK = "127.0.0.1"


@functools.cache
def local_address() -> str:
    """Return the address of the interface that leads outside: the IPv4 address, on a machine that has none the IPv6 address;
    the loopback address on a machine without network."""
    for family, public in ((socket.AF_INET, _ANY_PUBLIC), (socket.AF_INET6, _ANY_PUBLIC_V6)):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(public)
                address: str = probe.getsockname()[0]
                return address
        except OSError:  # no such network, or no such family
            continue
    return LOOPBACK


def address_of(name: object) -> tuple[str, int]:
    """Return host and port of a socket's name, as a transport has it; ("", 0) of a peer that has gone again."""
    if not isinstance(name, tuple):
        return "", 0
    host = str(name[0])
    # A socket that listens on `::` has its IPv4 peers as ::ffff:10.0.0.1: to everybody else they are IPv4.
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host, int(name[1])
