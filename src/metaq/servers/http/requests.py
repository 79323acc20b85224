"""What handlers of HTTP requests wait for: the body, changes that are saved, and the promise of an acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from metaq.broker.broker import Broker
from metaq.broker.log.acks import Due, Lack
from metaq.errors import Reason, Refused
from metaq.saved import Saving
from metaq.servers.held_acks import HeldAcks
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.problems import Problem, ProblemError
from metaq.servers.server import CallSoon

T = TypeVar("T")

ATTEMPTS_MAX: Final = 8
"""Times that a request waits for changes: a send may need its topic, and then its positions. More means that somebody deletes them."""
_CLOSE: Final = {"connection": "close"}


def connection_of(request: Request) -> HttpConnection:
    """Return the connection that a request came by."""
    connection: HttpConnection = request.state.connection
    return connection


def fields_of(request: Request) -> dict[str, str]:
    """Return the header fields by their names in lower case; of one that came twice, the last."""
    return fields_of_head(request.headers.raw)


def fields_of_head(head: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the fields of a head whose names are in lower case; of one that came twice, the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head}


async def body_of(request: Request, bytes_max: int) -> bytes:
    """Return the body. Raises HTTPException: 413, it is longer; 400, the client has gone before its end."""
    promised = request.headers.get("content-length", "")
    if promised.isdecimal() and int(promised) > bytes_max:
        raise HTTPException(413, f"a body of {promised} bytes, the limit is {bytes_max}", _CLOSE)
    connection = connection_of(request)
    keep, parts, size = connection.peer.keep, list[bytes](), 0
    metering = None if promised else connection.metering  # what was promised is charged already
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            keep(len(part))
            if metering is not None:
                metering.came(len(part))
            if size > bytes_max:
                raise HTTPException(413, f"a body of more than {bytes_max} bytes, the limit", _CLOSE)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        keep(-size)


async def when_ready(run: Callable[[], T]) -> T:
    """Call a service, again when the changes that it needs are saved. Raises what it raises; Refused BUSY: they take too long."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return run()
        except Saving as saving:
            then: Callable[[], Any] | None = saving.then
            seconds = max(pending.wait_seconds for pending in saving.pending)
            waits = [_future(pending.when_done) for pending in saving.pending]
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*waits)
            except TimeoutError:
                raise Refused(
                    Reason.BUSY,
                    f"a change that the request needs was not saved within {seconds:g} s: "
                    + ("nothing was done for it" if then is None else "it may still take effect"),
                ) from None
            run = then or run
    raise Refused(Reason.BUSY, "what the request needs is deleted as often as it is made")


def _future(when_done: Callable[[Callable[[Refused | None], None]], None]) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def ended(error: Refused | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    when_done(ended)
    return future


class Acks:
    """Waits for what acknowledgements promise: the disk, or a replica.

    Args: broker: its policy. call_soon: brings a call from another thread to the event loop.
    """

    def __init__(self, broker: Broker, call_soon: CallSoon) -> None:
        self._acks = broker.acks
        self._held = HeldAcks(
            broker.acks, broker.store.flusher, broker.clock, call_soon,
            broker.store_options.sync_flush_timeout / 1000, _lacking, broker.stats.took,
            broker.options.slave_timeout / 1000,
        )  # fmt: skip

    def tick(self) -> None:
        """Give up what was waited for too long."""
        self._held.expire()

    async def kept(self, due: Due | None = None) -> str:
        """Wait until all that is stored now is as safe as promised. Return what it lacks when the time is up; "": nothing.

        Args: due: what is promised; None: as the broker's policy says.
        Raises ProblemError 504: this broker may not lead any more. Whether anything is stored is not known then.
        """
        due = due or self._acks.due()
        return "" if due is None else await self._wait(due)

    async def _wait(self, due: Due) -> str:
        answer = _Answer(asyncio.get_running_loop().create_future())
        self._held.hold(answer, due, _KEPT)
        lack = (await answer.future).decode()
        if lack == Lack.DOUBT.value:
            raise ProblemError(Problem(504, "The outcome is not known", lack, "in-doubt"))
        return lack


_KEPT: Final = b" "
"""Stands for answers that are held: something that counts, and that is cut away."""


def _lacking(_answers: bytes, lack: Lack) -> bytes:
    return lack.value.encode()


class _Answer:
    """What `HeldAcks` writes to."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future

    def write(self, data: bytes) -> None:
        if not self.future.done():
            self.future.set_result(data.strip())
