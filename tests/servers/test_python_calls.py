"""Python functions called in a read event: what a broker's fast path costs beside its native calls.

Each call is some 50 ns. The number does not depend on the machine or its load, so a change that adds one is seen here before any
benchmark shows it. One that is worth its time raises the number.
"""

from __future__ import annotations

import collections
import gc
import pathlib
import sys
from collections.abc import Sequence

import pytest

from metaq.wire import hot
from metaq.wire.codes import RequestCode
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.servers.support import Client, open_server, pull_header, send_header

EVENTS = 200
pytestmark = pytest.mark.skipif(not hot.NATIVE, reason="the fallback is Python itself")


def calls_of(client: Client | TextClient, events: Sequence[bytes]) -> float:
    """Python calls of a read event; the first fifty make gates and caches."""
    jobs = getattr(client.peer, "jobs", collections.deque())
    called = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal called
        called += event == "call"

    def read(data: bytes) -> None:
        with memoryview(data) as view:
            client.session.data_received(view)
        while jobs:
            jobs.popleft()()

    for data in events[:50]:
        read(data)
    before = sys.getprofile()
    gc.disable()  # Hypothesis has callbacks of the collector: two calls of theirs, whenever it runs, would be counted as ours.
    sys.setprofile(count)
    try:
        for data in events[50:]:
            read(data)
    finally:
        sys.setprofile(before)
        gc.enable()
    return called / (len(events) - 50) - 1  # `read` itself


def test_calls_of_a_rocketmq_client(tmp_path: pathlib.Path):
    """Sends cost the same however many come at once; a pull of the slow path stays below forty."""
    with open_server(tmp_path) as (_, server):
        client = Client(server)
        client.send("orders")
        client.pull("orders")

        def send() -> bytes:
            return client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"hello")

        assert calls_of(client, [send() for _ in range(EVENTS)]) <= 13.5
        assert calls_of(client, [b"".join(send() for _ in range(16)) for _ in range(EVENTS)]) <= 14.5
        client.received()
        pulls = [client.frame(RequestCode.PULL_MESSAGE, pull_header("orders", 0, offset)) for offset in range(EVENTS)]
        assert calls_of(client, pulls) <= 36


def test_calls_of_a_metaq1_client(tmp_path: pathlib.Path):
    """A put, and a get, which finds its message by a byte position."""
    with open_metaq1_server(tmp_path, metaq1=settings({"test": 1})) as (_, server):
        client = TextClient(server)
        client.put(b"hello")
        assert calls_of(client, [b"put test 0 5 0 %d\r\nhello" % number for number in range(EVENTS)]) <= 37
        gets = [b"get test g 0 %d 4096 %d\r\n" % (25 * number, number) for number in range(EVENTS)]
        # Python 3.12 and newer count some calls that 3.11 does not.
        assert calls_of(client, gets) <= (143 if sys.version_info < (3, 12) else 150)
