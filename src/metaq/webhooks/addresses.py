"""Addresses that a webhook may reach: public ones, and those of networks that its user has named.

Whoever can set a webhook's URL, or the DNS records of its host, could otherwise have messages posted to what only this machine can
reach: its own services, those of its network, a cloud's metadata. The address that was checked is the one that is connected to, so
that a name which resolves differently a moment later (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, TypeAlias

from metaq.errors import ConfigError, MetaqError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are the IPv4 address that a gateway connects to."""


class AddressRefused(MetaqError):
    """The host has only addresses that this webhook may not reach."""


def parsed_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks. Raises ConfigError: one of them is none."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(
                f"allowNetworks: {text!r:.60} is no network ({error}): write 10.0.0.0/8, 192.168.7.20 or fd00::/8"
            ) from None
    return tuple(found)


def real_address(text: str) -> Address:
    """Return the address that is reached by an address: of an IPv6 address that only wraps one of IPv4, the latter.

    Raises ValueError: the text is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])  # without the interface of a link-local one
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo is not None else None) or address


def may_reach(text: str, allowed: Sequence[Network]) -> bool:
    """Return whether an address is public, or in one of the networks."""
    address = real_address(text)
    if any(address.version == network.version and address in network for network in allowed):
        return True
    return address.is_global and not address.is_multicast and not address.is_reserved


def reachable(host: str, addresses: Sequence[str], allowed: Sequence[Network]) -> list[str]:
    """Return those of a host's addresses that may be reached, in order. Raises AddressRefused: none."""
    found = [one for one in addresses if may_reach(one, allowed)]
    if found:
        return found
    told = ", ".join(addresses[:3])
    known = "" if told == host else f"{told}, "
    raise AddressRefused(
        f"{host} is {known}no public address: name its network in allowNetworks if messages are meant to go there"
    )
