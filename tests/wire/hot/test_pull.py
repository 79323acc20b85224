"""Which records a pull returns, and their bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaq.wire.record import encode_record
from tests.effort import repeats
from tests.wire.hot.support import FALLBACK, NATIVE, both, needs_native, walled


def units_of(*units):
    return b"".join(struct.pack(">qiq", *unit) for unit in units)


def passing(hot, tags):
    """A filter for these tag hashes; None for all."""
    return None if tags is None else hot.Filter(tags)


def seen(hot, data, first, start, stop, tags, *limits):
    found = hot.select(data, first, start, stop, passing(hot, tags), *limits)
    return (
        found.count,
        found.size,
        found.next_offset,
        found.first_log,
        found.last_log_end,
        found.contiguous,
        found.spans(),
    )


UNITS = units_of((0, 10, 1), (10, 20, 2), (30, 5, 1), (100, 7, -3), (107, 8, 1 << 40), (115, 9, 2))


@both
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((0, 0, 6, None, 32, 9999, 0, 999), (6, 59, 6, 0, 124, False, [(0, 35), (100, 24)])),
        ((0, 0, 3, None, 32, 9999, 0, 999), (3, 35, 3, 0, 35, True, [(0, 35)])),
        ((0, 1, 6, None, 2, 9999, 0, 999), (2, 25, 3, 10, 35, True, [(10, 25)])),
        ((0, 0, 6, None, 32, 30, 0, 999), (2, 30, 2, 0, 30, True, [(0, 30)])),
        ((0, 1, 6, None, 32, 1, 0, 999), (1, 20, 2, 10, 30, True, [(10, 20)])),
        ((0, 0, 6, frozenset({1}), 32, 9999, 0, 999), (2, 15, 6, 0, 35, False, [(0, 10), (30, 5)])),
        ((0, 0, 6, frozenset({2, -3}), 32, 9999, 0, 999), (3, 36, 6, 10, 124, False, [(10, 20), (100, 7), (115, 9)])),
        ((0, 0, 6, frozenset({0}), 32, 9999, 0, 999), (1, 8, 6, 107, 115, True, [(107, 8)])),
        ((0, 0, 6, frozenset({5, 1 << 40}), 32, 9999, 0, 999), (0, 0, 6, -1, -1, True, [])),
        ((0, 0, 6, frozenset(), 32, 9999, 0, 999), (0, 0, 6, -1, -1, True, [])),
        ((0, 0, 6, None, 32, 9999, 30, 999), (4, 29, 6, 30, 124, False, [(30, 5), (100, 24)])),
        ((0, 0, 6, None, 32, 9999, 0, 114), (4, 42, 4, 0, 107, False, [(0, 35), (100, 7)])),
        ((0, 2, 2, None, 32, 9999, 0, 999), (0, 0, 2, -1, -1, True, [])),
        ((0, 0, 6, None, 0, 9999, 0, 999), (0, 0, 0, -1, -1, True, [])),
        ((50, 51, 53, None, 32, 9999, 0, 999), (2, 25, 53, 10, 35, True, [(10, 25)])),
    ],
)  # fmt: skip
def test_select(hot, where, expected):
    """Counts, bytes, tags and the log's bounds each end or thin out a selection; the next offset tells where to go on."""
    assert seen(hot, UNITS, *where) == expected


@both
def test_the_filler_is_passed_over_and_what_is_no_unit_ends_the_selection(hot):
    """Units go up as their records do; one that was never written, or points back, is damage and not an end."""
    data = units_of((0, 0x7FFFFFFF, 0), (5, 6, 0), (11, 4, 0), (0, 0, 0), (20, 3, 0), (7, 4, 0), (30, -4, 0))

    def found(start, stop):
        chosen = hot.select(data, 0, start, stop, None, 9, 99, 0, 100)
        return chosen.count, chosen.size, chosen.next_offset, chosen.damaged

    assert found(0, 1) == (0, 0, 1, False)
    assert found(0, 3) == (2, 10, 3, False)
    assert found(0, 7) == (2, 10, 3, True)
    assert found(3, 7) == (0, 0, 3, True)
    assert found(4, 7) == (1, 3, 5, True)
    assert found(6, 7) == (0, 0, 6, True)


@both
@pytest.mark.parametrize("where", [(0, 0, 7), (0, 3, 2), (5, 4, 6), (0, -1, 2), (-(1 << 62), 0, 1 << 62)])
def test_units_outside_the_buffer(hot, where):
    """A range that the buffer does not hold is refused."""
    with pytest.raises(ValueError, match="units"):
        hot.select(UNITS, *where, None, 32, 9999, 0, 999)


@both
def test_gather(hot):
    """The records' bytes back to back, out of a file that begins anywhere in the log."""
    log = bytes(range(130))
    chosen = hot.select(UNITS, 0, 1, 6, hot.Filter({2, -3}), 32, 9999, 0, 999)
    assert hot.gather(chosen, log[5:], 5) == log[10:30] + log[100:107] + log[115:124]
    assert hot.gather(hot.select(UNITS, 0, 0, 0, None, 1, 1, 0, 9), b"", 0) == b""
    for file_offset, data in ((11, log), (0, log[:123]), (-(1 << 62), log), (1 << 62, log)):
        with pytest.raises(ValueError, match="is not in the file"):
            hot.gather(chosen, data, file_offset)


def log_of(count, *, topic=b"T", queue_id=2):
    """Records back to back, numbered from 0, every third with tag code 7: (bytes, units, places)."""
    data, units, places = b"", [], []
    for number in range(count):
        record = encode_record(
            topic=topic, queue_id=queue_id, queue_offset=number, log_offset=len(data), flag=0, sys_flag=0, born_ms=1,
            born_host=bytes(8), store_ms=2, store_host=bytes(8), reconsume_times=0, prepared_offset=0,
            body=b"b" * (number % 5), properties=b"a\x01b" * (number % 3),
        )  # fmt: skip
        units.append((len(data), len(record), 7 if number % 3 == 0 else 1))
        places.append(len(data))
        data += record
    return data, units_of(*units), [*places, len(data)]


@both
def test_read(hot):
    """Selection and bytes in one call; a long contiguous run is left to a view."""
    log, units, at = log_of(6)
    owner, end = hot.QueueTail(b"T", 2), len(log)
    assert hot.read(units, 0, 1, 6, hot.Filter({7}), 32, 9999, 0, end, log, 0, 30, owner, 0) == (
        1, at[4] - at[3], 6, at[3], at[4], None, False,
    )  # fmt: skip
    assert hot.read(units, 0, 0, 6, hot.Filter({7}), 32, 9999, 0, end, log, 0, 30, owner, end)[5] == (
        log[: at[1]] + log[at[3] : at[4]]
    )
    whole = hot.read(units, 0, 0, 3, None, 32, 9999, 0, end, log, 0, at[3] + 1, owner, 0)
    assert whole == (3, at[3], 3, 0, at[3], log[: at[3]], False)
    assert hot.read(units, 0, 0, 3, None, 32, 9999, 0, end, log, 0, at[3], owner, 0) == (
        3,
        at[3],
        3,
        0,
        at[3],
        None,
        False,
    )
    assert hot.read(units, 0, 2, 2, None, 32, 9999, 0, end, log, 0, 35, owner, 0) == (0, 0, 2, -1, -1, b"", False)
    for file_offset, log_end in ((1, end), (0, end + 1)):
        with pytest.raises(ValueError, match="is not in the file"):
            hot.read(units, 0, 0, 3, None, 32, 9999, 0, log_end, log, file_offset, 35, owner, 0)


@both
@pytest.mark.parametrize("view_bytes_min", [1, 9999])
@pytest.mark.parametrize("tags", [None, frozenset({7})])
def test_a_record_that_is_not_its_units_ends_the_selection(hot, tags, view_bytes_min):
    """Place, size, queue, number and topic are looked at, and of what comes from a disk the checksum."""
    log, units, at = log_of(9)
    owner, end, wanted = hot.QueueTail(b"T", 2), len(log), 3

    def read(data, owner=owner, fresh_from=0):
        found = hot.read(
            units, 0, 0, 9, passing(hot, tags), 32, 9999, 0, end, data, 0, view_bytes_min, owner, fresh_from
        )
        chosen = hot.select(units, 0, 0, 9, passing(hot, tags), 32, 9999, 0, end)
        body = hot.gather(chosen, data, 0)
        checked = hot.check(chosen, body, owner, fresh_from)
        assert (found[0], found[1], found[2]) == checked
        assert found[5] is None or found[5] == body[: found[1]]
        return found[0], found[2], found[6]

    def with_bytes(place, new):
        return log[: at[wanted] + place] + new + log[at[wanted] + place + len(new) :]

    good = 9 if tags is None else 3
    stop = (wanted if tags is None else 1, wanted, True)
    assert read(log) == (good, 9, False)
    for place, new in ((0, bytes(4)), (4, b"\0"), (12, b"\0\0\0\1"), (20, bytes(8)), (28, bytes(8)), (0, bytes(91))):
        assert read(with_bytes(place, new)) == stop, place
    assert read(with_bytes(88, b"X")) == (good, 9, False)
    assert read(with_bytes(88, b"X"), fresh_from=at[wanted]) == (good, 9, False)
    assert read(with_bytes(88, b"X"), fresh_from=end) == stop
    assert read(log, hot.QueueTail(b"U", 2)) == (0, 0, True)
    assert read(log, hot.QueueTail(b"TT", 2)) == (0, 0, True)
    assert read(log, hot.QueueTail(b"T", 3)) == (0, 0, True)


@both
@pytest.mark.parametrize("tags", [None, frozenset({7})])
@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_unit_that_says_too_much_of_the_last_record_brings_no_other(hot, tags, records):
    """Served is what has a unit in the selection, by the record's own size; what follows it was not asked for, or follows
    in the next pull once more."""
    log, units, at = log_of(9)
    owner, start, limit = hot.QueueTail(b"T", 2), 0 if tags else 3, 2 if tags else 1
    long = at[3 + records] - at[3]
    units = units[:60] + units_of((at[3], long, 7)) + units[80:]
    chosen = hot.select(units, 0, start, 9, passing(hot, tags), limit, 9999, 0, len(log))
    own = at[4] - at[3] + (at[1] if tags else 0)
    assert (chosen.count, chosen.size, chosen.next_offset) == (limit, own - (at[4] - at[3]) + long, 4)
    assert hot.check(chosen, hot.gather(chosen, log, 0), owner, 0) == (limit, own, 4)
    for view_bytes_min in (1, 9999):
        found = hot.read(
            units, 0, start, 9, passing(hot, tags), limit, 9999, 0, len(log), log, 0, view_bytes_min, owner, 0
        )
        assert (found[0], found[1], found[2], found[6]) == (limit, own, 4, records > 1)
        assert found[5] is None or len(found[5]) == own


@both
@pytest.mark.parametrize("hosts", [0x10, 0x20, 0x30])
def test_a_short_record_whose_flag_claims_longer_hosts_is_not_read_beyond_its_end(hot, hosts):
    """With hosts of IPv6 the body's size would lie behind a record of 92 bytes, and nothing may be there."""
    log, units, _ = log_of(1)
    data = walled(log[:36] + struct.pack(">i", hosts) + log[40:])
    owner, end = hot.QueueTail(b"T", 2), len(log)
    chosen = hot.select(units, 0, 0, 1, None, 32, 9999, 0, end)
    for fresh_from in (0, end):
        assert hot.check(chosen, data, owner, fresh_from) == (0, 0, 0)
        for view_bytes_min in (1, 9999):
            found = hot.read(units, 0, 0, 1, None, 32, 9999, 0, end, data, 0, view_bytes_min, owner, fresh_from)
            assert (found[0], found[1], found[2], found[6]) == (0, 0, 0, True)


@needs_native
@settings(max_examples=repeats(300))
@example(hits=[], unit_hits=[(71, b"\xc2")], bounds=(0, 4), tags=frozenset({7}), count_max=2, fresh=0)
@given(
    hits=st.lists(st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=40)), max_size=4),
    unit_hits=st.lists(st.tuples(st.integers(0, 179), st.binary(min_size=1, max_size=25)), max_size=3),
    bounds=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    tags=st.sampled_from([None, frozenset({7}), frozenset({1, 7})]),
    count_max=st.integers(0, 12),
    fresh=st.sampled_from([0, 400, 10_000]),
)
def test_fallback_and_native_check_alike(hits, unit_hits, bounds, tags, count_max, fresh):
    """Whatever is damaged, in log or units: the same records are good, and nobody reads outside the buffers."""
    log, units, _ = log_of(9)
    data, broken = bytearray(log), bytearray(units)
    for buffer, changes in ((data, hits), (broken, unit_hits)):
        for place, new in changes:
            buffer[place : place + len(new)] = new[: max(0, len(buffer) - place)]
    start, stop = sorted(bounds)
    outcomes = []
    for hot in (NATIVE, FALLBACK):
        chosen = hot.select(bytes(broken), 0, start, stop, passing(hot, tags), count_max, 9999, 0, len(log))
        body = hot.gather(chosen, data, 0)
        outcomes.append((seen(hot, bytes(broken), 0, start, stop, tags, count_max, 9999, 0, len(log)), chosen.damaged,
                         hot.check(chosen, body, hot.QueueTail(b"T", 2), fresh)))  # fmt: skip
        hot.read(
            bytes(broken),
            0,
            start,
            stop,
            passing(hot, tags),
            count_max,
            9999,
            0,
            len(log),
            data,
            0,
            500,
            hot.QueueTail(b"T", 2),
            fresh,
        )
    assert outcomes[0] == outcomes[1]


@both
@given(tags=st.frozensets(st.integers(-40, 40), max_size=30), wide=st.frozensets(st.integers(), max_size=3))
def test_a_filter_takes_the_tags_that_it_was_made_of(hot, tags, wide):
    """Few or many, in any order. What no unit can hold is no reason to take anything else."""
    made = hot.Filter([*tags, *wide])
    assert made.tag_hashes == tags | wide
    units = units_of(*((number * 10, 10, code) for number, code in enumerate(range(-45, 45))))
    chosen = hot.select(units, 0, 0, 90, made, 90, 9999, 0, 900)
    asked = tags | {code for code in wide if -45 <= code < 45}
    assert [
        offset // 10 - 45 for offset, size in chosen.spans() for offset in range(offset, offset + size, 10)
    ] == sorted(asked)


numbers = st.integers(-5, 200)


@needs_native
@settings(max_examples=repeats(200))
@given(
    units=st.lists(st.tuples(numbers, st.integers(-2, 30), st.integers(-2, 2)), max_size=12),
    bounds=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    tags=st.one_of(st.none(), st.frozensets(st.integers(-2, 2))),
    limits=st.tuples(st.integers(0, 12), st.integers(0, 200), numbers, numbers),
)
def test_fallback_and_native_select_alike(units, bounds, tags, limits):
    """Random units and limits, hostile ones too: the same selection or the same refusal, and the same bytes."""
    data, log = units_of(*units), bytes(range(256))
    start, stop = sorted(bounds)
    outcomes = []
    for hot in (NATIVE, FALLBACK):
        try:
            outcomes.append(seen(hot, data, 0, start, stop, tags, *limits))
            outcomes.append(hot.gather(hot.select(data, 0, start, stop, passing(hot, tags), *limits), log, 0))
        except ValueError as error:
            outcomes.append(str(error))
            outcomes.append(None)
    assert outcomes[:2] == outcomes[2:] or (outcomes[1] is None) == (outcomes[3] is None)
    if outcomes[1] is not None:
        assert outcomes[:2] == outcomes[2:]


@both
def test_pull_reply(hot):
    """The answer's head carries the four offsets in either form, and room for the body that follows it."""
    import json

    data = hot.pull_reply(7, False, 0, 'FO"UND', 0, 42, 1, 99, 1000)
    length, word = struct.unpack_from(">iI", data)
    assert (length, word) == (len(data) - 4 + 1000, len(data) - 8)
    assert json.loads(data[8:]) == {
        "code": 0, "flag": 1, "language": "PYTHON", "opaque": 7, "remark": 'FO"UND', "version": 409,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {"suggestWhichBrokerId": "0", "nextBeginOffset": "42", "minOffset": "1", "maxOffset": "99"},
    }  # fmt: skip


@needs_native
@given(
    opaque=st.integers(-(2**31), 2**31 - 1), binary=st.booleans(), code=st.integers(0, 300), remark=st.text(max_size=20),
    offsets=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), body=st.integers(0, 1 << 24),
)  # fmt: skip
def test_fallback_and_native_answer_pulls_alike(opaque, binary, code, remark, offsets, body):
    """Any answer to a pull is the same from both modules, alone and among other answers."""
    alone, among = [], []
    for hot in (NATIVE, FALLBACK):
        alone.append(hot.pull_reply(opaque, binary, code, remark, *offsets, body))
        replies = hot.Replies(b"r", True)
        replies.add_pull(opaque, binary, code, remark, *offsets, bytearray(b"records"))
        among.append(replies.take())
        assert among[-1] == hot.pull_reply(opaque, binary, code, remark, *offsets, 7) + b"records"
    assert alone[0] == alone[1]
    assert among[0] == among[1]
