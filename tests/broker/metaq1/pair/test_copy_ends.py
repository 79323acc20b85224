"""Where the slave's copy of each partition ends: it gets what it lacks, or only new messages if it differs."""

from __future__ import annotations

from tests.broker.metaq1.pair.support import frames_of, open_master, open_slave, samsa_settings


def test_an_empty_slave_gets_everything_before_puts_are_taken(tmp_path, master, wire, clock) -> None:
    for number in range(20):
        master.put(b"%d" % number, number % 2)
        master.turn()
        wire.let_through()
    master.answers()
    master.samsa.detach("gone")
    with open_slave(tmp_path / "other", clock) as other:
        again = master.connect(other)
        # The old slave had all of it: an answer that says less is not believed at once.
        master.tick(13)
        again.let_through(4)
        master.put(b"too early")
        ((code, text),) = master.answers()
        assert code == 500
        assert b"being copied" in text
        master.settle(again)
        assert frames_of(master.client, 0) == frames_of(other.client(), 0) != b""
        assert frames_of(master.client, 1) == frames_of(other.client(), 1)


def test_an_empty_slave_gets_only_new_messages_where_it_is_to_be_so(tmp_path, slave, clock) -> None:
    with open_master(tmp_path / "master", clock, samsa_settings(copy_backlog=False)) as master:
        wire = master.connect(slave)
        master.settle(wire)
        for body in (b"one", b"two"):
            master.put(body)
            master.turn()
            wire.let_through()
        master.samsa.detach("gone")
        with open_slave(tmp_path / "other", clock) as other:
            again = master.connect(other)
            master.tick(13)
            master.settle(again)
            master.answers()
            master.put(b"three")
            master.turn()
            again.let_through()
            assert master.answers()[0][0] == 200
            assert again.messages == [b"three"]


def test_a_slave_with_other_messages_gets_new_ones(tmp_path, master, slave, clock) -> None:
    other = slave.client()
    other.feed(b"sync test 0 5 0 99 1\r\nother")
    wire = master.connect(slave)
    master.settle(wire)
    master.put(b"hello")
    master.turn()
    wire.let_through()
    assert master.answers()[0][0] == 200
    master.put(b"again")
    master.turn()
    wire.let_through()
    assert master.answers()[0][0] == 200
    assert wire.messages == [b"hello", b"again"]


def test_a_slave_that_answers_no_question_is_dropped(master, slave) -> None:
    first = master.connect(slave)
    master.settle(first)
    master.put(b"hello")
    master.turn()
    first.let_through()
    master.samsa.detach("gone")
    wire = master.connect(slave)
    master.tick()
    assert wire.dropped == ""
    master.tick(11)
    assert "answers no question" in wire.dropped
