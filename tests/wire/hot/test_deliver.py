"""Delayed records that are due: what their copies hold, where they go, and what is left to be judged singly."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.wire.record import copied_from, decode_record, encode_record, tags_code
from tests.effort import repeats
from tests.wire.hot.support import BORN_HOST, BORN_MS, FALLBACK, NATIVE, STORE_HOST, STORE_MS, Tails, both, needs_native

SCHEDULE = b"SCHEDULE_TOPIC_XXXX"
UNIQUE_ID = "7F00000128E55FFD2B27676F493F0000"


def text(queue="1", topic="TopicA", **more):
    pairs = {"KEYS": "k1  k2", "UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "TagA", "DELAY": "3", **more}
    return "\x02".join(
        f"{name}\x01{value}" for name, value in {**pairs, "REAL_TOPIC": topic, "REAL_QID": queue}.items() if value
    ).encode()


def waiting(number=0, log_offset=0, *, properties=None, topic=SCHEDULE, queue_id=2, body=b"hello", **more):
    fields = {
        "topic": topic, "queue_id": queue_id, "queue_offset": number, "log_offset": log_offset, "flag": 7, "sys_flag": 0,
        "born_ms": BORN_MS, "born_host": BORN_HOST, "store_ms": STORE_MS, "store_host": STORE_HOST, "reconsume_times": 4,
        "prepared_offset": 0, "body": body, "properties": text() if properties is None else properties,
    }  # fmt: skip
    return encode_record(**{**fields, **more})


def run_of(records, first=5000):
    """Records back to back, and their units; the log offsets are those of `waiting` calls in `records`."""
    units = [(int.from_bytes(record[28:36], "big"), len(record)) for record in records]
    return b"".join(records), b"".join(struct.pack(">qiq", offset, size, STORE_MS) for offset, size in units)


def deliver(tails, records, *, row=0, now_ms=STORE_MS + 1, index=True, queue_id=2):
    data, units = run_of(records)
    tails.hot.deliver(
        data, units, row, len(records), SCHEDULE, queue_id, tails.gates, tails.log, tails.index if index else None, now_ms,
        tails.outcome,
    )  # fmt: skip
    return tails.outcome


def stored(tails):
    found, at = [], 0
    while at < tails.log.end:
        found.append(decode_record(tails.log_bytes, at))
        at += int.from_bytes(tails.log_bytes[at : at + 4], "big")
    return found


def units(tails, queue):
    return list(struct.iter_unpack(">qiq", tails.queue_bytes[queue][: 20 * tails.queues[queue].next_offset]))


@both
def test_a_copy_is_the_message_in_its_own_queue(hot):
    """Everything is kept but the place; the tag's hash is back, and the copy names the record that it stands for."""
    tails = Tails(hot)
    outcome = deliver(tails, [waiting(0, 0), waiting(1, 700, properties=text("0"), body=b"")])
    assert (outcome.stop, outcome.row, outcome.messages, outcome.size) == (hot.STOP_END, 2, 2, tails.log.end)
    one, two = stored(tails)
    assert (one.topic, one.queue_id, one.queue_offset, one.body, one.flag) == ("TopicA", 1, 0, b"hello", 7)
    assert (one.born_ms, one.born_host_raw, one.reconsume_times) == (BORN_MS, BORN_HOST, 4)
    assert (one.store_ms, one.store_host_raw) == (STORE_MS + 1, STORE_HOST)
    assert one.properties_raw == text()
    assert [copied_from(message.prepared_offset) for message in (one, two)] == [0, 700]
    assert (two.queue_id, two.body) == (0, b"")
    assert [code for _, _, code in units(tails, 1)] == [tags_code("TagA")]
    assert tails.index.count == 1 + 2 * 3
    assert struct.unpack_from(">i", tails.index_bytes, 40 + 400 + 20)[0] == hot.index_hash(
        f"TopicA#{UNIQUE_ID}".encode()
    )


@both
@pytest.mark.parametrize(("born", "store"), [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_hosts_of_both_sizes(hot, born, store):
    """A copy keeps the sender's host, whatever its size, and has this broker's as its store host."""
    tails = Tails(hot, store_host=bytes(range(store)))
    deliver(tails, [waiting(born_host=bytes(range(born)), store_host=bytes(20))])
    (found,) = stored(tails)
    assert (found.born_host_raw, found.store_host_raw) == (bytes(range(born)), bytes(range(store)))


@both
@pytest.mark.parametrize(("flags", "kept"), [(0x1, 0x1), (0x703, 0x703), (0x8C, 0), (0x104, 0x100)])
def test_the_senders_flags_are_kept_alone(hot, flags, kept):
    """Compression and tag bits come along, transaction bits do not."""
    tails = Tails(hot)
    deliver(tails, [waiting(sys_flag=flags)])
    assert stored(tails)[0].sys_flag == kept


def _broken():
    record = bytearray(waiting())
    record[92] ^= 1  # in the body
    return bytes(record)


@both
@pytest.mark.parametrize(
    "record",
    [waiting(properties=text(topic="Other")), waiting(properties=text("2")), waiting(properties=text("-1")),
     waiting(properties=text("x")), waiting(properties=text("")), waiting(properties=text(topic="")),
     waiting(properties=b""), waiting(topic=b"TopicA"), waiting(queue_id=3), _broken(),
     waiting(properties=text("9" * 19)), waiting(properties=text("01"))],
)  # fmt: skip
def test_what_must_be_judged_singly(hot, record):
    """No gate, no such queue, not of this level, or damaged: the run stops there, with nothing of the row written."""
    tails = Tails(hot)
    good = waiting()
    outcome = deliver(tails, [good, record, good])
    assert (outcome.stop, outcome.row, outcome.messages) == (hot.STOP_SLOW, 1, 1)
    assert len(stored(tails)) == 1
    assert not any(tails.log_bytes[tails.log.end :])
    assert deliver(tails, [good, record, good], row=2).messages == 1
    assert len(stored(tails)) == 2


@both
def test_units_that_do_not_fit_their_records(hot):
    """A damaged unit stops the run, wherever it points."""
    tails = Tails(hot)
    data, good = run_of([waiting()])
    for place, size in ((1, len(data)), (0, len(data) - 1), (0, len(data) + 1), (0, 0), (0, -5), (0, 0x7FFFFFFF)):
        bad = struct.pack(">qiq", place, size, 0)
        hot.deliver(data, bad + good, 0, 2, SCHEDULE, 2, tails.gates, tails.log, tails.index, STORE_MS, tails.outcome)
        assert (tails.outcome.stop, tails.outcome.row, tails.log.end) == (hot.STOP_SLOW, 0, 0)
    with pytest.raises(IndexError):
        hot.deliver(data, good, 0, 2, SCHEDULE, 2, tails.gates, tails.log, tails.index, STORE_MS, tails.outcome)


@both
@pytest.mark.parametrize(
    ("small", "stop"),
    [({"log_bytes": 500}, "STOP_LOG_FULL"), ({"units": 2}, "STOP_QUEUE_FULL"), ({"entries": 8}, "STOP_INDEX_FULL")],
)
def test_a_full_file_stops_between_two_copies(hot, small, stop):
    """Whichever file is full, nothing of the row is written, and `needed` says how much it wants."""
    tails = Tails(hot, **small)
    outcome = deliver(tails, [waiting(number, 300 * number) for number in range(5)])
    assert (outcome.stop, outcome.row, len(stored(tails))) == (getattr(hot, stop), 2, 2)
    assert outcome.needed == {"STOP_LOG_FULL": tails.log.end // 2 + 8, "STOP_QUEUE_FULL": 1, "STOP_INDEX_FULL": 3}[stop]


@both
def test_who_waits_is_told(hot):
    """Watched queues that grew are named once a run."""
    tails = Tails(hot)
    tails.queues[1].watched = True
    outcome = deliver(tails, [waiting(), waiting(), waiting(properties=text("0"))])
    assert [queue.queue_id for queue in outcome.touched] == [1]


@both
def test_the_store_time_never_steps_back(hot):
    """A clock that was set back does not make a copy older than the record in front of it."""
    tails = Tails(hot)
    deliver(tails, [waiting()], now_ms=STORE_MS + 500)
    deliver(tails, [waiting()], now_ms=STORE_MS)
    assert [message.store_ms for message in stored(tails)] == [STORE_MS + 500] * 2


words = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=12)


@needs_native
@settings(max_examples=repeats(150))
@given(st.data())
def test_both_modules_do_the_same(data):
    """Whatever the records hold, and wherever a byte of them is damaged."""
    records = [
        waiting(
            number,
            1000 * number,
            body=data.draw(st.binary(max_size=50)),
            sys_flag=data.draw(st.integers(0, 0x7FF)),
            properties=text(
                data.draw(st.sampled_from(["0", "1", "-0", "2", ""])),
                data.draw(st.sampled_from(["TopicA", "TopicA", "Other"])),
                KEYS=data.draw(words), TAGS=data.draw(words), UNIQ_KEY=data.draw(words), x=data.draw(words),
            ),
        )
        for number in range(data.draw(st.integers(1, 4)))
    ]  # fmt: skip
    joined, units = map(bytearray, run_of(records))
    for memory in (joined, units):
        if data.draw(st.booleans()):
            memory[data.draw(st.integers(0, len(memory) - 1))] ^= data.draw(st.integers(1, 255))
    small = data.draw(st.sampled_from([{}, {"log_bytes": 500}, {"units": 1}, {"entries": 4}]))
    outcomes = []
    for hot in (FALLBACK, NATIVE):
        tails = Tails(hot, **small)
        for row in range(len(records)):
            hot.deliver(
                bytes(joined), bytes(units), row, len(records), SCHEDULE, 2, tails.gates, tails.log, tails.index,
                STORE_MS, tails.outcome,
            )  # fmt: skip
        outcomes.append(tails.everything())
    assert outcomes[0] == outcomes[1]
