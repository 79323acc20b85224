"""Batches under way and message ids."""

from __future__ import annotations

import array
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import LocalProtocolError
from metaq.wire.record import decode_batch, encode_batch
from tests.wire.hot.support import FALLBACK, NATIVE, both, needs_native

PREFIX = b"7F00000128E55FFD2B27676F493F"


@both
def test_add_message(hot):
    """The usual properties are written without a dict, the id last; size and count say what take() gives."""
    batch = hot.Batch(PREFIX)
    assert [batch.add_message(b"m1", b"TagA", b"k1 k2"), batch.add_message(bytearray(b"m2"), None, None)] == [0, 1]
    size = batch.size
    data = batch.take()
    assert (len(data), batch.count, batch.size) == (size, 2, size)
    assert decode_batch(data) == [
        (0, b"m1", b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02WAIT\x01true\x02UNIQ_KEY\x01" + PREFIX + b"0000"),
        (0, b"m2", b"WAIT\x01true\x02UNIQ_KEY\x01" + PREFIX + b"0001"),
    ]


@both
def test_add(hot):
    """Properties of the caller's own stay as they are, the id behind them if the batch gives ids."""
    plain, naming = hot.Batch(), hot.Batch(PREFIX)
    for properties in (b"", b"a\x01b", b"a\x01b\x02"):
        plain.add(-7, memoryview(b"m"), properties)
        naming.add(-7, b"m", properties)
    assert plain.take() == encode_batch([(-7, b"m", b""), (-7, b"m", b"a\x01b"), (-7, b"m", b"a\x01b\x02")])
    unique = b"UNIQ_KEY\x01" + PREFIX
    assert [text for _, _, text in decode_batch(naming.take())] == [
        unique + b"0000", b"a\x01b\x02" + unique + b"0001", b"a\x01b\x02" + unique + b"0002",
    ]  # fmt: skip


@both
def test_what_a_batch_refuses(hot):
    """-1 for what another batch can take, an error for what none can."""
    batch = hot.Batch(b"", 100)
    assert batch.add(0, b"", b"") == -1
    assert batch.add(0, b"x" * 79, b"") == -1
    assert batch.add(0, b"x" * 78, b"") == 0
    assert (batch.add(0, b"x", b""), batch.count, batch.size) == (-1, 1, 100)
    assert len(batch.take()) == 100
    assert (batch.add(0, b"x", b""), batch.add_message(b"x", None, None), batch.take()) == (-1, -1, b"")
    with pytest.raises(TypeError, match="encode it"):
        hot.Batch().add(0, "text", b"")
    for wrong in (5, True, [1, 2, 3], array.array("I", [1]), memoryview(b"abcd")[::2], None):
        with pytest.raises(TypeError, match="body is"):
            hot.Batch().add(0, wrong, b"")
        with pytest.raises(TypeError, match="body is"):
            hot.Batch().add_message(wrong, None, None)
    with pytest.raises(LocalProtocolError, match="32767"):
        hot.Batch().add(0, b"x", bytes(32768))
    with pytest.raises(LocalProtocolError, match="32767"):
        hot.Batch(PREFIX).add(0, b"x", bytes(32767))


@both
def test_a_batch_counts_to_65536(hot):
    """Four hex digits name an entry, so there are no more."""
    batch = hot.Batch(PREFIX, 1 << 23)
    for _ in range(65536):
        batch.add_message(b"x", None, None)
    assert (batch.count, batch.add_message(b"x", None, None)) == (65536, -1)
    assert batch.take().endswith(PREFIX + b"FFFF")


@both
def test_threads_share_a_batch(hot):
    """Each add of each thread gets its own index."""
    batch, got = hot.Batch(PREFIX), [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(batch.add_message(b"m", None, None) for _ in range(500)))
        for mine in got
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(index for mine in got for index in mine) == list(range(2000))
    assert len(decode_batch(batch.take())) == 2000


@needs_native
@given(entries=st.lists(st.tuples(st.binary(max_size=30), st.none() | st.binary(max_size=5), st.none() | st.binary(max_size=5), st.binary(max_size=9))), prefix=st.sampled_from([b"", PREFIX]), room=st.integers(0, 500))  # fmt: skip
def test_fallback_and_native_batch_alike(entries, prefix, room):
    """Random entries give the same indices and bytes."""
    results = []
    for hot in (NATIVE, FALLBACK):
        batch = hot.Batch(prefix, room)
        indices = [(batch.add_message(body, tag, keys), batch.add(3, body, text)) for body, tag, keys, text in entries]
        results.append((indices, batch.count, batch.size, batch.take()))
    assert results[0] == results[1]
