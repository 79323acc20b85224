"""Lines that may come a thousand times a second: the first is told, the others are counted, none is forgotten."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from metaq.clock import FakeClock
from metaq.log import KINDS_MAX, RateLimitedLog, when_dead


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limited(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> RateLimitedLog:
    caplog.set_level(logging.INFO, "metaq.test")
    return RateLimitedLog(logging.getLogger("metaq.test"), clock, 10)


def test_second_line_of_a_kind_is_counted_and_told_with_the_next(limited, clock, caplog) -> None:
    """One line in ten seconds for each kind; the next one says how many there were between."""
    assert limited.warning("full", "no room for %s", "a")
    for _ in range(500):
        clock.advance(0.01)
        assert not limited.warning("full", "no room for %s", "b")
    assert limited.warning("other", "something else")
    clock.advance(6)
    assert limited.warning("full", "no room for %s", "c")
    assert caplog.messages == [
        "no room for a",
        "something else",
        "no room for c (and 500 more like it in the last 11 s)",
    ]


def test_long_keys_cost_nothing(limited) -> None:
    """Peers choose parts of them; kept for ten seconds, a thousand of a megabyte each would be a gigabyte."""
    key = "k" * 1_000_000
    references = sys.getrefcount(key)
    limited.warning((1, key), "somebody chose a long name")
    assert sys.getrefcount(key) == references


def test_count_is_told_although_the_kind_does_not_come_again(limited, clock, caplog) -> None:
    """By the first tick after its time; a kind that came once only is just forgotten."""
    limited.error("full", "no room for %s", "a")
    limited.error("full", "no room for %s", "b")
    limited.warning("once", "once")
    limited.tick()
    clock.advance(10)
    limited.tick()
    limited.tick()
    assert caplog.messages == ["no room for a", "once", "1 more like this in the last 10 s: no room for a"]
    assert caplog.records[-1].levelname == "ERROR"


def test_table_of_kinds_is_bounded_and_loses_no_count(limited, caplog) -> None:
    """Keys that peers choose: the kind told longest ago makes room, and its count is told."""
    limited.warning(0, "kind %d", 0)
    limited.warning(0, "kind %d", 0)
    for number in range(1, KINDS_MAX + 1):
        limited.warning(number, "kind %d", number)
    assert len(limited._kinds) == KINDS_MAX
    assert caplog.messages[-1] == "1 more like this in the last 0 s: kind 0"


def test_traceback_goes_with_the_line(limited, caplog) -> None:
    """Of the one that is told."""
    limited.error("x", "failed", error=ZeroDivisionError("by nothing"))
    assert "by nothing" in caplog.text


def test_death_of_a_task_that_nobody_awaits_is_told(caplog) -> None:
    """With its reason. Its end, and its being cancelled, are not."""

    async def act() -> None:
        async def fails() -> None:
            raise ZeroDivisionError("by nothing")

        tasks = [asyncio.ensure_future(work) for work in (fails(), asyncio.sleep(0), asyncio.sleep(60))]
        for number, task in enumerate(tasks):
            task.add_done_callback(when_dead(logging.getLogger("metaq.test"), f"task {number} works no more"))
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.wait(tasks)

    asyncio.run(act())
    assert caplog.messages == ["task 0 works no more"]
    assert caplog.records[0].levelname == "CRITICAL"
    assert "by nothing" in caplog.text
