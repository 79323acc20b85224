"""Readers with an archive: past retention, over the seam, and what is told when there is a hole."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import sys
import threading

import pytest

import metaq
from metaq import MessageQueue, Reader, aio
from metaq.archive import replay as replays
from metaq.archive.folder import ArchiveFolder
from metaq.client.consumer import replaying
from metaq.client.consumer.reader_core import ReaderCore
from metaq.clock import FakeClock
from metaq.errors import ConfigError, MessagesLost, OffsetOutOfRange, StoreCorrupt
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.compact.service import Compactor
from tests.archive.from_broker import archive_until
from tests.pipelines.archive.support import publish
from tests.scripted import ScriptedCluster
from tests.support import PATIENCE, eventually

START_MS = 1_700_000_000_000
COUNT = 300
Q0, Q1 = (MessageQueue("orders", "broker-a", number) for number in range(2))


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster", START_MS) as running:
        yield running


@pytest.fixture
def folder(tmp_path) -> ArchiveFolder:
    return ArchiveFolder(tmp_path / "archive")


def put(cluster, first: int, count: int, queues=(0, 1), **more) -> None:
    for queue_id in queues:
        cluster.put("orders", queue_id, [b"%d" % number for number in range(first, first + count)], **more)


@pytest.fixture
def archived(cluster, folder) -> ArchiveFolder:
    """300 messages in each of two queues that are archived and have left the broker; 100 that are only there."""
    put(cluster, 0, COUNT)
    cluster.new_log_file()
    archive_until(folder, cluster.namesrv, cluster.ends("orders"))
    put(cluster, COUNT, 100)
    cluster.expire("orders", 0, COUNT)
    cluster.expire("orders", 1, COUNT)
    return folder


def by_queue(messages) -> dict[int, list[int]]:
    """The numbers in the bodies, queue by queue, as they came. Offsets are the numbers, and rise."""
    found: dict[int, list[int]] = {}
    for message in messages:
        assert message.queue_offset == int(message.body)
        found.setdefault(message.queue_id, []).append(int(message.body))
    return found


def both_queues(numbers) -> dict[int, list[int]]:
    return {queue.queue_id: list(numbers) for queue in (Q0, Q1)}


def reader(cluster, folder, **more) -> Reader:
    return Reader(cluster.namesrv, "orders", stop_at_end=more.pop("stop_at_end", True), archive=folder.path, **more)


def test_what_has_left_the_broker_is_read_from_the_archive_and_then_the_rest(cluster, archived):
    """In order in each queue, each message once; again after a seek; ranges tell of both."""
    with Reader(cluster.namesrv, "orders", stop_at_end=True) as plain:
        live = {(message.queue, message.queue_offset): message for message in plain}
    with reader(cluster, archived) as both:
        messages = list(both)
        assert by_queue(messages) == {0: list(range(COUNT + 100)), 1: list(range(COUNT + 100))}
        assert both.ranges() == dict.fromkeys((Q0, Q1), range(COUNT + 100))
        assert both.positions() == dict.fromkeys((Q0, Q1), COUNT + 100)
        for message in messages:  # The tail is the broker's own.
            assert message == live.get((message.queue, message.queue_offset), message)
        for place in (0, 7, COUNT - 1, COUNT, COUNT + 1):
            both.seek(offset=place)
            assert by_queue(both) == both_queues(range(place, COUNT + 100))
        both.seek(Q1, offset=COUNT + 98)
        assert by_queue(both) == {1: [COUNT + 98, COUNT + 99]}


def test_files_are_read_in_threads_and_few_at_a_time(cluster, folder, monkeypatch):
    """No disk keeps the loop waiting, which all clients of the process share; and every queue has its turn."""
    monkeypatch.setattr(replaying, "QUEUES_AT_ONCE", 2)
    cluster.make_topic("orders", 9)
    put(cluster, 0, 20, queues=range(9))
    archive_until(folder, cluster.namesrv, cluster.ends("orders"))
    threads, under_way, most = set(), set(), [0]

    def watched(real):
        def call(self, *given):
            threads.add(threading.current_thread().name)
            return real(self, *given)

        return call

    def opened(real):
        def call(self):
            under_way.add(self._queue)
            most[0] = max(most[0], len(under_way))
            return real(self)

        return call

    def closed(real):
        def call(self):
            under_way.discard(self._queue)
            real(self)

        return call

    monkeypatch.setattr(replays.Cursor, "next", opened(watched(replays.Cursor.next)))
    monkeypatch.setattr(replaying.ReplayedQueue, "close", closed(replaying.ReplayedQueue.close))
    for name in ("_look", "begin_in", "_at_time"):
        monkeypatch.setattr(replays.ArchivedTopic, name, watched(getattr(replays.ArchivedTopic, name)))
    with reader(cluster, folder, start=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)) as both:
        assert by_queue(both) == {number: list(range(20)) for number in range(9)}
    assert threads == {"metaq-call"}
    assert most == [2]


def test_with_a_loop_too(cluster, archived):
    """`aio.Reader` is the same reader."""

    async def read():
        async with aio.Reader(cluster.namesrv, "orders", stop_at_end=True, archive=archived.path) as both:
            found = by_queue([message async for message in both])
            await both.seek(Q0, offset=COUNT - 2)
            return found, by_queue([message async for message in both])

    assert asyncio.run(read()) == (
        both_queues(range(COUNT + 100)),
        {0: list(range(COUNT - 2, COUNT + 100))},
    )


def test_batches_of_arrow_come_from_both(cluster, archived):
    """As columns, hosts and all."""
    with reader(cluster, archived, queues=[Q0]) as both:
        rows = [row for batch in both.arrow_batches(["queue_offset", "body", "offset_id"]) for row in batch.to_pylist()]
    assert [row["queue_offset"] for row in rows] == list(range(COUNT + 100))
    assert len({row["offset_id"] for row in rows}) == COUNT + 100


def test_a_reader_that_goes_on_gets_what_comes(cluster, archived):
    """Behind the archive's end it is a reader like any other."""
    with reader(cluster, archived, stop_at_end=False, start="earliest", queues=[Q0]) as both:
        assert [int(both.receive(PATIENCE).body) for _ in range(COUNT + 100)] == list(range(COUNT + 100))
        put(cluster, COUNT + 100, 3)
        assert [int(both.receive(PATIENCE).body) for _ in range(3)] == [COUNT + 100, COUNT + 101, COUNT + 102]


def test_one_that_reads_the_tail_and_is_overtaken_goes_back_to_the_archive(cluster, archived, monkeypatch):
    """Retention takes what a slow reader was about to pull; meanwhile that was archived."""
    overtaken = []
    real = ReaderCore._out_of_range
    monkeypatch.setattr(
        ReaderCore, "_out_of_range", lambda self, *given: (overtaken.append(given), real(self, *given))[1]
    )
    with reader(cluster, archived, stop_at_end=False, queues=[Q0]) as both:
        messages = iter(both)
        found = [int(next(messages).body) for _ in range(10)]
        put(cluster, COUNT + 100, 3000)
        window = both._reading._readers[Q0].window
        eventually(lambda: window.next_offset > 1000, what="as much is ready as may be")
        cluster.new_log_file()
        archive_until(archived, cluster.namesrv, cluster.ends("orders"))
        put(cluster, COUNT + 3100, 10)
        cluster.expire("orders", 0, COUNT + 3100)
        found += [int(next(messages).body) for _ in range(COUNT + 3100)]
    assert found == list(range(COUNT + 3110))
    assert len(overtaken) == 1


def test_a_moment_is_found_in_the_archive_and_behind_it(cluster, folder):
    """The first message stored then or later, wherever it lies."""
    put(cluster, 0, 10, queues=[0], store_ms=START_MS)
    put(cluster, 10, 10, queues=[0], store_ms=START_MS + 5000)
    cluster.new_log_file()
    archive_until(folder, cluster.namesrv, cluster.ends("orders"))
    put(cluster, 20, 10, queues=[0], store_ms=START_MS + 8000)
    cluster.expire("orders", 0, 20)
    for ms, first in ((0, 0), (START_MS, 0), (START_MS + 1, 10), (START_MS + 5001, 20), (START_MS + 9000, 30)):
        moment = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
        with reader(cluster, folder, start=moment) as both:
            assert by_queue(both).get(0, []) == list(range(first, 30))
            both.seek(time=moment)
            assert by_queue(both).get(0, []) == list(range(first, 30))


def test_what_is_wanted_is_decided_here(cluster, folder):
    """By tag and by SQL, as brokers do; only they know predicates."""
    for number in range(20):
        pairs = f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01{'ab'[number % 2]}\x02amount\x01{number}"
        cluster.put("orders", 0, [b"%d" % number], properties=pairs)
    archive_until(folder, cluster.namesrv, {Q0: 15})
    for tags, expected in (("a", range(0, 20, 2)), (metaq.Sql("amount > 9 AND TAGS = 'b'"), range(11, 20, 2))):
        with reader(cluster, folder, tags=tags) as both:
            assert by_queue(both) == {0: list(expected)}
    with pytest.raises(ConfigError, match="archive= and the predicate large: only brokers can ask it"):
        reader(cluster, folder, tags=metaq.Predicate("large"))


def test_within_a_namespace(cluster, folder):
    """The archive has the topic as brokers call it, the reader as its user does."""
    cluster.put("shop%orders", 0, [b"0", b"1", b"2"])
    archive_until(folder, cluster.namesrv, {MessageQueue("shop%orders", "broker-a", 0): 2})
    with reader(cluster, folder, namespace="shop") as both:
        assert [(message.topic, message.queue) for message in both] == [("orders", Q0)] * 3
        assert both.queues() == [Q0]


# ------------------------------------------------------------------ holes
def test_retention_that_passed_the_archive_is_told_with_the_count(cluster, folder):
    """What was archived comes first, then the error, until a seek goes on behind the hole."""
    put(cluster, 0, COUNT)
    archive_until(folder, cluster.namesrv, {Q0: 100, Q1: COUNT})
    cluster.new_log_file()
    put(cluster, COUNT, 10)
    cluster.expire("orders", 0, COUNT)
    with reader(cluster, folder) as both:
        found = []
        with pytest.raises(
            MessagesLost, match=r"200 messages of orders@broker-a:0 are gone: offsets \[100, 300\)"
        ) as told:
            found.extend(both)
        assert by_queue(found)[0] == list(range(100))
        assert (told.value.queue, told.value.lost) == (Q0, range(100, COUNT))
        assert f"The archive {folder.path} ends at 100" in str(told.value)
        both.seek(Q0, offset=COUNT)
        assert by_queue(itertools.chain(found, both))[0] == [*range(100), *range(COUNT, COUNT + 10)]


def test_older_than_both_is_out_of_range(cluster, folder):
    """As of a reader without an archive; `kept` begins with what is there of either."""
    put(cluster, 0, 50, queues=[0])
    cluster.new_log_file()
    put(cluster, 50, 50, queues=[0])
    cluster.expire("orders", 0, 50)
    publish(folder, 1, {Q0: range(20, 60)}, new=True)
    with reader(cluster, folder) as both:
        both.seek(offset=3)
        with pytest.raises(OffsetOutOfRange, match=r"keeps \[20, 100\), wanted 3"):
            list(both)
        both.seek(offset=20)
        assert [message.queue_offset for message in both] == list(range(20, 100))


def test_what_the_archive_never_had_the_broker_gives(cluster, folder):
    """An archive that began at the topic's end."""
    put(cluster, 0, 50, queues=[0])
    publish(folder, 1, {Q0: range(30, 50)}, new=True)
    with reader(cluster, folder) as both:
        assert by_queue(both) == {0: list(range(50))}


def test_a_queue_without_a_broker_is_read_to_the_archives_end(cluster, archived, caplog):
    """It is told: nobody can know what came behind."""
    gone = MessageQueue("orders", "broker-gone", 0)
    publish(archived, 9, {gone: range(5)}, new=True)
    with reader(cluster, archived) as both:
        found = list(both)
        assert [message.queue_offset for message in found if message.queue == gone] == list(range(5))
        assert len(found) == 2 * (COUNT + 100) + 5
        assert both.ranges()[gone] == range(5)
        for start in ("latest", dt.datetime(2036, 1, 1, tzinfo=dt.UTC)):
            with reader(cluster, archived, start=start, queues=[gone]) as ended:
                assert list(ended) == []
    assert "orders@broker-gone:0 has no broker any more: it is read to the end of the archive, 5" in caplog.text


def test_a_topic_that_was_made_anew_is_not_read_on(cluster, folder):
    """Its offsets are others; the archive is ahead of the broker."""
    put(cluster, 0, 5, queues=[0])
    publish(folder, 1, {Q0: range(20)}, new=True)
    with (
        reader(cluster, folder) as both,
        pytest.raises(OffsetOutOfRange, match=r"wanted 20\. .* the topic was made anew"),
    ):
        list(both)


# ------------------------------------------------------------------ an archive that changes, or is none
def test_files_are_merged_while_they_are_read(cluster, folder, monkeypatch):
    """Again and again, and tidied away at once: nothing is missed, nothing comes twice."""
    monkeypatch.setattr(replays, "BATCH_ROWS", 7)
    for number in range(6):
        put(cluster, number * 50, 50)
        archive_until(folder, cluster.namesrv, cluster.ends("orders"))
    clock, ended = FakeClock(START_MS), threading.Event()
    merged = []

    def merging():
        made = Compactor(folder, CompactOptions(folder=str(folder.path), grace_seconds=1), 1, clock)
        made.prepare()
        while not ended.is_set() and len(merged) < 4:
            merged.extend(step for step in made.look() if step.what == "replaced")
            clock.advance(1)

    thread = threading.Thread(target=merging)
    thread.start()
    try:
        for _ in range(3):
            with reader(cluster, folder) as both:
                assert by_queue(both) == both_queues(range(300))
    finally:
        ended.set()
        thread.join()
    assert merged


def test_what_is_no_archive_is_refused(cluster, folder, archived, tmp_path):
    """When the reader is made, or begins: no folder, another topic, a manifest cut short."""
    with pytest.raises(ConfigError, match="there is no archive"):
        Reader(cluster.namesrv, "orders", archive=tmp_path)
    cluster.put("others", 0, [b"0"])
    with (
        pytest.raises(ConfigError, match="has nothing of topic others: it has orders"),
        Reader(cluster.namesrv, "others", archive=archived.path),
    ):
        pass
    path = max((archived.path / "_manifests").iterdir())
    path.write_text(path.read_text()[:50])
    with pytest.raises(StoreCorrupt, match=f"{path} cannot be read"), reader(cluster, archived):
        pass


def test_a_file_that_is_broken_ends_its_queue_with_its_name(cluster, archived):
    """And not as if there were no more."""
    path = next(archived.path.rglob("*broker-a-0-*.parquet"))
    path.write_bytes(path.read_bytes()[:-50])
    with reader(cluster, archived) as both, pytest.raises(StoreCorrupt, match=f"{path} is no Parquet file"):
        list(both)


def test_without_pyarrow_it_is_said_what_is_missing(cluster, archived, monkeypatch):
    """A client without it is whole but for this."""
    for name in [name for name in sys.modules if name.startswith(("metaq.archive.re", "metaq.archive.index"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"archive= needs pyarrow: pip install 'pymetaq\[arrow\]'"):
        reader(cluster, archived)
