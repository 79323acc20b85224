"""What is open at a broker, in words, and when sends have ended."""

from __future__ import annotations

from metaq.admin.growth.drain import DrainProgress, Quiet
from metaq.admin.growth.work import OpenWork, delays


def test_what_is_open_is_said_the_most_first():
    work = OpenWork(
        lags={f"g{number}": number for number in range(1, 8)},
        delayed=1,
        halves=2,
        staged=3,
        branches=1,
        unread={"t": 1, "u": 5},
    )
    assert work.waits
    assert work.sentences() == [
        "group g7 has 7 messages to consume", "group g6 has 6 messages to consume", "group g5 has 5 messages to consume",
        "group g4 has 4 messages to consume", "group g3 has 3 messages to consume", "2 more groups have 3 messages",
        "1 delayed message waits for its time", "2 half messages have no end yet", "3 parts of staged transactions are open",
        "1 transaction of MetaQ 1.x is open",
    ]  # fmt: skip
    assert work.unread_text() == "5 messages of topic u, 1 message of topic t"
    assert not OpenWork(stored=5, unread={"t": 1}).waits


def test_a_broker_is_quiet_from_its_last_send_on_if_nobody_is_sent_there():
    quiet = Quiet(100.0)
    assert quiet.seen(101.0, 5, announced=False) == 0
    assert quiet.seen(105.0, 5, announced=False) == 4
    assert quiet.seen(106.0, 6, announced=False) == 0
    assert quiet.seen(109.0, 6, announced=True) == 0
    assert quiet.seen(112.0, 6, announced=False) == 3


def test_progress_names_what_is_in_the_way():
    now = DrainProgress("a", "moving", 3, 0, 40, OpenWork(lags={"g": 1}), ("n:9876",), "no route to host")
    assert now.text() == (
        "name server n:9876 still announces it as writable; group g has 1 message to consume; it does not answer: no route to host"
    )


def test_delays_are_read_from_figures_that_may_be_anything():
    table = {
        "scheduleMessageOffset_3": "5,8",
        "scheduleMessageOffset_4": "9,8",
        "scheduleMessageOffset_5": "x",
        "putTps": "1,2",
    }
    assert delays(table) == {"scheduleMessageOffset_3": (5, 8), "scheduleMessageOffset_4": (9, 9)}
