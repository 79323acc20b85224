"""Figures of this machine, for servers that run on it."""

from __future__ import annotations

import collections
import ipaddress
import os
import shutil
from pathlib import Path
from typing import Final

from metaq.admin.monitoring.judging import UnknownFigure

_ESTABLISHED: Final = "01"


def is_here(host: str) -> bool:
    """Return whether an address is one of the loopback's: only then a server is known to be on this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load() -> float:
    """Return the load of the last minute."""
    return os.getloadavg()[0]


def memory_used() -> float | UnknownFigure:
    """Return the share of the machine's memory that is not available to programs."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError) as fault:
        return UnknownFigure(f"/proc/meminfo cannot be read: {fault}")
    return 1 - free / total


def disk_used(folder: Path) -> float | UnknownFigure:
    """Return the share of a folder's disk that is used."""
    try:
        facts = shutil.disk_usage(folder)
    except OSError as fault:
        return UnknownFigure(f"the disk of {folder} cannot be seen: {fault.strerror}")
    return facts.used / (facts.used + facts.free)


def connections_per_ip(port: int) -> dict[str, int] | UnknownFigure:
    """Return client address → its connections to a port of this machine."""
    found: collections.Counter[str] = collections.Counter()
    try:
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                _, here, there, state, *_ = line.split()
                if state == _ESTABLISHED and int(here.rpartition(":")[2], 16) == port:
                    found[_address(there.rpartition(":")[0])] += 1
    except (OSError, ValueError) as fault:
        return UnknownFigure(f"/proc/net/tcp cannot be read: {fault}")
    return dict(found)


def _address(digits: str) -> str:
    """Return an address of /proc/net/tcp: words of 32 bits as this machine (little-endian) has them."""
    raw = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
