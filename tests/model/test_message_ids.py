"""Unique ids: RocketMQ's shape, and never the same twice."""

from __future__ import annotations

import datetime as dt
import os
import threading

from metaq.clock import FakeClock
from metaq.model.message_ids import IdPrefixes


def test_prefix_names_host_process_and_time():
    """28 upper-case hex characters; the time field counts from the start of the local month."""
    now = dt.datetime(2026, 11, 21, 10, 30, 0, 250_000).astimezone()
    prefixes = IdPrefixes("10.1.2.3", FakeClock(int(now.timestamp() * 1000)))
    prefix = prefixes.next().decode()
    assert len(prefix) == 28
    assert prefix == prefix.upper()
    assert prefix.startswith("0A010203")
    assert int(prefix[8:12], 16) == os.getpid() & 0xFFFF
    month_start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert int(prefix[20:], 16) == round((now - month_start).total_seconds() * 1000)


def test_prefixes_differ_within_one_millisecond_and_over_the_months_end():
    """A standing clock still gives 60 000 different prefixes; a new month starts its time field again."""
    clock = FakeClock(int(dt.datetime(2026, 11, 30, 23, 59, 59, 999_000).astimezone().timestamp() * 1000))
    prefixes = IdPrefixes("::1", clock)
    assert len({prefixes.next() for _ in range(60_000)}) == 60_000
    clock.advance(0.001)
    assert int(prefixes.next()[20:], 16) == 0


def test_prefixes_differ_over_threads():
    """The producers of a client draw from one place, in any threads."""
    prefixes, begin = IdPrefixes("10.1.2.3", FakeClock(1_795_226_546_516)), threading.Barrier(4)
    drawn: list[list[bytes]] = [[] for _ in range(4)]

    def draw(into: list[bytes]) -> None:
        begin.wait()
        into += [prefixes.next() for _ in range(15_000)]

    threads = [threading.Thread(target=draw, args=(into,)) for into in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({prefix for into in drawn for prefix in into}) == 60_000
