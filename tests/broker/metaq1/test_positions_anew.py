"""Positions of a topic that was deleted and made anew: they begin behind those of the one before, so that an old one is known."""

from __future__ import annotations

import pathlib

import pytest

from metaq.broker.broker import Broker
from metaq.broker.metaq1 import position_bases
from metaq.broker.metaq1.position_bases import Bases
from metaq.clock import FakeClock
from metaq.errors import Refused
from tests.broker.metaq1.test_position_bases import TOPIC, bodies, copied_log, open_broker, send, settled, touched, work
from tests.store.support import copy_running
from tests.support import eventually

STORE = {"mapped_file_size_commit_log": 64 << 10, "file_reserved_time": 1}


def test_a_topic_that_is_made_again_begins_behind_the_positions_of_the_one_before(tmp_path: pathlib.Path):
    """Who holds an old position is told the first. Also in a copy of the log alone, which does not know what was deleted."""
    with open_broker(tmp_path / "store") as broker:
        broker.topics.auto_create(TOPIC, "TBW102", 1)
        work(broker)
        send(broker, bodies(100))
        old = touched(broker)
        end = settled(broker, lambda: old.max)
        deleted(broker)
        assert not (tmp_path / "store" / "positions" / TOPIC).exists()
        with pytest.raises(Refused):
            old.max  # noqa: B018  it raises
        assert broker.metaq1.bases.find(TOPIC, 0) is None
        send(broker, bodies(200, 5))
        begin = settled(broker, lambda: touched(broker).min)
        assert begin > end + (1 << 30)
        assert touched(broker).is_before(end)
        work(broker)
    with open_broker(copied_log(tmp_path / "store", tmp_path / "copy")) as broker:
        assert settled(broker, lambda: touched(broker).min) == begin


def deleted(broker: Broker) -> None:
    gone = broker.delete_topic(TOPIC)
    eventually(lambda: (work(broker, 1), gone.done)[1])
    assert gone.error is None


def test_where_a_deleted_topic_goes_on_outlives_starts_and_retention(tmp_path: pathlib.Path):
    """Nobody makes it for a long time, and the records that said so are gone; deleted again, it is further on."""
    clock = FakeClock()
    with open_broker(tmp_path, clock, store=STORE) as broker:
        broker.topics.auto_create(TOPIC, "TBW102", 1)
        work(broker)
        send(broker, bodies(40))
        end = settled(broker, lambda: touched(broker).max)
        deleted(broker)
    for _ in range(2):
        with open_broker(tmp_path, clock, store=STORE) as broker:
            assert broker.metaq1.bases.find(TOPIC, 0) is None
            before = broker.store.log.min
            for _ in range(10):
                send(broker, bodies(400), topic="other")
                clock.advance(2 * 3600)
                work(broker, 3)
                broker.store.keeper.retain(clock.now_ms(), at_once=True)
            assert broker.store.log.min > before
    with open_broker(tmp_path, clock, store=STORE) as broker:
        send(broker, [b"12345"])
        begin = settled(broker, lambda: touched(broker).min)
        assert begin > end + (1 << 30)
        deleted(broker)
        send(broker, [b"12345"])  # deleted again, without a position that anybody was told
        deleted(broker)
    with open_broker(tmp_path, clock, store=STORE) as broker:
        send(broker, [b"12345"])
        assert settled(broker, lambda: touched(broker).min) > begin + (1 << 30)


def test_a_kill_between_a_deletion_and_its_record_leaves_no_position_good(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The deletion is saved, and the log does not say where the positions go on: behind all that there can have been."""
    with open_broker(tmp_path / "running") as broker:
        broker.topics.auto_create(TOPIC, "TBW102", 1)
        work(broker)
        send(broker, bodies(100))
        end = settled(broker, lambda: touched(broker).max)
        monkeypatch.setattr(Bases, "drop_topic", lambda _self, _topic: None)
        deleted(broker)
        monkeypatch.undo()
        copy_running(tmp_path / "running", tmp_path / "killed")
    for _ in range(2):
        with open_broker(tmp_path / "killed") as broker:
            assert broker.metaq1.bases.find(TOPIC, 0) is None
    with open_broker(tmp_path / "killed") as broker:
        send(broker, [b"12345"])
        assert settled(broker, lambda: touched(broker).min) > end + (1 << 30)


def test_only_so_many_queues_of_deleted_topics_are_kept_in_mind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The newest."""
    monkeypatch.setattr(position_bases, "ANEW_MAX", 2)
    with open_broker(tmp_path) as broker:
        for number in range(4):
            send(broker, bodies(3), topic=f"t{number}")
            settled(broker, lambda: broker.metaq1.bases.touch(f"t{number}", 0).max)  # noqa: B023  asked at once
            gone = broker.delete_topic(f"t{number}")
            eventually(lambda: (work(broker, 1), gone.done)[1])  # noqa: B023  asked at once
        firsts = []
        for number in range(4):
            send(broker, bodies(3), topic=f"t{number}")
            firsts.append(settled(broker, lambda: broker.metaq1.bases.touch(f"t{number}", 0).min))  # noqa: B023
        assert [first > 0 for first in firsts] == [False, False, True, True]
