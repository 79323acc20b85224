"""Work that takes longer than a page: one at a time for each subject, a few together, stopped, and remembered for a while."""

from __future__ import annotations

import asyncio

import pytest

from metaq.clock import SYSTEM
from metaq.dashboard.jobs import AT_ONCE_MAX, FAILURES_MAX, JOBS_MAX, Jobs, Progress
from metaq.errors import BadRequest, NoRoute


async def over(jobs: Jobs, subject: str) -> None:
    while (found := jobs.of(subject)) is not None and not found.over:
        await asyncio.sleep(0)


def test_a_job_tells_how_far_it_is_and_how_it_ended():
    async def run() -> None:
        jobs, go = Jobs(SYSTEM), asyncio.Event()

        async def work(progress: Progress) -> None:
            progress.done = 1
            await go.wait()
            for number in range(2 * FAILURES_MAX):
                progress.fail(f"{number} failed")
            raise NoRoute("the topic is gone")

        jobs.start("one", "Sends", 20, work)
        with pytest.raises(BadRequest, match="under way already"):
            jobs.start("one", "Sends", 20, work)
        await asyncio.sleep(0)
        found = jobs.of("one")
        assert found is not None
        assert (found.done, found.over, found.error) == (1, False, "")
        go.set()
        await over(jobs, "one")
        found = jobs.of("one")
        assert found is not None
        assert (found.failed, len(found.failures), found.over, found.error) == (
            20,
            FAILURES_MAX,
            True,
            "the topic is gone",
        )
        with pytest.raises(BadRequest, match="nothing of the kind"):
            jobs.stop("one")
        assert jobs.of("other") is None

    asyncio.run(run())


def test_jobs_are_few_stopped_and_forgotten():
    async def run() -> None:
        jobs = Jobs(SYSTEM)

        async def never(_progress: Progress) -> None:
            await asyncio.Event().wait()

        async def at_once(_progress: Progress) -> None:
            return

        for number in range(AT_ONCE_MAX):
            jobs.start(f"long {number}", "Waits", 1, never)
        with pytest.raises(BadRequest, match="are under way"):
            jobs.start("too many", "Waits", 1, never)
        await asyncio.sleep(0)
        jobs.stop("long 0")
        await over(jobs, "long 0")
        found = jobs.of("long 0")
        assert found is not None
        assert (found.stopped, found.error) == (True, "")
        for number in range(2 * JOBS_MAX):
            jobs.start(f"short {number}", "Is through", 1, at_once)
            await over(jobs, f"short {number}")
        assert jobs.of("short 0") is None
        assert jobs.of(f"short {2 * JOBS_MAX - 1}") is not None
        await jobs.close()
        found = jobs.of("long 1")
        assert found is not None
        assert found.over

    asyncio.run(run())


def test_a_fault_of_ours_is_in_the_log_and_ends_the_job(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        jobs = Jobs(SYSTEM)

        async def wrong(_progress: Progress) -> None:
            raise ZeroDivisionError("secret")

        jobs.start("one", "Divides", 1, wrong)
        await over(jobs, "one")
        found = jobs.of("one")
        assert found is not None
        assert found.error == "ZeroDivisionError: the dashboard's log has the rest"

    asyncio.run(run())
    assert "Divides failed" in caplog.text
