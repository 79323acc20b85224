"""Delivery of pulled messages: into the queue's window, to handlers, and, if these fail, back to the broker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.send_back import SendBack
from metaq.client.consumer.delivery.window import Chunk, Window
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import DEAD_LETTER_LEVEL
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pulling import PulledMessages
from metaq.model import MessageModel, MessageQueue
from metaq.model import properties as props

log = logging.getLogger("metaq.client")


class Hold(Struct, frozen=True):
    """What orderly consumption has of a queue."""

    locked_at: float | None = None
    """When its lock was last asked for and granted, monotonic seconds; None: it is not locked."""
    in_hand: Sequence[int] = ()
    """Offsets of the messages that a handler has."""


NO_HOLD = Hold()


class Delivery(Protocol):
    """How a member hands out messages. One for all its queues."""

    def deliver(self, window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage]) -> None:
        """In the loop: add the result of a pull that found messages."""
        ...

    def start(self) -> None:
        """In the loop: the member joins the group."""
        ...

    async def admit(self, wanted: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Return the queues that may be taken now (in order: those that could be locked). Raises nothing."""
        ...

    def start_of(self, queue: MessageQueue, stored: int) -> int:
        """Return the start offset of an admitted queue, given its stored offset."""
        ...

    def window(self, queue: MessageQueue, offset: int) -> Window[ReceivedMessage]:
        """Begin to consume an admitted queue."""
        ...

    async def given_up(self, windows: Sequence[Window[ReceivedMessage]]) -> None:
        """Commit offsets of queues that go to other members. The windows are dropped already."""
        ...

    def dropped(self, window: Window[ReceivedMessage]) -> None:
        """Leave the queue at once: acks count no more."""
        ...

    def hold(self, queue: MessageQueue) -> Hold:
        """What is known of a queue in orderly consumption."""
        ...

    def doubt(self, broker: str) -> None:
        """Note that the broker could not be reached."""
        ...

    def leader_changed(self, broker: str) -> None:
        """Note that another one leads the broker of that name."""
        ...

    def look(self, window: Window[ReceivedMessage]) -> None:
        """Any thread: look at a queue again that is not held any more."""
        ...

    async def drain(self) -> None:
        """Wait a while for messages in progress, because the member leaves. Offsets are committed after this."""
        ...

    async def stopped(self) -> None:
        """Release the queues to others, after the final commit."""
        ...


class QueueOwner(Protocol):
    """The member that owns the queues, as a delivery needs it."""

    def lost(self, queue: MessageQueue) -> None:
        """Give up a queue without keeping its progress: another member has it already."""
        ...

    def kept(self, queue: MessageQueue) -> int:
        """The progress of a queue that was kept last, as far as we know; 0 if there was none."""
        ...

    async def keep(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep the progress of queues that are given up."""
        ...

    def halt(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, seconds: float) -> None:
        """Any thread: stop the message's queue for so long, and hand the message out again then."""
        ...

    def handed_out(self, window: Window[ReceivedMessage]) -> None:
        """Look whether there is room for the next pull."""
        ...

    def count_failure(self, queue: MessageQueue, given_back: bool) -> None:
        """In the loop: count a failed delivery. `given_back`: the message is done with here."""
        ...


class ConcurrentDelivery:
    """Whole pulls at once, finished in any order; failed messages go back to the broker."""

    def __init__(
        self, core: ClientCore, group: str, retry_topic: str, options: GroupOptions, handover: Handover[ReceivedMessage],
        owner: QueueOwner,
    ) -> None:  # fmt: skip
        self._core, self._retry_topic, self._options, self._handover = core, retry_topic, options, handover
        self._owner = owner
        self._send_back = SendBack(core, group, options.max_reconsume_times or 0, handover, options.seconds)

    def start(self) -> None:
        """Nothing has to be done beside pulling."""

    async def admit(self, wanted: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        return wanted

    def start_of(self, queue: MessageQueue, stored: int) -> int:  # noqa: ARG002  of orderly consumption
        return stored

    def window(self, queue: MessageQueue, offset: int) -> Window[ReceivedMessage]:
        return Window(queue, offset, self.failed, self._owner.halt)

    async def given_up(self, windows: Sequence[Window[ReceivedMessage]]) -> None:
        await self._owner.keep({window.queue: window.finished_offset() for window in windows})

    def dropped(self, window: Window[ReceivedMessage]) -> None:
        """Nothing to do: nobody asks the window any more."""

    def doubt(self, broker: str) -> None:
        """Nothing to do: the queues stay ours."""

    def leader_changed(self, broker: str) -> None:
        """Nothing to do either."""

    def hold(self, queue: MessageQueue) -> Hold:  # noqa: ARG002  of orderly consumption
        return NO_HOLD

    def deliver(self, window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage]) -> None:
        chunk = take_in(window, pulled, self._retry_topic)
        if chunk is None:
            return
        # A broken record would make the columns of the whole pull unreadable: they are made of the messages then.
        if self._handover.with_records and not pulled.broken:
            chunk.records = pulled.result.records
        for message, _ in pulled.broken:
            self.failed(chunk, message, DEAD_LETTER_LEVEL)
        for message, error in pulled.undecodable:
            self._undecodable(chunk, message, error)
        # Last: from now on a taker may finish its messages.
        self._handover.put(chunk)

    def _undecodable(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, error: Exception) -> None:
        """Send it back with the reason: another member, of another version perhaps, can read it."""
        self._owner.count_failure(chunk.window.queue, True)
        if self._options.model is MessageModel.BROADCASTING:
            chunk.flags[message.queue_offset - chunk.base] = 1  # The log says so.
        else:
            self._send_back.begin_undecodable(chunk, message, error)

    def look(self, window: Window[ReceivedMessage]) -> None:
        """Hand out what was parked; any thread may append to it meanwhile."""
        with contextlib.suppress(IndexError):
            while True:
                self._handover.give_back(window.parked.popleft())

    def failed(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        """Any thread: a message failed; it is wanted again later, or is a dead letter (level -1)."""
        self._core.thread.post(self._owner.count_failure, chunk.window.queue, True)
        if self._options.model is MessageModel.BROADCASTING:
            # As with Java's clients: each member has to get it, and a retry would go to only one of them.
            log.warning("%s failed; a broadcast message is not sent again", message)
            chunk.flags[message.queue_offset - chunk.base] = 1
            return
        self._core.thread.post(self._send_back.begin, chunk, message, delay_level)

    async def drain(self) -> None:
        await self._send_back.drain()

    async def stopped(self) -> None:
        """Nothing is left to do."""


def take_in(
    window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage], retry_topic: str
) -> Chunk[ReceivedMessage] | None:
    """The messages of a pull as a chunk of `window`, which also has the flags of those that are broken; None: no messages.

    What comes from the group's retry topic is shown under the topic that it was first sent to.
    """
    everything = pulled.messages
    if pulled.broken or pulled.undecodable:
        unread = [message for message, _ in (*pulled.broken, *pulled.undecodable)]
        # By offset, because the window takes the last message for the one with the highest.
        everything = sorted([*everything, *unread], key=_by_offset)
    chunk = window.add(everything, pulled.result.next_offset, len(pulled.result.records))
    if chunk is None:
        return None
    chunk.messages = pulled.messages
    if window.queue.topic == retry_topic:
        for message in pulled.messages:
            message.topic = message.properties.get(props.RETRY_TOPIC, message.topic)
    for message in pulled.messages:
        message._chunk = chunk  # noqa: SLF001  a slot for us
    return chunk


def _by_offset(message: ReceivedMessage) -> int:
    return message.queue_offset
