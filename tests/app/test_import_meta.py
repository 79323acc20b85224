"""Data files of MetaQ 1.x become queues of ours, with every id and position."""

from __future__ import annotations

import os

import pytest

from metaq.app.import_meta import PartitionImport
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model.metaq1.partition import ID_EPOCH_MS
from metaq.options import Metaq1Options
from metaq.store.offline.segments import segments_in
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from metaq.wire.metaq1.frame import frame, with_attribute
from metaq.wire.record import decode_record
from tests.broker.metaq1.test_retention import settled
from tests.broker.support import open_broker
from tests.store.support import answer, copy_running, message

NOW_MS = 1_700_000_000_000
POSITIVE = (NOW_MS - 5000 - ID_EPOCH_MS) << 22 | 3 << 12 | 9
FRAMES = [
    frame(POSITIVE, 0, b"plain"),
    frame(-5468927205637619712, 1, with_attribute("red", b"tagged")),
    frame(7, 1, with_attribute("", b"empty attribute")),
    frame(8, 3, with_attribute("a || b", b"no tag")),
    frame(9, 1, with_attribute("\x01\x02", b"block")),
    frame(10, 1, b"\x7f\xff"),
    frame(-1, 6, b""),
    *(frame(100 + number, 0, b"%d" % number * 100) for number in range(2000)),
]
BEGIN = 1 << 40


def write(root, frames=FRAMES, name="test-1", begin=BEGIN, per_file=700):
    """Segments that follow each other; returns their paths."""
    (root / name).mkdir(parents=True, exist_ok=True)
    paths = []
    for start in range(0, len(frames), per_file):
        path = root / name / f"{begin:020d}.meta"
        path.write_bytes(b"".join(frames[start : start + per_file]))
        os.utime(path, (NOW_MS / 1000, NOW_MS / 1000))
        begin += path.stat().st_size
        paths.append(path)
    return paths


def opened(tmp_path, **more):
    return open_broker(
        tmp_path / "store", FakeClock(NOW_MS + 10**6), metaq1=Metaq1Settings(Metaq1Options(enable=True)), **more
    )


def run(broker, root, **more):
    return PartitionImport(broker, segments_in(root), progress=lambda _one: None, **more).run()


def frames_of(broker, topic="test", partition=1):
    """All that a get would hand out, and the position of the first."""
    positions = settled(broker, lambda: broker.metaq1.bases.touch(topic, partition))
    queue = broker.store.reader.existing_queue(topic, partition)
    records = b"".join(
        bytes(answer(broker.store.reader.pull(topic, partition, offset, 1)).body)
        for offset in range(queue.min_offset, queue.max_offset)
    )
    data, _, _ = hot.frames(records, 7, 0, 1 << 30, lambda body, _flag: body)
    return settled(broker, lambda: positions.min), data


def test_every_frame_comes_out_as_it_was_at_the_same_position(tmp_path):
    """Ids, flags, attributes of all kinds, empty bodies; also after a restart, and what is put next goes on behind."""
    paths = write(tmp_path / "meta")
    whole = b"".join(path.read_bytes() for path in paths)
    with opened(tmp_path) as broker:
        [imported] = run(broker, tmp_path / "meta")
        assert (imported.begin, imported.end) == (BEGIN, BEGIN + len(whole))
        assert (imported.messages, imported.bytes, imported.problem, imported.damaged) == (
            len(FRAMES),
            len(whole),
            "",
            "",
        )
        assert frames_of(broker) == (BEGIN, whole)
        assert broker.topics.get("test").write_queues == 2
        first = decode_record(broker.store.reader.pull("test", 1, 0, 1).body)
        assert (first.born_ms, first.tag) == (NOW_MS - 5000, None)
        second = decode_record(broker.store.reader.pull("test", 1, 1, 1).body)
        assert (second.born_ms, second.tag) == (NOW_MS, "red")
    with opened(tmp_path) as broker:
        assert frames_of(broker) == (BEGIN, whole)
        broker.appender.put([message("test", 1, b"next")])
        positions = broker.metaq1.bases.find("test", 1)
        assert settled(broker, lambda: positions.position(len(FRAMES))) == BEGIN + len(whole)


@pytest.mark.parametrize("kill", [False, True])
def test_import_that_was_cut_goes_on_where_it_stopped(tmp_path, kill):
    """Asked to stop after some batches, or cut by a full disk; nothing is taken twice, and a third run finds nothing to do."""
    whole = b"".join(path.read_bytes() for path in write(tmp_path / "meta"))
    disk = FaultyDisk()
    batches = []
    with opened(
        tmp_path, disk=disk, store={"mapped_file_size_commit_log": 128 * 1024, "max_message_size": 65536}
    ) as broker:

        def progress(one):
            batches.append(one.messages)
            if kill and len(batches) == 2:
                disk.room = 0

        work = PartitionImport(
            broker, segments_in(tmp_path / "meta"), progress=progress, stopped=lambda: not kill and len(batches) >= 2
        )
        if kill:
            with pytest.raises(Refused, match="space"):
                work.run()
        else:
            [imported] = work.run()
            assert "goes on from here" in imported.problem
        disk.room = None
    small = {"mapped_file_size_commit_log": 128 * 1024, "max_message_size": 65536}
    with opened(tmp_path, store=small) as broker:
        [imported] = run(broker, tmp_path / "meta")
        assert imported.already > 0
        assert imported.already + imported.bytes == len(whole)
        assert imported.problem == ""
        assert frames_of(broker) == (BEGIN, whole)
        [again] = run(broker, tmp_path / "meta")
        assert (again.messages, again.already, again.problem) == (0, len(whole), "")


def test_import_that_was_killed_goes_on_where_it_stopped(tmp_path):
    """From the folder as kill -9 leaves it, at each of its batches."""
    whole = b"".join(path.read_bytes() for path in write(tmp_path / "meta"))
    small = {"mapped_file_size_commit_log": 128 * 1024, "max_message_size": 65536}
    copies = []
    with opened(tmp_path, store=small) as broker:

        def progress(_one):
            copies.append(tmp_path / f"killed-{len(copies)}" / "store")
            copy_running(tmp_path / "store", copies[-1])

        PartitionImport(broker, segments_in(tmp_path / "meta"), progress=progress).run()
    assert len(copies) > 10
    for copy in copies[::5]:
        with opened(copy.parent, store=small) as broker:
            [imported] = run(broker, tmp_path / "meta")
            assert (imported.problem, imported.already + imported.bytes) == ("", len(whole))
            assert frames_of(broker) == (BEGIN, whole)


def test_damage_and_gaps_are_told_and_nothing_behind_them_is_taken(tmp_path):
    """In the last file it is what a server would have cut; in the middle, or a missing file, it is a problem."""
    tail = write(tmp_path / "tail")
    tail[-1].write_bytes(tail[-1].read_bytes() + b"x" * 11)
    middle = write(tmp_path / "middle", name="middle-0")
    middle[1].write_bytes(middle[1].read_bytes()[:-30] + bytes(30))
    gap = write(tmp_path / "gap", name="gap-0")
    gap[1].unlink()
    with opened(tmp_path) as broker:
        [imported] = run(broker, tmp_path / "tail")
        assert (imported.problem, imported.messages) == ("", len(FRAMES))
        assert imported.damaged == "11 bytes that are no whole frame"
        [imported] = run(broker, tmp_path / "middle")
        assert "in the middle of the partition: it was taken up to there" in imported.problem
        assert imported.messages == 1399
        [imported] = run(broker, tmp_path / "gap")
        assert f"{gap[2]} begins at position" in imported.problem
        assert imported.messages == 700


@pytest.mark.parametrize(
    ("name", "begin", "why"), [("test-1", 1 << 48, "281474976710656"), ("test-99999999", 0, "65535")]
)
def test_partitions_that_no_broker_of_ours_has_are_told_and_the_others_taken(tmp_path, name, begin, why):
    """A position that no unit holds would be told as another, and millions of queues are no topic."""
    write(tmp_path / "data", FRAMES[:5], name=name, begin=begin)
    write(tmp_path / "data", FRAMES[:5], name="z-0", begin=0)
    with opened(tmp_path) as broker:
        refused, taken = run(broker, tmp_path / "data")
        assert why in refused.problem
        assert (refused.messages, taken.messages, taken.problem) == (0, 5, "")
        config = broker.topics.get("test")
        assert config is None or config.read_queues <= 2


def test_queue_with_other_messages_is_left_alone(tmp_path):
    """Those of a client, and those of another import; a topic of the broker's own, and a name that none can have."""
    write(tmp_path / "meta")
    write(tmp_path / "other", [frame(1, 0, b"other")])
    write(tmp_path / "third", FRAMES[:1], name="rmq_sys_METAQ_STAGE-0")
    write(tmp_path / "third", FRAMES[:1], name="a b-0")
    with opened(tmp_path) as broker:
        assert run(broker, tmp_path / "other")[0].problem == ""
        assert "with another message than the data has there" in run(broker, tmp_path / "meta")[0].problem
        assert len(frames_of(broker)[1]) == 25
        broker.appender.put([message("test", 0, b"of a client")])
        write(tmp_path / "client", FRAMES[:1], name="test-0")
        assert "holds messages that were not imported" in run(broker, tmp_path / "client")[0].problem
        name, own = run(broker, tmp_path / "third")
        assert "characters outside" in name.problem
        assert "the broker's own" in own.problem
