"""A group goes on at a time, forwards and backwards, running and stopped; first looked at, and nothing in hand is lost."""

from __future__ import annotations

import datetime as dt
import json

import pytest

import metaq
from metaq.admin import Admin
from tests.support import PATIENCE, eventually, run_metaq


@pytest.fixture
def admin(metaq_broker):
    with Admin(metaq_broker.namesrv) as opened:
        yield opened


def filled(broker, topic, bodies):
    """A topic of one queue with messages stored at different times. Returns their store times, ms."""
    with Admin(broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    with metaq.Producer(broker.namesrv) as producer:
        for body in bodies:
            producer.send(topic, body)
            now = dt.datetime.now(dt.UTC)
            eventually(lambda at=now: dt.datetime.now(dt.UTC) - at > dt.timedelta(milliseconds=20))
    with metaq.Reader(broker.namesrv, topic, stop_at_end=True) as reader:
        return [message.store_ms for message in reader]


def lag(admin, group):
    return admin.group_progress(group).lag


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_a_time_counts_to_the_millisecond(admin, metaq_broker, running):
    """Both ways: it goes on at the first message stored then or later, not at the nearest; a look beforehand says the same and moves nothing."""
    topic = f"reset-time-{running}"
    times = filled(metaq_broker, topic, (b"0", b"1", b"2", b"3"))

    def moved(ms, **options):
        [one] = admin.reset_group(topic, topic, ms / 1000, **options)
        assert one.online is running
        return one.offset

    with metaq.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        for _ in times:
            consumer.receive(PATIENCE).ack()
        consumer.commit()
        if running:
            assert moved(times[1] + 1, dry_run=True) == 2
            assert lag(admin, topic) == 0
            assert moved(times[1] + 1) == 2
            again = [consumer.receive(PATIENCE) for _ in range(2)]
            assert [one.body for one in again] == [b"2", b"3"]
            assert moved(times[3] + 1) == 4
            return
    for ms, place in ((times[1] + 1, 2), (times[0], 0), (times[3], 3), (times[3] + 1, 4), (253_402_300_799_000, 4)):
        before = lag(admin, topic)
        assert moved(ms, dry_run=True) == place
        assert lag(admin, topic) == before
        assert moved(ms) == place
        assert lag(admin, topic) == 4 - place


def test_what_is_in_hand_is_not_lost(admin, metaq_broker):
    """Forwards, over what a member has in hand: what it refuses comes again, what is new comes; backwards all come again."""
    topic = "reset-in-hand"
    filled(metaq_broker, topic, (b"0", b"1", b"2"))
    with metaq.Consumer(
        metaq_broker.namesrv, group=topic, topics=topic, start="earliest", queue_messages_max=1
    ) as consumer:
        consumer.receive(PATIENCE).ack()
        consumer.commit()
        in_hand = consumer.receive(PATIENCE)
        assert in_hand.body == b"1"
        admin.reset_group(topic, topic, "latest")
        eventually(
            lambda: {one.consumed for one in admin.group_progress(topic).queues if one.queue.topic == topic} == {3}
        )
        in_hand.retry(delay_level=1)
        with metaq.Producer(metaq_broker.namesrv) as producer:
            producer.send(topic, b"new")
        got = set()
        while got < {b"1", b"new"}:
            message = consumer.receive(PATIENCE)
            assert message is not None, got
            got.add(message.body)
            message.ack()
        consumer.commit()
        with metaq.Producer(metaq_broker.namesrv) as producer:
            producer.send(topic, b"held")
        held = consumer.receive(PATIENCE)
        admin.reset_group(topic, topic, "earliest")
        again = []
        while len(again) < 5:
            message = consumer.receive(PATIENCE)
            assert message is not None, again
            again.append(message.body)
            message.ack()
        assert again == [b"0", b"1", b"2", b"new", b"held"]
        held.ack()  # it counts no more, and moves nothing
        eventually(lambda: consumer.commit() or lag(admin, topic) == 0)


def test_the_command_shows_first(metaq_broker):
    """--dry-run in text and JSON."""
    topic = "reset-shown"
    filled(metaq_broker, topic, (b"0", b"1"))
    with metaq.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        for _ in range(2):
            consumer.receive(PATIENCE).ack()

    def cli(*args):
        done = run_metaq("group", *args, "-n", metaq_broker.namesrv)
        assert done.returncode == 0, done.stderr
        return done.stdout

    look = ("reset", topic, topic, "--to", "earliest", "--dry-run")
    assert f"group {topic} would get 2 messages of topic {topic} again and skip 0; it has no online members" in cli(
        *look
    )
    shown = json.loads(cli(*look, "--json"))
    assert (shown["dry_run"], shown["repeated"]) == (True, 2)
    group = json.loads(cli("show", topic, "--json"))
    assert (group["lag"], group["lag_bytes"], group["lag_bytes_exact"]) == (0, 0, True)


def test_times_beyond_all_messages(metaq_broker):
    """The year 9999 is behind the last message, 1970 before the first one; what is no time is told."""
    topic = "reset-far"
    filled(metaq_broker, topic, (b"0", b"1", b"2"))
    with metaq.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()

    def reset(to, code=0):
        done = run_metaq("group", "reset", topic, topic, "--to", to, "--json", "-n", metaq_broker.namesrv)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    for to, skipped, repeated in (
        ("9999-12-31T23:59:59.999+00:00", 2, 0),
        ("1970-01-01T00:00:00.001+00:00", 0, 3),
        ("9999-12-31T23:59:59.999-14:00", 3, 0),
        ("1970-01-01T00:00:00+00:00", 0, 3),
    ):
        found = reset(to)
        assert (found["skipped"], found["repeated"]) == (skipped, repeated), to
    for to in ("10000-01-01", "yesterday", "-1", "0001-01-01T12:00:00+00:00", "1969-12-31T23:59:59.999+00:00"):
        refused = reset(to, code=2)
        assert refused.count("\n") == 1
        assert "Traceback" not in refused
