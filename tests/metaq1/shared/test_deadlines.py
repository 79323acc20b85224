"""Commands end when their time is up, whichever others are under way."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from metaq.metaq1.shared.deadlines import Deadlines


class Item:
    def __init__(self) -> None:
        self.timeout, self.bucket = 0.0, None  # type: ignore[var-annotated]
        self.ended_at: float | None = None


class Loop:
    """The part of an event loop that is used, with a time of its own."""

    def __init__(self) -> None:
        self.now = 1000.3
        self.calls: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, function: Any, *args: Any) -> None:
        self.calls.append((when, function, args))

    def run_until(self, end: float) -> None:
        for call in sorted(self.calls, key=lambda one: one[0]):
            if call[0] <= end:
                self.calls.remove(call)
                self.now = call[0]
                call[1](*call[2])
        self.now = end


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def deadlines(loop: Loop) -> Deadlines[Item]:
    def expire(item: Item) -> None:
        assert item.ended_at is None
        item.ended_at = loop.now

    return Deadlines(loop, expire)  # type: ignore[arg-type]


def test_late_by_a_64th_at_most(loop: Loop, deadlines: Deadlines[Item]) -> None:
    """And never early: times from a millisecond to an hour, side by side."""
    chance = random.Random(7)
    items = []
    for _ in range(2000):
        item = Item()
        deadlines.add(item, chance.choice([0.001, 0.3, 3.0, 3.0, 3.0, 60.0, 3600.0]) * (1 + chance.random()))
        items.append((loop.now, item))
        loop.run_until(loop.now + 0.004)
    loop.run_until(loop.now + 10_000)
    for began, item in items:
        assert item.ended_at is not None
        late = item.ended_at - began - item.timeout
        assert -1e-9 <= late <= item.timeout / 64 + 1e-9


def test_few_timers(loop: Loop, deadlines: Deadlines[Item]) -> None:
    """A timer serves all that end with it: 30 000 sends within their time-out have no more than 130."""
    for _ in range(30_000):
        deadlines.add(Item(), 3.0)
        loop.now += 0.0001
    assert len(loop.calls) <= 130


def test_what_has_ended_is_let_go(loop: Loop, deadlines: Deadlines[Item]) -> None:
    """An answer discards it, so that nothing keeps its body until the time would be up."""
    item, other = Item(), Item()
    deadlines.add(item, 3.0)
    deadlines.add(other, 3.0)
    assert item.bucket is not None
    item.bucket.discard(item)
    loop.run_until(loop.now + 10)
    assert item.ended_at is None
    assert other.ended_at is not None
    assert not loop.calls


def test_no_time_at_all() -> None:
    """It ends in the next turn of the loop."""

    async def run() -> None:
        ended: list[Item] = []
        deadlines: Deadlines[Item] = Deadlines(asyncio.get_running_loop(), ended.append)
        item = Item()
        deadlines.add(item, 0.0)
        await asyncio.sleep(0)
        assert ended == [item]

    asyncio.run(run())
