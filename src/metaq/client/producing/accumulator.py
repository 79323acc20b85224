"""Batching of sends, as Kafka's RecordAccumulator does it: user threads append, the background loop sends.

Batches form streams: one per topic, whose batches rotate over the topic's queues, and one per queue for
messages with an ordering key, a selector or a queue of their own. Appending to a stream's open batch is one call into
the compiled extension, made atomic by the GIL, without a lock; the batch answers -1 when it has been sealed or is full. All
else, sealing, replacing and counting batches, happens under one lock, a few times per batch.

A batch is sealed when it is full, when its linger is over, when somebody waits for it (`urgent`), and by `flush`.
Full batches of a stream may be under way side by side; those of an ordered stream one after the other, or a re-send would
overtake. While they wait the next batch fills up, so batches grow with the round trip by themselves.

Back-pressure counts bytes from the seal to the acknowledgement: beyond `max_pending_bytes` a caller blocks, or gets
BufferFull. It is looked at when a batch begins, so a stream can exceed it by one batch.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from metaq.client.conversation.sending.sending import Outgoing, Stored
from metaq.client.observing.observing import SendObserver, Sends
from metaq.client.shared.callbacks import CallbackThreads
from metaq.client.shared.core import ClientCore
from metaq.client.shared.futures import SendBatch, SendFuture, future_of
from metaq.client.shared.sending import Choose, FirstTry, Sender
from metaq.errors import (
    BrokerError,
    BufferFull,
    ClientClosed,
    ClientForked,
    ConfigError,
    InvalidMessage,
    LocalProtocolError,
    MetaqError,
)
from metaq.model import Message, MessageQueue, SysFlag
from metaq.model.message import COMPRESSION_ZLIB
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.wire import compression
from metaq.wire.codes import ResponseCode
from metaq.wire.record import decode_batch

log = logging.getLogger("metaq.client")

_MESSAGE_ID = re.compile("(?:[0-9A-F]{32}|[0-9A-F]{56})")
"""Message ids: 32 hex digits, or 56 with an IPv6 address."""
IN_FLIGHT_MAX = 8
"""Concurrent requests of one unordered stream at most."""


class SendLimits(Struct, frozen=True):
    """How a producer batches and waits. Durations in seconds, sizes in bytes."""

    timeout: float
    linger: float
    batch_bytes: int
    max_pending_bytes: int
    block_when_full: bool
    compress_over: int
    message_bytes_max: int


class Stay(enum.Enum):
    """Behaviour of an ordered stream when its queue is not writable."""

    MAY_MOVE = enum.auto()
    """Use another queue meanwhile: order may break for a moment, but sends go on."""
    FIXED = enum.auto()
    """Let the send fail."""
    STRICT = enum.auto()
    """As FIXED; and a status other than SEND_OK is a reason to send again."""


class BatchStream:
    """One series of batches. `queue` None: they rotate over the queues, and order is not promised."""

    __slots__ = ("batch", "in_flight", "outbox", "queue", "stay", "topic", "urgent")

    def __init__(self, topic: str, queue: MessageQueue | None = None, stay: Stay = Stay.MAY_MOVE) -> None:
        self.topic, self.queue, self.stay = topic, queue, stay
        self.batch = SEALED
        self.urgent: SendBatch | None = None
        """The batch that the loop was asked to seal at once, so that senders who join it need not ask again."""
        self.outbox: deque[tuple[SendBatch, Outgoing, float | None, FirstTry | None]] = deque()
        self.in_flight = 0

    @property
    def choose(self) -> Choose | None:
        """Chooses the stream's queue; another one if that can no longer be written and the stream may move."""
        wanted = self.queue
        if wanted is None:
            return None

        def pick(queues: list[MessageQueue]) -> MessageQueue:
            fixed = self.stay is not Stay.MAY_MOVE
            return wanted if fixed or wanted in queues else queues[wanted.queue_id % len(queues)]

        return pick

    @property
    def quiet(self) -> bool:
        """Any thread: whether every message handed in has its outcome."""
        return self.batch is SEALED and not self.outbox and not self.in_flight

    def apart(self) -> BatchStream:
        """A stream of its own to the same queue: for one message that need not wait for its turn."""
        return BatchStream(self.topic, self.queue, self.stay)

    @property
    def in_flight_max(self) -> int:
        return IN_FLIGHT_MAX if self.queue is None else 1


def _sealed() -> SendBatch:
    batch = SendBatch(b"", 0)
    batch.take()
    return batch


SEALED = _sealed()
"""Stands for "no open batch": every append to it returns -1."""


class Accumulator:
    """The batches of one producer."""

    def __init__(self, core: ClientCore, sender: Sender, limits: SendLimits, callbacks: CallbackThreads) -> None:
        self._core, self._sender, self.limits, self._callbacks = core, sender, limits, callbacks
        self.streams: dict[str, BatchStream] = {}
        """Unordered streams by topic."""
        self._ordered: dict[tuple[MessageQueue, Stay], BatchStream] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pending_bytes = 0
        self._outstanding: set[SendBatch] = set()
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._closed = False
        self.carried: dict[int, int] = {}
        """Sends on direct links (`metaq.client.producing.direct`): thread → number of its request."""
        self.waiting_for_carried: list[asyncio.Future[None]] = []
        self.observers: tuple[SendObserver, ...] = ()
        self.direct_observers: tuple[SendObserver, ...] = ()
        """Those that must be told of what went on a direct link, too: the others know it from the caller."""
        _live.add(self)

    # -------------------------------------------------------------- user threads

    def stream(self, topic: str) -> BatchStream:
        # No lock: setdefault is atomic, and of two threads the first one's stream stays.
        return self.streams.get(topic) or self.streams.setdefault(topic, BatchStream(topic))

    def ordered_stream(self, queue: MessageQueue, stay: Stay) -> BatchStream:
        """The stream of one queue."""
        key = queue, stay
        return self._ordered.get(key) or self._ordered.setdefault(key, BatchStream(queue.topic, queue, stay))

    def new_batch(self, bytes_max: int) -> SendBatch:
        batch = SendBatch(self._core.id_prefixes.next(), bytes_max)
        batch.threads = self._callbacks
        return batch

    def append(self, stream: BatchStream, add: Callable[[SendBatch], int], *, urgent: bool) -> SendFuture:
        """Append with `add` to the stream's open batch, or to a new one.

        Raises: ClientClosed, ClientForked, BufferFull; LocalProtocolError: too large for any batch.
        """
        self._core.check_process()
        with self._lock:
            while True:
                batch = stream.batch
                if (index := add(batch)) >= 0:
                    begun = False
                    break
                if self._hand_over(stream):
                    # The open batch is full. It is sent before this thread waits for room, which its acknowledgement makes.
                    self._core.thread.post(self._pump, stream)
                self._wait_for_room()
                if stream.batch is not SEALED:
                    continue  # another thread has begun a batch while this one waited
                batch = self.new_batch(self.limits.batch_bytes)
                if (index := add(batch)) < 0:
                    raise LocalProtocolError("the message fits no batch")
                stream.batch, begun = batch, True
                break
            if urgent and stream.urgent is not batch:
                # One wake-up of the loop per batch, not one per sender that joins it: a wake-up is a system call.
                stream.urgent = batch
                self._core.thread.post(self._seal, stream, batch)
            elif begun and not urgent:
                self._core.thread.post(self._begin_linger, stream, batch)
        return future_of(batch, index)

    def seal_soon(self, stream: BatchStream, batch: SendBatch) -> None:
        """Seal the stream's open batch without lingering: somebody waits for it."""
        with self._lock:
            if stream.batch is batch and stream.urgent is not batch:
                stream.urgent = batch
                self._core.thread.post(self._seal, stream, batch)

    def send_alone(
        self,
        message: Message,
        stream: BatchStream,
        message_id: str | None,
        timeout: float | None,
        finish: Callable[[Outgoing], Outgoing] | None = None,
        *,
        when_failed: Callable[[Exception], None] | None = None,
        wait: bool = True,
    ) -> SendFuture:
        """Send one message in a request of its own, compressed if that pays. In order with its stream if that has one.

        `finish` makes something else of the request: a half message's. `when_failed` is called in the loop, and must be
        quick. `wait` False: for no room.

        Raises: ClientClosed, ClientForked, BufferFull; InvalidMessage: the message is too large.
        """
        self._core.check_process()
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"timeout={timeout!r}: need a positive number of seconds")
        batch = self.new_batch(0)
        # Taken at once, so that nothing else can be added to it.
        batch.take()
        batch.when_failed = when_failed
        if message_id is not None:
            batch.prefix, batch.first = split_id(message_id)
        future = future_of(batch, batch.first)
        outgoing = self.outgoing(message, future.message_id)
        self._enqueue(stream, batch, finish(outgoing) if finish is not None else outgoing, timeout, wait=wait)
        return future

    def send_whole(self, stream: BatchStream, entries: list[tuple[int, bytes, bytes]]) -> SendBatch:
        """Send (flag, body, properties) entries as one batch, whatever `batch_bytes` says.

        Raises: ClientClosed, ClientForked, BufferFull; InvalidMessage: an empty body, or too much for one request.
        """
        self._core.check_process()
        batch = self.new_batch(self.limits.message_bytes_max)
        for flag, body, properties in entries:
            check_body(body, self.limits.message_bytes_max)
            if batch.add(flag, body, properties) < 0:
                raise InvalidMessage(
                    f"a batch of {len(entries)} messages exceeds {self.limits.message_bytes_max} bytes: send smaller ones"
                )
        self._enqueue(stream, batch, Outgoing(stream.topic, batch.take(), batch=True), None)
        return batch

    def send_filled(self, stream: BatchStream, batch: SendBatch, body: bytes, timeout: float | None) -> None:
        """Send a batch that the caller has filled; `body` was taken out of it.

        Raises ClientClosed, ClientForked, BufferFull.
        """
        self._core.check_process()
        self._enqueue(stream, batch, Outgoing(stream.topic, body, batch=True), timeout)

    def _enqueue(
        self, stream: BatchStream, batch: SendBatch, outgoing: Outgoing, timeout: float | None, *, wait: bool = True
    ) -> None:
        with self._lock:
            self._wait_for_room(wait=wait)
            self._hand_over(stream)  # earlier messages of the stream go first
            self._pending_bytes += len(outgoing.body)
            self._outstanding.add(batch)
            stream.outbox.append((batch, outgoing, timeout, None))
        self._core.thread.post(self._pump, stream)

    def go_on(
        self, stream: BatchStream, message_id: str, outgoing: Outgoing, timeout: float | None, first: FirstTry
    ) -> SendFuture:
        """Go on with a send whose first try was made on a direct link. Room is neither awaited nor refused: it was
        admitted before that try."""
        batch = self.single(message_id)
        with self._lock:
            self._pending_bytes += len(outgoing.body)
            self._outstanding.add(batch)
            stream.outbox.append((batch, outgoing, timeout, first))
        self._core.thread.post(self._pump, stream)
        return future_of(batch, batch.first)

    def single(self, message_id: str) -> SendBatch:
        """A batch for one message that has an id. Raises TypeError, InvalidMessage: no producer makes such an id."""
        batch = self.new_batch(0)
        batch.take()
        batch.prefix, batch.first = split_id(message_id)
        return batch

    def acknowledged(self, message_id: str, outgoing: Outgoing, stored: Stored, began: float) -> None:
        """Notify the observers of a message that was stored on a direct link; `began`: a time of the clock."""
        batch = self.single(message_id)
        batch.acknowledge(stored)
        self._core.thread.post(self._notify, outgoing, batch, began)

    def notify_carried(self) -> None:
        """Any thread: wake who waits for sends on direct links; one of them has ended."""
        self._core.thread.post(_wake, self.waiting_for_carried)

    @property
    def takes(self) -> bool:
        """Any thread: whether there is room, and the producer is open."""
        # Without the lock: a value that is just out of date costs one send above the limit, or one by the loop.
        return self._pending_bytes <= self.limits.max_pending_bytes and not self._closed

    def outgoing(self, message: Message, message_id: str) -> Outgoing:
        """The request for one message. Raises InvalidMessage: body or properties exceed the format."""
        limits = self.limits
        return outgoing_of(
            message, message_id, self._core.namespace.name,
            bytes_max=limits.message_bytes_max, compress_over=limits.compress_over,
        )  # fmt: skip

    def _wait_for_room(self, *, wait: bool = True) -> None:
        """Under the lock; gives it up while waiting."""
        while True:
            if self._closed:
                raise ClientClosed("the producer was closed")
            if self._pending_bytes <= self.limits.max_pending_bytes:
                return
            # The loop's thread must not wait: only it can receive the acknowledgements that make room.
            if not (wait and self.limits.block_when_full) or self._core.thread.current:
                raise BufferFull(
                    f"{self._pending_bytes} bytes wait for their acknowledgement, max_pending_bytes is "
                    f"{self.limits.max_pending_bytes}: send slower, wait for futures, or raise the limit"
                )
            self._changed.wait()

    def _hand_over(self, stream: BatchStream) -> bool:
        """Under the lock: seal the stream's open batch and put it where `_pump` finds it. Returns whether there was one."""
        batch, stream.batch = stream.batch, SEALED
        if batch is SEALED:
            return False
        body = batch.take()
        self._pending_bytes += len(body)
        self._outstanding.add(batch)
        stream.outbox.append((batch, Outgoing(stream.topic, body, batch=True), None, None))
        return True

    # -------------------------------------------------------------- the loop

    def _begin_linger(self, stream: BatchStream, batch: SendBatch) -> None:
        asyncio.get_running_loop().call_later(self.limits.linger, self._seal, stream, batch)

    def _seal(self, stream: BatchStream, batch: SendBatch) -> None:
        with self._lock:
            if stream.batch is batch:
                self._hand_over(stream)
        self._pump(stream)

    def _pump(self, stream: BatchStream) -> None:
        # An ordered stream has one batch in flight: otherwise a re-send would be overtaken by the next batch.
        while stream.outbox and stream.in_flight < stream.in_flight_max:
            batch, outgoing, timeout, first = stream.outbox.popleft()
            stream.in_flight += 1
            self._core.spawn(self._send(stream, batch, outgoing, timeout or self.limits.timeout, first))

    async def _send(
        self, stream: BatchStream, batch: SendBatch, outgoing: Outgoing, timeout: float, first: FirstTry | None
    ) -> None:
        began = self._core.clock.monotonic() - (first.seconds if first is not None else 0.0)
        try:
            await self._deliver(stream, batch, outgoing, timeout, first)
        except MetaqError as error:
            batch.fail(error)
        except asyncio.CancelledError:
            batch.fail(ClientClosed("the client was closed before the broker answered"))
            raise
        except Exception as error:  # a bug of ours: callers that wait for the batch must not wait for ever
            batch.fail(error)
            raise
        finally:
            stream.in_flight -= 1
            with self._lock:
                self._pending_bytes -= len(outgoing.body)
                self._outstanding.discard(batch)
                self._changed.notify_all()
            # Threads wait on the condition, tasks of `metaq.aio` on futures of the loop.
            _wake(self._waiting_for_room)
            self._pump(stream)
            if self.observers:
                self._notify(outgoing, batch, began)

    def _notify(self, outgoing: Outgoing, batch: SendBatch, began: float) -> None:
        """Notify observers; their failures never fail the send."""
        sends: Sends | None = None
        for observer in self.observers:
            try:
                if not observer.wants(outgoing, batch):
                    continue
                if sends is None:
                    cost_ms = round((self._core.clock.monotonic() - began) * 1000)
                    sends = Sends.of(outgoing, batch, self._core.clock.now_ms() - cost_ms, cost_ms)
                observer.sent(sends)
            except Exception:
                log.exception("watching a send to topic %s failed", outgoing.topic)

    async def _deliver(
        self, stream: BatchStream, batch: SendBatch, outgoing: Outgoing, timeout: float, first: FirstTry | None
    ) -> None:
        send = functools.partial(self._sender.send, insist=stream.stay is Stay.STRICT)
        if not outgoing.batch:
            # A message alone goes as SEND_MESSAGE_V2, and so does a batch of one, below.
            batch.acknowledge(await send(outgoing, timeout, stream.choose, first=first))
            return
        if batch.count == 1:
            batch.acknowledge(await send(_singles(outgoing)[0], timeout, stream.choose))
            return
        try:
            batch.acknowledge(await send(outgoing, timeout, stream.choose))
        except BrokerError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # The broker refuses the whole batch for one message, or for the sum of all (maxMessageSize): send them
            # singly, so that the others do not fail with it.
            outcomes: list[Stored | Exception] = []
            for single in _singles(outgoing):
                try:
                    outcomes.append(await send(single, timeout, stream.choose))
                except MetaqError as failure:
                    outcomes.append(failure)
            batch.settle_each(outcomes)

    async def room(self) -> None:
        """Return when there is room for another batch. Its callers end it when the producer is closed."""
        while self._pending_bytes > self.limits.max_pending_bytes and not self._closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_room.append(future)
            await future

    async def flush(self) -> None:
        """Seal all open batches and return when every message handed in so far has its outcome."""
        await self._carried_ended()
        streams = [*self.streams.values(), *self._ordered.values()]
        with self._lock:
            for stream in streams:
                self._hand_over(stream)
            outstanding = list(self._outstanding)
        for stream in streams:
            self._pump(stream)
        for batch in outstanding:
            if (waiter := batch.waiter(asyncio.get_running_loop())) is not None:
                await waiter

    async def _carried_ended(self) -> None:
        """Return when the sends that are on direct links now have ended."""
        now = set(self.carried.items())
        while now:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting_for_carried.append(future)  # before the check, so that a send that ends after it wakes us
            now &= set(self.carried.items())
            if now:
                await future

    def close(self) -> None:
        """Refuse all further messages. Those handed in before go on."""
        with self._lock:
            self._closed = True
            for stream in [*self.streams.values(), *self._ordered.values()]:
                self._hand_over(stream)
            self._changed.notify_all()

    def orphan(self) -> None:
        """Fail what is pending, in a forked child: it belongs to the parent."""
        error = ClientForked("the send belongs to the parent process")
        # A fork copies locks in whatever state they are: the parent's may be held by a thread that does not exist here.
        self._lock = threading.Lock()
        for stream in [*self.streams.values(), *self._ordered.values()]:
            if stream.batch is not SEALED:
                self._outstanding.add(stream.batch)
                stream.batch = SEALED
        for batch in self._outstanding:
            batch.orphan(error)


_live: weakref.WeakSet[Accumulator] = weakref.WeakSet()


def _orphan_all() -> None:
    for accumulator in list(_live):
        accumulator.orphan()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_orphan_all)


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()


def outgoing_of(message: Message, message_id: str, namespace: str, *, bytes_max: int, compress_over: int) -> Outgoing:
    """The request for one message. Raises InvalidMessage: body or properties exceed what brokers take."""
    check_body(message.body, bytes_max)
    properties = message.property_text(message_id, namespace)
    # A character has at most 4 bytes, so most texts need not be encoded to be measured.
    if len(properties) > PROPERTIES_BYTES_MAX // 4 and len(properties.encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"tag, keys and properties together exceed {PROPERTIES_BYTES_MAX} bytes of UTF-8")
    body, sys_flag = message.body, 0
    if len(body) >= compress_over:
        packed = compression.compress(body, COMPRESSION_ZLIB)
        # As RocketMQ's producer, from compressMsgBodyOverHowmuch on; but not if that makes the body larger.
        if len(packed) < len(body):
            body, sys_flag = packed, SysFlag.COMPRESSED | COMPRESSION_ZLIB
    return Outgoing(message.topic, body, int(sys_flag), message.flag, properties)


def check_body(body: bytes, bytes_max: int) -> None:
    """Raises InvalidMessage for a body that brokers refuse."""
    if not body:
        raise InvalidMessage("the body is empty: brokers refuse that; send at least one byte")
    if len(body) > bytes_max:
        raise InvalidMessage(
            f"the body has {len(body)} bytes, the limit is {bytes_max}: "
            "raise max_message_bytes here and maxMessageSize at the broker, or send a reference to the data"
        )


def checked_id(message_id: str) -> str:
    """Raises as `split_id`."""
    split_id(message_id)
    return message_id


def split_id(message_id: str) -> tuple[str, int]:
    """A message id's prefix and number. Raises TypeError, InvalidMessage: no producer makes such an id."""
    if not isinstance(message_id, str):
        raise TypeError(f"message_id is {message_id!r}: pass the text that future.message_id is")
    if not _MESSAGE_ID.fullmatch(message_id):
        raise InvalidMessage(f"message_id={message_id!r} is not an id made by a producer: 32 upper-case hex characters")
    return message_id[:-4], int(message_id[-4:], 16)


def _singles(outgoing: Outgoing) -> list[Outgoing]:
    """A batch taken apart into requests of one message each."""
    return [
        Outgoing(outgoing.topic, body, flag=flag, properties=properties.decode())
        for flag, body, properties in decode_batch(outgoing.body)
    ]
