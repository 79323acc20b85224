"""An archived topic, read queue by queue: in order, from anywhere, and while the archive changes."""

from __future__ import annotations

import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.archive import replay as replays
from metaq.archive.folder import ArchiveFolder
from metaq.archive.replay import ArchivedTopic
from metaq.archive.rows import messages_of
from metaq.clock import FakeClock
from metaq.errors import ConfigError, OffsetOutOfRange, StoreCorrupt, StoreForeign
from metaq.model import StoredMessage
from metaq.model.queue import MessageQueue
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.compact.service import Compactor
from tests.effort import repeats
from tests.pipelines.archive.support import publish

A0, A1, B0 = (
    MessageQueue("orders", "broker-a", 0),
    MessageQueue("orders", "broker-a", 1),
    MessageQueue("orders", "b/0", 0),
)
QUEUES = [A0, A1, B0]
OTHER = MessageQueue("other", "broker-a", 0)
NOW_MS = 1_772_496_000_000  # 2026-03-03
GRACE = 60.0


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def rest(cursor) -> list[int]:
    """The offsets that a cursor has left."""
    found = []
    while (batch := cursor.next()) is not None:
        assert len(batch)
        found += batch.column("queue_offset").to_pylist()
    return found


def offsets(root, queue, start: int) -> list[int]:
    return rest(ArchivedTopic(root, "orders").cursor(queue, start))


def upkeep(folder: ArchiveFolder, clock: FakeClock, *, rounds: int = 3, files: int = 1, **options) -> None:
    """Merge and let go, all steps of it."""
    made = Compactor(folder, CompactOptions(folder=str(folder.path), grace_seconds=GRACE, **options), files, clock)
    made.prepare()
    for _ in range(rounds):
        list(made.look())
        clock.advance(GRACE)
    made.close()


@pytest.fixture
def folder(tmp_path) -> ArchiveFolder:
    made = ArchiveFolder(tmp_path / "out")
    for batch in range(1, 5):
        publish(made, batch, {queue: range(batch * 10, batch * 10 + 10) for queue in [*QUEUES, OTHER]}, new=batch > 2)
    return made


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("rows", [3, 1000])
def test_each_queue_is_read_in_order_from_anywhere(folder, merged, rows, monkeypatch):
    """Of files as batches wrote them and of merged ones, which hold many queues in one row group; both versions."""
    monkeypatch.setattr(replays, "BATCH_ROWS", rows)
    if merged:
        upkeep(folder, FakeClock(NOW_MS))
        assert len(list(folder.path.rglob("topic=orders/**/*.parquet"))) == 2
    topic = ArchivedTopic(folder.path, "orders")
    for queue in QUEUES:
        assert topic.begin(queue) == 10
        assert topic.look().end[queue] == 50
        for start in (0, 10, 11, 29, 30, 49, 50, 60):
            assert rest(topic.cursor(queue, start)) == list(range(max(10, start), 50))
    assert topic.begin(OTHER) is None
    assert set(topic.look().end) == set(QUEUES)


def test_groups_of_one_queue_are_found_without_reading_them(folder, monkeypatch):
    """Merged files may be large: only the row groups that hold something of a queue from the offset on are read."""
    upkeep(folder, FakeClock(NOW_MS))
    for path in folder.path.rglob("*.parquet"):
        pq.write_table(pq.read_table(path), path, row_group_size=5)
    read = []
    real = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, *a, row_groups, **m: (read.extend(row_groups), real(self, *a, row_groups=row_groups, **m))[1]
    )  # fmt: skip
    assert offsets(folder.path, A1, 26) == list(range(26, 50))
    assert len(read) == 5


def test_at_most_so_many_rows_are_in_memory(folder, monkeypatch):
    """By their bytes, too."""
    publish(folder, 5, {A0: range(50, 150)}, body=os.urandom(10_000))
    monkeypatch.setattr(replays, "BATCH_BYTES", 100_000)
    cursor = ArchivedTopic(folder.path, "orders").cursor(A0, 50)
    sizes = []
    while (batch := cursor.next()) is not None:
        sizes.append(len(batch))
    assert sum(sizes) == 100
    assert max(sizes) <= 10


def test_a_slice_that_lies_in_several_files_is_put_in_order(tmp_path):
    """By tag and over midnight: neighbours in the queue are in different folders."""
    folder = ArchiveFolder(tmp_path)
    publish(folder, 1, {A0: range(5)})
    manifest = publish(folder, 2, {A0: range(5, 25)})
    (file,) = manifest.files
    table = pq.read_table(folder.path / file.path)
    path = folder.path / "_manifests" / manifest.name
    parts = []
    for number, keep in enumerate((lambda i: i % 3 == 0, lambda i: i % 3 == 1 and i < 15, lambda i: i % 3 == 2 or (i % 3 == 1 and i >= 15))):  # fmt: skip
        mask = pa.array([keep(i) for i in table["queue_offset"].to_pylist()])
        place = file.path.replace("/6f1c9a2e", f"/by_tag={number}/6f1c9a2e")
        (folder.path / place).parent.mkdir()
        pq.write_table(table.filter(mask), folder.path / place)
        parts.append(
            {"path": place, "staged": "", "topic": "orders", "date": file.date, "rows": mask.true_count, "size": 1}
        )
    import msgspec

    told = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(told | {"files": parts}))
    (folder.path / file.path).unlink()
    publish(folder, 3, {A0: range(25, 30)})
    for start in (0, 4, 6, 20, 24, 26):
        assert offsets(folder.path, A0, start) == list(range(start, 30))


def test_dropped_repeats_are_the_only_gaps(tmp_path):
    """Here and there, at a file's beginning, and a whole file of them."""
    folder = ArchiveFolder(tmp_path)
    publish(folder, 1, {A0: [0, 1, 3, 4, 9]})
    publish(folder, 2, {A0: [10, 19]})
    assert offsets(tmp_path, A0, 0) == [0, 1, 3, 4, 9, 10, 19]
    assert offsets(tmp_path, A0, 2) == [3, 4, 9, 10, 19]
    cursor = ArchivedTopic(tmp_path, "orders").cursor(A0, 11)
    assert rest(cursor) == [19]
    assert cursor.offset == 20


def test_a_moment_is_found(folder):
    """The first message stored then or later, queue by queue; rows_of stores message i i milliseconds after the date began."""
    publish(folder, 5, {A0: range(50, 60)}, date="2026-03-02")
    day = 1_772_323_200_000  # 2026-03-01
    upkeep(folder, FakeClock(NOW_MS), files=3)
    topic = ArchivedTopic(folder.path, "orders")
    for ms, expected in (
        (0, 10),
        (day, 10),
        (day + 10, 10),
        (day + 33, 33),
        (day + 50, 50),
        (day + 86_400_000 + 55, 55),
    ):
        assert topic.at_time(A0, ms) == expected
    assert topic.at_time(A0, day + 86_400_000 + 60) is None
    assert topic.at_time(A1, day + 50) is None
    assert topic.at_time(A1, 1 << 62) is None


# ------------------------------------------------------------------ an archive that changes
def test_what_is_published_meanwhile_is_read_too(folder):
    """The end is where the archive ends when a reader comes there."""
    cursor = ArchivedTopic(folder.path, "orders").cursor(A0, 45)
    assert cursor.next().column("queue_offset").to_pylist() == list(range(45, 50))
    publish(folder, 5, {A0: range(50, 60)})
    assert rest(cursor) == list(range(50, 60))
    assert (cursor.offset, cursor.next()) == (60, None)
    publish(folder, 6, {A0: range(60, 61)})
    assert rest(cursor) == [60]


def test_what_another_queue_has_seen_may_be_older(folder):
    """A queue does not end where a look ended that was for another one."""
    topic = ArchivedTopic(folder.path, "orders")
    one, other = topic.cursor(A0, 49), topic.cursor(A1, 49)
    assert one.next() is not None
    publish(folder, 5, {A1: range(50, 51)})
    assert rest(other) == [49, 50]
    publish(folder, 6, {A0: range(50, 52)})
    assert rest(one) == [50, 51]


@settings(max_examples=repeats(30))
@given(st.data())
def test_no_change_shows_in_what_is_read(tmp_path_factory, data):
    """Published, merged again and again, tidied away long after: each queue comes in order, each message once."""
    root = tmp_path_factory.mktemp("archive")
    folder, clock = ArchiveFolder(root / "out"), FakeClock(NOW_MS)
    ends, read = dict.fromkeys(QUEUES, 0), {queue: [] for queue in QUEUES}
    repeats = set()

    def publish_some(batch: int) -> None:
        ranges = {}
        for queue in QUEUES:
            count = data.draw(st.integers(0, 4))
            numbers = [ends[queue] + i for i in range(count)]
            dropped = {i for i in numbers[1:-1] if data.draw(st.booleans())}
            repeats.update((queue, i) for i in dropped)
            if numbers:
                ranges[queue] = [i for i in numbers if i not in dropped]
                ends[queue] += count
        if ranges:
            publish(folder, batch, ranges, new=data.draw(st.booleans()))

    publish(folder, 1, {queue: [0, 1] for queue in QUEUES})
    ends = dict.fromkeys(QUEUES, 2)
    topic = ArchivedTopic(folder.path, "orders")
    cursors = {queue: topic.cursor(queue, 0) for queue in QUEUES}
    for batch in range(2, 12):
        what = data.draw(st.sampled_from(["publish", "merge", "read"]))
        if what == "publish":
            publish_some(batch)
        elif what == "merge":
            upkeep(
                folder,
                clock,
                rounds=data.draw(st.integers(1, 3)),
                compact_bytes=data.draw(st.sampled_from([20_000, 1 << 28])),
            )
        else:
            queue = data.draw(st.sampled_from(QUEUES))
            if (found := cursors[queue].next()) is not None:
                read[queue] += found.column("queue_offset").to_pylist()
    for queue in QUEUES:
        read[queue] += rest(cursors[queue])
        assert read[queue] == [i for i in range(ends[queue]) if (queue, i) not in repeats]
        assert cursors[queue].offset == ends[queue]
    shutil.rmtree(root)


def test_a_file_that_vanishes_is_looked_for_anew_and_then_told(folder):
    """Merged away longer ago than the grace it is elsewhere; removed by somebody it is missing."""
    topic = ArchivedTopic(folder.path, "orders")
    cursor = topic.cursor(A0, 10)
    topic.look()
    upkeep(folder, FakeClock(NOW_MS))
    assert rest(cursor) == list(range(10, 50))
    lost = next(folder.path.rglob("topic=orders/**/*.parquet"))
    lost.unlink()
    with pytest.raises(StoreCorrupt, match=f"{lost} is missing: its batch was published, and somebody took it away"):
        rest(ArchivedTopic(folder.path, "orders").cursor(A0, 10))


def test_a_reader_whose_messages_expire_is_told_which(tmp_path):
    """As of a broker whose retention overtakes it. Rows of a slice over midnight went in part."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    publish(folder, 1, {A0: range(10), A1: range(10)}, date="2026-02-01")
    publish(folder, 2, {A0: range(10, 20)}, date="2026-02-02")
    publish(folder, 3, {A0: range(20, 30)})
    topic = ArchivedTopic(folder.path, "orders")
    cursor = topic.cursor(A0, 0)
    assert cursor.next() is not None
    upkeep(folder, clock, files=0, keep_days=7)
    with pytest.raises(
        OffsetOutOfRange, match=r"keeps \[20, 30\), wanted 10. Older dates of the archive are gone"
    ) as told:
        rest(cursor)
    assert told.value.kept == range(20, 30)
    fresh = ArchivedTopic(folder.path, "orders")
    assert (fresh.begin(A0), fresh.begin(A1)) == (20, None)
    assert rest(fresh.cursor(A0, 20)) == list(range(20, 30))
    with pytest.raises(OffsetOutOfRange, match=r"keeps \[10, 10\), wanted 3"):
        rest(fresh.cursor(A1, 3))
    assert rest(fresh.cursor(A1, 10)) == []


# ------------------------------------------------------------------ what cannot be read
def test_a_folder_that_is_no_archive_is_refused(tmp_path, folder):
    """And a topic that is not in it, with those that are."""
    with pytest.raises(ConfigError, match=f"archive={tmp_path / 'nowhere'}: there is no archive"):
        ArchivedTopic(tmp_path / "nowhere", "orders")
    with pytest.raises(ConfigError, match=r"has nothing of topic order: it has orders, other$"):
        ArchivedTopic(folder.path, "order").look()
    (tmp_path / "empty" / "_manifests").mkdir(parents=True)
    with pytest.raises(ConfigError, match="has nothing of topic orders: it is empty"):
        ArchivedTopic(tmp_path / "empty", "orders").look()


def test_an_archive_on_another_file_system_is_refused_with_the_way():
    """And not taken for a local folder that is not there."""
    wanted = r"archive=s3a://b/a: it is replayed from a local folder, not by s3a: .* metaq\.spark\.table\(topic, archive=URI\)"
    with pytest.raises(ConfigError, match=wanted):
        ArchivedTopic("s3a://b/a", "orders")


def test_a_hole_that_a_broker_s_clock_made_is_told_and_what_is_left_is_read(tmp_path, caplog):
    """Messages that lay under an old date, between others that did not: they are gone by keepDays, and that is no silence."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    publish(folder, 1, {A0: range(10), A1: range(10)})
    publish(folder, 2, {A0: range(10, 20)}, date="1970-01-01")
    publish(folder, 3, {A0: [20, 22, 23], A1: range(10, 20)})
    publish(folder, 4, {A0: range(24, 30)}, date="1970-01-01")
    publish(folder, 5, {A1: range(20, 30)})
    upkeep(folder, clock, files=0, keep_days=7)
    topic = ArchivedTopic(folder.path, "orders")
    cursor = topic.cursor(A0, 0)
    assert rest(cursor) == [*range(10), 20, 22, 23]
    assert (cursor.offset, cursor.absent) == (30, 10 + 1 + 6)
    assert f"{A0}: offsets [10, 20) are not in the archive {folder.path}" in caplog.text
    assert caplog.text.count("are not in the archive") == 1
    other = topic.cursor(A1, 0)
    assert (rest(other), other.absent) == (list(range(30)), 0)


def test_a_manifest_cut_short_and_one_of_a_later_release_are_told(folder):
    """By their paths."""
    path = max((folder.path / "_manifests").iterdir())
    whole = path.read_text()
    path.write_text(whole[:100])
    with pytest.raises(StoreCorrupt, match=f"{path} cannot be read"):
        ArchivedTopic(folder.path, "orders").look()
    path.write_text(whole.replace('"v": 2', '"v": 3', 1))
    with pytest.raises(StoreForeign, match=rf"{path} was written in version 3 .* up to 2: take a newer one"):
        ArchivedTopic(folder.path, "orders").look()
    with pytest.raises(StoreForeign, match="take a newer one"):
        folder.last()


def test_a_file_that_is_no_parquet_is_told(folder):
    """By its path."""
    path = next(folder.path.rglob("topic=orders/**/*broker-a-0-*.parquet"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreCorrupt, match=f"{path} is no Parquet file that can be read"):
        offsets(folder.path, A0, 0)


def test_messages_of_both_versions_are_read(folder):
    """Of version 1 the hosts are not known."""
    cursor = ArchivedTopic(folder.path, "orders").cursor(A0, 29)
    one, two = (messages_of(cursor.next(), StoredMessage, "orders", 10, 50)[0] for _ in range(2))
    assert (one.queue_offset, one.born_host, one.queue, one.min_offset, one.max_offset) == (
        29,
        ("0.0.0.0", 0),
        A0,
        10,
        50,
    )
    assert (two.queue_offset, two.born_host, two.store_host, two.backlog) == (
        30,
        ("10.0.0.1", 4000),
        ("10.0.0.2", 10911),
        20,
    )


def test_a_row_group_is_not_read_at_once(tmp_path):
    """Of 60 MB of bodies in one row group a few are in memory, while a queue is read."""
    folder = ArchiveFolder(tmp_path)
    publish(folder, 1, {A0: range(600)}, body=os.urandom(100_000), new=True)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        cursor = ArchivedTopic(tmp_path, "orders").cursor(A0, 0)
        sizes = []
        while (batch := cursor.next()) is not None:
            sizes.append(len(batch))
    finally:
        pa.set_memory_pool(before)
    assert sum(sizes) == 600
    assert pool.max_memory() < 10_000_000
