"""Consumption of one message at an administrator's wish (309): by the handler of `run`, and nothing is acknowledged by it.

Each is called in a thread of its own, or, of an asynchronous consumer, in its event loop: busy workers delay none, and one
that takes long delays nothing else.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from metaq.client.consumer.handling.handlers import handle, handle_async, handle_batch, handle_batch_async
from metaq.client.consumer.handling.running import Job
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause, Reject
from metaq.client.consumer.received.replying import Reply, ReplyFuture
from metaq.client.shared.callbacks import in_loop
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pulling import made_plain
from metaq.errors import BadRequest, ClientError
from metaq.model import properties as props
from metaq.model.inspection import ConsumedDirectly, ConsumeVerdict
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire import compression, hot

log = logging.getLogger("metaq.client")

AT_ONCE_MAX = 16
"""Messages of one consumer that are consumed at the same time."""
REMARK_CHARS_MAX = 2000

Replies = Callable[[ReceivedMessage, Reply], ReplyFuture]


class Calling(Protocol):
    """How the handler of one call of `run` gets a message."""

    @property
    def job(self) -> Job: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Where it runs, if in an event loop."""
        ...

    async def handle(self, message: ReceivedMessage) -> None:
        """Returns when the handler has. Raises what comes out of it."""
        ...


class _Told:
    """Takes what is said of a message, in the place of a chunk."""

    in_order = lost = False

    def __init__(self, base: int, replies: Replies) -> None:
        self.base, self.flags = base, bytearray(1)
        self.verdict: BaseException | None = None
        self._replies = replies

    def reply(self, message: ReceivedMessage, reply: Reply) -> ReplyFuture:
        return self._replies(message, reply)

    def fail(self, message: ReceivedMessage, verdict: BaseException) -> None:  # noqa: ARG002
        if not self.flags[0]:  # the first word counts
            self.verdict = verdict


class Direct:
    """The handlers of one consumer that run now. `consume` is for the background loop, the rest for any thread."""

    def __init__(self, core: ClientCore, group: str, options: GroupOptions, replies: Replies) -> None:
        self._core, self._group, self._options = core, group, options
        self._name = f"metaq-{group}-direct"
        self._replies = replies
        self._ways: list[Calling] = []
        """In the order in which they began."""
        self._under_way = 0

    @property
    def newest(self) -> Job | None:
        """The call of `run` whose handler is used."""
        ways = self._ways.copy()
        return ways[-1].job if ways else None

    @property
    def loops(self) -> set[asyncio.AbstractEventLoop]:
        """The event loops in which handlers run."""
        return {way.loop for way in self._ways.copy() if way.loop is not None}

    def enter(self, job: Job, loop: asyncio.AbstractEventLoop | None = None) -> Calling:
        """A call of `run` begins. `loop`: in which its handler is awaited; None: it is called."""
        way: Calling = _InThread(job, self._name) if loop is None else _InLoop(job, loop)
        self._ways.append(way)
        return way

    def leave(self, way: Calling) -> None:
        """It ends."""
        self._ways.remove(way)

    async def consume(self, record: bytes, broker: str) -> ConsumedDirectly:
        """Have the handler of the newest `run` consume the message in a record. Raises ClientError: it cannot begin."""
        ways = self._ways.copy()
        if not ways:
            raise ClientError(
                f"no handler of group {self._group} is running here: the program takes its messages itself, without run(handler)"
            )
        if self._under_way >= AT_ONCE_MAX:
            raise ClientError(
                f"{AT_ONCE_MAX} messages are being consumed here at an administrator's wish: wait for them"
            )
        self._under_way += 1
        began = self._core.clock.monotonic()
        try:
            verdict, remark = await self._outcome(ways[-1], record, broker)
        finally:
            self._under_way -= 1
        spent_ms = round(1000 * (self._core.clock.monotonic() - began))
        return ConsumedDirectly(
            verdict=verdict, remark=remark, spent_ms=spent_ms, order=self._options.orderly, auto_commit=True
        )

    async def _outcome(self, way: Calling, record: bytes, broker: str) -> tuple[ConsumeVerdict, str | None]:
        try:
            # Decompression and the user's own code have no place in the loop.
            message = await asyncio.wrap_future(in_daemon(self._name, lambda: self._message(record, broker)))
        except Exception as error:  # noqa: BLE001  whatever the user's own code raises
            return ConsumeVerdict.EXCEPTION, _described(error)
        told = _Told(message.queue_offset, self._replies)
        message._chunk = told  # noqa: SLF001  a slot for us
        log.info("%s is consumed at an administrator's wish; whatever comes of it, nothing is acknowledged", message)
        work = asyncio.ensure_future(way.handle(message))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            work.cancel()  # the client is closed; a handler in a thread is left behind
            raise
        if work.cancelled():
            return ConsumeVerdict.EXCEPTION, "the handler was cancelled"
        raised = work.exception()
        return _judged(told) if raised is None else (ConsumeVerdict.EXCEPTION, _described(raised))

    def _message(self, record: bytes, broker: str) -> ReceivedMessage:
        """In a thread. Raises BadRequest, ConfigError, and what the deserializer raises."""
        found = hot.decode_records(record, 0, len(record), self._options.message_class, broker, 0, 0)
        if len(found) != 1:
            raise BadRequest(f"{len(found)} messages came with the request to consume one")
        (message,) = found
        message.body = compression.decompress(message.body, message.sys_flag, 4 * BODY_BYTES_MAX)
        made_plain(found, message.queue, self._core.namespace)
        if message.topic == RETRY_PREFIX + self._group:
            message.topic = message.properties.get(props.RETRY_TOPIC, message.topic)
        if self._options.decode is not None:
            message._value = self._options.decode(message.body)  # noqa: SLF001  a slot for us
        return message


def _judged(told: _Told) -> tuple[ConsumeVerdict, str | None]:
    verdict = told.verdict
    if verdict is None:
        if told.flags[0]:
            return ConsumeVerdict.SUCCESS, None
        return ConsumeVerdict.NOTHING, "the handler has not said what became of the message"
    if isinstance(verdict, Reject):
        return ConsumeVerdict.LATER, "rejected: delivered as usual, it would be filed with the dead letters"
    if isinstance(verdict, Later | Pause):
        return ConsumeVerdict.LATER, repr(verdict)
    return ConsumeVerdict.EXCEPTION, _described(verdict)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]


class _InThread:
    """Calls the handler in a thread, or in a process that a thread talks to."""

    loop = None

    def __init__(self, job: Job, name: str) -> None:
        self.job, self._name = job, name

    async def handle(self, message: ReceivedMessage) -> None:
        await asyncio.wrap_future(in_daemon(self._name, lambda: self._handle(message)))

    def _handle(self, message: ReceivedMessage) -> None:
        job = self.job
        if job.pickled is not None:
            with job.worker() as process:
                process.handle([message], batched=job.batch is not None)
        elif job.batch is not None:
            handle_batch([message], job.handler)
        else:
            handle(message, job.handler)


class _InLoop:
    """Awaits the handler in the event loop of its consumer."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.loop = loop

    async def handle(self, message: ReceivedMessage) -> None:
        await asyncio.wrap_future(in_loop(self.loop, lambda: self._handle(message)))

    async def _handle(self, message: ReceivedMessage) -> None:
        job = self.job
        try:
            if job.batch is None:
                await handle_async(message, job.handler)
            else:
                await handle_batch_async([message], job.handler)
        except (KeyboardInterrupt, SystemExit) as error:  # It would end the program's own loop.
            raise _ended(error) from None


def _ended(error: BaseException) -> ClientError:
    return ClientError(f"{type(error).__name__} was raised: {error}")


def in_daemon(name: str, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    """Call `function` in a daemon thread: nothing waits for one that never returns, neither the client's end nor the process's."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def call() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001  whatever the user's own code raises
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001  SystemExit would end the loop's thread, and all clients with it
            future.set_exception(_ended(error))

    threading.Thread(target=call, name=name, daemon=True).start()
    return future
