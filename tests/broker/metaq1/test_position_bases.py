"""Byte positions on a real store: begun, found again, computed anew, and never another."""

from __future__ import annotations

import functools
import itertools
import pathlib
import queue
import shutil
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.message import COMPRESSION_LZ4, SysFlag
from metaq.options import Metaq1Options
from metaq.saved import Saving
from metaq.store.log.writer import PutRecord
from metaq.store.metaq1.position_bases import newest_bases
from metaq.store.metaq1.queue_positions import STEP_MESSAGES, QueuePositions
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from metaq.wire.compression import compress
from tests.broker import support
from tests.broker.metaq1.support import settings
from tests.broker.support import BORN_HOST
from tests.support import PATIENCE, eventually

T = TypeVar("T")
TOPIC = "orders"
HOUR = settings(Metaq1Options(broker_id=7, delete_policy="delete,1"))
"""Where clients of 1.x are served, their rule for old messages takes the place of `fileReservedTime`."""
open_broker = functools.partial(support.open_broker, metaq1=HOUR)


def settled(broker: Broker, ask: Callable[[], T]) -> T:
    """Ask until the answer is there, letting the disk and the broker work in between."""
    for _ in range(10_000):
        try:
            return ask()
        except Saving:
            broker.store.flusher.flush()
            broker.deliver()
    raise AssertionError("it is never known")


def touched(broker: Broker, queue_id: int = 0, topic: str = TOPIC) -> QueuePositions:
    return settled(broker, lambda: broker.metaq1.bases.touch(topic, queue_id))


def send(broker: Broker, bodies: Iterable[bytes], queue_id: int = 0, tag: str = "", topic: str = TOPIC) -> None:
    """Messages as another server would put them."""
    properties = b"TAGS\x01" + tag.encode() if tag else b""
    for body in bodies:
        broker.appender.put([PutRecord(topic, queue_id, body, properties, 0, 0, 1, BORN_HOST)])


def told(broker: Broker, positions: QueuePositions) -> dict[int, int]:
    """The position of each queue offset, the next one's included."""
    queue = broker.store.reader.queue(positions.topic, positions.queue_id)
    offsets = range(queue.min_offset, queue.max_offset + 1)
    return {offset: settled(broker, lambda offset=offset: positions.position(offset)) for offset in offsets}  # type: ignore[misc]


def bodies(count: int, seed: int = 0) -> list[bytes]:
    return [b"x" * ((seed + number * 7) % 90) for number in range(count)]


def work(broker: Broker, rounds: int = 20) -> None:
    """Let the broker do what is due."""
    for _ in range(rounds):
        broker.store.flusher.flush()
        broker.deliver()


def test_a_queue_begins_at_position_0_with_its_oldest_message_when_it_is_touched(tmp_path: pathlib.Path):
    """Positions are sums of frames: 20 bytes, 4 and the attribute, the body."""
    with open_broker(tmp_path) as broker:
        send(broker, [b"12345", b""], tag="ab")
        positions = touched(broker)
        assert settled(broker, lambda: told(broker, positions)) == {0: 0, 1: 31, 2: 57}
        assert (positions.min, positions.max) == (0, 57)
        send(broker, [b"123"])
        assert settled(broker, lambda: positions.max) == 80
        found = [settled(broker, lambda p=p: positions.at(p)) for p in (-1, 0, 30, 31, 57, 79, 80, 1 << 62)]  # type: ignore[misc]
        assert found == [(0, 0), (0, 0), (0, 0), (1, 31), (2, 57), (2, 57), (3, 80), (3, 80)]


def test_nothing_is_told_before_the_base_is_durable(tmp_path: pathlib.Path):
    """Otherwise a power cut could begin the queue anew, elsewhere."""
    with open_broker(tmp_path, store={"flush_interval_commit_log": 3_600_000}) as broker:
        with pytest.raises(Saving) as saving:
            broker.metaq1.bases.touch(TOPIC, 0)
        place = broker.store.log.end
        assert broker.metaq1.bases.find(TOPIC, 0) is not None
        (pending,) = saving.value.pending
        broker.store.flusher.flush()
        eventually(lambda: pending.done)  # the flush thread may have begun to tell it, and not got there yet
        assert (pending.error, broker.store.state.flushed >= place) == (None, True)
        assert touched(broker).max == 0


def test_an_untouched_queue_costs_nothing(tmp_path: pathlib.Path):
    """No folder, no record, no look at it."""
    with open_broker(tmp_path) as broker:
        send(broker, bodies(10))
        work(broker)
        assert broker.metaq1.bases.find(TOPIC, 0) is None
        assert broker.metaq1.bases.oldest() is None
        assert not (tmp_path / "positions").exists()
        assert broker.store.reader.queues().keys() == {(TOPIC, 0)}


def copied_log(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """A folder that has nothing but the log."""
    shutil.copytree(root / "commitlog", to / "commitlog")
    return to


def without_positions(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(root / "positions")
    return root


def as_it_is(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    return root


@pytest.mark.parametrize("hurt", [as_it_is, without_positions, copied_log])
def test_positions_are_the_same_after_a_start(tmp_path: pathlib.Path, hurt: Callable[..., pathlib.Path]):
    """With the files, without them, and from the log alone; over several log files."""
    root = tmp_path / "store"
    with open_broker(root, store={"mapped_file_size_commit_log": 1 << 20}) as broker:
        send(broker, bodies(50, 3))
        first = touched(broker)
        for turn in range(6):
            send(broker, bodies(1500, turn), tag="t" * (turn % 3))
            send(broker, bodies(700, turn), queue_id=1)
            work(broker)
            touched(broker, 1)
        before = [settled(broker, lambda q=q: told(broker, q)) for q in (first, touched(broker, 1))]  # type: ignore[misc]
    with open_broker(hurt(root, tmp_path / "copy"), store={"mapped_file_size_commit_log": 1 << 20}) as broker:
        assert [told(broker, touched(broker, queue_id)) for queue_id in (0, 1)] == before


def test_a_queue_without_messages_is_touched_and_goes_on_from_0(tmp_path: pathlib.Path):
    """Also over a restart: there is nothing of it on the disk but its base."""
    with open_broker(tmp_path) as broker:
        assert touched(broker).max == 0
    with open_broker(tmp_path) as broker:
        assert touched(broker).max == 0
        send(broker, [b"12345"])
        assert settled(broker, lambda: touched(broker).max) == 25


def test_a_put_appends_without_reading_the_log(tmp_path: pathlib.Path):
    """The server knows how long the frame is; what another server has put meanwhile is measured first."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        for number in range(3000):
            assert positions.max == number * 25
            stored = broker.appender.put([PutRecord(TOPIC, 0, b"12345", b"", 0, 0, 1, BORN_HOST)])
            assert positions.append(stored.queue_offset, 25) == number * 25
        send(broker, [b"", b"1"])
        assert positions.append(3002, 99) == 3000 * 25 + 20 + 21
        assert told(broker, positions)[3001] == 3000 * 25 + 20


def test_what_is_much_is_left_to_the_thread(tmp_path: pathlib.Path):
    """A few messages of other servers are measured at once; more, and compressed ones, are not: the caller waits for them."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        send(broker, [b"1"] * STEP_MESSAGES)
        assert positions.max == 21 * STEP_MESSAGES
        send(broker, [b"1"] * (STEP_MESSAGES + 1))
        with pytest.raises(Saving):
            positions.max  # noqa: B018  it raises
        broker.deliver()
        assert positions.max == 21 * (2 * STEP_MESSAGES + 1)
        before = positions.max
        compressed = PutRecord(TOPIC, 0, zlib.compress(bytes(9000)), b"", 0, int(SysFlag.COMPRESSED), 1, BORN_HOST)
        broker.appender.put([compressed])
        with pytest.raises(Saving):
            positions.max  # noqa: B018  it raises
        broker.deliver()
        assert positions.max == before + 9020


def test_tens_of_thousands_of_messages_are_computed_anew_in_both_directions(tmp_path: pathlib.Path):
    """Chunk by chunk, from a base in the middle: the end first, for those who read there."""
    with open_broker(tmp_path / "store", store={"mapped_file_size_commit_log": 4 << 20}) as broker:
        first = touched(broker)
        send(broker, bodies(40_000))
        work(broker)
        assert settled(broker, lambda: first.max) == sum(20 + len(body) for body in bodies(40_000))
        send(broker, bodies(50))
        broker.store.flusher.flush()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "positions")
    with open_broker(tmp_path / "killed", store={"mapped_file_size_commit_log": 4 << 20}) as broker:
        place = 0
        positions = touched(broker)
        assert positions.position(40_050) == positions.max
        assert positions.at(positions.max - 1).queue_offset == 40_049
        assert not positions.is_before(positions.max - 1)
        with pytest.raises(Saving):
            positions.is_before(0)
        assert not settled(broker, lambda: positions.is_before(0))
        assert settled(broker, lambda: positions.is_before(-1))
        for offset, body in enumerate(bodies(40_000) + bodies(50)):
            assert settled(broker, lambda offset=offset: positions.position(offset)) == place  # type: ignore[misc]
            place += 20 + len(body)
        assert settled(broker, lambda: positions.max) == place


@pytest.mark.parametrize("large", [range(5), range(3995, 4000), range(0, 4000, 700), range(2000, 2001)])
def test_a_place_is_found_among_messages_of_very_different_sizes(tmp_path: pathlib.Path, large: range):
    """A look where it should be, if all had the same size, may find it elsewhere."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        send(broker, (b"x" * (100_000 if number in large else number % 3) for number in range(4000)))
        end = settled(broker, lambda: positions.max)
        places = [positions.position(offset) for offset in range(4001)]
        for wanted in (*range(0, end, 997), *places, *(place - 1 for place in places[1:])):
            offset = bisect_right(places, wanted) - 1
            assert positions.at(wanted) == (offset, places[offset])


def units_of(root: pathlib.Path, queue_id: int = 0) -> pathlib.Path:
    return root / "positions" / TOPIC / str(queue_id) / ("0" * 20)


def test_a_damaged_unit_is_noticed_and_made_anew(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    """By itself when it is read; if it looks right, by the frames of a get."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        send(broker, bodies(100))
        before = told(broker, positions)
        assert positions.confirm(10, 5, before[15] - before[10])
        assert positions.at(before[15]) == (15, before[15])
        with units_of(tmp_path).open("r+b") as file:
            file.seek(8 * 50)
            file.write(bytes(8))
        with pytest.raises(Saving):
            positions.position(50)
        assert settled(broker, lambda: told(broker, positions)) == before
        wrong, _ = hot.position_units(array("i"), 50, before[50] + 3)
        with units_of(tmp_path).open("r+b") as file:
            file.seek(8 * 50)
            file.write(wrong)
        assert not positions.confirm(48, 2, before[50] - before[48])
        work(broker)
        assert positions.confirm(48, 2, before[50] - before[48])
        assert told(broker, positions) == before
    assert "1 byte positions were damaged" in caplog.text


def damage(root: pathlib.Path, body: bytes, place: int = 4, with_: bytes = b"\xff\xff") -> None:
    """Spoil the record with this body: `place` is a byte of it."""
    for path in (root / "commitlog").glob("[0-9]" * 20):
        data = path.read_bytes()
        if (found := data.find(body)) >= 0:
            begin = data.rfind(b"\xda\xa3\x20\xa7", 0, found) - 4
            with path.open("r+b") as file:
                file.seek(begin + place)
                file.write(with_)
            return
    raise AssertionError("there is no such record")


def test_a_damaged_record_moves_no_position(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    """Known units stay; if they are lost too, bases on both sides of it say how long it was."""
    with open_broker(tmp_path, store={"mapped_file_size_commit_log": 64 << 10}) as broker:
        positions = touched(broker)
        for number in range(2000):
            send(broker, [b"message %d." % number])
            if number % 50 == 0:
                work(broker, 3)
        work(broker)
        before = told(broker, positions)
        damage(tmp_path, b"message 700.")
        assert not positions.confirm(699, 2, 3)
        work(broker)
        assert told(broker, positions) == before
        for place, count in ((300, 1), (690, 30), (700, 1), (0, 500), (1500, 501)):
            with units_of(tmp_path).open("r+b") as file:
                file.seek(8 * place)
                file.write(bytes(8 * count))
            assert told(broker, positions) == before
        assert "a message is damaged in the log; the byte positions of the others stay" in caplog.text
    shutil.rmtree(tmp_path / "positions")
    with open_broker(tmp_path, store={"mapped_file_size_commit_log": 64 << 10}) as broker:
        assert told(broker, touched(broker)) == before


def test_a_message_that_is_lost_behind_the_newest_base_keeps_the_bytes_that_were_told(tmp_path: pathlib.Path):
    """The broker was killed, so no base was written behind it; but its unit is there."""
    root, copy = tmp_path / "store", tmp_path / "killed"
    with open_broker(root) as broker:
        positions = touched(broker)
        send(broker, bodies(10, 3))
        before = told(broker, positions)
        place = broker.store.reader.queue(TOPIC, 0).units(4, 1)[0].log_offset
        broker.store.flusher.flush()
        broker.store.keeper.checkpoint()  # a start looks at no older record's checksum
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("lock"))
    with (copy / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place + 4)
        file.write(b"XXXX")
    with open_broker(copy) as broker:
        assert told(broker, touched(broker)) == before


def test_a_body_that_nobody_can_expand_here_is_not_guessed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Positions up to it are told; those behind it are refused until the library is there."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        kind = int(SysFlag.COMPRESSED) | COMPRESSION_LZ4
        body = compress(bytes(5000), COMPRESSION_LZ4)
        monkeypatch.setitem(sys.modules, "lz4.frame", None)
        send(broker, [b"12345"])
        broker.appender.put([PutRecord(TOPIC, 0, body, b"", 0, kind, 1, BORN_HOST)])
        with pytest.raises(Saving) as saving:
            positions.position(2)
        broker.deliver()
        error = saving.value.pending[0].error
        assert error is not None
        assert error.reason is Reason.UNAVAILABLE
        assert "lz4" in error.text
        monkeypatch.undo()
        assert settled(broker, lambda: positions.position(2)) == 25 + 5020


def test_what_positions_are_computed_from_is_carried_before_its_file_goes(tmp_path: pathlib.Path):
    """The oldest log file stays until newer bases are in the log; a quiet queue's too."""
    clock = FakeClock()
    with open_broker(
        tmp_path / "store", clock, store={"mapped_file_size_commit_log": 64 << 10, "file_reserved_time": 1}
    ) as broker:
        send(broker, bodies(40))
        quiet, busy = touched(broker), touched(broker, 1)
        base = quiet.max
        send(broker, bodies(3000), queue_id=1)
        place = settled(broker, lambda: busy.max)
        clock.advance(2 * 3600)
        assert broker.metaq1.bases.settled(TOPIC, 0) == 0
        files = len(broker.store.log.run.files)
        assert files > 3
        broker.store.keeper.retain(clock.now_ms(), at_once=True)
        for _ in range(10):
            clock.advance(10)
            work(broker, 3)
            broker.store.keeper.retain(clock.now_ms(), at_once=True)
        assert len(broker.store.log.run.files) == 1
        assert (broker.metaq1.bases.settled(TOPIC, 0), broker.metaq1.bases.settled(TOPIC, 1)) == (40, 3000)
        assert (quiet.min, quiet.max, busy.max) == (base, base, place)
        low = busy.min
        assert 0 < low <= place
    with open_broker(
        copied_log(tmp_path / "store", tmp_path / "copy"), clock, store={"mapped_file_size_commit_log": 64 << 10}
    ) as broker:
        assert (touched(broker).min, touched(broker).max) == (base, base)
        assert (settled(broker, lambda: touched(broker, 1).min), settled(broker, lambda: touched(broker, 1).max)) == (
            low,
            place,
        )
        send(broker, [b"12345"])
        assert settled(broker, lambda: touched(broker).max) == base + 25


def test_a_folder_that_somebody_else_has_kept_goes_on_from_its_files(tmp_path: pathlib.Path):
    """A RocketMQ writes no bases, and its retention takes the last: the units that fit are believed, and a base is written."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        send(broker, bodies(500))
        before = told(broker, positions)
    shutil.rmtree(tmp_path / "consumequeue" / "rmq_sys_METAQ_POSITIONS")
    for path in (tmp_path / "commitlog").glob("[0-9]" * 20):
        path.write_bytes(path.read_bytes().replace(b"rmq_sys_METAQ_POSITIONS", b"rmq_sys_METAQ_POSITION2"))
    with open_broker(tmp_path) as broker:
        send(broker, bodies(10))
        after = told(broker, touched(broker))
        assert {offset: after[offset] for offset in before} == before
    with open_broker(without_positions(tmp_path, tmp_path)) as broker:
        assert told(broker, touched(broker)) == after


def test_a_base_that_could_not_be_written_is_written_where_the_queue_is_then(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The store refused it first; and the thread is at the queue when it would be taken."""
    with open_broker(tmp_path) as broker:
        send(broker, bodies(50))
        touched(broker)
    shutil.rmtree(tmp_path / "consumequeue" / "rmq_sys_METAQ_POSITIONS")
    path = tmp_path / "commitlog" / f"{0:020}"
    path.write_bytes(path.read_bytes().replace(b"rmq_sys_METAQ_POSITIONS", b"rmq_sys_METAQ_POSITION2"))
    with open_broker(tmp_path) as broker:
        put = broker.appender.put

        def refuse(*_args: object, **_more: object):
            raise Refused(Reason.NOT_STORED, "the disk is full")

        monkeypatch.setattr(broker.appender, "put", refuse)
        positions = broker.metaq1.bases.find(TOPIC, 0)
        assert positions is not None
        positions.fill()
        work(broker)
        assert not positions.touched
        monkeypatch.setattr(broker.appender, "put", put)
        positions.busy = True
        work(broker)
        assert not positions.touched
        positions.busy = False
        work(broker)
        assert touched(broker) is positions
        assert newest_bases(broker.store).bases[TOPIC, 0].queue_offset == 50


def test_positions_that_begin_elsewhere(tmp_path: pathlib.Path):
    """What is imported from a MetaQ keeps its positions."""
    with open_broker(tmp_path) as broker:
        positions = settled(broker, lambda: broker.metaq1.bases.begin_at(TOPIC, 0, 5_000_000_000))
        send(broker, [b"12345"])
        assert (positions.min, positions.max) == (5_000_000_000, 5_000_000_025)
        assert positions.at(0) == (0, 5_000_000_000)
        assert broker.metaq1.bases.begin_at(TOPIC, 0, 5_000_000_000) is positions
        with pytest.raises(Refused, match="5000000000"):
            broker.metaq1.bases.begin_at(TOPIC, 0, 7)


def test_a_start_after_a_stop_in_order_computes_nothing(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    """The newest bases are at the queues' ends; and another start and stop writes none."""
    with open_broker(tmp_path) as broker:
        positions = touched(broker)
        send(broker, bodies(STEP_MESSAGES * 2))
        end = settled(broker, lambda: positions.max)
    for _ in range(2):
        with open_broker(tmp_path) as broker:
            log_end = broker.store.log.end
            positions = touched(broker)
            assert positions.base is not None
            assert (positions.base[:2], positions.max) == ((STEP_MESSAGES * 2, end), end)
        with open_broker(tmp_path) as broker:
            assert broker.store.log.end == log_end
    assert "computed anew" not in caplog.text


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: pathlib.Path):
    """What cannot be written now is computed when there is room again."""
    disk = FaultyDisk()
    with open_broker(tmp_path, disk=disk) as broker:
        positions = touched(broker)
        send(broker, bodies(1000))
        settled(broker, lambda: positions.max)
        send(broker, bodies(3000))
        disk.room = 0
        with pytest.raises(Saving) as saving:
            positions.max  # noqa: B018  it raises
        broker.deliver()
        assert saving.value.pending[0].error is not None
        disk.room = None
        assert settled(broker, lambda: positions.max) == sum(20 + len(body) for body in bodies(1000) + bodies(3000))
        assert broker.store.state.failed is None


def test_positions_of_a_thread_are_the_same(tmp_path: pathlib.Path):
    """As in a running broker: another thread computes, and hands over to the one that asks."""
    turns: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    with open_broker(tmp_path, call_soon=turns.put) as broker:

        def asked(ask: Callable[[], T]) -> T:
            while True:
                try:
                    return ask()
                except Saving as saving:
                    (pending,) = saving.pending
                    while not pending.done:
                        turns.get(timeout=PATIENCE)()

        positions = asked(lambda: broker.metaq1.bases.touch(TOPIC, 0))
        for turn in range(4):
            send(broker, bodies(STEP_MESSAGES * 2, turn))
            asked(lambda: positions.max)
        sizes = [20 + len(body) for turn in range(4) for body in bodies(STEP_MESSAGES * 2, turn)]
        assert [positions.position(offset) for offset in range(len(sizes) + 1)] == [0, *itertools.accumulate(sizes)]


def test_hundreds_of_queues_get_new_bases_when_the_log_goes_on_in_another_file(tmp_path: pathlib.Path):
    """A few at a time; a start reads back to where the last complete round began, and no further."""
    sizes = {"mapped_file_size_commit_log": 256 << 10}
    with open_broker(tmp_path / "store", store=sizes) as broker:
        for number in range(300):
            touched(broker, number)
        for number in range(3000):
            send(broker, [b"x" * 80], queue_id=number % 100)
        work(broker, 40)
        assert {broker.metaq1.bases.settled(TOPIC, number) for number in range(100)} <= set(range(15, 31))
        start = broker.store.log.end - broker.store.log.end % (256 << 10)
        oldest = broker.metaq1.bases.oldest()
        assert oldest is not None
        assert oldest >= start - (256 << 10)
        newest = newest_bases(broker.store)
        assert len(newest.bases) == 300
        assert min(base.log_offset for base in newest.bases.values()) > 256 << 10
        ends = [settled(broker, functools.partial(lambda n: touched(broker, n).max, n)) for n in range(300)]
        assert ends == [30 * 100] * 100 + [0] * 200
    with open_broker(copied_log(tmp_path / "store", tmp_path / "copy"), store=sizes) as broker:
        assert [settled(broker, functools.partial(lambda n: touched(broker, n).max, n)) for n in range(300)] == ends
