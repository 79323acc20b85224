"""Several messages by one HTTP request, all or none: a staged transaction that begins and ends with the request.

What it is, and what it promises, is docs/atomic.md's; this broker is its coordinator and its only participant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, structs

from metaq.broker.broker import Broker
from metaq.broker.requests import Apply, Decide, Stage
from metaq.errors import BadRequest, LocalProtocolError, MetaqError, Reason, Refused
from metaq.model.access import Caller
from metaq.model.message_ids import IdPrefixes
from metaq.model.transactions.staging import (
    CHUNK_BYTES_MAX,
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    Phase,
    TransactionDecision,
    chunk_crc,
    part_crc,
    transaction_id,
)
from metaq.servers.http.answers import Turns
from metaq.servers.http.requests import when_ready
from metaq.wire import hot
from metaq.wire.http.message import NewMessage, StagedMessage

CHUNK_BYTES: Final = 256 * 1024
"""A chunk is full with so many bytes; one message that is larger has a chunk to itself."""
STAGE_BYTES: Final = CHUNK_BYTES_MAX
"""Bytes that are staged between two turns of the loop, and one chunk at least."""
EXPIRE_SECONDS: Final = 60
"""Age at which the broker drops what a request has left undecided: its process was killed, or its disk was full."""
APPLY_TURNS_MAX: Final = 10_000
"""Turns that an answer waits for large transactions to be in their queues. The broker goes on by itself."""
_ANY_SIZE: Final = 0x7FFFFFFF
NAME: Final = "http-"
"""Beginning of the ids of these transactions."""


class Together(Struct, frozen=True):
    """What became of them. `messages`: in the order of the request; empty if an earlier request of this name has stored them."""

    transaction: str
    delivered: bool
    messages: list[StagedMessage]
    repeated: bool


class _Part:
    """Messages for one queue, as chunks."""

    def __init__(self, name: str, topic: str, queue_id: int) -> None:
        self.name, self.topic, self.queue_id = name, topic, queue_id
        self.chunks = list[Chunk]()
        self._batch: hot.Batch | None = None
        self._prefix = ""
        self._rows = self._bytes = self._crc = 0

    def add(self, message: NewMessage, prefixes: IdPrefixes) -> str:
        """Append a message. Returns its id."""
        one, properties = message.message, message.message.property_text(None).encode()
        index = self._batch.add(one.flag, one.body, properties) if self._batch is not None else -1
        if index < 0:
            self._close()
            prefix = prefixes.next()
            self._prefix = prefix.decode()
            self._batch = hot.Batch(prefix, CHUNK_BYTES)
            index = self._batch.add(one.flag, one.body, properties)
            if index < 0:
                self._batch = hot.Batch(prefix, _ANY_SIZE)
                index = self._batch.add(one.flag, one.body, properties)
                message_id = f"{self._prefix}{index:04X}"
                self._close()
                return message_id
        return f"{self._prefix}{index:04X}"

    def _close(self) -> None:
        if self._batch is None:
            return
        rows, body = self._batch.count, self._batch.take()
        self.chunks.append(Chunk(self.name, len(self.chunks), self.topic, self.queue_id, body))
        self._rows += rows
        self._bytes += len(body)
        self._crc = part_crc(self._crc, chunk_crc(body))
        self._batch = None

    def seal(self, broker: str) -> ManifestPart:
        """End it: its last chunk has the seal."""
        self._close()
        seal = PartSeal(len(self.chunks), self._rows, self._bytes, self._crc)
        self.chunks[-1] = structs.replace(self.chunks[-1], seal=seal)
        return ManifestPart(broker, self.name, self.topic, self.queue_id, seal)


class AtomicSends:
    """Sends of several messages together. Args: broker: stores them. address: this process's, for the ids of messages."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker, self._prefixes = broker, IdPrefixes(address, broker.clock)
        self._name = broker.environment.name

    async def send(self, messages: Sequence[NewMessage], born_host: bytes, caller: Caller, name: str = "") -> Together:
        """Store messages together. Raises Refused, BadRequest: none of them is stored.

        Args: name: of the request, with which it may be repeated; "": it has none.
        """
        transaction = transaction_id(NAME + (name or self._broker.clock.token()), self._name)
        turns, parts, told = Turns(), dict[tuple[str, int], _Part](), list[StagedMessage]()
        chosen = dict[str, int]()
        for new in messages:
            if new.message.delay_level:
                raise BadRequest("messages that are stored together have no delay: send this one by itself")
            topic = new.message.topic
            queue = new.queue if new.queue >= 0 else chosen.setdefault(topic, self._any_queue(topic))
            part = parts.get((topic, queue))
            if part is None:
                part = parts[topic, queue] = _Part(f"p{len(parts)}", topic, queue)
            try:
                told.append(StagedMessage(topic, self._name, queue, part.add(new, self._prefixes)))
            except LocalProtocolError as error:
                raise Refused(Reason.ILLEGAL_MESSAGE, f"a message for topic {topic}: {error}") from None
            await turns.next()
        manifest = tuple(part.seal(self._name) for part in parts.values())
        decide = Decide(transaction=transaction, outcome=DecisionOutcome.COMMIT, parts=manifest)
        chunks = [chunk for part in parts.values() for chunk in part.chunks]
        decision, first, remaining = await self._stage(transaction, chunks, decide, born_host, caller)
        if decision.outcome is not DecisionOutcome.COMMIT:
            raise Refused(
                Reason.STALE, f"the transaction {transaction} was rolled back: none of its messages is stored"
            )
        delivered = not remaining or await self._apply(transaction, caller)
        return Together(transaction, delivered, told if first else [], not first)

    def _any_queue(self, topic: str) -> int:
        """Return a queue for all messages of the request that name none: they stay in their order."""
        config = self._broker.topics.get(topic)
        return self._broker.clock.random_below(config.write_queues) if config and config.write_queues > 1 else 0

    async def _stage(
        self, transaction: str, chunks: Sequence[Chunk], decide: Decide, born_host: bytes, caller: Caller
    ) -> tuple[TransactionDecision, bool, int]:
        """Stage and commit. Returns the decision, whether this request has made it, and the chunks that are not applied."""
        staging, turns, born_ms = self._broker.staging, Turns(), self._broker.clock.now_ms()
        runs, fresh = list(_runs(chunks)), staging.state(transaction).phase is Phase.UNKNOWN
        try:
            for number, run in enumerate(runs, 1):
                stage = Stage(
                    transaction=transaction, chunks=run, born_ms=born_ms, born_host=born_host, lifetime=PartLifetime.AGE,
                    seconds=EXPIRE_SECONDS, decide=decide if number == len(runs) else None,
                )  # fmt: skip
                staged = await when_ready(lambda stage=stage: staging.stage(stage, caller))  # type: ignore[misc]
                if staged.decision is not None:
                    return staged.decision, staged.first, staged.remaining
                await turns.next()
        except MetaqError:
            if not fresh:  # another request of this name is under way: it is not for this one to end it
                raise
            # What is staged is dropped now, not when it expires. It may be committed: then that is the answer.
            with contextlib.suppress(Refused):
                decided = staging.settle(transaction)
                if decided.decision.outcome is DecisionOutcome.COMMIT:
                    return decided.decision, decided.first, decided.remaining
            raise
        raise AssertionError("the last run decides")

    async def _apply(self, transaction: str, caller: Caller) -> bool:
        """Have the broker put the messages into their queues. Returns whether all are there."""
        turns, apply = Turns(), Apply(transaction=transaction)
        for _ in range(APPLY_TURNS_MAX):
            with contextlib.suppress(Refused):
                if not self._broker.staging.apply(apply, caller).remaining:
                    return True
            await turns.next()
        return False


def _runs(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, ...]]:
    run, size = list[Chunk](), 0
    for chunk in chunks:
        if run and size + len(chunk.body) > STAGE_BYTES:
            yield tuple(run)
            run, size = [], 0
        run.append(chunk)
        size += len(chunk.body)
    yield tuple(run)
