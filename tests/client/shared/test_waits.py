"""A broker that tells this client to wait is sent nothing before that: by the loop, and on direct links."""

from __future__ import annotations

import time

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.shared.transport import WAIT_SECONDS_MAX, Waits
from metaq.clock import FakeClock
from metaq.testing import EmbeddedBroker


def test_a_wait_is_counted_down_bounded_and_forgotten() -> None:
    clock = FakeClock()
    waits = Waits(clock.monotonic)
    waits.told("a:1", "1500")
    assert waits.left("a:1") == pytest.approx(1.5)
    assert waits.left("b:1") == 0
    clock.advance(1.5)
    assert waits.left("a:1") == 0
    assert not waits.until
    waits.told("a:1", "999999999")
    assert waits.left("a:1") == WAIT_SECONDS_MAX


@pytest.mark.parametrize("text", ["", "-5", "soon", "1e9", "9" * 30, "٣"])
def test_what_is_no_wait_counts_for_nothing(text: str) -> None:
    waits = Waits(FakeClock().monotonic)
    waits.told("a:1", text)
    assert waits.left("a:1") < 0.1


def test_a_producer_above_its_quota_is_slowed_to_it_and_nothing_fails() -> None:
    """One that sends one by one, by direct links once there are some; and one that pipelines."""
    with EmbeddedBroker(options={"quotaPerAddress": "requestsPerSecond=200"}) as server:
        with metaq.Producer(server.namesrv) as producer:
            producer.send("orders", b"first")
            began = time.monotonic()
            for _ in range(500):
                producer.send("orders", b"x")
            # 200 at once, the others at the rate.
            assert time.monotonic() - began > 1.2
            with Admin(server.namesrv) as admin:
                uses = admin.list_quotas()
        (use,) = [use for quotas in uses.values() for use in quotas if use.name == "127.0.0.1"]
        assert use.delayed > 0
        assert use.refused == 0
        assert use.requests >= 501


def test_a_quota_that_is_set_while_a_producer_sends_one_by_one_holds_at_once() -> None:
    """Its connection has been read by a sweep until then, which asks nobody."""
    with EmbeddedBroker() as server, metaq.Producer(server.namesrv) as producer, Admin(server.namesrv) as admin:
        for _ in range(300):
            producer.send("orders", b"x")
        admin.set_quota("address", "*", "requestsPerSecond=100")
        began = time.monotonic()
        for _ in range(250):
            producer.send("orders", b"x")
        assert time.monotonic() - began > 1.2
        admin.remove_quota("address", "*")
        assert list(admin.list_quotas().values()) == [[]], "nobody is limited, and nothing is counted any more"
        producer.send("orders", b"x")
