"""Positions, their JSON, and how ranges are cut and limited."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.reading.sizes import Sample
from metaq.errors import ConfigError
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.source import slicing
from metaq.spark.source.slicing import Profile

QUEUES = st.builds(MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 3))
POSITIONS = st.dictionaries(QUEUES, st.integers(0, 10_000))
LENGTHS = st.dictionaries(QUEUES, st.integers(1, 500), min_size=1)
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
    assert slicing.slices_between({Q0: 5}, {Q0: 9, Q1: 4}) == [Slice(Q0, 5, 9)]
    assert slicing.slices_between({Q0: 300}, {Q0: 100}) == []


@given(LENGTHS, st.integers(1, 40), st.none() | st.integers(1, 50))
def test_pieces_cover_the_slices_exactly(lengths, pieces_min, messages_max):
    """Cutting loses and doubles nothing, keeps order, and obeys its bounds."""
    whole = [Slice(queue, 100, 100 + length) for queue, length in sorted(lengths.items())]
    pieces = slicing.cut(whole, pieces_min, messages_max)
    assert [(p.queue, o) for p in pieces for o in range(p.start, p.end)] == [
        (s.queue, o) for s in whole for o in range(s.start, s.end)
    ]
    assert len(pieces) >= min(pieces_min, sum(piece.messages for piece in whole))
    assert messages_max is None or max(piece.messages for piece in pieces) <= messages_max


@given(LENGTHS, st.integers(1, 40), st.none() | st.integers(1, 50), st.none() | st.integers(1, 20_000), st.data())
def test_pieces_cover_weighed_slices_exactly(lengths, pieces_min, messages_max, bytes_max, data):
    """Whatever the sizes: nothing is lost or doubled, order is kept, and the bounds hold."""
    whole = [Slice(queue, 100, 100 + length) for queue, length in sorted(lengths.items())]
    profiles = {piece.queue: profile_of(data.draw, piece) for piece in whole if data.draw(st.booleans())}
    pieces = slicing.cut(whole, pieces_min, messages_max, bytes_max, profiles)
    assert [(p.queue, o) for p in pieces for o in range(p.start, p.end)] == [
        (s.queue, o) for s in whole for o in range(s.start, s.end)
    ]
    assert len(pieces) >= min(pieces_min, sum(piece.messages for piece in whole))
    assert messages_max is None or max(piece.messages for piece in pieces) <= messages_max


def profile_of(draw, piece: Slice) -> Profile:
    places = sorted(draw(st.sets(st.integers(piece.start, piece.end - 1), max_size=4)))
    return Profile(
        piece.start,
        piece.end,
        [Sample(at, at + draw(st.integers(1, 32)), draw(st.integers(1, 10_000))) for at in places],
    )


def test_pieces_are_even_in_bytes_and_not_in_messages():
    """A queue of large messages is cut more often, and one whose sizes change is cut where the bytes are."""
    small, large = Slice(Q0, 0, 10_000), Slice(Q1, 0, 10_000)
    profiles = {Q0: Profile(0, 10_000, [Sample(0, 10, 1000)]), Q1: Profile(0, 10_000, [Sample(0, 10, 100_000)])}
    pieces = slicing.cut([small, large], 10, profiles=profiles)
    assert [piece.queue for piece in pieces] == [Q0] + [Q1] * 9
    assert len({piece.messages for piece in pieces[1:]} | {1111, 1112}) == 2
    changing = {Q0: Profile(0, 10_000, [Sample(0, 10, 1000), Sample(4990, 5000, 1000), Sample(5000, 5010, 100_000)])}
    ends = [piece.end for piece in slicing.cut([small], 4, profiles=changing)]
    assert ends == pytest.approx([6212, 7475, 8738, 10_000], abs=30)
    assert slicing.cut([small], 1, bytes_max=300_000, profiles={Q0: profiles[Q0]}) == [
        Slice(Q0, 0, 2500), Slice(Q0, 2500, 5000), Slice(Q0, 5000, 7500), Slice(Q0, 7500, 10_000),
    ]  # fmt: skip


@given(LENGTHS, st.integers(1, 300_000), st.data())
def test_a_limit_by_bytes_is_kept_and_moves_on(lengths, bytes_max, data):
    """By what is known of the sizes; a message that is larger than the limit is taken alone."""
    whole = {queue: Slice(queue, 100, 100 + length) for queue, length in lengths.items()}
    profiles = {queue: profile_of(data.draw, piece) for queue, piece in whole.items()}
    ends = slicing.limit_bytes(profiles, bytes_max)
    taken = {queue: end - 100 for queue, end in ends.items()}
    assert all(0 <= taken[queue] <= lengths[queue] for queue in lengths)
    assert sum(taken.values()) >= 1
    size = sum(profiles[queue].until(100 + count) for queue, count in taken.items())
    assert size <= bytes_max + 1e-6 or sum(taken.values()) == 1
    if sum(profile.bytes for profile in profiles.values()) <= bytes_max:
        assert taken == lengths


def test_a_limit_of_less_than_a_message_a_queue_is_used_up():
    """By those that have most."""
    profiles = {MessageQueue("t", "b", at): Profile(0, 100 + at, [Sample(0, 10, 10_000)]) for at in range(100)}
    ends = slicing.limit_bytes(profiles, 50_500)
    assert [end for _, end in sorted(ends.items())] == [0] * 50 + [1] * 50


@given(LENGTHS, st.data())
def test_places_and_bytes_of_a_profile_agree(lengths, data):
    """Bytes grow with every message, to those of all; the place of so many bytes is the offset before which they lie."""
    piece = Slice(Q0, 100, 100 + sum(lengths.values()))
    profile = profile_of(data.draw, piece)
    assert (profile.until(piece.start), profile.until(piece.end)) == (0, pytest.approx(profile.bytes))
    at = data.draw(st.integers(piece.start, piece.end - 1))
    assert profile.until(at + 1) >= profile.until(at) + 1 - 1e-6
    assert profile.place(profile.until(at) + 0.5) == at


@given(st.dictionaries(QUEUES, st.tuples(st.integers(0, 100), st.integers(0, 1000)), min_size=1), st.integers(1, 2000))
def test_a_limit_is_kept_and_moves_on(ranges, messages_max):
    """A limited end has at most that many messages, never fewer than there are to have, and never goes back."""
    start = {queue: begin for queue, (begin, _) in ranges.items()}
    end = {queue: begin + count for queue, (begin, count) in ranges.items()}
    got = slicing.limit(start, end, messages_max)
    assert sum(got.values()) - sum(start.values()) == min(messages_max, sum(end.values()) - sum(start.values()))
    assert all(start[queue] <= got[queue] <= end[queue] for queue in end)


def test_a_short_queue_does_not_wait_as_long_as_others_are_long():
    """Its share of a limit is less than a message, in each batch again, for as long as producers are ahead of the query."""
    queues = [MessageQueue("t", "b", number) for number in range(3)]
    backlog = dict(zip(queues, [1_000_000, 1_000_000, 1], strict=True))
    start = dict.fromkeys(queues, 0)
    taken = slicing.limit(start, backlog, 1000)
    assert (taken[queues[2]], sum(taken.values())) == (1, 1000)
    ends = slicing.limit_bytes({queue: Profile(0, end, (), 100) for queue, end in backlog.items()}, 100_000)
    assert (ends[queues[2]], sum(ends.values())) == (1, 1000)
