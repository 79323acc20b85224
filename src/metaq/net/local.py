"""Which address other machines would see us under."""

from __future__ import annotations

import functools
import socket

_ANY_PUBLIC = ("192.0.2.1", 9)  # RFC 5737, documentation only: nothing is sent, the kernel just picks a route.
LOOPBACK = "127.0.0.1"


@functools.cache
def local_address() -> str:
    """The IPv4 address of the interface that leads outside; the loopback address on a machine without network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_PUBLIC)
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address
