"""Staged transactions as a test wants them: every request by itself, repeated where the test repeats it.

The calls are those of the client, each over a connection of its own; what becomes of errors is the test's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from metaq.client.conversation.call import Call
from metaq.client.conversation.sending.sending import Outgoing, Send
from metaq.client.conversation.staged.staging import Stage
from metaq.model import MessageQueue
from metaq.model.transactions.staging import Chunk, ManifestPart, PartSeal, chunk_crc, part_crc
from metaq.testing import EmbeddedBroker
from metaq.wire.record import encode_batch
from tests.support import exchange

Value = TypeVar("Value")
BORN_MS = 1_700_000_000_000


def ask(address: str, call: Call[Value]) -> Value:
    """What the broker at `host:port` answers. Raises BrokerError: refused. OSError, AssertionError: no answer came."""
    (answer,) = exchange(address, [call.request()])
    return call.outcome(answer, address)


def batch_of(bodies: Iterable[bytes], properties: bytes = b"") -> bytes:
    """The body of a chunk."""
    return encode_batch((0, body, properties) for body in bodies)


class PlannedPart(Struct, frozen=True):
    """A part that a test stages: the bodies of its messages, chunk by chunk."""

    broker: str
    part: str
    topic: str
    queue_id: int
    chunks: tuple[tuple[bytes, ...], ...]
    properties: bytes = b""
    """Of each message."""

    @property
    def bodies(self) -> list[bytes]:
        """As they are to be read from the queue."""
        return [body for chunk in self.chunks for body in chunk]

    @property
    def seal(self) -> PartSeal:
        crc = size = 0
        for chunk in self.chunks:
            body = batch_of(chunk, self.properties)
            crc, size = part_crc(crc, chunk_crc(body)), size + len(body)
        return PartSeal(len(self.chunks), sum(map(len, self.chunks)), size, crc)

    @property
    def manifest(self) -> ManifestPart:
        return ManifestPart(self.broker, self.part, self.topic, self.queue_id, self.seal)

    def section(self, number: int, *, seal: bool = False) -> Chunk:
        """A chunk of it; `seal`: with its end."""
        body = batch_of(self.chunks[number], self.properties)
        return Chunk(self.part, number, self.topic, self.queue_id, body, self.seal if seal else None)

    def sections(self) -> tuple[Chunk, ...]:
        """All of it, the end included."""
        last = len(self.chunks) - 1
        return tuple(self.section(number, seal=number == last) for number in range(last + 1))


def stage(transaction: str, parts: Sequence[PlannedPart], *, only: tuple[Chunk, ...] = (), **more: object) -> Stage:
    """Stage all of these parts, or only these chunks of them."""
    chunks = only or tuple(section for part in parts for section in part.sections())
    return Stage(transaction=transaction, chunks=chunks, born_ms=BORN_MS, **more)


def send_empty(broker: EmbeddedBroker, queue: MessageQueue) -> None:
    """A message without a body, as clients of other makes may send it: ours refuse, as Java's do, and brokers keep it."""
    ask(broker.broker, Send("foreign", Outgoing(queue.topic, b""), queue, BORN_MS))
