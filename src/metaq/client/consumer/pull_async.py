"""`metaq.aio.PullConsumer`: the pull consumer of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

from metaq.client.consumer.arguments import Patterns, Topics
from metaq.client.consumer.base import CALL_SECONDS, CLOSE_SECONDS, warn_of_busy
from metaq.client.consumer.closing import EXIT_SECONDS
from metaq.client.consumer.options import OnShare
from metaq.client.consumer.pull_base import POLL_COUNT, POLL_SECONDS, PullConsumerBase, PulledBatch
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.consumer.schedule import PAUSE_AFTER_ERROR, Schedule, pause_of
from metaq.client.shared.loop import LOOK_SECONDS
from metaq.client.shared.values import Received_co
from metaq.client.transactions.checks import check_function
from metaq.errors import ConfigError
from metaq.model import MessageQueue, StoredMessage
from metaq.model.filters.subscription import Expression

log = logging.getLogger("metaq.client")


class PullConsumer(PullConsumerBase[Received_co]):
    """`metaq.PullConsumer` for asyncio."""

    _workers: frozenset[asyncio.Task[None]] = frozenset()
    """The tasks of `run`, for `close`."""

    async def register_topics(self, topics: Topics | Patterns, listener: OnShare | None = None) -> None:
        """Take part in sharing out these topics as well. As `metaq.PullConsumer.register_topics`."""
        self._check_open()
        await self._calls.awaited(self._register(topics, listener), CALL_SECONDS)

    async def pull(
        self, queue: MessageQueue, offset: int, count: int = 32, *, tags: Expression | None = None, wait: bool = False
    ) -> PulledBatch[Received_co]:
        """Up to `count` messages of any queue, from `offset` on. As `metaq.PullConsumer.pull`."""
        self._check_open()
        return await self._calls.awaited(self._pull_by_hand(queue, offset, count, tags, wait=wait))

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """These queues are this member's, and no others. As `metaq.PullConsumer.assign`."""
        self._check_open()
        await self._calls.awaited(self._assign(queues), CALL_SECONDS)

    async def poll(self, timeout: float = POLL_SECONDS, count: int = POLL_COUNT) -> list[ReadMessage[Received_co]]:
        """Up to `count` messages of this member's queues. As `metaq.PullConsumer.poll`."""
        self._check_open()
        return await self._core.thread.awaited(self._poll(timeout, count))

    async def seek(
        self, queue: MessageQueue, offset: int | None = None, *, time: float | dt.datetime | None = None
    ) -> None:
        """`poll` goes on there. As `metaq.PullConsumer.seek`."""
        self._check_open()
        await self._calls.awaited(self._seek(queue, offset, time), CALL_SECONDS)

    async def seek_to_beginning(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """`seek` to the first message that is kept. As `metaq.PullConsumer.seek_to_beginning`."""
        self._check_open()
        await self._calls.awaited(self._seek_to_end(queues, end=False), CALL_SECONDS)

    async def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """`seek` behind the last message. As `metaq.PullConsumer.seek_to_end`."""
        self._check_open()
        await self._calls.awaited(self._seek_to_end(queues, end=True), CALL_SECONDS)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """`poll` hands out nothing of these queues until `resume`. As `metaq.PullConsumer.pause`."""
        self._check_open()
        await self._calls.awaited(self._pause(queues), CALL_SECONDS)

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Undo `pause` of these queues. As `metaq.PullConsumer.resume`."""
        self._check_open()
        await self._calls.awaited(self._resume(queues), CALL_SECONDS)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress as it is kept. As `metaq.PullConsumer.committed`."""
        self._check_open()
        return await self._calls.awaited(self._committed(queue), CALL_SECONDS)

    async def position(self, queue: MessageQueue) -> int:
        """The offset that is next. As `metaq.PullConsumer.position`."""
        self._check_open()
        return await self._calls.awaited(self._position(queue), CALL_SECONDS)

    async def kept(self, queue: MessageQueue) -> range:
        """What the queue keeps: [min, max) offsets. Raises as `position`."""
        self._check_open()
        return await self._calls.awaited(self._kept(queue), CALL_SECONDS)

    async def search(self, queue: MessageQueue, time: float | dt.datetime) -> int:
        """The offset of the first message stored then or later. As `metaq.PullConsumer.search`."""
        self._check_open()
        return await self._calls.awaited(self._search(queue, time), CALL_SECONDS)

    async def all_queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of a topic, whichever member has it. As `metaq.PullConsumer.all_queues`."""
        self._check_open()
        return await self._calls.awaited(self._all_queues(topic), CALL_SECONDS)

    async def send_back(self, message: StoredMessage, delay_level: int = 0) -> None:
        """Deliver a message again later. As `metaq.PullConsumer.send_back`."""
        self._check_open()
        await self._calls.awaited(self._send_back(message, delay_level), CALL_SECONDS)

    async def run(self, function: Callable[[MessageQueue], Awaitable[float | None]], tasks: int = 20) -> None:
        """Await `function(queue)` for each queue of ours again and again, in `tasks` tasks, until `stop` or `close`.

        As `metaq.PullConsumer.run`. Cancelling this cancels the calls in hand. Raises TypeError: the function is not
        asynchronous; ConfigError: `tasks` is below 1, or `run` runs already; ClientClosed.
        """
        if tasks < 1:
            raise ConfigError(f"tasks={tasks}: need at least 1")
        check_function(function, "the function", awaited=True)
        schedule, changed, loop = Schedule(), asyncio.Event(), asyncio.get_running_loop()

        def look() -> None:
            schedule.set(self._member.queues, self._core.clock.monotonic())
            changed.set()

        def wake() -> None:  # any thread
            with contextlib.suppress(RuntimeError):  # our loop is closed: nobody waits
                loop.call_soon_threadsafe(look)

        async def work() -> None:
            while not self._stopped:
                if (queue := schedule.take(self._core.clock.monotonic())) is None:
                    # Before the wait is computed: a change that comes after this ends the wait at once.
                    changed.clear()
                    pause = schedule.pause(self._core.clock.monotonic())
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS if pause is None else min(pause, LOOK_SECONDS)):
                            await changed.wait()
                    continue
                pause = PAUSE_AFTER_ERROR
                try:
                    work_on = function(queue)
                    plain = not inspect.isawaitable(work_on)
                    if not plain:
                        pause = pause_of(await work_on, queue)
                except Exception:
                    plain = False
                    log.exception("the function for %s failed, it is called again in %s s", queue, pause)
                if plain:
                    raise TypeError("the function returned nothing that can be awaited: make it `async def`")
                schedule.done(queue, self._core.clock.monotonic() + pause)

        self._begin_run()
        self._member.on_change = wake
        try:
            look()
            async with asyncio.TaskGroup() as group:
                self._workers = frozenset(group.create_task(work()) for _ in range(tasks))
        except BaseExceptionGroup as errors:
            # What the function raises comes out as it is, not in a group.
            raise errors.exceptions[0] from None
        finally:
            self._member.on_change = lambda: None
            self._running = False
            if self._open:  # `close` commits by itself.
                await self._core.thread.awaited(self._persist(), CLOSE_SECONDS)

    async def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now.

        Raises RequestTimeout: it was not kept within `timeout` (30) seconds, for which brokers that are away or
        do not answer are asked again. BrokerError: refused. ClientError: the file, or the offset store of yours, failed with
        its `__cause__`. ClientClosed.
        """
        self._check_open()
        await self._calls.awaited(self._commit(timeout))

    async def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the registered topics are shared out.

        Raises RequestTimeout: not within `timeout` seconds; None waits for ever. ClientClosed: it was closed or stopped.
        """
        self._check_open()
        await self._until_stopped.awaited(self._member.assigned(), timeout)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, let the functions of `run` end, commit, leave the group, disconnect. As `metaq.PullConsumer.close`."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self.stop()
        deadline = self._core.clock.monotonic() + timeout
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        # Tasks of another loop cannot be awaited here.
        workers = {task for task in self._workers if task.get_loop() is loop}
        try:
            if workers and current not in workers:  # A function that closes cannot wait for itself.
                _, busy = await asyncio.wait(workers, timeout=timeout)
                warn_of_busy(self.group, len(busy))
        finally:
            # Not before: the functions in hand still pull and commit, which needs an open consumer.
            self._open = False
            await self._core.thread.awaited(self._close(), max(EXIT_SECONDS, deadline - self._core.clock.monotonic()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
