"""Addresses in options: those to listen on, and those that others are told."""

from __future__ import annotations

from typing import Final

from metaq.errors import ConfigError
from metaq.model.topics.advertised import Advertised, is_listener_name
from metaq.net.address import LOOPBACK, is_address, join_address, local_address, split_address
from metaq.options import BrokerOptions, NamesrvOptions

EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  compared and named in texts; binding it needs the user's consent
EVERYWHERE_V6: Final = "::"
"""All addresses of both families."""
LISTENERS_MAX: Final = 16


def listens_everywhere(host: str) -> bool:
    """Return whether who listens there is reached by every address of the machine."""
    return host in {EVERYWHERE, EVERYWHERE_V6}


def from_here(address: str) -> str:
    """Return the address by which this machine itself reaches a server that listens at `address`."""
    host, port = split_address(address)
    if not listens_everywhere(host):
        return address
    return join_address(LOOPBACK if host == EVERYWHERE else "::1", port)


def advertised_by(address: str) -> str:
    """Return the address by which others reach a server that listens at `address`."""
    host, port = split_address(address)
    return join_address(local_address(), port) if listens_everywhere(host) else address


def advertised_host(options: BrokerOptions, listen_host: str) -> str:
    """Return the host that clients are told, and that records name. `listen_host`: where the broker listens."""
    return options.broker_ip1 or (local_address() if listens_everywhere(listen_host) else listen_host)


def advertised_to_clients(options: BrokerOptions) -> Advertised:
    """Raises ConfigError."""
    return Advertised.of(options.advertised_addresses, "advertisedAddresses")


def told_to_clients(options: BrokerOptions, address: str) -> dict[str, str]:
    """Return each address that some client is told → the option that it comes from. `address`: the broker's own."""
    told = dict.fromkeys(sorted(advertised_to_clients(options).addresses), "advertisedAddresses")
    return {address: "brokerIP1", **told}


def advertised_to_slaves(options: BrokerOptions) -> Advertised:
    """Raises ConfigError."""
    return Advertised.of(options.advertised_ha_addresses, "advertisedHaAddresses")


def check_addresses(options: BrokerOptions) -> None:
    """Raises ConfigError: an address that others are told is none."""
    advertised_to_clients(options)
    advertised_to_slaves(options)
    for name, host in (("brokerIP1", options.broker_ip1), ("brokerIP2", options.broker_ip2)):
        if host is not None and not is_address(host):
            raise ConfigError(
                f"{name}={host}: need an IP address, which records have room for and RocketMQ's clients parse; names of hosts may stand "
                "in advertisedAddresses"
            )


def listeners_of(text: str) -> dict[str, tuple[str, int]]:
    """Return the name server's further listeners, `name=host:port,...`: name → host and port. Raises ConfigError."""
    places: dict[str, tuple[str, int]] = {}
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        name, _, address = (side.strip() for side in part.partition("="))
        if not is_listener_name(name) or name in places:
            raise ConfigError(f"listeners={text}: {part[:80]!r} is not name=host:port, with a name of its own")
        try:
            places[name] = split_address(address)
        except ConfigError as error:
            raise ConfigError(f"listeners: {error}") from None
    if len(places) > LISTENERS_MAX:
        raise ConfigError(f"listeners: {len(places)} are more than {LISTENERS_MAX}")
    return places


def told_name_servers(options: NamesrvOptions) -> str:
    """Return what `addressPage` says, `host:port;host:port`; empty: nothing. Raises ConfigError: it is no list of addresses."""
    if not options.address_page:
        return ""
    from metaq.client.conversation.name_servers import parse_addresses  # here and not above: a broker has no page

    try:
        return ";".join(parse_addresses(options.address_page))
    except ConfigError as error:
        raise ConfigError(f"addressPage={options.address_page}: {error}") from None
