"""The comparison of a master's log with its slave's: what differs is found, and which side is damaged; nothing else is told."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums
from metaq.client.conversation.scrubbing.comparison import DIFFERENCES_MAX, Comparison, NotComparable
from metaq.model.scrub import RANGE_BYTES, RANGES_MAX, DamagedSide, LogChecksums
from metaq.wire import hot
from tests.effort import repeats
from tests.store.log.test_raw import raw_log
from tests.store.support import open_store, put

FILE = 3 * RANGE_BYTES + 12_288
BODY_AT = 100
"""Within the body of every record of the log here."""
STORE_TIME_AT = 56
PLACE_AT = 28


class Log:
    """One of two logs, in memory, which answers as a broker does."""

    def __init__(self, data: bytes) -> None:
        self.data, self.min, self.file_bytes = bytearray(data), 0, FILE
        self.flushed = len(data)
        self.before: Callable[[object], None] = lambda _call: None

    def answer(self, call):
        self.before(call)
        if isinstance(call, GetLogBytes):
            return self.piece(call.offset, min(call.offset + call.size, call.offset + RANGE_BYTES))
        stop = min(call.stop, call.offset + RANGES_MAX * RANGE_BYTES)
        data = self.piece(call.offset, stop)
        sums = [zlib.crc32(data[at : at + RANGE_BYTES]) for at in range(0, len(data), RANGE_BYTES)]
        return LogChecksums(self.min, self.flushed, self.file_bytes, "/log", tuple(sums))

    def piece(self, start: int, stop: int) -> bytes:
        end = min(stop, self.flushed, start - start % FILE + FILE)
        return bytes(self.data[start:end]) if start >= self.min else b""

    def flip(self, place: int) -> None:
        self.data[place] ^= 0x10


def drive(comparison: Comparison, master: Log, slave: Log) -> Comparison:
    steps = comparison.steps()
    call = next(steps)
    try:
        while True:
            call = steps.send((master.answer(call), slave.answer(call)))
    except StopIteration:
        return comparison


def compared(master: Log, slave: Log, **more: object) -> list[tuple[int, int, DamagedSide]]:
    found = drive(Comparison(**more), master, slave).differences
    assert all(one.at == one.log_offset % FILE for one in found)
    return [(one.log_offset, one.size, one.damaged) for one in found]


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> bytes:
    """Three files of small records, and some that are longer than a range."""
    root = tmp_path_factory.mktemp("log")
    with open_store(root, mapped_file_size_commit_log=FILE, max_message_size=4 << 20) as store:
        for number in range(700):
            size = {300: 1_500_000, 500: 2_700_000}.get(number, 200 + number * 37 % 9000)
            put(store, "orders", 0, b"%d:" % number + b"x" * size)
        end = store.log.end
    return raw_log(root, 0, end)


@pytest.fixture(scope="module")
def records(log: bytes) -> list[tuple[int, int]]:
    """Where each record begins, and how long it is."""
    found = []
    for start in range(0, len(log), FILE):
        heads, _, _ = hot.scan_records(log, start, min(start + FILE, len(log)), 0, 10_000, check_crc=True)
        found += [(head.log_offset, head.size) for head in heads]
    assert len(found) == 700
    assert len(log) > 2 * FILE
    return found


def test_equal_logs_do_not_differ(log):
    """All of them is compared."""
    done = drive(Comparison(), Log(log), Log(log))
    assert (done.found, done.place, done.stop, done.compared) == (0, len(log), len(log), len(log))


@pytest.mark.parametrize("number", [0, 1, 299, 300, 301, 500, 650, 699])
@pytest.mark.parametrize("at", [0, 2, 4, 7, 9, PLACE_AT + 6, 86, BODY_AT, -1])
@pytest.mark.parametrize("damaged", [DamagedSide.MASTER, DamagedSide.SLAVE])
def test_a_flipped_bit_is_found_with_its_record_and_its_side(log, records, number, at, damaged):
    """In its size, its magic number, its checksum, its place, its body's length, its body."""
    start, size = records[number]
    if at == -1:
        at = size // 2
    sides = {DamagedSide.MASTER: Log(log), DamagedSide.SLAVE: Log(log)}
    sides[damaged].flip(start + at)
    assert compared(sides[DamagedSide.MASTER], sides[DamagedSide.SLAVE]) == [(start, size, damaged)]


@pytest.mark.parametrize("side", ["master", "slave"])
def test_what_no_checksum_covers_is_told_as_unknown(log, records, side):
    """The store time: both records look right."""
    start, size = records[40]
    master, slave = Log(log), Log(log)
    {"master": master, "slave": slave}[side].flip(start + STORE_TIME_AT + 7)
    assert compared(master, slave) == [(start, size, DamagedSide.UNKNOWN)]


def test_both_sides_are_damaged_at_different_places(log, records):
    """Each is told for itself."""
    master, slave = Log(log), Log(log)
    one, other, same = records[10], records[11], records[600]
    master.flip(one[0] + BODY_AT)
    slave.flip(other[0] + BODY_AT)
    master.flip(same[0] + BODY_AT)
    slave.flip(same[0] + BODY_AT + 1)
    assert compared(master, slave) == [
        (*one, DamagedSide.MASTER), (*other, DamagedSide.SLAVE), (*same, DamagedSide.BOTH),
    ]  # fmt: skip


def test_a_lost_sector_is_one_place(log, records):
    """Records behind each other that are damaged at the same side are told together."""
    slave = Log(log)
    start = records[5][0] + 50
    slave.data[start : start + 30_000] = bytes(30_000)
    hit = [one for one in records if one[0] + one[1] > start and one[0] < start + 30_000]
    assert len(hit) > 2
    assert compared(Log(log), slave) == [(hit[0][0], sum(size for _, size in hit), DamagedSide.SLAVE)]


def test_a_file_of_zeros_is_found(log, records):
    """The blank record at its end is among what is damaged."""
    slave = Log(log)
    slave.data[FILE : 2 * FILE] = bytes(FILE)
    found = compared(Log(log), slave)
    assert {damaged for _, _, damaged in found} == {DamagedSide.SLAVE}
    assert found[0][0] == FILE
    assert sum(size for _, size, _ in found) == FILE
    assert all(size <= 3_000_000 for _, size, _ in found)


def test_the_blank_end_of_a_file_has_zeros(log, records):
    """So a byte in it is damage of the side that has it; nothing reads it."""
    last = max(start + size for start, size in records if start < FILE)
    assert FILE - last > 8
    for at in (9, FILE - last - 1):
        master, slave = Log(log), Log(log)
        slave.flip(last + at)
        assert compared(master, slave) == [(last, FILE - last, DamagedSide.SLAVE)]
        assert compared(slave, master) == [(last, FILE - last, DamagedSide.MASTER)]


def test_only_what_both_have_durably_is_compared(log, records):
    """A slave may be behind, and its master's log grows meanwhile."""
    start, _ = records[690]
    master, slave = Log(log), Log(log)
    slave.flushed = records[650][0]
    slave.flip(start + BODY_AT)
    done = drive(Comparison(), master, slave)
    assert (done.found, done.place) == (0, records[650][0])
    assert compared(master, Log(log), limit=start) == []


def test_what_retention_takes_meanwhile_is_no_difference(log, records):
    """Before its checksums are told, and between these and the bytes."""
    for kind in (GetLogChecksums, GetLogBytes):
        for which in (0, 1):
            master, slave = Log(log), Log(log)
            slave.flip(records[3][0] + BODY_AT)
            slave.flip(records[650][0] + BODY_AT)
            taken = (master, slave)[which]

            def take(call, taken=taken, kind=kind) -> None:
                if isinstance(call, kind) and call.offset < FILE and (kind is GetLogBytes or call.offset):
                    taken.min = FILE

            taken.before = take
            assert compared(master, slave)[-1] == (*records[650], DamagedSide.SLAVE)
            assert taken.min == FILE or kind is GetLogChecksums


def test_a_comparison_goes_on_where_it_was_left(log, records):
    """A connection that ends costs no more than the step that was under way."""
    master, slave = Log(log), Log(log)
    for number in (3, 300, 650):
        slave.flip(records[number][0] + BODY_AT)
    comparison, asked = Comparison(ranges=1), 0
    while comparison.place != comparison.stop:
        steps = comparison.steps()
        call = next(steps)
        try:
            for _ in range(5):
                asked += 1
                call = steps.send((master.answer(call), slave.answer(call)))
        except StopIteration:
            break
        assert asked < 100
    found = [(one.log_offset, one.size) for one in comparison.differences]
    assert found == [records[number] for number in (3, 300, 650)]


def test_logs_that_cannot_be_compared_are_refused(log):
    """A RocketMQ tells no checksums, and logs of other files have other bytes."""
    other = Log(log)
    other.file_bytes = FILE + 1
    with pytest.raises(NotComparable, match="mappedFileSizeCommitLog"):
        compared(Log(log), other)
    steps = Comparison().steps()
    next(steps)
    with pytest.raises(NotComparable, match="the master tells no checksums"):
        steps.send((None, Log(log).answer(GetLogChecksums(0, 0))))


def test_a_log_that_was_cut_meanwhile_ends_the_comparison(log, records):
    """What is not there any more is not called damaged."""
    master, slave = Log(log), Log(log)

    def cut(call) -> None:
        if call.offset >= FILE:
            slave.flushed = FILE

    slave.before = cut
    with pytest.raises(NotComparable, match="changed"):
        compared(master, slave)


def test_differences_are_counted_beyond_those_that_are_remembered(log, records):
    """A disk full of damage needs no memory full of it."""
    master = Log(log)
    slave = Log(bytes(len(log)))
    slave.data[:] = log
    comparison = Comparison()
    comparison.differences = list(drive(Comparison(), Log(log), flipped(log, records[1])).differences) * DIFFERENCES_MAX
    comparison.found = DIFFERENCES_MAX
    slave.flip(records[50][0] + BODY_AT)
    drive(comparison, master, slave)
    assert (comparison.found, len(comparison.differences)) == (DIFFERENCES_MAX + 1, DIFFERENCES_MAX)


def flipped(log: bytes, record: tuple[int, int]) -> Log:
    damaged = Log(log)
    damaged.flip(record[0] + BODY_AT)
    return damaged


class Liar(Log):
    """Tells what a test wants."""

    def __init__(self, log: bytes, sums: list[int], data: bytes) -> None:
        super().__init__(log)
        self.sums, self.told = sums, data

    def answer(self, call):
        if isinstance(call, GetLogBytes):
            return (self.told * (call.size // max(1, len(self.told)) + 1))[: call.size]
        count = min(RANGES_MAX, -(-(call.stop - call.offset) // RANGE_BYTES))
        return LogChecksums(self.min, self.flushed, FILE, "", tuple((self.sums * 16)[:count]))


@settings(max_examples=repeats(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-1, 2**32 - 1), min_size=1, max_size=16), st.binary(max_size=300))
def test_a_peer_that_tells_garbage_costs_no_more_than_the_walk(log, sums, data):
    """It ends, and the honest side is not called damaged: its records are right."""
    for master, slave, honest in (
        (Liar(log, sums, data), Log(log), DamagedSide.SLAVE),
        (Log(log), Liar(log, sums, data), DamagedSide.MASTER),
    ):
        comparison = Comparison()
        try:
            drive(comparison, master, slave)
        except NotComparable:
            continue
        assert comparison.place == len(log)
        assert all(one.damaged not in {honest, DamagedSide.UNKNOWN} for one in comparison.differences)
        assert comparison.compared < 10 * len(log)


@settings(max_examples=repeats(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_damaged_at_one_side_is_told_of_that_side(log, records, data):
    """Each damaged record is in a place that is told, no other bytes are, and never is a right record called damaged."""
    master, slave = Log(log), Log(log)
    wanted: dict[int, DamagedSide] = {}
    for number in data.draw(st.sets(st.integers(0, len(records) - 1), max_size=6)):
        side = data.draw(st.sampled_from([DamagedSide.MASTER, DamagedSide.SLAVE]))
        start, size = records[number]
        place = start + data.draw(st.integers(88, size - 20))  # in its body, or the begin of its topic
        (master if side is DamagedSide.MASTER else slave).flip(place)
        if not hot.record_run(
            bytes((master if side is DamagedSide.MASTER else slave).data), start, start + size, 0, 1, start + size, True
        )[0]:
            wanted[number] = side
        else:
            wanted[number] = DamagedSide.UNKNOWN
    found = compared(master, slave, ranges=data.draw(st.integers(1, 16)))
    told: dict[int, DamagedSide] = {}
    for start, size, damaged in found:
        told |= {n: damaged for n, one in enumerate(records) if start <= one[0] and one[0] + one[1] <= start + size}
    assert told == wanted
