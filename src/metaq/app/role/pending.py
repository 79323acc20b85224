"""Waiting for changes in the event loop."""

from __future__ import annotations

import asyncio

from metaq.errors import Refused
from metaq.saved import Pending


async def ended(pending: Pending) -> None:
    """Return when a change has taken effect. Raises Refused: it has not."""
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: Refused | None) -> None:
        if waiting.done():  # cancelled
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    pending.when_done(settle)
    await waiting
