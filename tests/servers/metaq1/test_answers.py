"""Answers of one connection in the order of their questions, whatever becomes ready first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.servers.metaq1.answers import (
    LONG_BYTES,
    WAITING_BYTES_MAX,
    WAITING_BYTES_MAX_ALL,
    WAITING_MAX,
    Answers,
    Behind,
)


class Peer:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data) -> None:
        self.writes.append(bytes(data))


class Drained:
    """How often somebody was told to go on."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def peer():
    return Peer()


@pytest.fixture
def drained():
    return Drained()


@pytest.fixture
def answers(peer, drained):
    return Answers(peer, drained)


def test_what_is_there_goes_out_in_one_write(answers, peer) -> None:
    """Unless it is long: that is written by itself, behind what was gathered."""
    answers.say(b"a", b"b")
    answers.say(b"c")
    assert peer.writes == []
    answers.flush()
    answers.flush()
    assert peer.writes == [b"abc"]
    long = bytes(LONG_BYTES)
    answers.say(b"head", long)
    answers.say(b"d")
    answers.flush()
    assert peer.writes[1:] == [b"head", long, b"d"]


def test_what_is_gathered_is_bounded(answers, peer) -> None:
    """Or nobody would see that the peer does not read."""
    for _ in range(100):
        answers.say(bytes(LONG_BYTES - 1))
    assert len(peer.writes) >= 30


def test_a_late_answer_keeps_its_place(answers, peer, drained) -> None:
    """Those behind it wait, those before it do not; the first answer given is the one that counts."""
    answers.say(b"1")
    two, three = answers.later(), answers.later()
    assert peer.writes == [b"1"]
    answers.say(b"4")
    answers.flush()
    three.write(b"3")
    assert (peer.writes, answers.late) == ([b"1"], 2)
    two.write(b"2")
    two.write(b"again")
    assert (b"".join(peer.writes), answers.late, drained.count) == (b"1234", 0, 0)
    answers.awaited = True
    answers.later().write(b"5")
    assert (b"".join(peer.writes), drained.count) == (b"12345", 1)


def test_too_many_bytes_behind_a_late_answer_are_told_and_so_is_their_end(answers, peer, drained) -> None:
    """Nobody makes more answers meanwhile."""
    slot = answers.later()
    answers.say(bytes(WAITING_BYTES_MAX))
    assert answers.full
    slot.write(b"")
    assert (answers.full, drained.count, sum(map(len, peer.writes))) == (False, 1, WAITING_BYTES_MAX)


def test_too_many_late_answers_are_told_too(answers, peer, drained) -> None:
    """One that comes makes room."""
    slots = [answers.later() for _ in range(WAITING_MAX)]
    assert answers.full
    slots[1].write(b"b")
    assert answers.full
    slots[0].write(b"a")
    assert (answers.full, drained.count, peer.writes) == (False, 1, [b"ab"])


@given(st.lists(st.sampled_from(["say", "later", "flush"]), max_size=20), st.randoms(use_true_random=False))
def test_whatever_comes_first_the_order_stays(acts, chance) -> None:
    """And nothing is lost."""
    peer = Peer()
    answers, slots, wanted = Answers(peer, Drained()), [], b""
    for number, act in enumerate(acts):
        text = b"<%d>" % number
        if act == "flush":
            answers.flush()
            continue
        wanted += text
        if act == "say":
            answers.say(text)
        else:
            slots.append((answers.later(), text))
        if slots and chance.random() < 0.3:
            slot, late = slots.pop(chance.randrange(len(slots)))
            slot.write(late)
    chance.shuffle(slots)
    for slot, late in slots:
        slot.write(late)
    answers.flush()
    assert (b"".join(peer.writes), answers.late, answers.full) == (wanted, 0, False)


def test_what_waits_behind_late_answers_is_limited_over_all_connections(peer):
    """One that may make no more because of the others goes on when its own late answers have come."""
    behind, drained = Behind(), [Drained(), Drained()]
    greedy, small = (Answers(peer, each, behind) for each in drained)
    slot, later = greedy.later(), small.later()
    greedy.say(memoryview(bytearray(WAITING_BYTES_MAX_ALL)))
    assert small.full
    greedy.close()
    assert behind.bytes < 1000
    slot.write(b"nobody gets it")
    later.write(b"b")
    assert (drained[0].count, drained[1].count, small.full, behind.bytes) == (0, 1, False, 0)
    assert peer.writes == [b"b"]
