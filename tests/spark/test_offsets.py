"""Positions, their JSON, and how ranges are cut and limited."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue
from metaq.spark import offsets
from metaq.spark.offsets import Slice

QUEUES = st.builds(MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 3))
POSITIONS = st.dictionaries(QUEUES, st.integers(0, 10_000))
Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_the_json_form_is_the_documented_one():
    """The text of checkpoints: topic, broker, queue as text, offset as number."""
    assert offsets.to_json({Q1: 20, Q0: 17}) == {"v": 1, "q": {"t": {"b": {"0": 17, "1": 20}}}}


@given(POSITIONS)
def test_positions_survive_json(positions):
    """What is written is read back, through Spark's text too."""
    assert offsets.from_json(json.dumps(offsets.to_json(positions))) == positions


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"q":{}}', '{"v":1}', '{"v":1,"q":[]}', '{"v":1,"q":{"t":{"b":{"x":1}}}}',
     '{"v":1,"q":{"t":{"b":{"0":"1"}}}}', '{"v":1,"q":{"t":{"b":{"0":true}}}}'],
)  # fmt: skip
def test_another_form_is_refused_with_the_right_one_shown(text):
    """A wrong startingOffsets names the option and shows the form."""
    with pytest.raises(ConfigError, match=r'startingOffsets: .* is not of the form {"v": 1'):
        offsets.from_json(text, "startingOffsets")


def test_a_checkpoint_of_a_later_release_is_refused():
    """An unknown version is named, not guessed at."""
    with pytest.raises(ConfigError, match="version 2 is not known"):
        offsets.from_json({"v": 2, "q": {}})


def test_a_new_queue_is_pinned_and_a_backward_one_is_empty():
    """Only queues that both ends know and that moved forward are read."""
    assert offsets.slices_between({Q0: 5}, {Q0: 9, Q1: 4}) == [Slice(Q0, 5, 9)]
    assert offsets.slices_between({Q0: 300}, {Q0: 100}) == []


@given(st.dictionaries(QUEUES, st.integers(1, 500), min_size=1), st.integers(1, 40), st.none() | st.integers(1, 50))
def test_pieces_cover_the_slices_exactly(lengths, pieces_min, messages_max):
    """Cutting loses and doubles nothing, keeps order, and obeys its bounds."""
    whole = [Slice(queue, 100, 100 + length) for queue, length in sorted(lengths.items())]
    pieces = offsets.cut(whole, pieces_min, messages_max)
    assert [(p.queue, o) for p in pieces for o in range(p.start, p.end)] == [
        (s.queue, o) for s in whole for o in range(s.start, s.end)
    ]
    assert len(pieces) >= min(pieces_min, sum(piece.messages for piece in whole))
    assert messages_max is None or max(piece.messages for piece in pieces) <= messages_max


@given(st.dictionaries(QUEUES, st.tuples(st.integers(0, 100), st.integers(0, 1000)), min_size=1), st.integers(1, 2000))
def test_a_limit_is_kept_and_moves_on(ranges, messages_max):
    """A limited end has at most that many messages, never fewer than there are to have, and never goes back."""
    start = {queue: begin for queue, (begin, _) in ranges.items()}
    end = {queue: begin + count for queue, (begin, count) in ranges.items()}
    got = offsets.limit(start, end, messages_max)
    assert sum(got.values()) - sum(start.values()) == min(messages_max, sum(end.values()) - sum(start.values()))
    assert all(start[queue] <= got[queue] <= end[queue] for queue in end)
