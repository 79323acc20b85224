"""What topics let go of is written to data files of MetaQ 1.x first."""

from __future__ import annotations

import errno
import itertools
import tracemalloc

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreError
from metaq.model.message import COMPRESSION_ZLIB, SysFlag
from metaq.store.metaq1.archive import Archiver
from metaq.store.metaq1.position_bases import ANEW_STEP
from metaq.store.offline.segments import SegmentReader, segments_in
from metaq.testing.faults import FaultyDisk
from metaq.wire.compression import compress
from tests.store.retention.test_floors import look, rules
from tests.store.support import START_MS, log_file, message, open_store, overwrite, put
from tests.support import eventually


class Places:
    """Positions as 1.x clients are told them, from the bodies that a test puts. `known`: else they are being looked up."""

    def __init__(self, *sizes):
        self.places = [1000, *(1000 + total for total in itertools.accumulate(20 + size for size in sizes))]
        self.known = True

    def __call__(self, topic, queue_id, queue_offsets):
        return tuple(self.places[offset] for offset in queue_offsets) if self.known else None

    def misfits(self, topic, queue_id):
        return frozenset()


SIZES = [9_000 + number for number in range(30)]
BODIES = [b"%05d" % number * (size // 5) + b"x" * (size % 5) for number, size in enumerate(SIZES)]


def fill(store):
    for body in BODIES:
        put(store, "T", 0, body)
        store.clock.advance(3600)


def archiver(store, policies, places=None, **more):
    found = Archiver(
        store, store.folder.root / "archive", lambda topic: policies.of(topic).policy,
        places or Places(*SIZES), broker_id=7, **more,
    )  # fmt: skip
    store.keeper.retain_by(policies)
    store.keeper.before_letting_go(found.may_go)
    store.keeper.owes(found)
    return found


def archived(folder):
    """(position, body) of all frames; each file goes on where the one before it ends."""
    frames, end = [], None
    for segment in segments_in(folder):
        assert end in {None, segment.start}
        reader = SegmentReader(segment)
        frames += [(found.position, found.frame.body) for found in reader]
        assert reader.why == ""
        end = reader.end
    return frames


@pytest.mark.parametrize(("policy", "ending"), [("archive,1", ".meta.arc"), ("archive,1,true", ".meta.zip")])
def test_messages_are_in_a_whole_archive_before_they_go(tmp_path, policy, ending):
    """Positions and bodies as 1.x clients see them, a file for each log file."""
    with open_store(tmp_path, FakeClock(START_MS)) as store:
        keeper = archiver(store, rules(policy))
        fill(store)
        files = [file.start for file in store.log.run.files]
        look(store, store.clock)
        assert (store.keeper.floor("T"), store.log.min) == (0, 0)
        eventually(lambda: (look(store, store.clock), store.log.min >= files[3])[1])
        assert {path.suffix for path in (tmp_path / "archive/T-0").iterdir()} == {ending[5:]}
        low = store.reader.existing_queue("T", 0).min_offset
        found = archived(tmp_path / "archive")
        assert found[:low] == list(zip(Places(*SIZES).places, BODIES, strict=False))[:low]
        keeper.stop()


def test_nothing_goes_while_the_archive_cannot_be_written(tmp_path):
    """A full disk, and positions that are not known yet; no half file stays under its name."""
    disk, places = FaultyDisk(), Places(*SIZES)
    with open_store(tmp_path, FakeClock(START_MS), disk=disk) as store:
        keeper = archiver(store, rules("archive,1"), places)
        fill(store)
        place = store.log.run.files[2].start
        places.known = False
        keeper._started = True
        assert not keeper.may_go("T", place)
        keeper.step()
        assert not keeper.may_go("T", place)
        places.known = True
        disk.make_error = errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            keeper.step()
        disk.make_error, disk.sync_error = 0, errno.EIO
        with pytest.raises(OSError, match="error"):
            keeper.step()
        assert not list((tmp_path / "archive").rglob("*.arc"))
        assert store.log.min == store.keeper.floor("T") == 0
        disk.sync_error = 0
        keeper.step()
        assert keeper.may_go("T", place)
        assert min(path.name for path in (tmp_path / "archive/T-0").iterdir()) == f"{1000:020d}.meta.arc"


def test_archive_that_fails_again_and_again_is_told_as_trouble(tmp_path):
    """Not only in the log; when it works again that is over."""
    disk = FaultyDisk()
    with open_store(tmp_path, FakeClock(START_MS), disk=disk) as store:
        keeper = archiver(store, rules("archive,1"))
        fill(store)
        place = store.log.run.files[2].start
        disk.make_error = errno.ENOSPC
        keeper.may_go("T", place)
        eventually(lambda: "archive failed 2 times in a row" in store.keeper.trouble)
        disk.make_error = 0
        eventually(lambda: keeper.may_go("T", place) and not store.keeper.trouble)
        keeper.stop()


def test_what_a_crash_left_is_written_again_the_same(tmp_path):
    """Under the same names, byte for byte, compressed or not."""
    seen = []
    for _ in range(2):
        with open_store(tmp_path, FakeClock(START_MS)) as store:
            if not seen:
                fill(store)
            keeper = archiver(store, rules("archive,1,true"))
            keeper._started = True
            keeper.may_go("T", store.log.run.files[2].start)
            keeper.step()
        seen.append({path.name: path.read_bytes() for path in (tmp_path / "archive/T-0").iterdir()})
        (tmp_path / "archive/T-0" / f"{1000:020d}.meta.zip").write_bytes(b"old")
        (tmp_path / "archive/T-0" / f"{1000:020d}.meta.arc.tmp").write_bytes(b"half")
    assert seen[0] == seen[1]


def test_above_85_percent_files_with_messages_to_archive_wait_for_it(tmp_path):
    """They go before their time, and are archived first."""
    disk = FaultyDisk()
    with open_store(tmp_path, FakeClock(START_MS), disk=disk) as store:
        keeper = archiver(store, rules("archive,9999"))
        keeper._started = True
        fill(store)
        disk.used = 86
        assert look(store, store.clock) == 0
        keeper.step()
        assert look(store, store.clock) == 1
        assert archived(tmp_path / "archive")[0] == (1000, BODIES[0])
        disk.used = 10
        keeper.step()
        assert look(store, store.clock) == 0


def test_other_topics_are_not_archived_and_do_not_wait(tmp_path):
    """One whose policy is delete."""
    with open_store(tmp_path, FakeClock(START_MS)) as store:
        keeper = archiver(store, rules("archive,1", T="delete,1"))
        fill(store)
        assert look(store, store.clock) > 0
        assert keeper.oldest() is None
        assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize("begin", [1000, ANEW_STEP * 2])
def test_archive_of_a_deleted_topic_stays_when_one_of_its_name_is_archived(tmp_path, caplog, begin):
    """Whether positions begin anew with the topic, or far behind: a folder with both would be read as one that misses a file."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        places = Places(*[9_000] * 60)
        keeper = archiver(store, rules("archive,1"), places)
        keeper._started = True
        seen = []
        for letter in b"ab":
            for _ in range(30):
                put(store, "T", 0, bytes([letter]) * 9_000)
                clock.advance(3600)
            assert not keeper.may_go("T", store.log.run.files[-1].start)
            keeper.step()
            seen.append(archived(tmp_path / "archive"))
            store.flusher.flush()
            store.writer.delete_topic("T", store.log.end)
            places.places = [place - 1000 + begin for place in places.places]
        assert {body[:1] for _, body in seen[0]} == {b"a"}
        assert {body[:1] for _, body in seen[1]} == {b"b"}
        assert "deleted topic of the same name" in caplog.text
        assert archived(tmp_path / "archive/T-0.before1") == seen[0]
        assert archived(tmp_path / "archive") == seen[1]


def test_archive_of_compressed_bodies_takes_no_more_memory_than_one_of_them(tmp_path):
    """A block of records could expand to gigabytes."""
    size = 8 << 20
    flat = b"x" * 50
    with open_store(tmp_path, FakeClock(START_MS)) as store:
        keeper = archiver(store, rules("archive,1"), Places(*[size] * 20, *[50] * 2000))
        keeper._started = True
        for _ in range(20):
            compressed = message("T", 0, compress(bytes(size)))
            compressed.sys_flag = SysFlag.COMPRESSED | COMPRESSION_ZLIB
            store.writer.put([compressed])
        for _ in range(2000):
            put(store, "T", 0, flat)
        keeper.may_go("T", store.log.run.files[-1].start)
        tracemalloc.start()
        try:
            keeper.step()
            assert tracemalloc.get_traced_memory()[1] < 200 << 20
        finally:
            tracemalloc.stop()
        bodies = [body for _, body in archived(tmp_path / "archive")]
        assert bodies[:20] == [bytes(size)] * 20
        assert set(bodies[20:]) == {flat}


def test_several_queues_of_a_topic_and_messages_of_other_clients(tmp_path):
    """Each queue has its folder; a compressed body comes out expanded, a tag as attribute, a foreign message with an id."""
    with open_store(tmp_path, FakeClock(START_MS)) as store:
        body = b"abc" * 1000
        compressed = message("T", 0, compress(body))
        compressed.sys_flag = SysFlag.COMPRESSED | COMPRESSION_ZLIB
        store.writer.put([compressed])
        store.writer.put([message("T", 1, b"tagged", tag="red")])
        for _ in range(12):
            put(store, "T", 0, bytes(10_000))
        store.clock.advance(36_000)
        sizes = {0: [3000] + [10_000] * 12, 1: [4 + 3 + 6]}
        keeper = archiver(
            store,
            rules("archive,1"),
            lambda topic, queue, offsets: Places(*sizes[queue])(topic, queue, offsets),
            at_once=4,
        )
        keeper._started = True
        keeper.may_go("T", store.log.run.files[1].start)
        keeper.step()
        [red] = SegmentReader(segments_in(tmp_path / "archive/T-1")[0])
        assert red.frame.body == b"\0\0\0\3redtagged"
        assert red.frame.flag & 1
        assert red.frame.message_id >> 52 == 1 << 10 | 7
        assert archived(tmp_path / "archive/T-0")[0] == (1000, body)


def test_positions_that_do_not_fit_the_frames_keep_the_messages(tmp_path):
    """Better none than one in which offsets lead to other messages."""
    with open_store(tmp_path, FakeClock(START_MS)) as store:
        keeper = archiver(store, rules("archive,1"), Places(*[size + 1 for size in SIZES]))
        keeper._started = True
        fill(store)
        place = store.log.run.files[1].start
        keeper.may_go("T", place)
        with pytest.raises(StoreError, match="the next message's position is"):
            keeper.step()
        assert not keeper.may_go("T", place)
        assert not list((tmp_path / "archive").rglob("*.*")), "a wrong one gets no name"


def test_lost_message_is_told_and_the_rest_archived(tmp_path, caplog):
    """The file behind it is named by the position of its own first frame."""
    with open_store(tmp_path, FakeClock(START_MS)) as store:
        fill(store)
        keeper = archiver(store, rules("archive,1"))
        keeper._started = True
        place = store.log.run.files[1].start
        second = store.reader.existing_queue("T", 0).units(1, 1)[0].log_offset
    overwrite(log_file(tmp_path), second + 100, b"damaged")
    with open_store(tmp_path, FakeClock(START_MS + 10**9)) as store:
        keeper = archiver(store, rules("archive,1"))
        keeper._started = True
        keeper.may_go("T", place)
        keeper.step()
        assert keeper.may_go("T", place)
    assert "the message at queue offset 1 of queue 0 of topic T is lost" in caplog.text
    names = [int(path.name[:20]) for path in sorted((tmp_path / "archive/T-0").iterdir())]
    assert names[:2] == [1000, Places(*SIZES).places[2]]
