"""Work in the client's own loop, awaited in the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from metaq.client.shared.core import ClientCore
from metaq.errors import RequestTimeout

Result = TypeVar("Result")


async def run(core: ClientCore, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
    """Run `work` in the client's own loop and await it here. Cancelling one cancels the other."""
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(core.thread.start(work))
    except TimeoutError:
        raise RequestTimeout(f"no outcome within {timeout} s") from None
