"""Runs of plain pulls that are answered in one call, and what is left to others."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.wire.record import java_hash
from tests.effort import repeats
from tests.wire.hot.support import (
    FALLBACK,
    NATIVE,
    PULL_EXT,
    Tails,
    binary_head,
    both,
    frame,
    json_head,
    needs_native,
    send,
)

LIMITS = {
    "fresh_from": 0, "near_bytes": 1 << 30, "behind_max": 1000, "body_bytes_max": 65_535, "bytes_max": 262_144, "count_max": 32,
}  # fmt: skip
NEWEST = (1 << 63) - 1


def pull(*, code=11, opaque=5, flag=0, binary=False, **changes):
    """A pull's frame; a change to None leaves the field out."""
    ext = {
        **PULL_EXT, "queueId": "1", "queueOffset": "0", "sysFlag": "0", "subscription": "*", "subVersion": "7", **changes,
    }  # fmt: skip
    ext = {name: value for name, value in ext.items() if value is not None}
    if binary:
        return frame(binary_head(code, ext, opaque=opaque, flag=flag), form=1)
    return frame(json_head(code, ext, opaque=opaque, flag=flag))


class Place:
    """Some messages in queues 0 and 1 of TopicA, in turn, and a path with a gate for pulls as `pull` makes them of queue 1."""

    def __init__(self, hot, messages=10, *, wanted=None, version=7, suggest=0, **limits):
        self.hot, self.tails = hot, Tails(hot)
        for number in range(messages):
            text = f"UNIQ_KEY\x01{number:032d}\x02TAGS\x01{'AB'[number // 2 % 2]}"
            self.tails.append(send(b"%d" % number, e=str(number % 2), i=text))
        self.tails.replies.take()
        self.queue = SimpleNamespace(tail=self.tails.queues[1], min_offset=0)
        self.fast_path = hot.PullPath(self.tails.log, **{**LIMITS, **limits})
        self.gate = hot.PullGate(self.queue, wanted, version, suggest, "mine")
        self.table, self.replies = hot.FrameTable(1 << 24), hot.Replies(b"r", True)
        for form in (False, True):
            self.table.scan(pull(binary=form), 0, len(pull(binary=form)))
            self.fast_path.gates[hot.pull_key(self.table, 0)] = self.gate

    def answer(self, *frames, reply_bytes_max=1 << 20):
        data = b"".join(frames)
        self.table.scan(data, 0, len(data))
        return self.hot.answer_pulls(self.table, 0, len(frames), self.fast_path, self.replies, reply_bytes_max)

    def by_hand(self, offset, count=32, *, opaque=5, binary=False, suggest=0, wanted=None):
        """The answer as the parts make it."""
        hot, tail, log = self.hot, self.tails.queues[1], self.tails.log_bytes
        found = hot.select(
            self.tails.queue_bytes[1], 0, offset, tail.next_offset, wanted, count, 262_144, 0, self.tails.log.end
        )
        body = hot.gather(found, log, 0)
        head = hot.pull_reply(
            opaque, binary, 0, "FOUND", suggest, found.next_offset, self.queue.min_offset, tail.next_offset, len(body)
        )
        return head + body


def answered(place):
    """Owner, pulls and messages of each gate that has answered since the last time."""
    return [counts[:3] for counts in place.fast_path.take()[0]]


@both
@pytest.mark.parametrize("binary", [False, True])
def test_a_run_of_plain_pulls_is_answered_as_one_by_one(hot, binary):
    place = Place(hot, suggest=3)
    frames = [pull(queueOffset=str(number), opaque=number, binary=binary) for number in range(5)]
    assert place.answer(*frames, pull(queueOffset="2", maxMsgNums="1", code=361, binary=binary)) == 6
    expected = [place.by_hand(number, opaque=number, binary=binary, suggest=3) for number in range(5)]
    expected.append(place.by_hand(2, 1, binary=binary, suggest=3))
    body_bytes = len(place.tails.written()) // 10
    assert place.replies.take() == b"".join(expected)
    assert place.fast_path.take() == ([("mine", 6, 16, 16 * body_bytes)], [])
    assert place.fast_path.take() == ([], [])


@both
def test_a_filter_by_tags_takes_what_it_names(hot):
    wanted = hot.Filter([java_hash(b"B")])
    place = Place(hot, wanted=wanted)
    assert place.answer(pull()) == 1
    assert place.replies.take() == place.by_hand(0, wanted=wanted)
    assert answered(place) == [("mine", 1, 2)]
    assert place.answer(pull(queueOffset="4")) == 0, "none fits: whether it waits is another's to decide"
    assert len(place.replies) == 0


@both
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"flag": 2}, "nobody wants an answer"),
        ({"maxMsgBytes": "1000000"}, "limits of its own"),
        ({"consumerGroup": "other"}, "no gate for the group"),
        ({"topic": "TopicB"}, "no gate for the topic"),
        ({"queueId": "0"}, "no gate for the queue"),
        ({"expressionType": "SQL92"}, "no gate for the type"),
        ({"expressionType": None}, "no gate without a type"),
        ({"sysFlag": "4"}, "no gate for a filter that it brings"),
        ({"subVersion": "8"}, "a newer subscription"),
        ({"queueOffset": "5"}, "nothing there yet"),
        ({"queueOffset": "6"}, "behind the end"),
        ({"queueOffset": "-1"}, "before the beginning"),
        ({"queueOffset": "x"}, "unreadable"),
    ],
)
def test_what_is_not_plain_is_left(hot, changes, why):
    place = Place(hot)
    assert place.answer(pull(**changes), pull()) == 0, why
    assert (len(place.replies), place.fast_path.take()) == (0, ([], []))
    assert place.answer(pull(), pull(**changes), pull()) == 1, why
    assert place.answer(pull(), send()) == 1


@both
@pytest.mark.parametrize(
    ("limits", "offset", "served"),
    [
        ({"near_bytes": 400}, 4, True), ({"near_bytes": 400}, 0, False),
        ({"behind_max": 2}, 3, True), ({"behind_max": 2}, 2, False),
        ({"body_bytes_max": 600}, 3, True), ({"body_bytes_max": 600}, 0, False),
    ],
)  # fmt: skip
def test_old_far_and_long_ones_are_left(hot, limits, offset, served):
    assert Place(hot, **limits).answer(pull(queueOffset=str(offset))) == served


@both
def test_limits_of_count_and_bytes(hot):
    place = Place(hot, count_max=2)
    place.answer(pull())
    assert place.replies.take() == place.by_hand(0, 2)
    place.answer(pull(maxMsgNums="0"))
    assert place.replies.take() == place.by_hand(0, 1)
    place = Place(hot, bytes_max=1)
    place.answer(pull())
    assert place.replies.take() == place.by_hand(0, 1)


@both
def test_a_subscription_that_counts_is_part_of_the_key(hot):
    place = Place(hot)
    own = pull(sysFlag="4", subscription="A")
    place.table.scan(own, 0, len(own))
    place.fast_path.gates[hot.pull_key(place.table, 0)] = hot.PullGate(
        place.queue, hot.Filter([java_hash(b"A")]), NEWEST, 0, "brings"
    )
    assert place.answer(pull(sysFlag="4", subscription="A", subVersion="99"), pull(subscription="other")) == 2
    assert answered(place) == [("brings", 1, 3), ("mine", 1, 5)]
    assert place.answer(pull(sysFlag="4", subscription="B")) == 0
    assert place.answer(pull(sysFlag="4", subscription=None)) == 0


@both
def test_commits_are_told_of_once_with_the_last(hot):
    place = Place(hot)
    run = [pull(sysFlag="1", commitOffset=str(number)) for number in (3, -1, 2)]
    assert place.answer(*run, pull(sysFlag="0", commitOffset="4")) == 4
    _, moved = place.fast_path.take()
    assert [(gate.owner, gate.committed, gate.queue) for gate in moved] == [("mine", 2, place.queue)]
    assert place.answer(pull(sysFlag="1", commitOffset="5")) == 1
    assert [gate.committed for gate in place.fast_path.take()[1]] == [5]


@both
def test_it_stops_when_the_answers_are_many(hot):
    place = Place(hot)
    assert place.answer(*[pull()] * 5, reply_bytes_max=1) == 1
    assert place.answer(*[pull()] * 5, reply_bytes_max=1) == 0, "there is an answer already"
    with pytest.raises(IndexError):
        hot.answer_pulls(place.table, 0, 6, place.fast_path, place.replies, 1)


@both
def test_records_that_are_not_what_their_units_say_are_left(hot):
    """Whoever answers then asks for their repair; nothing of the answer is sent."""
    place = Place(hot)
    size = len(place.tails.written()) // 10
    place.tails.log_bytes[3 * size + 88] ^= 1  # queue 1's second body
    assert place.answer(pull()) == 1, "written by this process: its checksum is not looked at"
    place.replies.take()
    place.tails.log_bytes[3 * size + 12 : 3 * size + 16] = bytes(4)  # of queue 0
    assert place.answer(pull()) == 0
    assert len(place.replies) == 0
    assert place.answer(pull(queueOffset="2")) == 1
    place = Place(hot)
    struct.pack_into(">i", place.tails.queue_bytes[1], 20 + 8, 0)
    assert place.answer(pull()) == 0, "no unit"


@both
def test_what_was_there_before_the_start_is_not_read_through_the_mapping(hot):
    """It may have to come from the disk, and all would wait for it; what was written since is in memory."""
    size = len(Place(hot).tails.written()) // 10
    place = Place(hot, fresh_from=3 * size)  # where queue 1's second record is
    assert [place.answer(pull(queueOffset=str(offset))) for offset in (0, 1)] == [0, 1]


@both
def test_tails_without_their_files_have_nothing(hot):
    place = Place(hot)
    place.queue.min_offset = 2
    assert [place.answer(pull(queueOffset=str(offset))) for offset in (1, 2)] == [0, 1]
    place.tails.queues[1].attach(place.tails.queue_bytes[1], 3, 900)
    assert place.answer(pull(queueOffset="2")) == 0, "in an older file"
    place.tails.queues[1].detach()
    assert place.answer(pull(queueOffset="3")) == 0
    place = Place(hot)
    end = place.tails.log.end
    place.tails.log.attach(bytearray(1000), end, 1000, end)
    assert place.answer(pull()) == 0, "in an older file"
    place.tails.log.detach()
    assert place.answer(pull()) == 0


@both
def test_keys_and_gates_of_others_are_refused(hot):
    place = Place(hot)
    data = send()
    place.table.scan(data, 0, len(data))
    with pytest.raises(TypeError):
        hot.pull_key(place.table, 0)
    with pytest.raises(IndexError):
        hot.pull_key(place.table, 1)
    with pytest.raises(ValueError, match="reads"):
        hot.PullGate(place.queue, hot.Filter((), None, {}), 0, 0)


TEXTS = st.sampled_from([None, "", "a", "*", "ab", "ä"])


@needs_native
@settings(max_examples=repeats(150), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({
            "consumerGroup": st.sampled_from(["CG", "C"]), "queueId": st.sampled_from(["1", "0", "-1"]),
            "queueOffset": st.integers(-1, 7).map(str), "maxMsgNums": st.integers(-1, 5).map(str),
            "sysFlag": st.integers(0, 7).map(str), "commitOffset": st.integers(-1, 5).map(str), "subscription": TEXTS,
            "subVersion": st.sampled_from([None, "6", "7", "8"]), "expressionType": TEXTS, "binary": st.booleans(),
            "flag": st.sampled_from([0, 0, 0, 2]),
        }),
        min_size=1, max_size=6,
    ),
    st.sampled_from([None, "A", "B"]),
    st.integers(1, 2000),
)  # fmt: skip
def test_the_twins_agree(requests, tag, reply_bytes_max):
    """Keys, answers, counters, positions, and where they stop; every second pull has a gate."""
    results = []
    for hot in (NATIVE, FALLBACK):
        place = Place(hot, wanted=None if tag is None else hot.Filter([java_hash(tag.encode())]))
        frames = [pull(**request) for request in requests]
        data = b"".join(frames)
        place.table.scan(data, 0, len(data))
        keys = [hot.pull_key(place.table, row) for row in range(len(frames))]
        place.fast_path.gates.update(dict.fromkeys(keys[::2], place.gate))
        done = place.answer(*frames, reply_bytes_max=reply_bytes_max)
        answered, moved = place.fast_path.take()
        results.append((
            keys, done, place.replies.take(), answered, [gate.committed for gate in moved],
        ))  # fmt: skip
    assert results[0] == results[1]


@both
@pytest.mark.parametrize("binary", [False, True])
def test_a_held_pull_is_answered_from_its_place(hot, binary):
    """As one that comes, without its frame; with nothing there nothing is written."""
    wanted = hot.Filter([java_hash(b"B")])
    place = Place(hot, wanted=wanted, suggest=3)
    facts = {"opaque": 9, "binary": binary, "wanted": wanted, "suggest": 3}
    for offset, count in ((0, 32), (1, 1), (3, 32)):
        assert hot.answer_held(place.fast_path, place.gate, offset, count, 9, binary, place.replies)
        assert place.replies.take() == place.by_hand(offset, count, **facts)
    assert answered(place) == [("mine", 3, 4)]
    for offset in (-1, 4, 5, 6, 1 << 62):
        assert not hot.answer_held(place.fast_path, place.gate, offset, 32, 9, binary, place.replies)
    assert len(place.replies) == 0
    assert place.gate.committed == -1
    assert place.fast_path.take() == ([], [])
