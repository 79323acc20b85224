"""What tests of staged transactions have in common: requests in few words, and what consumers see."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from metaq.broker.broker import Broker
from metaq.broker.requests import Decide, SealPart, Send, Stage
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.transactions.staging import Chunk, Decided, DecisionOutcome, ManifestPart, PartSeal, Staged
from metaq.wire.record import decode_record, encode_batch
from tests.broker.support import BORN_HOST

SOMEBODY = Caller("127.0.0.1", loopback=True)
T = "t-1@broker-a"


def batch(*bodies: bytes, properties: bytes = b"TAGS\x01paid\x02KEYS\x01k1") -> bytes:
    return encode_batch([(7, body, properties) for body in bodies])


def seal_of(*bodies: bytes, rows: int) -> PartSeal:
    """Of a part with these chunks; the CRC is made as docs/formats/staging.md says."""
    crcs = b"".join((zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big") for body in bodies)
    return PartSeal(len(bodies), rows, sum(map(len, bodies)), zlib.crc32(crcs))


def whole_part(
    part: str, topic: str, queue_id: int, *bodies: bytes, broker: str = "broker-a"
) -> tuple[Chunk, ManifestPart]:
    """A part of one chunk with these messages, sealed, and what a manifest says of it."""
    data = batch(*bodies)
    seal = seal_of(data, rows=len(bodies))
    return (
        Chunk(part=part, number=0, topic=topic, queue_id=queue_id, body=data, seal=seal),
        ManifestPart(broker, part, topic, queue_id, seal),
    )


def stage(
    broker: Broker, *chunks: Chunk, transaction: str = T, who: Caller | None = None, channel=None, **more
) -> Staged:
    """Stage chunks. `who`: by default the channel's caller."""
    who = who or (SOMEBODY if channel is None else channel.caller)
    request = Stage(transaction=transaction, chunks=chunks, born_ms=broker.clock.now_ms(), born_host=BORN_HOST, **more)
    return broker.staging.stage(request, who, channel)


def seal(broker: Broker, part: str, what: PartSeal, transaction: str = T) -> None:
    broker.staging.seal(SealPart(transaction=transaction, part=part, seal=what), SOMEBODY)


def decide(
    broker: Broker, outcome: DecisionOutcome, parts=None, transaction: str = T, who: Caller = SOMEBODY, **more
) -> Decided:
    parts = None if parts is None else tuple(parts)
    return broker.staging.decide(Decide(transaction=transaction, outcome=outcome, parts=parts, **more), who)


def commit(broker: Broker, *parts: ManifestPart, transaction: str = T, **more) -> Decided:
    return decide(broker, DecisionOutcome.COMMIT, parts, transaction, **more)


def rollback(broker: Broker, transaction: str = T) -> Decided:
    return decide(broker, DecisionOutcome.ROLLBACK, None, transaction)


def refused(reason: Reason, act: Callable[..., object], *args: object, **more: object) -> str:
    """What the refusal says."""
    with pytest.raises(Refused) as error:
        act(*args, **more)
    assert error.value.reason is reason, error.value
    return str(error.value.text)


def run_steps(broker: Broker) -> None:
    """Go on until nothing is left to do."""
    for _ in range(10_000):
        if broker.staging.step() > 0:
            return
    raise AssertionError("it does not come to an end")


def let_files_go(broker: Broker, clock: FakeClock) -> None:
    """Time passes and messages come until nothing of what was there is in the log's first file; only what is owed stays."""
    end = broker.store.log.end
    while broker.store.log.min < end:
        for _ in range(8):
            send = Send(topic="fill", queue_id=0, body=b"x" * 15_000, born_ms=clock.now_ms(), born_host=BORN_HOST)
            broker.sends.send(send)
        clock.advance(2 * 3600)
        for _ in range(20):
            broker.store.keeper.retain(clock.now_ms(), at_once=True)
            broker.tick()
            run_steps(broker)
            broker.store.flusher.flush()
        assert broker.store.log.end < 100 * 64 * 1024, "the files do not go"


def stored(broker: Broker, topic: str, queue_id: int):
    """The messages of a queue as consumers get them."""
    queue = broker.store.reader.existing_queue(topic, queue_id)
    if queue is None:
        return []
    return [
        decode_record(broker.store.reader.record_at(unit.log_offset)) for unit in queue.units(queue.min_offset, 100_000)
    ]


def bodies(broker: Broker, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in stored(broker, topic, queue_id)]
