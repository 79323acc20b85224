"""Addresses as texts: `host:port`, and `[v6]:port`."""

from __future__ import annotations

import ipaddress

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


def is_v6(host: str) -> bool:
    """Return whether a host is an IPv6 address, without brackets; it may have a zone behind `%`."""
    try:
        return isinstance(ipaddress.ip_address(host.partition("%")[0]), ipaddress.IPv6Address)
    except ValueError:
        return False
