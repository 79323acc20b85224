"""What several pages share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from metaq.admin.figures.activity import Activity
from metaq.client.conversation.call import FAULTS
from metaq.dashboard.page import Asked
from metaq.errors import ConnectionFailed

T = TypeVar("T")

_AT_ONCE: Final = 16
_FIRST_RELEASE: Final = 213
"""RocketMQ's number of 4.0.0; from there on each release has two, of its snapshot and its own."""
_OF_A_MINOR: Final = 20


def seen(asked: Asked) -> Activity:
    """Return the last look at the cluster. Raises ConnectionFailed: there was none."""
    look = asked.cluster.sampler.look
    if look is None:
        state = asked.cluster.sampler.state
        raise ConnectionFailed(state.error or "the first look at the cluster is under way")
    return look


def release(version: int) -> str:
    """Return RocketMQ's release of the number that a client tells."""
    if version < _FIRST_RELEASE:
        return f"before 4.0 ({version})"
    steps = version - _FIRST_RELEASE
    major, rest = divmod(steps, _OF_A_MINOR * 10)
    minor, patch = divmod(rest, _OF_A_MINOR)
    return f"{4 + major}.{minor}.{(patch + 1) // 2}{'-SNAPSHOT' if patch % 2 else ''}"


async def each_or_error(work: Iterable[tuple[str, Coroutine[Any, Any, T]]]) -> tuple[dict[str, T], dict[str, str]]:
    """Do work for some names, a few at once. Returns name → outcome, and name → error of those that a cluster did not answer."""
    places, found, failed = asyncio.Semaphore(_AT_ONCE), dict[str, T](), dict[str, str]()
    given = list(work)

    async def one(name: str, what: Coroutine[Any, Any, T]) -> None:
        async with places:
            try:
                found[name] = await what
            except FAULTS as error:
                failed[name] = str(error)

    try:
        await asyncio.gather(*(one(name, what) for name, what in given))
    finally:
        for _, what in given:  # a page that ends at once leaves work that never began, of which Python would warn
            if inspect.getcoroutinestate(what) == inspect.CORO_CREATED:
                what.close()
    return found, failed
