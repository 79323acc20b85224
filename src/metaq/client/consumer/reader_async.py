"""`metaq.aio.Reader`: the reader of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from metaq.client.arrow.columns import ARROW_ROWS
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.consumer.reader import ReaderBase
from metaq.client.shared.values import Received_co
from metaq.model import MessageQueue

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout, RecordBatch


class Reader(ReaderBase[Received_co]):
    """`metaq.Reader` for asyncio."""

    def __aiter__(self) -> Self:
        """Messages as they come; with `stop_at_end` until there are no more. Raises as `metaq.Reader`'s iteration."""
        self._check_open()
        return self

    async def __anext__(self) -> ReadMessage[Received_co]:
        if (message := next(self._current, None)) is None and (message := await self._next(None)) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> ReadMessage[Received_co] | None:
        """The next message; None after `timeout` seconds or at the end. As `metaq.Reader.receive`."""
        self._check_open()
        return await self._next(timeout)

    async def _next(self, timeout: float | None) -> ReadMessage | None:
        if self._start is not None:
            await self._calls.awaited(self._begin(), self._call_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (message := next(self._current, None)) is None:
                    try:
                        chunk = self._handover.take_now()
                    except LookupError:
                        # Then look at both: another task may have begun a chunk.
                        await self._handover.changed()
                        continue
                    if chunk is None:
                        self._end()
                        return None
                    self._current = self._of(chunk)
                return message
        return None

    def arrow_batches(self, columns: Sequence[str] | None = None, rows: int = ARROW_ROWS) -> AsyncIterator[RecordBatch]:
        """What is read, as record batches. As `metaq.Reader.arrow_batches`; the columns are made in another thread."""
        return self._arrow_batches(self._batch_layout(columns, rows))

    async def _arrow_batches(self, wanted: BatchLayout) -> AsyncIterator[RecordBatch]:
        if self._start is not None:
            await self._calls.awaited(self._begin(), self._call_seconds)
        self._give_back_current()
        while (chunk := await self._handover.take_async()) is not None:
            if parts := self._gather(chunk, wanted.rows):
                yield await asyncio.to_thread(wanted.batch, parts)
            self._give_back_current()
        self._end()

    async def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset or a moment, in one queue or (None) in all. As `metaq.Reader.seek`."""
        self._check_open()
        await self._calls.awaited(self._seek(queue, offset, time), self._call_seconds)

    async def queues(self) -> list[MessageQueue]:
        """The queues that are read. Raises NoRoute."""
        self._check_open()
        return await self._calls.awaited(self._reading.queues(), self._call_seconds)

    async def ranges(self) -> Mapping[MessageQueue, range]:
        """What every queue holds now: [min, max) offsets. Raises NoRoute, BrokerError."""
        self._check_open()
        return await self._calls.awaited(self._reading.ranges(), self._call_seconds)

    async def close(self) -> None:
        """End all iterations and disconnect."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        self._handover.close()
        await self._core.thread.awaited(self._close(), self._call_seconds)

    async def __aenter__(self) -> Self:
        """Finds the start: "latest" is the end as it is now."""
        try:
            self._check_open()
            await self._calls.awaited(self._begin(), self._call_seconds)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
