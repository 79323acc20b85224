"""Messages of a transaction become chunks: nothing is lost, doubled or turned round, whenever chunks are taken."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.parts import CHUNK_BYTES, REQUEST_BYTES, Parts
from metaq.errors import InvalidMessage, LocalProtocolError
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.staging import CHUNK_BYTES_MAX, Seal, chunk_crc, part_crc
from metaq.wire.record import decode_batch

QUEUES = [MessageQueue(topic, broker, queue) for topic in ("orders", "stock") for broker in "ab" for queue in range(2)]


def prefixes():
    count = itertools.count()
    return lambda: b"%028X" % next(count)


def seal_of(chunks) -> Seal:
    crc = rows = size = 0
    for chunk in chunks:
        crc = part_crc(crc, chunk_crc(chunk.body))
        rows += len(decode_batch(chunk.body))
        size += len(chunk.body)
    return Seal(len(chunks), rows, size, crc)


@given(
    st.lists(
        st.tuples(st.sampled_from(QUEUES), st.binary(min_size=1, max_size=120)) | st.sampled_from("ab"), max_size=60
    )
)
def test_every_message_is_in_one_chunk_and_seals_say_what_was_taken(steps):
    """Whatever is sent, and whenever a request's worth is taken: per queue the same messages in the same order."""
    parts, sent, taken = Parts(prefixes(), chunk_bytes=300), {}, []
    for step in steps:
        if isinstance(step, str):
            taken += [(step, chunk) for chunk in parts.take(step)]
            continue
        queue, body = step
        message_id = parts.add(queue, 7, body, b"KEYS\1k")
        sent.setdefault(queue, []).append((body, message_id))
    ended = {}
    for broker in parts.brokers:
        for request in parts.rest(broker):
            taken += [(broker, chunk) for chunk in request]
        ended[broker] = {one.part for one in parts.unsealed(broker)}
    assert (parts.waits, parts.rows) == (0, sum(map(len, sent.values())))
    assert set(parts.brokers) == {queue.broker for queue in sent}
    by_part = {}
    for broker, chunk in taken:
        by_part.setdefault((broker, chunk.part, chunk.topic, chunk.queue_id), []).append(chunk)
    got = {}
    for (broker, _, topic, queue_id), chunks in by_part.items():
        assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
        assert all(len(chunk.body) <= 300 for chunk in chunks)
        entries = [entry for chunk in chunks for entry in decode_batch(chunk.body)]
        assert {flag for flag, _, _ in entries} == {7}
        read = [(body, props.parse(text.decode())) for _, body, text in entries]
        got[MessageQueue(topic, broker, queue_id)] = [(body, found["UNIQ_KEY"]) for body, found in read]
        assert {found["KEYS"] for _, found in read} == {"k"}
    assert got == sent
    manifest = {(one.broker, one.part, one.topic, one.queue_id): one.seal for one in parts.manifest()}
    assert manifest == {key: seal_of(chunks) for key, chunks in by_part.items()}
    for key, chunks in by_part.items():
        broker, part, _, _ = key
        sealed = chunks[-1].seal
        assert all(chunk.seal is None for chunk in chunks[:-1])
        assert (sealed is None) == (part in ended[broker])
        assert sealed in {None, manifest[key]}


def test_ids_are_unique_and_all_messages_of_a_queue_are_one_part():
    parts = Parts(prefixes(), chunk_bytes=200)
    ids = [parts.add(QUEUES[number % 2], 0, b"x" * 50, b"") for number in range(20)]
    assert len(set(ids)) == 20
    assert [(one.topic, one.queue_id, one.part) for one in parts.manifest()] == [
        ("orders", 0, "p0"),
        ("orders", 1, "p1"),
    ]


def test_a_request_carries_a_megabyte_and_the_fullest_parts_first():
    """So that what was gathered for many queues does not go out in tiny chunks."""
    parts = Parts(prefixes())
    body = b"x" * 100_000
    for queue, count in zip(QUEUES[:2], (3, 9), strict=True):
        for _ in range(count):
            parts.add(queue, 0, body, b"")
    assert parts.fullest() == "a"
    chunks = parts.take("a")
    assert [(chunk.queue_id, len(decode_batch(chunk.body)), chunk.seal) for chunk in chunks] == [
        (1, count, None) for count in (2, 2, 2, 2, 1)
    ]
    assert parts.waits == 3 * (22 + 100_000 + len(b"UNIQ_KEY\1") + 32)
    [rest] = parts.rest("a")
    assert [(chunk.queue_id, chunk.seal and chunk.seal.rows) for chunk in rest] == [(0, None), (0, 3)]
    assert [one.part for one in parts.unsealed("a")] == ["p1"]
    assert parts.rest("b") == ()


def test_a_large_message_makes_a_large_chunk():
    parts = Parts(prefixes())
    for size in (10, CHUNK_BYTES * 2, 10):
        parts.add(QUEUES[0], 0, b"x" * size, b"")
    [chunks] = parts.rest("a")
    assert [len(decode_batch(chunk.body)) for chunk in chunks] == [1, 2]
    assert chunks[-1].seal.rows == 3


def test_many_small_parts_share_a_request():
    """And what is too much for one goes on in the next."""
    parts = Parts(prefixes())
    queues = [MessageQueue("orders", "a", number) for number in range(1000)]
    for queue in queues:
        parts.add(queue, 0, b"x" * 2000, b"")
    requests = parts.rest("a")
    assert all(sum(len(chunk.body) for chunk in request) <= REQUEST_BYTES for request in requests)
    assert [len(request) for request in requests] == [508, 492]
    assert parts.unsealed("a") == ()


@pytest.mark.parametrize("size", [0, CHUNK_BYTES_MAX])
def test_what_fits_no_chunk_is_refused_and_leaves_no_part(size):
    parts = Parts(prefixes())
    with pytest.raises(InvalidMessage, match=f"a message of {size} bytes for orders@a:0 cannot be part of an atomic"):
        parts.add(QUEUES[0], 0, b"x" * size, b"")
    with pytest.raises(LocalProtocolError, match="40042 bytes of properties"):
        parts.add(QUEUES[0], 0, b"x", b"p" * 40_000)
    assert (parts.brokers, parts.manifest(), parts.rows, parts.waits) == ([], (), 0, 0)
