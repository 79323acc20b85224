"""Sessions: their limits, with injected time."""

from __future__ import annotations

import asyncio

from metaq.clock import FakeClock
from metaq.dashboard.security.sessions import (
    ADDRESSES_MAX,
    FAILURE_SECONDS,
    FAILURES_MAX,
    IDLE_SECONDS,
    SESSIONS_MAX,
    TOTAL_SECONDS,
    Failures,
    Sessions,
)


def test_sessions_end_when_they_are_idle_or_old_or_too_many_and_close_their_connections():
    async def all_of_it() -> None:
        clock, closed = FakeClock(), []

        async def close(cluster: object) -> None:
            closed.append(cluster)

        sessions = Sessions(clock, close)
        idle, used = await sessions.begin("a", "idle"), await sessions.begin("b", "used")
        assert (idle != used, len(idle)) == (True, 32)
        clock.advance(IDLE_SECONDS - 1)
        assert sessions.of(used).account == "b"
        clock.advance(2)
        assert sessions.of(idle) is None
        assert sessions.lasts(used)
        await sessions.expire()
        assert closed == ["idle"]
        for _ in range(int(TOTAL_SECONDS / IDLE_SECONDS) + 1):
            clock.advance(IDLE_SECONDS - 1)
            sessions.of(used)
        assert sessions.of(used) is None
        await sessions.expire()
        assert closed == ["idle", "used"]
        cookies = [await sessions.begin("c", number) for number in range(SESSIONS_MAX + 3)]
        assert len(sessions) == SESSIONS_MAX
        assert len(closed) == 5
        await sessions.end(cookies[-1])
        assert sessions.of(cookies[-1]) is None
        await sessions.close()
        assert len(closed) == SESSIONS_MAX + 5

    asyncio.run(all_of_it())


def test_an_open_page_does_not_keep_a_session():
    async def all_of_it() -> None:
        clock = FakeClock()

        async def close(_cluster: object) -> None: ...

        sessions = Sessions(clock, close)
        cookie = await sessions.begin("a", None)
        clock.advance(IDLE_SECONDS - 1)
        assert sessions.lasts(cookie)
        clock.advance(2)
        assert not sessions.lasts(cookie)

    asyncio.run(all_of_it())


def test_failed_logins_have_to_wait_each_address_and_all_together():
    clock = FakeClock()
    failures = Failures(clock)
    for _ in range(FAILURES_MAX):
        assert not failures.too_many("10.0.0.1")
        failures.add("10.0.0.1")
    assert failures.too_many("10.0.0.1")
    assert not failures.too_many("10.0.0.2")
    failures.forgive("10.0.0.1")
    assert not failures.too_many("10.0.0.1")
    for number in range(ADDRESSES_MAX * 2):
        failures.add(f"10.1.{number // 256}.{number % 256}")
    assert len(failures._times) <= ADDRESSES_MAX
    assert failures.too_many("10.0.0.3")
    clock.advance(FAILURE_SECONDS + 1)
    assert not failures.too_many("10.0.0.3")
    assert failures._times == {}
