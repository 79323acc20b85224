"""Messages of a transaction become chunks: nothing is lost, doubled or turned round, whenever chunks are taken."""

from __future__ import annotations

import array
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.client.conversation.staged import parts as parts_module
from metaq.client.conversation.staged.parts import CHUNK_BYTES, REQUEST_BYTES, Parts, is_large
from metaq.errors import InvalidMessage, LocalProtocolError, NotSupported
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.transactions.staging import CHUNK_BYTES_MAX, PartSeal, chunk_crc, part_crc
from metaq.wire.record import decode_batch
from tests.effort import repeats
from tests.wire.hot.support import FALLBACK, NATIVE, both, needs_native

QUEUES = [MessageQueue(topic, broker, queue) for topic in ("orders", "stock") for broker in "ab" for queue in range(2)]


def prefixes():
    count = itertools.count()
    return lambda: b"%028X" % next(count)


def seal_of(chunks) -> PartSeal:
    crc = rows = size = 0
    for chunk in chunks:
        crc = part_crc(crc, chunk_crc(chunk.body))
        rows += len(decode_batch(chunk.body))
        size += len(chunk.body)
    return PartSeal(len(chunks), rows, size, crc)


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


def entry_bytes(body_bytes: int, text_bytes: int = 0) -> int:
    """Of a message in a chunk, with its id."""
    return 22 + body_bytes + text_bytes + (1 if text_bytes else 0) + len(b"UNIQ_KEY\1") + 32


LARGEST_SHARED = CHUNK_BYTES_MAX - entry_bytes(0)


@both
@pytest.mark.parametrize("way", ["add", "add_rows"])
@pytest.mark.parametrize("size", [LARGEST_SHARED, LARGEST_SHARED + 1, BODY_BYTES_MAX])
def test_a_message_above_a_mebibyte_has_a_chunk_to_itself(hot, monkeypatch, way, size):
    """Up to what its broker takes; others share chunks, which stay within the limit, and the order is kept."""
    monkeypatch.setattr(parts_module, "hot", hot)
    bodies = [b"a", b"x" * size, b"b", b"c"]
    parts = Parts(prefixes())
    put(parts, way, bodies, hot)
    assert parts.rows == 4
    chunks = [chunk for request in parts.rest("a") for chunk in request]
    assert [body for chunk in chunks for _, body, _ in decode_batch(chunk.body)] == bodies
    alone = size > LARGEST_SHARED
    assert [len(decode_batch(chunk.body)) for chunk in chunks] == [1, 1, 2]
    assert [len(chunk.body) > CHUNK_BYTES_MAX for chunk in chunks] == [False, alone, False]
    assert len(chunks[1].body) == entry_bytes(size)
    assert (parts.waits, chunks[-1].seal, parts.unsealed("a")) == (0, seal_of(chunks), ())


@both
@pytest.mark.parametrize("way", ["add", "add_rows"])
def test_a_message_that_is_larger_than_its_broker_takes_is_refused_with_size_and_limit(hot, monkeypatch, way):
    """And leaves what there is as it was."""
    monkeypatch.setattr(parts_module, "hot", hot)
    parts = Parts(prefixes())
    with pytest.raises(
        InvalidMessage, match=r"orders@a:0 has a body of 4194305 bytes, the limit is 4194304: raise max"
    ):
        put(parts, way, [b"x" * (BODY_BYTES_MAX + 1)], hot)
    parts = Parts(prefixes(), body_bytes_max={"a": CHUNK_BYTES_MAX}.__getitem__)
    put(parts, way, [b"y", b"x" * CHUNK_BYTES_MAX], hot)
    with pytest.raises(InvalidMessage, match="has a body of 1048577 bytes, the limit is 1048576"):
        put(parts, way, [b"x" * (CHUNK_BYTES_MAX + 1)], hot)
    put(parts, way, [b"z"], hot)
    chunks = [chunk for request in parts.rest("a") for chunk in request]
    assert [[len(body) for _, body, _ in decode_batch(chunk.body)] for chunk in chunks] == [[1], [CHUNK_BYTES_MAX], [1]]


def test_a_broker_that_is_too_old_for_large_chunks_is_asked_only_about_large_messages():
    """It is told apart by whoever asks it, and takes everything else."""
    asked = []

    def limit(broker):
        asked.append(broker)
        raise NotSupported("older")

    parts = Parts(prefixes(), body_bytes_max=limit)
    parts.add(QUEUES[0], 0, b"x" * LARGEST_SHARED, b"")
    assert not asked
    assert not is_large(b"x" * LARGEST_SHARED, b"")
    assert is_large(b"x" * (LARGEST_SHARED + 1), b"")
    assert is_large(b"x" * (LARGEST_SHARED - 1), b"p")
    assert not is_large(b"x" * (LARGEST_SHARED - 2), b"\2")
    for way in ("add", "add_rows"):
        with pytest.raises(NotSupported):
            put(parts, way, [b"x" * (LARGEST_SHARED + 1)], parts_module.hot)
    assert asked == ["a", "a"]
    assert parts.rows == 1


@both
@pytest.mark.parametrize("way", ["add", "add_rows"])
def test_empty_bodies_are_taken_where_they_are_wanted(hot, monkeypatch, way):
    """Of messages that somebody else has sent; a producer's are refused."""
    monkeypatch.setattr(parts_module, "hot", hot)
    with pytest.raises(InvalidMessage, match="orders@a:0 has an empty body"):
        put(Parts(prefixes()), way, [b""], hot)
    parts = Parts(prefixes(), empty=True)
    put(parts, way, [b"", b"x", b""], hot)
    [[chunk]] = parts.rest("a")
    assert [body for _, body, _ in decode_batch(chunk.body)] == [b"", b"x", b""]


def test_what_fits_no_format_is_refused_and_leaves_no_part():
    parts = Parts(prefixes())
    for size in (0, BODY_BYTES_MAX + 1):
        with pytest.raises(InvalidMessage):
            parts.add(QUEUES[0], 0, b"x" * size, b"")
    with pytest.raises(LocalProtocolError, match="40042 bytes of properties"):
        parts.add(QUEUES[0], 0, b"x", b"p" * 40_000)
    with pytest.raises(LocalProtocolError, match="40042 bytes of properties"):
        parts.add(QUEUES[0], 0, b"x" * CHUNK_BYTES_MAX, b"p" * 40_000)
    assert (parts.brokers, parts.manifest(), parts.rows, parts.waits) == ([], (), 0, 0)
    for body in (b"x", b"x" * CHUNK_BYTES_MAX):
        with pytest.raises(InvalidMessage, match="has 40000 bytes of properties, with its id it may have 32767"):
            put(parts, "add_rows", [body], parts_module.hot, text=b"p" * 40_000)


@needs_native
@settings(max_examples=repeats(100))
@given(st.lists(st.tuples(st.integers(0, 700), st.sampled_from([b"", b"K\1v", b"K\1v\2"])), max_size=20), st.booleans())
def test_fallback_and_native_make_the_same_chunks(messages, empty):
    """Messages of all sizes around both limits, in rows and one by one."""
    bodies, texts = [b"x" * size for size, _ in messages], [text for _, text in messages]
    outcomes = []
    for hot in (NATIVE, FALLBACK):
        for way in ("add", "add_rows"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(parts_module, "hot", hot)
                patch.setattr(parts_module, "CHUNK_BYTES_MAX", 400)
                parts = Parts(lambda: b"%028X" % 7, chunk_bytes=200, body_bytes_max=lambda _: 600, empty=empty)
                refusal = ""
                try:
                    put(parts, way, bodies, hot, texts=texts)
                except InvalidMessage as error:
                    refusal = str(error).partition("message for")[2]
                outcomes.append((parts.rest("a"), parts.manifest() if parts.rows else (), parts.rows, refusal))
    assert outcomes[0][3] == outcomes[1][3]
    assert outcomes[0] == outcomes[2]
    assert outcomes[1] == outcomes[3]
    chunks = [chunk for request in outcomes[0][0] for chunk in request]
    for chunk in chunks:
        assert len(chunk.body) <= 400 or len(decode_batch(chunk.body)) == 1


def put(parts: Parts, way: str, bodies, hot, text: bytes = b"", texts=None) -> None:
    """All into the first queue, one by one or as rows."""
    texts = texts or [text] * len(bodies)
    if way == "add":
        for body, one in zip(bodies, texts, strict=True):
            parts.add(QUEUES[0], 0, body, one)
    else:
        columns = hot.RowColumns(len(bodies), column(bodies), column(texts))
        parts.add_rows(QUEUES[0], columns, memoryview(array.array("i", range(len(bodies)))))


def column(values):
    offsets = array.array("i", itertools.accumulate(map(len, values), initial=0))
    return offsets.tobytes(), b"".join(values)
