"""Unique message ids: 32 upper-case hex characters that name the host, the process, the time and a number.

    bytes  content
    4      IPv4 address of this host
    2      process id
    2      a process constant      } RocketMQ has 4 bytes of "class loader hash" here; anything is allowed
    2      number of the batch     }
    4      milliseconds since the start of the current month, local time: tools read the time from it
    2      number of the message within the batch

A batch draws one prefix, its messages just count: an id costs nothing until somebody asks for it. Two batches of one
process differ in their number; 65 536 batches within one millisecond do not happen.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os

from metaq.clock import Clock


class IdPrefixes:
    """Makes prefixes (28 characters) for the batches of one process, for any threads: `itertools.count` gives a number once, also without the GIL."""

    def __init__(self, address: str, clock: Clock) -> None:
        # An IPv6 address has no 4 bytes for the id: random ones keep the ids of two machines apart.
        packed = bytes(int(part) for part in address.split(".")) if address.count(".") == 3 else None
        host = (packed or clock.random_below(1 << 32).to_bytes(4, "big")).hex()
        # Containers often have one address and equal process ids: the constant tells their processes apart.
        constant = clock.random_below(1 << 16)
        self._start = f"{host}{os.getpid() & 0xFFFF:04x}{constant:04x}".upper()
        self._clock = clock
        self._batches = itertools.count(clock.random_below(1 << 16))
        self._month_start_ms = self._month_end_ms = 0

    def next(self) -> bytes:
        """Return a prefix that no other batch has."""
        now_ms = self._clock.now_ms()
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms)
        elapsed = now_ms - self._month_start_ms
        return f"{self._start}{next(self._batches) & 0xFFFF:04X}{elapsed & 0xFFFFFFFF:08X}".encode()


def _month_of(now_ms: int) -> tuple[int, int]:
    """Start of the local calendar month that holds `now_ms`, and of the next, in milliseconds since the epoch."""
    now = dt.datetime.fromtimestamp(now_ms / 1000).astimezone()
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    # From the first of any month 32 days lead into the next one.
    following = (start + dt.timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)
