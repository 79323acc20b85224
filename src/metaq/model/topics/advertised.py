"""Addresses that a broker has beside its own, each for the clients that come from somewhere or come in somewhere.

A broker in a container, or behind a translation of addresses (NAT), is reached by different addresses from inside and from
outside. It tells its name server all of them, and the name server tells each client the one that fits.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Self, TypeAlias

from msgspec import Struct

from metaq.address import join_address, split_address
from metaq.errors import ConfigError

ADVERTISED_MAX: Final = 64
"""Addresses of one broker at most."""
_HOST_CHARS_MAX: Final = 255
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Origin(Struct, frozen=True):
    """Where a client of a name server came from, and where it came in."""

    host: str = ""
    """Its address as the name server sees it; empty: not known."""
    listener: str = ""
    """Name of the name server's listener; empty for that of its listenPort."""


ANYWHERE: Final = Origin()
"""Origin of a client of which nothing is known: it is told brokers' own addresses."""


class Advertised(Struct, frozen=True):
    """Addresses (`host:port`) of one broker for clients of some origins."""

    listeners: tuple[tuple[str, str], ...] = ()
    """Name of a name server's listener, and the address for those who come in there."""
    networks: tuple[tuple[Network, str], ...] = ()
    """Network of clients, and the address for them. The narrowest network comes first."""

    @classmethod
    def of(cls, text: str, what: str) -> Self:
        """Parse `outside=host:port,10.0.0.0/8=host:port`; the empty text is none. Raises ConfigError.

        Args: what: option or field that the text is the value of, for errors.
        """
        listeners: dict[str, str] = {}
        networks: dict[Network, str] = {}
        parts = [part.strip() for part in text.replace(";", ",").split(",", ADVERTISED_MAX + 1)]
        if len(parts) > ADVERTISED_MAX:
            raise ConfigError(f"{what} has more than {ADVERTISED_MAX} addresses")
        for part in filter(None, parts):
            key, equals, value = (side.strip() for side in part.partition("="))
            if not equals or not key:
                raise ConfigError(
                    f"{what}: {part[:80]!r} is not name=host:port, with the name of a name server's listener or a network "
                    "such as 10.0.0.0/8"
                )
            address = _checked(value, what)
            network = network_of(key)
            if network is None and not is_listener_name(key):
                raise ConfigError(
                    f"{what}: {key[:80]!r} is neither a network, such as 10.0.0.0/8, nor a name of letters"
                )
            if network in networks or key in listeners:
                raise ConfigError(f"{what} has two addresses for {key}")
            if network is None:
                listeners[key] = address
            else:
                networks[network] = address
        narrowest_first = sorted(networks.items(), key=lambda entry: -entry[0].prefixlen)
        return cls(tuple(sorted(listeners.items())), tuple(narrowest_first))

    def __str__(self) -> str:
        return ",".join(f"{key}={address}" for key, address in (*self.listeners, *self.networks))

    def __bool__(self) -> bool:
        return bool(self.listeners or self.networks)

    @property
    def addresses(self) -> frozenset[str]:
        """All of them."""
        return frozenset(address for _, address in (*self.listeners, *self.networks))

    def fitting(self, origin: Origin) -> str | None:
        """Return the address for clients of an origin: that of the listener, else that of the narrowest network with the
        client's address; None: the broker's own."""
        for name, address in self.listeners:
            if name == origin.listener:
                return address
        if self.networks and origin.host:
            try:
                host = ipaddress.ip_address(origin.host.partition("%")[0])
            except ValueError:
                return None
            return next((address for network, address in self.networks if host in network), None)
        return None


def is_listener_name(text: str) -> bool:
    """Return whether a listener may be called so."""
    return _NAME.fullmatch(text) is not None


def network_of(text: str) -> Network | None:
    """Return the network that a text such as `10.0.0.0/8` or `10.1.2.3` is; None: it is none."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _checked(address: str, what: str) -> str:
    try:
        host, port = split_address(address[: _HOST_CHARS_MAX + 8])
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    if not port or any(map(str.isspace, host)) or "," in host or "=" in host:
        raise ConfigError(f"{what}: the address {address[:80]!r} is not host:port")
    return join_address(host, port)
