"""How far delayed delivery has come: what a kill -9 or a power cut does to it, and what is in the file."""

from __future__ import annotations

import errno
import json
import pathlib
import random

import pytest

from metaq.broker.delays import positions as schedule_positions
from metaq.clock import FakeClock
from metaq.servers.remoting.messages import send_of
from metaq.store.config_file import ConfigFile
from metaq.wire import fastjson
from metaq.wire.record import copied_from, copy_mark, decode_record
from tests.broker.support import BORN_HOST, JAVA, MemoryFile, open_broker
from tests.servers.support import send_header
from tests.store.support import copy_running
from tests.support import eventually

NO_THREADS = {"flush_interval_commit_log": 3_600_000, "flush_interval_consume_queue": 3_600_000}


@pytest.fixture
def clock():
    return FakeClock()


def send(broker, body, level=0, topic="orders"):
    more = {"properties": {"DELAY": str(level)}} if level else {}
    return broker.sends.send(send_of(send_header(topic, 0, **more), body, BORN_HOST, JAVA))


def bodies(broker, topic="orders"):
    queue = broker.store.reader.existing_queue(topic, 0)
    units = queue.units(0, 1 << 20) if queue else []
    return [decode_record(broker.store.reader.record_at(unit.log_offset)).body for unit in units]


def saved(root: pathlib.Path):
    return fastjson.loads(ConfigFile(root / "config" / "delayOffset.json").load() or "{}")


def killed(broker, to: pathlib.Path) -> pathlib.Path:
    """The folder as kill -9 leaves it now."""
    copy_running(broker.store.folder.root, to)
    return to


def test_a_mark_is_no_offset_of_a_transaction():
    """Every log offset has its mark, 0 too; what is not below 0 marks nothing."""
    assert [copied_from(copy_mark(offset)) for offset in (0, 1, 1 << 62)] == [0, 1, 1 << 62]
    assert [copied_from(offset) for offset in (0, 5)] == [None, None]


@pytest.mark.parametrize("file", ["never saved", "saved before", "missing"])
def test_after_a_kill_nothing_is_delivered_twice(tmp_path, clock, file):
    """The copies in the log say how far delivery had come, however old the saved positions are."""
    with open_broker(tmp_path / "a", clock) as broker:
        if file == "saved before":
            broker.tick()
            eventually(lambda: (broker.tick(), saved(tmp_path / "a"))[1])
        for n in range(200):
            send(broker, b"%d" % n, 1 + n % 3)
            send(broker, b"plain")
        clock.advance(5)
        broker.tick()
        delivered = len(bodies(broker)) - 200
        assert delivered > 60
        root = killed(broker, tmp_path / "b")
    if file != "saved before":
        for left in (root / "config").glob("delayOffset.json*"):
            left.unlink()
    with open_broker(root, clock) as broker:
        broker.tick()
        assert len(bodies(broker)) - 200 == delivered
        clock.advance(10)
        for _ in range(5):
            broker.tick()
        assert sorted(int(body) for body in bodies(broker) if body != b"plain") == list(range(200))


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_moment_each_message_comes_once(tmp_path, clock, seed):
    """Sends, deliveries, saves and kills in any order: once each, and in order within its level."""
    chance, sent, root = random.Random(seed), {1: [], 2: [], 3: []}, tmp_path / "0"
    for life in range(1, 6):
        with open_broker(root, clock) as broker:
            for _ in range(chance.randrange(40)):
                match chance.randrange(5):
                    case 0 | 1:
                        level = chance.choice(list(sent))
                        sent[level].append(b"%d:%d" % (level, len(sent[level])))
                        send(broker, sent[level][-1], level)
                    case 2:
                        clock.advance(chance.choice([0.1, 1, 3]))
                    case 3:
                        broker.tick()
                    case 4:
                        broker.schedule.positions.save()
            root = killed(broker, tmp_path / str(life))
    with open_broker(root, clock) as broker:
        for _ in range(3):
            clock.advance(10)
            broker.tick()
        found = bodies(broker)
        for level, messages in sent.items():
            assert [body for body in found if body.startswith(b"%d:" % level)] == messages


def test_the_positions_are_saved_when_their_copies_are_durable(tmp_path, clock):
    """After a power cut a position that counts a lost copy would lose its message: the file waits for the disk."""
    with open_broker(tmp_path, clock, NO_THREADS) as broker:
        send(broker, b"later", 1)
        broker.store.flusher.flush()
        broker.tick()
        clock.advance(60)
        broker.tick()
        assert bodies(broker) == [b"later"]
        broker.tick()
        assert saved(tmp_path)["offsetTable"] == {}
        broker.store.flusher.flush()
        broker.tick()
        assert saved(tmp_path) == {"offsetTable": {1: 1}, "metaqLogOffset": broker.store.log.end}


def test_a_growing_log_moves_the_place_to_read_from(tmp_path, clock, monkeypatch):
    """A start reads a bounded part of the log, also when nothing was delayed for a long time."""
    monkeypatch.setattr(schedule_positions, "LOG_BYTES_MAX", 10_000)
    with open_broker(tmp_path, clock, NO_THREADS) as broker:
        broker.tick()
        for _ in range(100):
            send(broker, b"x" * 1000)
            broker.store.flusher.flush()
            broker.tick()
            assert broker.store.log.end - saved(tmp_path)["metaqLogOffset"] <= 10_000


def test_positions_that_a_rocketmq_saved_are_taken_as_they_are(tmp_path, clock):
    """RocketMQ leaves our key out and marks no copies: its file stands alone."""
    with open_broker(tmp_path, clock) as broker:
        for n in range(3):
            send(broker, b"%d" % n, 1)
        clock.advance(1)
        broker.tick()
        root = killed(broker, tmp_path / "b")
    (root / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{1:2\n\t}\n}')
    with open_broker(root, clock) as broker:
        broker.tick()
        assert bodies(broker) == [b"0", b"1", b"2", b"2"]


@pytest.mark.parametrize("place", [1, 77, 1 << 40, -1, "7", None, 1.5])
def test_a_place_where_no_record_begins_stops_no_start(tmp_path, clock, place):
    """The place to read from is only a hint: a wrong one costs repetitions at most."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 1)
    path = tmp_path / "config" / "delayOffset.json"
    path.write_text(json.dumps({"offsetTable": {}, "metaqLogOffset": place}))
    with open_broker(tmp_path, clock) as broker:
        clock.advance(1)
        broker.tick()
        assert bodies(broker) == [b"later"]


def test_what_tools_see_is_rocketmqs(tmp_path, clock):
    """Request 45 answers the table alone."""
    with open_broker(tmp_path, clock) as broker:
        assert broker.schedule.positions.offsets == {}


def test_positions_that_could_not_be_saved_are_saved_later(tmp_path, clock, caplog):
    """The reason is told once, seen in the runtime information, and no further delivery is needed."""
    file = MemoryFile()
    with open_broker(tmp_path, clock, files={"delayOffset.json": file}) as broker:
        send(broker, b"x", 1)
        clock.advance(5)
        broker.tick()
        broker.store.flusher.flush()
        file.error = OSError(errno.EIO, "broken")
        for _ in range(3):
            broker.schedule.positions.save()
        assert caplog.text.count("memory.json could not be saved: broken") == 1
        assert broker.reports.facts().unsaved["delayOffset.json"] == "broken"
        file.error = None
        broker.schedule.positions.save()
        assert "1:1" in file.text
        assert broker.reports.facts().unsaved == {}
