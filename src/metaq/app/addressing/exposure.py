"""Servers that others than this machine reach: accounts guard them, or whoever configures them consents to it."""

from __future__ import annotations

from typing import Final

from metaq.errors import ConfigError
from metaq.net.address import is_loopback

_SERVERS: Final = {"broker": "broker", "namesrv": "name server"}


def check_exposure(section: str, address: str, *, has_accounts: bool, consent: bool) -> list[str]:
    """Return warnings about a server that listens at `address`; none if only this machine reaches it.

    Args:
        section: of the server's options, broker or namesrv.
        address: a host, or an IP address.
        has_accounts: access control is on.
        consent: the user means it, by a flag or by a file of a kind that always listens on all addresses.
    Raises ConfigError: everybody would reach it, and nobody has consented.
    """
    if address == "localhost" or is_loopback(address):
        return []
    if has_accounts and section == "namesrv":
        return []
    if has_accounts:
        return [
            (
                f"the broker listens on {address}: accounts guard its port for clients, and addresses that of slaves (haListenPort); "
                "nothing is encrypted: guard both by a firewall"
            )
        ]
    if not consent:
        raise ConfigError(
            f"listening on {address} lets everybody who can reach this machine read, write and delete, for there is no"
            " access control: add --insecure if that is meant, or listen on 127.0.0.1; with aclEnable=true there are accounts"
        )
    return [f"the {_SERVERS[section]} listens on {address} without access control: guard its port by a firewall"]
