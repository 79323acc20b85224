"""Changes that are carried out in the event loop."""

from __future__ import annotations

import asyncio
import gc

import pytest

from metaq.app.role.pending import carry_out
from metaq.errors import ConnectionFailed, Reason, Refused
from metaq.saved import PendingOutcome


def test_a_change_ends_as_its_work_does():
    async def works() -> int:
        return 7

    async def breaks() -> int:
        raise ConnectionFailed("the master does not answer")

    change: PendingOutcome[int] = PendingOutcome()
    asyncio.run(carry_out(change, works, "the role"))
    assert change.outcome() == 7
    change = PendingOutcome()
    asyncio.run(carry_out(change, breaks, "the role"))
    with pytest.raises(Refused, match="the master does not answer") as raised:
        change.outcome()
    assert raised.value.reason is Reason.UNAVAILABLE


@pytest.mark.filterwarnings("error")
def test_work_is_not_begun_by_a_task_that_never_runs():
    """A broker that stops just behind a request for another role: nothing says that a coroutine was never awaited."""
    begun = []

    async def work() -> None:
        begun.append(1)

    async def stops_at_once() -> None:
        task = asyncio.get_running_loop().create_task(carry_out(PendingOutcome(), work, "the role"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(stops_at_once())
    gc.collect()
    assert not begun
