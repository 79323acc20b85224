"""Histories on a disk: what was written is read, by whomever, also after a kill."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.errors import ConfigError
from metaq.testing.checking import (
    Committed,
    EndedByItself,
    GroupAt,
    Held,
    LeaderSeen,
    Ledger,
    Observed,
    Place,
    QueueHolds,
    SendBegun,
    SendEnded,
    Trouble,
    read_history,
)
from metaq.testing.checking.history import decoded, encoded

TEXT = st.text(max_size=20)
TIME = st.floats(0, 1e9)
PLACE = st.builds(Place, TEXT, st.integers(0, 1 << 62))
EVENTS = st.one_of(
    st.builds(SendBegun, TIME, TEXT, st.integers(0, 1 << 40), st.lists(TEXT, max_size=3).map(tuple), TEXT, st.booleans(), st.integers(1, 9)),
    st.builds(
        SendEnded, TIME, TEXT, st.integers(0, 1 << 40), st.sampled_from(["acked", "ambiguous", "refused"]),
        st.lists(PLACE, max_size=3).map(tuple), TEXT, TEXT,
    ),
    st.builds(Observed, TIME, TEXT, PLACE, TEXT, TEXT, st.booleans()),
    st.builds(Committed, TIME, TEXT, TEXT, PLACE),
    st.builds(GroupAt, TIME, TEXT, PLACE),
    st.builds(QueueHolds, TIME, TEXT, st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
    st.builds(Held, TIME, PLACE, TEXT, TEXT),
    st.builds(LeaderSeen, TIME, TEXT, st.integers(0, 1 << 40), TEXT, TEXT, TEXT),
    st.builds(Trouble, TIME, TEXT),
    st.builds(EndedByItself, TIME, TEXT, TEXT),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=20))
def test_events_come_back_from_their_lines(events):
    assert decoded([encoded(event) for event in events]) == events


def test_the_lines_are_these():
    """They are kept with failing runs, and read by later versions."""
    begun = SendBegun(1.5, "p", 7, ("k",), "t@b:0")
    assert encoded(begun) == (
        b'{"type":"send","at":1.5,"process":"p","op":7,"keys":["k"],"queue":"t@b:0","atomic":false,"copies_max":1}\n'
    )
    ended = SendEnded(2.0, "p", 7, "acked", (Place("t@b:0", 3),), "SEND_OK")
    assert encoded(ended) == (
        b'{"type":"sent","at":2.0,"process":"p","op":7,"outcome":"acked","places":[["t@b:0",3]],"status":"SEND_OK","why":""}\n'
    )


def test_several_ledgers_make_one_history(tmp_path):
    """In the order of times, whoever wrote first."""
    clock = FakeClock()
    with Ledger(tmp_path, "one", clock) as one, Ledger(tmp_path, "two", clock) as two:
        op = two.begin("p", ["k"], "t@b:0")
        clock.advance(1)
        one.tell("kill broker-0")
        clock.advance(1)
        two.end("p", op, "acked", [Place("t@b:0", 0)], "SEND_OK")
        assert [type(event) for event in read_history(tmp_path)] == [SendBegun, Trouble, SendEnded], "while it is open"


def test_threads_share_a_ledger(tmp_path):
    """No line is torn and no number given twice."""
    with Ledger(tmp_path) as ledger:

        def work(name):
            for _ in range(200):
                ledger.end(name, ledger.begin(name, ["k"]), "refused")

        threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = read_history(tmp_path)
    assert len({event.op for event in events if isinstance(event, SendBegun)}) == 800
    assert sum(isinstance(event, SendEnded) for event in events) == 800


def test_a_line_that_was_being_written_is_left_out_and_another_is_an_error(tmp_path):
    whole = encoded(Trouble(1.0, "x"))
    (tmp_path / "a.jsonl").write_bytes(whole + whole[:10])
    assert read_history(tmp_path) == [Trouble(1.0, "x")]
    (tmp_path / "a.jsonl").write_bytes(whole + b"{}\n" + whole)
    with pytest.raises(ConfigError, match=r"line 2 of .*a\.jsonl is no event"):
        read_history(tmp_path)


def test_a_folder_without_a_history_says_so(tmp_path):
    with pytest.raises(ConfigError, match="holds no history"):
        read_history(tmp_path)
