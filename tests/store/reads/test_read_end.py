"""Pulls of those who may not read all of the log yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.store.message_store import MessageStore
from metaq.store.reads.pull import READ_ALL, ReadStatus
from metaq.wire import hot
from tests.effort import repeats
from tests.store.support import answer, bodies_of, open_store, put

MESSAGES = 250
"""In three files of the queue, and several of the log."""


@pytest.fixture(scope="module", params=[{}, {"hot_bytes": 0}, {"restarted": True}], ids=["hot", "cold", "restarted"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Messages 0 to 249 of queue 0, with those of another queue between them."""
    root: Path = tmp_path_factory.mktemp("store")
    options = dict(request.param)
    restarted = options.pop("restarted", False)
    with open_store(root, **options) as store:
        for number in range(MESSAGES):
            put(store, "T", number % 3 % 2, bytes(number % 7 * 100))
            put(store, "T", 0, b"%d" % number, tag="ab"[number % 2])
        if not restarted:
            yield store
    if restarted:
        with open_store(root) as store:
            yield store


def ends_of(store: MessageStore) -> list[int]:
    queue = store.reader.queue("T", 0)
    return [unit.log_end for unit in queue.units(0, queue.max_offset)]


@settings(max_examples=repeats(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_readable_is_what_ends_at_or_before_the_limit(store, data):
    """Exactly these, whatever the filter, and the queue ends behind the last one; nobody is sent anywhere else in it."""
    ends, queue = ends_of(store), store.reader.queue("T", 0)
    read_end = data.draw(st.integers(0, ends[-1] + 1) | st.sampled_from(ends), label="read_end")
    offset = data.draw(st.integers(0, len(ends)), label="offset")
    tag = data.draw(st.sampled_from([None, b"a"]), label="tag")
    wanted = None if tag is None else hot.Filter({hot.java_hash(tag)})
    readable = sum(end <= read_end for end in ends)
    assert queue.readable_end(read_end) == readable
    found, place = list[bytes](), offset
    while True:
        pulled = answer(store.reader.pull("T", 0, place, 32, None, wanted, read_end=read_end))
        assert (pulled.min_offset, pulled.max_offset) == (0, readable)
        if pulled.status is ReadStatus.OFFSET_OVERFLOW_ONE:
            break
        assert pulled.status in {ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE}
        found += bodies_of(pulled.body)
        place = pulled.next_offset
    assert (place, pulled.next_offset) == (max(offset, readable),) * 2
    expected, place = list[bytes](), offset
    while place < readable:
        pulled = answer(store.reader.pull("T", 0, place, min(32, readable - place), None, None))
        expected += bodies_of(pulled.body)
        place = pulled.next_offset
    if tag is not None:
        expected = [body for body in expected if body.isdigit() and int(body) % 2 == 0]
    assert found == expected


def test_the_statuses_around_the_end(store):
    """Behind the real end is out of range, and goes on where the queue ends for this client; between the two is not."""
    ends = ends_of(store)
    read_end, end = ends[9], len(ends)

    def ask(offset: int, *, topic: str = "T") -> tuple[ReadStatus, int, int]:
        pulled = answer(store.reader.pull(topic, 0, offset, 32, read_end=read_end))
        return pulled.status, pulled.next_offset, pulled.max_offset

    assert ask(9) == (ReadStatus.FOUND, 10, 10)
    for offset in (10, 11, end - 1, end):
        assert ask(offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, offset, 10)
    assert ask(end + 1) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 10, 10)
    assert ask(0, topic="nowhere") == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0)
    nothing = store.reader.pull("T", 0, 0, 32, read_end=0)
    assert (nothing.status, nothing.max_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 0)
    assert store.reader.pull("T", 0, end, 32, read_end=READ_ALL).max_offset == end


def test_a_limit_below_what_retention_has_left_leaves_an_empty_queue(tmp_path):
    """It begins and ends at its min offset."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, *[b"%d" % number for number in range(5)])
        store.reader.queue("T", 0).min_offset = 2
        pulled = store.reader.pull("T", 0, 2, 32, read_end=0)
        assert (pulled.status, pulled.min_offset, pulled.max_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 2, 2)
        assert store.reader.pull("T", 0, 1, 32, read_end=0).status is ReadStatus.OFFSET_TOO_SMALL
