"""Samples of a queue's messages: where is looked, and how well the whole is known by it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.reading.pulling import Pull, PullResult, PullStatus
from metaq.client.conversation.reading.sizes import (
    PLACES,
    SAMPLE_BYTES,
    SAMPLE_MESSAGES,
    Sample,
    sample_sizes,
)
from metaq.model import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


def looked(sizes: list[int], start: int = 0, end: int | None = None, pulls_max: int = 16, first: int = 0, known=()):
    """The samples of a queue whose messages are so large, and where was looked. It keeps those from `first` on."""
    conversation = sample_sizes(
        QUEUE, start, len(sizes) if end is None else end, group="g", pulls_max=pulls_max, known=known
    )
    places, answer = [], None
    while True:
        try:
            pull = conversation.send(answer)
        except StopIteration as over:
            return over.value, places
        assert isinstance(pull, Pull)
        assert (pull.queue, pull.group, pull.count, pull.bytes_max) == (QUEUE, "g", SAMPLE_MESSAGES, SAMPLE_BYTES)
        places.append(pull.offset)
        stop = pull.offset
        while (
            stop < len(sizes)
            and stop - pull.offset < SAMPLE_MESSAGES
            and (stop == pull.offset or sum(sizes[pull.offset : stop + 1]) <= SAMPLE_BYTES)
        ):
            stop += 1
        if pull.offset < first or stop == pull.offset:
            answer = PullResult(PullStatus.OUT_OF_RANGE, b"", first, first, len(sizes))
        else:
            body = bytes(sum(sizes[pull.offset : stop]))
            answer = PullResult(PullStatus.FOUND, body, stop, first, len(sizes))


def test_a_steady_queue_is_looked_at_in_a_few_places():
    """At both ends and between, and nowhere twice."""
    sizes = [100] * 10_000
    samples, places = looked(sizes)
    assert (len(places), min(places), max(places)) == (PLACES, 0, 10_000 - SAMPLE_MESSAGES)
    assert samples == [Sample(at, at + SAMPLE_MESSAGES, 100 * SAMPLE_MESSAGES) for at in sorted(places)]
    again, places = looked(sizes, known=samples)
    assert (again, places) == (samples, [])


@pytest.mark.parametrize("border", [1, 3000, 5000, 9111])
@pytest.mark.parametrize("pair", [(100, 10_000), (10_000, 100)])
def test_a_change_of_sizes_is_found(border, pair):
    """Most of the pulls go there: what is in doubt at the end is little of the whole."""
    sizes = [pair[0]] * border + [pair[1]] * (10_000 - border)
    samples, places = looked(sizes)
    assert len(places) <= 16
    guessed = sum((one.mean + other.mean) / 2 * (other.start - one.start) for one, other in itertools.pairwise(samples))
    assert guessed == pytest.approx(sum(sizes), rel=0.1)


def test_messages_that_have_left_the_log_are_no_samples():
    """And a queue of which nothing can be read has none."""
    samples, _ = looked([100] * 1000, first=600)
    assert samples
    assert all(sample.start >= 600 for sample in samples)
    assert looked([100] * 1000, first=1000)[0] == []


@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=300), st.data())
def test_samples_are_true_and_few(sizes, data):
    """Of whatever part: each is the size of its messages, and begins in the part."""
    start = data.draw(st.integers(0, len(sizes)))
    end = data.draw(st.integers(start, len(sizes)))
    pulls_max = data.draw(st.integers(0, 20))
    samples, places = looked(sizes, start, end, pulls_max)
    assert len(places) <= pulls_max
    assert len(set(places)) == len(places)
    for sample in samples:
        assert start <= sample.start < end
        assert sample.size == sum(sizes[sample.start : sample.stop])
    assert all(one.start < other.start for one, other in itertools.pairwise(samples))
    assert bool(samples) == (start < end and pulls_max > 0)
