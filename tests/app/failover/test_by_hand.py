"""A broker that is asked to lead its group, and cannot."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.app.failover.by_hand import ByHand
from metaq.errors import Refused
from metaq.model.failover import NOBODY, GroupState, Member


def refusal(monkeypatch: pytest.MonkeyPatch, waiting: str) -> str:
    """What it says to `metaq broker promote` while nobody leads, and it has this reason not to."""
    monkeypatch.setattr("metaq.app.failover.by_hand.HAND_OVER_SECONDS", 0.0)
    own = Member(2, "process", "store", "10.0.0.2:10911", False, 100, 1)
    state = GroupState("history", 1, NOBODY, "", (own.place,))

    async def look() -> Any:
        return SimpleNamespace(state=state, live={2: own}, version=1)

    group: Any = SimpleNamespace(
        name="broker-a",
        broker=SimpleNamespace(roles=None),
        nodes=SimpleNamespace(look=look),
        membership=SimpleNamespace(member=lambda: own),
        in_sync=SimpleNamespace(waiting=waiting),
    )

    async def work() -> None:
        leading: Any = SimpleNamespace(epoch=None)
        await ByHand(group, leading, None, own.address, asyncio.Lock(), None).promote(force=False)  # type: ignore[arg-type]

    with pytest.raises(Refused) as caught:
        asyncio.run(work())
    return str(caught.value)


def test_it_says_why_it_does_not_lead_and_what_force_would_do(monkeypatch):
    told = refusal(monkeypatch, "waiting for member 1")
    assert told.startswith(
        "this broker does not lead broker-a: waiting for member 1. With --force it leads with what it has;"
    )
    assert "kept" in told


def test_without_a_reason_it_may_lead_in_a_moment(monkeypatch):
    assert refusal(monkeypatch, "") == "this broker does not lead broker-a yet: ask for its state"
