"""What becomes of pulled messages: into the queue's window, to whoever consumes, and where they go when that fails."""

from __future__ import annotations

import logging
from typing import Protocol

from metaq.client.consumer.handover import Handover
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.outcome import DEAD_LETTER_LEVEL
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.consumer.send_back import SendBack
from metaq.client.consumer.window import Chunk, Window
from metaq.client.core import ClientCore
from metaq.client.pulling import PulledMessages
from metaq.model import MessageModel
from metaq.model import properties as props

log = logging.getLogger("metaq.client")


class Delivery(Protocol):
    """How a member hands out messages. One for all its queues."""

    def deliver(self, window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage]) -> None:
        """In the loop: take in the answer to a pull that found something."""
        ...

    def failed(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        """Any thread: a message failed; it is wanted again later, or is a dead letter (level -1)."""
        ...

    async def drain(self) -> None:
        """The member leaves: wait a while for what is on its way."""
        ...


class ConcurrentDelivery:
    """Whole pulls at once, finished in any order; failed messages go back to the broker."""

    def __init__(
        self, core: ClientCore, group: str, retry_topic: str, options: GroupOptions, handover: Handover[ReceivedMessage]
    ) -> None:
        self._core, self._retry_topic, self._options, self._handover = core, retry_topic, options, handover
        self._send_back = SendBack(core, group, options.max_reconsume_times, handover, options.seconds)

    def deliver(self, window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage]) -> None:
        chunk = take_in(window, pulled, self._retry_topic)
        if chunk is None:
            return
        for message, _ in pulled.broken:
            self.failed(chunk, message, DEAD_LETTER_LEVEL)
        self._handover.put(chunk)

    def failed(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        if self._options.model is MessageModel.BROADCASTING:
            log.warning("%s failed; a broadcast message is not sent again", message)
            chunk.flags[message.queue_offset - chunk.base] = 1
            return
        self._core.thread.post(self._send_back.begin, chunk, message, delay_level)

    async def drain(self) -> None:
        await self._send_back.drain()


def take_in(
    window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage], retry_topic: str
) -> Chunk[ReceivedMessage] | None:
    """The messages of a pull as a chunk of `window`, which also has the flags of those that are broken; None: no messages.

    What comes from the group's retry topic is shown under the topic that it was first sent to.
    """
    everything = pulled.messages
    if pulled.broken:
        everything = sorted([*everything, *(message for message, _ in pulled.broken)], key=_by_offset)
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
