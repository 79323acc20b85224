"""Quotas at the MetaQ 1.x server: answers are held back, and beyond the bound refused with 503."""

from __future__ import annotations

import pathlib

from metaq.clock import FakeClock
from metaq.model.quota import QuotaKind, QuotaLimits
from metaq.wire.metaq1.commands import Code
from tests.servers.metaq1.support import TextClient, open_metaq1_server
from tests.servers.remoting.test_quotas import Timer

PUT = b"put test 0 5 0 1\r\nhello"


def test_puts_wait_and_are_refused_beyond_the_bound(tmp_path: pathlib.Path) -> None:
    clock = FakeClock()
    with open_metaq1_server(tmp_path, clock) as (broker, server):
        timer = Timer(clock)
        broker.quotas.later = timer.later
        client = TextClient(server)
        client.put(b"hello")
        broker.quotas.set((QuotaKind.ADDRESS, "127.0.0.1"), QuotaLimits(requests_per_second=2)).settle()
        client.feed(PUT * 4)
        assert client.answers() == [], "those of the read event that went over wait together"
        assert client.peer.paused
        timer.pass_(0.5)
        assert [answer.code for answer in client.answers()] == [200] * 3
        client.go_on()
        timer.pass_(0.5)
        client.go_on()
        assert [answer.code for answer in client.answers()] == [200]
        others = [TextClient(server) for _ in range(8)]
        for other in others:
            other.feed(PUT)
        timer.pass_(2.0)
        codes = [answer.code for other in others for answer in other.answers()]
        assert set(codes) == {200, Code.UNAVAILABLE}
        assert codes.count(200) <= 5


def test_a_session_that_shuts_its_side_gets_what_is_held_back(tmp_path: pathlib.Path) -> None:
    clock = FakeClock()
    with open_metaq1_server(tmp_path, clock) as (broker, server):
        timer = Timer(clock)
        broker.quotas.later = timer.later
        client = TextClient(server)
        broker.quotas.set((QuotaKind.ADDRESS, "127.0.0.1"), QuotaLimits(requests_per_second=1)).settle()
        client.feed(b"version 1\r\n" + PUT + PUT)
        timer.pass_(0.01)
        client.go_on()
        assert client.peer.on_half_closed()
        timer.pass_(1.0)
        client.go_on()
        assert [answer.code for answer in client.answers()] == [200] * 3
