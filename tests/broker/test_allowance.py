"""Allowances: so much at once and a second, for each peer and for all."""

from __future__ import annotations

from metaq.broker import allowance
from metaq.broker.allowance import Allowances, Rate
from metaq.clock import FakeClock


def test_a_peer_uses_up_its_own_and_gets_it_back_evenly():
    clock = FakeClock()
    allowed = Allowances(clock, Rate(100, 10), Rate(1000, 100))
    assert [allowed.take("a", 40) for _ in range(3)] == [True, True, False]
    assert allowed.take("b", 100)
    clock.advance(2.0)
    assert allowed.take("a", 40)
    assert not allowed.take("a", 1)
    clock.advance(1000.0)
    assert allowed.take("a", 100)
    assert not allowed.take("a", 1)


def test_all_together_have_a_limit_too():
    clock = FakeClock()
    allowed = Allowances(clock, Rate(100, 10), Rate(150, 10))
    assert allowed.take("a", 100)
    assert not allowed.take("b", 100)
    assert allowed.take("b", 50)


def test_what_is_remembered_is_bounded(monkeypatch):
    """Those who have used nothing lately are forgotten first; with too many who have, all are, and the common limit holds."""
    monkeypatch.setattr(allowance, "PEERS_MAX", 3)
    clock = FakeClock()
    allowed = Allowances(clock, Rate(100, 1), Rate(10_000, 1))
    for peer in "abc":
        assert allowed.take(peer, 50)
    clock.advance(60.0)
    assert allowed.take("d", 60)
    assert len(allowed._peers) == 1
    for peer in "efg":
        assert allowed.take(peer, 60)
    assert len(allowed._peers) <= 3
