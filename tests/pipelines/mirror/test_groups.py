"""Where a group belongs in the target, and what keeps it from being put there."""

from __future__ import annotations

import os

import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import ConfigError, StoreCorrupt
from metaq.model import MessageQueue
from metaq.pipelines.mirror.groups import AT_HOME, NOT_MIRRORED, OWN, UNKNOWN, Carrier, placed
from metaq.pipelines.mirror.state import STATE, MirrorState, load_state
from metaq.pipelines.mirror.table import OffsetRun, Table
from metaq.spark.cluster.client import ClusterClient
from tests.support import PATIENCE

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
THERE = MessageQueue("orders", "broker-x", 0)


def state(**more) -> MirrorState:
    """A has 100..199 at 20..119, after 20 that were there before."""
    found = MirrorState("a", "b")
    found.queues = {A: THERE}
    found.tables = {A: Table((100, 20), [OffsetRun(100, 20, 100)])}
    found.seen = {THERE: 120}
    for name, value in more.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("consumed", "now", "offset", "why"),
    [
        (150, None, 70, ""),
        (150, 60, 70, ""),
        (150, 90, 90, ""),
        (250, None, 120, ""),
        (None, None, None, UNKNOWN),
        (150, 5, 5, OWN),
        (50, None, None, NOT_MIRRORED),
    ],
)
def test_a_group_only_goes_forward_and_only_over_what_it_has_consumed(consumed, now, offset, why):
    """`now`: where it is in the target; what it has there of its own it keeps."""
    found = placed(state(), THERE, {A: consumed}, {A: 40}, now)
    assert (found.offset, found.why) == (offset, why)
    assert found.sources == {str(A): consumed}


def test_what_the_source_has_dropped_holds_nobody_back():
    """The group could not consume it there either."""
    assert placed(state(), THERE, {A: 50}, {A: 100}, None).offset == 20


def test_others_messages_are_not_skipped():
    """A producer that has moved over wrote at 70: a group that is further goes back to it."""
    assert placed(state(foreign={THERE: 70}), THERE, {A: 190}, {}, None).offset == 70


def test_of_queues_that_share_one_the_slowest_counts():
    """One of which nothing is in the target yet, and one that the group does not know."""
    both = state(queues={A: THERE, B: THERE})
    assert placed(both, THERE, {A: 190, B: 3}, {}, None).offset == 110
    both.tables[B] = Table((0, 50), [OffsetRun(0, 120, 10)])
    assert placed(both, THERE, {A: 190, B: None}, {}, None).offset == 50


def test_a_state_is_read_as_it_was_saved(tmp_path):
    """And belongs to its two clusters."""
    saved = state(foreign={THERE: 70}, query="q", batch=7, decided=6)
    saved.save(tmp_path)
    found = load_state(tmp_path, "a", "b")
    for name in ("query", "batch", "decided", "queues", "seen", "foreign"):
        assert getattr(found, name) == getattr(saved, name)
    assert (found.tables[A].begin, found.tables[A].runs) == ((100, 20), [OffsetRun(100, 20, 100)])
    with pytest.raises(ConfigError, match=r"whose target is called b, not c.*targetName = 'b'"):
        load_state(tmp_path, "a", "c")
    (tmp_path / STATE).write_text('{"v": 1}')
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        load_state(tmp_path, "a", "b")


def test_a_save_that_is_cut_off_leaves_what_was_there(tmp_path, monkeypatch):
    """The old state is whole."""
    state(batch=7).save(tmp_path)

    def cut(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(OSError, match="No space"):
        state(batch=8).save(tmp_path)
    assert load_state(tmp_path, "a", "b").batch == 7


def test_a_group_with_a_member_in_the_target_is_left_alone(metaq_broker):
    """Before somebody joins it is carried over; from then on its own progress counts, however far the source goes."""
    with Admin(metaq_broker.namesrv) as admin:
        for topic in ("carried-here", "carried-there"):
            admin.create_topic(topic, queues=1)
        (here,), (there,) = (admin.describe_topic(topic).queues for topic in ("carried-here", "carried-there"))
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for queue in (here, there):
            for number in range(10):
                producer.send(queue.topic, b"%d" % number, queue=queue)
    found = MirrorState("a", "b")
    found.queues, found.seen, found.tables = {here: there}, {there: 10}, {here: Table((0, 0), [OffsetRun(0, 0, 10)])}
    source, target = ClusterClient(metaq_broker.namesrv, 10.0), ClusterClient(metaq_broker.namesrv, 10.0)
    try:
        carrier = Carrier(source, target, ["carried"])
        assert [told.why for told in carrier.carry(found)] == [UNKNOWN]
        source.report("carried", {here: 4})
        assert [told.why for told in carrier.carry(found)] == [""]
        assert target.progress("carried", [there]) == {there: 4}
        source.report("carried", {here: 8})
        with metaq.PullConsumer(metaq_broker.namesrv, group="carried", topics=there.topic) as consumer:
            consumer.wait_assigned(PATIENCE)
            assert [told.why for told in carrier.carry(found)] == [AT_HOME]
            assert target.progress("carried", [there]) == {there: 4}
    finally:
        source.close()
        target.close()
