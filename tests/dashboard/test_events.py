"""The page of events: what began, lasted and was over, in the order of looks; and a broker that goes and comes back."""

from __future__ import annotations

import pathlib

import pytest

from metaq.admin.brokers import BrokerStatus
from metaq.dashboard.noticing import EVENTS_MAX, EventLog
from metaq.dashboard.pages.attention import Attention
from metaq.dashboard.rendering.renderer import segment
from tests.dashboard.running import browsing, cluster, dashboard, looping, page_of

pytestmark = pytest.mark.xdist_group("dashboard")


def lag(text: str, level: str = "warn") -> Attention:
    return Attention(level, "Group mailer", text, "groups", "mailer", "lag")


def broker(started: int | None, name: str = "broker-a", error: str = "") -> BrokerStatus:
    runtime = {"bootTimestamp": str(started)} if started is not None else {}
    return BrokerStatus("c", name, 0, f"10.0.0.1:{len(name)}", error, runtime)


def told(log: EventLog) -> list[tuple[int, str, int | None]]:
    return [(one.at_ms, one.text, one.ended_ms) for one in log.events]


def test_what_lasts_is_one_event_with_its_newest_words():
    log = EventLog()
    log.note([lag("1000 wait")], [], 10)
    log.note([lag("2000 wait", "bad")], [], 20)
    assert told(log) == [(10, "2000 wait", None)]
    assert log.events[0].level == "bad"
    log.note([], [], 30)
    assert told(log) == [(10, "2000 wait", 30)]
    log.note([lag("1500 wait")], [], 40)
    assert told(log) == [(10, "2000 wait", 30), (40, "1500 wait", None)]


def test_dead_letters_are_an_event_for_each_look_that_finds_new_ones():
    log = EventLog()

    def letters(text: str) -> Attention:
        return Attention("bad", "Group mailer", text, "groups", "mailer", "dead-letters")

    log.note([letters("3 new")], [], 10)
    log.note([letters("3 new")], [], 20)
    log.note([letters("1 new")], [], 30)
    log.note([], [], 40)
    log.note([letters("1 new")], [], 50)
    assert told(log) == [(10, "3 new", 10), (30, "1 new", 30), (50, "1 new", 50)]


def test_brokers_that_come_go_and_start_again():
    log = EventLog()
    log.note([], [broker(1_000_000)], 1)
    assert told(log) == [], "what is there at the first look is no news"
    log.note([], [broker(None, error="away")], 2)
    log.note([], [], 3)
    log.note([], [broker(1_000_500)], 4)
    assert told(log) == [], "the same process, by a clock that was set"
    log.note([], [broker(None, error="away")], 5)
    log.note([], [broker(2_000_000), broker(1, "broker-bb")], 6)
    log.note([], [broker(1, "broker-bb")], 7)
    assert [(one.at_ms, one.subject, one.text) for one in log.events] == [
        (6, "Broker broker-a", "has started again"),
        (6, "Broker broker-bb", "is registered"),
        (7, "Broker broker-a", "is not registered any more"),
    ]


def test_their_number_is_bounded():
    log = EventLog()
    for number in range(EVENTS_MAX + 50):
        log.note([Attention("warn", f"Group g{number}", "waits", kind="lag")], [], number)
    assert len(log.events) == EVENTS_MAX
    assert log.events[0].at_ms == 50
    assert sum(one.ended_ms is None for one in log.events) == 1


def test_a_broker_that_goes_is_told(tmp_path: pathlib.Path):
    with (
        looping() as loop,
        cluster(loop, tmp_path) as up,
        dashboard(loop, up.namesrv.address) as running,
        browsing(running) as client,
    ):
        page_of(client, "/", lambda found: found["brokers"])
        assert page_of(client, "/events", lambda _: True)["rows"]["rows"] == []
        loop.run(up.broker.close())
        found = page_of(client, "/events", lambda found: found["lasting"])
        lasting = [row for row in found["rows"]["rows"] if row["ended_ms"] is None]
        assert "Broker broker-a" in {row["subject"] for row in lasting}
        assert {(row["level"], row["kind"]) for row in lasting} == {("bad", "away")}
        html = client.get("/events").text
        assert "does not answer" in html
        assert f'href="/brokers/{segment(up.broker.address)}"' in html
        assert client.get("/events", params={"q": "no such", "format": "json"}).json()["rows"]["found"] == 0
