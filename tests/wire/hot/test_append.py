"""Rows to log, consume queue and index: what is stored, what is answered, what is left to the slow path."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import LocalProtocolError
from metaq.store.log.writer import PutRecord
from metaq.wire.record import decode_record, encode_batch, tags_code
from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_HOST,
    BORN_MS,
    FALLBACK,
    GOLDEN_RECORD,
    GOLDEN_SEND,
    NATIVE,
    STORE_HOST,
    STORE_MS,
    UNIQUE_ID,
    Tails,
    binary_head,
    both,
    frame,
    json_head,
    needs_native,
    replies_of,
    send,
    stored,
    units,
    walled,
)

UNIQUE = f"UNIQ_KEY\x01{UNIQUE_ID}"


@both
def test_golden_send(hot):
    """The captured send makes the captured record (its properties in the order they were sent), unit and answer."""
    tails = Tails(hot)
    outcome = tails.append(frame(GOLDEN_SEND, b"hello"))
    assert (outcome.stop, outcome.row, outcome.messages, outcome.size) == (hot.STOP_END, 1, 1, len(GOLDEN_RECORD))
    message, golden = decode_record(tails.log_bytes), decode_record(GOLDEN_RECORD)
    assert tails.written()[:102] == GOLDEN_RECORD[:102]
    assert message.properties == golden.properties
    assert (
        message.properties_raw
        == b"a\x015\x02KEYS\x01k1 k2\x02" + UNIQUE.encode() + b"\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster"
    )
    assert units(tails, 1) == [(0, 191, 2598919)]
    assert replies_of(tails.replies.take()) == [
        {"code": 0, "flag": 1, "language": "PYTHON", "opaque": 8, "serializeTypeCurrentRPC": "JSON", "version": 409,
         "extFields": {"queueId": "1", "TRACE_ON": "true", "MSG_REGION": "DefaultRegion", "queueOffset": "0",
                       "msgId": "7F00000100002A9F0000000000000000"}}
    ]  # fmt: skip


@both
def test_binary_answer(hot):
    """A binary request is answered in kind, all five fields in it."""
    tails = Tails(hot)
    tails.append(send(binary=True, opaque=-3))
    data = tails.replies.take()
    length, word = struct.unpack_from(">iI", data)
    assert (length, word >> 24, word & 0xFFFFFF) == (len(data) - 4, 1, len(data) - 8)
    assert struct.unpack_from(">hBhiii", data, 8) == (0, 3, 409, -3, 1, 0)
    ext, at = {}, 29
    assert struct.unpack_from(">i", data, 25) == (len(data) - 29,)
    while at < len(data):
        (size,) = struct.unpack_from(">h", data, at)
        (value_size,) = struct.unpack_from(">i", data, at + 2 + size)
        ext[data[at + 2 : at + 2 + size]] = data[at + 6 + size : at + 6 + size + value_size]
        at += 6 + size + value_size
    assert ext == {b"queueId": b"1", b"TRACE_ON": b"true", b"MSG_REGION": b"DefaultRegion", b"queueOffset": b"0",
                   b"msgId": b"7F00000100002A9F0000000000000000"}  # fmt: skip


@both
def test_golden_index(hot):
    """Header and entries are those of RocketMQ: UNIQ_KEY first, then each word of KEYS; the hash is of topic#key (A.5)."""
    tails = Tails(hot)
    tails.append(frame(GOLDEN_SEND, b"hello"), now_ms=STORE_MS)
    memory = tails.index_bytes
    assert struct.unpack_from(">qqqqii", memory) == (STORE_MS, STORE_MS, 0, 0, 3, 4)
    hashes = [hot.index_hash(b"TopicA#" + key) for key in (UNIQUE_ID.encode(), b"k1", b"k2")]
    assert hashes[1] == 1903240649
    for ordinal, hashed in enumerate(hashes, 1):
        assert struct.unpack_from(">iqii", memory, 40 + 400 + 20 * ordinal) == (hashed, 0, 0, 0)
        assert struct.unpack_from(">i", memory, 40 + 4 * (hashed % 100)) == (ordinal,)
    tails.append(frame(GOLDEN_SEND, b"hello"), now_ms=STORE_MS + 5500)
    assert struct.unpack_from(">qqqqii", memory) == (STORE_MS, STORE_MS + 5500, 0, 191, 3, 7)
    assert struct.unpack_from(">iqii", memory, 40 + 400 + 20 * 5) == (1903240649, 191, 5, 2)


@both
def test_queues_count_on_their_own(hot):
    """Rows of one read event go to their queues in order, and the answers tell each its offset."""
    tails = Tails(hot)
    tails.append(b"".join(send(str(n).encode(), e=str(n % 2), opaque=n) for n in range(6)))
    assert [int(m.body) for m in stored(tails) if m.queue_id == 0] == [0, 2, 4]
    assert [m.queue_offset for m in stored(tails)] == [0, 0, 1, 1, 2, 2]
    answers = replies_of(tails.replies.take())
    assert [(a["opaque"], a["extFields"]["queueId"], a["extFields"]["queueOffset"]) for a in answers] == [
        (n, str(n % 2), str(n // 2)) for n in range(6)
    ]


@both
@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (None, "CLUSTER\x01DefaultCluster"),
        ("", "CLUSTER\x01DefaultCluster"),
        ("WAIT\x01true", "CLUSTER\x01DefaultCluster"),
        ("WAIT\x01false\x02", "CLUSTER\x01DefaultCluster"),
        ("a\x01b\x02", "a\x01b\x02CLUSTER\x01DefaultCluster"),
        ("a\x01b\x02WAIT\x01true\x02c\x01d\x02", "a\x01b\x02c\x01d\x02CLUSTER\x01DefaultCluster"),
        ("CLUSTER\x01liar\x02a\x01b\x02WAIT\x01true", "a\x01b\x02CLUSTER\x01DefaultCluster"),
        (
            "WAITS\x01true\x02xWAIT\x011\x02c\x01\x01d",
            "WAITS\x01true\x02xWAIT\x011\x02c\x01\x01d\x02CLUSTER\x01DefaultCluster",
        ),
        ("名\x01前😀", "名\x01前😀\x02CLUSTER\x01DefaultCluster"),
    ],
)
def test_stored_properties(hot, sent, kept):
    """The sent text stays as it is, less WAIT and a CLUSTER of the sender's, with our CLUSTER at the end."""
    tails = Tails(hot)
    assert tails.append(send(i=sent)).stop == hot.STOP_END
    assert stored(tails)[0].properties_raw.decode() == kept


@both
def test_no_cluster(hot):
    """A log without a cluster name adds nothing."""
    tails = Tails(hot, cluster=b"")
    tails.append(send(i="a\x01b\x02WAIT\x01true\x02c\x01d") + send(i="WAIT\x01true"))
    assert [m.properties_raw for m in stored(tails)] == [b"a\x01b\x02c\x01d", b""]


@both
@pytest.mark.parametrize(
    "changes",
    [{"i": text} for text in ("DELAY\x013", "TRAN_MSG\x01true", "RETRY_TOPIC\x01T", "MSG_TYPE\x01reply", "a", "a\x01", "\x01b",
                              "a\x01b\x02\x02", "\x02", "a\x01b\x02\x02c\x01d", "x\x01" + "y" * 32766,
                              "WAIT\x01true\x02" * 4)]
    + [{"b": "Other"}, {"e": "2"}, {"e": "-1"}, {"f": "4"}, {"f": "8"}, {"f": "16"}, {"f": "32"}, {"f": "128"}],
)  # fmt: skip
def test_what_is_not_plain(hot, changes):
    """Everything that needs a decision stops the run at its row, and nothing of that row is written."""
    tails = Tails(hot)
    outcome = tails.append(send() + send(**changes) + send())
    assert (outcome.stop, outcome.row, outcome.messages) == (hot.STOP_SLOW, 1, 1)
    assert len(stored(tails)) == 1
    assert not any(tails.log_bytes[tails.log.end :])
    hot.append(tails.table, 2, 3, tails.gates, tails.log, tails.index, STORE_MS, BORN_HOST, tails.replies, outcome)
    assert (outcome.stop, outcome.row, len(stored(tails))) == (hot.STOP_END, 3, 2)


@both
def test_bodies_and_hosts_that_are_not_plain(hot):
    """An empty or too large body, an IPv6 peer and other kinds of frames are for the slow path."""
    assert Tails(hot).append(send(b"")).stop == hot.STOP_SLOW
    assert Tails(hot, body_bytes_max=4).append(send(b"12345")).stop == hot.STOP_SLOW
    assert Tails(hot, body_bytes_max=5).append(send(b"12345")).stop == hot.STOP_END
    assert Tails(hot).append(send(), born_host=bytes(20)).stop == hot.STOP_SLOW
    assert Tails(hot, store_host=bytes(20)).append(send()).stop == hot.STOP_SLOW
    assert Tails(hot).append(frame(json_head(34, {}))).stop == hot.STOP_SLOW
    assert Tails(hot).append(frame(binary_head(11, {}), b"", 1)).stop == hot.STOP_SLOW


@both
def test_what_is_slow_is_said_by_the_gate(hot):
    """Whole names only, of any length up to 63 bytes, in single messages and in entries of a batch."""
    names = (b"a", b"color", b"x" * 63)

    def stops(text: str) -> bool:
        found = set()
        for row in (send(i=text), send(encode_batch([(0, b"x", text.encode())]), code=320, m="true", i=None)):
            tails = Tails(hot)
            tails.table.scan(row, 0, len(row))
            gates = {b"TopicA": hot.TopicGate(b"TopicA", tails.queues, 1000, names)}
            hot.append(
                tails.table, 0, 1, gates, tails.log, tails.index, STORE_MS, BORN_HOST, tails.replies, tails.outcome
            )
            found.add(tails.outcome.stop == hot.STOP_SLOW)
        (stopped,) = found
        return stopped

    assert all(stops(f"k\x01v\x02{name.decode()}\x01v") for name in names)
    assert not any(stops(f"{name}\x01v") for name in ("DELAY", "colors", "colo", "b", "x" * 62, "x" * 64, "x" * 300))
    for wrong in (b"", b"x" * 64):
        with pytest.raises(ValueError, match="allowed are 1 to 63"):
            hot.TopicGate(b"TopicA", Tails(hot).queues, 100, (wrong,))


@both
@pytest.mark.parametrize(
    ("value", "stops"), [("false", True), ("False", True), ("no", True), ("true", False), ("TRUE", False)]
)
def test_wait_is_slow(hot, value, stops):
    """If the gate says so, a send that does not want to wait is for the slow path, as Java reads its truth."""
    for row in (
        send(i=f"WAIT\x01{value}"),
        send(encode_batch([(0, b"x", f"WAIT\x01{value}".encode())]), code=320, m="true", i=None),
    ):
        tails = Tails(hot)
        assert tails.append(row, wait_is_slow=True).stop == (hot.STOP_SLOW if stops else hot.STOP_END)
        assert tails.append(row, wait_is_slow=False).stop == hot.STOP_END


@both
def test_oneway(hot):
    """A oneway send is stored without an answer."""
    tails = Tails(hot)
    tails.append(send(flag=2) + send(opaque=9))
    assert len(stored(tails)) == 2
    assert [answer["opaque"] for answer in replies_of(tails.replies.take())] == [9]


@both
def test_batch(hot):
    """Entries become records of their own: contiguous, WAIT kept, CLUSTER added, each indexed; one answer names them all."""
    tails = Tails(hot)
    tails.append(send())
    first = tails.log.end
    body = encode_batch([
        (7, b"m1", f"KEYS\x01b1\x02{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA".encode()),
        (8, b"m2", b""),
        (9, b"m3", b"CLUSTER\x01liar\x02a\x01b\x02"),
    ])  # fmt: skip
    outcome = tails.append(send(body, code=320, m="true", i="WAIT\x01true", f="1", j="2"))
    assert (outcome.stop, outcome.messages, outcome.size) == (hot.STOP_END, 3, tails.log.end - first)
    one, two, three = stored(tails)[1:]
    assert (
        one.properties_raw.decode()
        == f"KEYS\x01b1\x02{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster"
    )
    assert (two.properties_raw, three.properties_raw) == (
        b"CLUSTER\x01DefaultCluster",
        b"a\x01b\x02CLUSTER\x01DefaultCluster",
    )
    assert [(m.body, m.flag, m.queue_offset, m.sys_flag, m.reconsume_times) for m in (one, two, three)] == [
        (b"m1", 7, 1, 1, 2), (b"m2", 8, 2, 1, 2), (b"m3", 9, 3, 1, 2),
    ]  # fmt: skip
    assert [code for _, _, code in units(tails, 1)] == [tags_code("TagA"), tags_code("TagA"), 0, 0]
    assert tails.index.count == 1 + 1 + 2
    answer = replies_of(tails.replies.take())[1]["extFields"]
    assert (answer["queueOffset"], answer["msgId"].split(",")) == ("1", [m.offset_id for m in (one, two, three)])


@both
@pytest.mark.parametrize(
    "body",
    [b"\0" * 22, encode_batch([(0, b"", b"")]), encode_batch([(0, b"x", b"DELAY\x011")]), encode_batch([(0, b"x", b"a")]),
     encode_batch([(0, b"x", b"")]) + b"\0", encode_batch([(0, b"x", b"")])[:-1], encode_batch([(0, b"toolong", b"")]),
     b"\0\0\0\x17" + bytes(12) + b"\x7f\xff\xff\xff" + bytes(7), b"\0\0\0\x17" + bytes(12) + b"\0\0\0\x01x\xff\xff",
     b"\xff\xff\xff\xff" + bytes(30)],
)  # fmt: skip
def test_a_broken_batch_is_left_to_the_slow_path(hot, body):
    """Sizes that overrun, empty bodies and special properties in any entry: nothing of the batch is written."""
    tails = Tails(hot, body_bytes_max=4)
    outcome = tails.append(send(encode_batch([(0, b"good", b"")]) + body, m="true", i="WAIT\x01true"))
    assert (outcome.stop, tails.log.end, any(tails.log_bytes)) == (hot.STOP_SLOW, 0, False)


@both
def test_a_batch_is_measured_as_a_whole(hot):
    """The limit of a body is that of all entries together, also after it was lowered while the broker runs."""
    body = encode_batch([(0, b"four", b"")] * 2)
    assert Tails(hot, body_bytes_max=len(body)).append(send(body, m="true", i="")).stop == hot.STOP_END
    assert Tails(hot, body_bytes_max=len(body) - 1).append(send(body, m="true", i="")).stop == hot.STOP_SLOW


@both
def test_properties_of_a_batch_as_a_whole(hot):
    """More than WAIT and CLUSTER on the batch itself must be merged into each entry: the slow path does."""
    body = encode_batch([(0, b"x", b"")])
    assert Tails(hot).append(send(body, m="true", i="INSTANCE_ID\x01i")).stop == hot.STOP_SLOW
    assert Tails(hot).append(send(body, m="true", i="WAIT\x01true\x02CLUSTER\x01c\x02")).stop == hot.STOP_END


@both
def test_log_full(hot):
    """A row that leaves less than the blank record's 8 bytes stops the run; after pad() the next file takes it."""
    size = len(stored_bytes(hot))
    tails = Tails(hot, log_bytes=2 * size + 7)
    outcome = tails.append(send() * 3)
    assert (outcome.stop, outcome.row, outcome.needed) == (hot.STOP_LOG_FULL, 1, size + 8)
    tails = Tails(hot, log_bytes=2 * size + 8)
    outcome = tails.append(send() * 3)
    assert (outcome.stop, outcome.row, tails.log.room()) == (hot.STOP_LOG_FULL, 2, 8)
    tails.log.pad()
    assert tails.log_bytes[2 * size : 2 * size + 8] == bytes.fromhex("00000008cbd43194")
    assert (tails.log.end, tails.log.room()) == (2 * size + 8, 0)
    fresh = bytearray(1000)
    tails.log.attach(fresh, tails.log.end, 1000, tails.log.end)
    hot.append(tails.table, 2, 3, tails.gates, tails.log, tails.index, STORE_MS, BORN_HOST, tails.replies, outcome)
    assert (outcome.stop, decode_record(fresh).log_offset, decode_record(fresh).queue_offset) == (
        hot.STOP_END,
        2 * size + 8,
        2,
    )


def stored_bytes(hot):
    tails = Tails(hot)
    tails.append(send())
    return tails.written()


@both
def test_queue_and_index_full(hot):
    """A queue or index without room stops the run before anything of the row is written, and says how much it needs."""
    batch = send(encode_batch([(0, b"x", UNIQUE.encode())] * 3), m="true", i=None)
    tails = Tails(hot, units=2)
    outcome = tails.append(batch)
    assert (outcome.stop, outcome.queue, outcome.needed, tails.log.end) == (hot.STOP_QUEUE_FULL, tails.queues[1], 3, 0)
    tails = Tails(hot)
    tails.index.reserve(3)
    assert tails.index.room() == 2
    outcome = tails.append(batch)
    assert (outcome.stop, outcome.needed, tails.log.end) == (hot.STOP_INDEX_FULL, 3, 0)
    tails.index.reserve(4)
    hot.append(tails.table, 0, 1, tails.gates, tails.log, tails.index, STORE_MS, BORN_HOST, tails.replies, outcome)
    assert (outcome.stop, tails.index.room()) == (hot.STOP_END, 0)


@both
def test_messages_without_keys_need_no_index(hot):
    """An index without room stops nobody who brings no key; without an index nobody is stopped at all."""
    tails = Tails(hot)
    tails.index.reserve(0)
    assert tails.append(send(i="a\x01b") * 2).stop == hot.STOP_END
    assert tails.append(send()).stop == hot.STOP_INDEX_FULL
    assert tails.append(send(), index=False).stop == hot.STOP_END


@both
def test_detached_tails_have_no_room(hot):
    """After detach() nothing is written, and the buffers are free."""
    for part, stop in (("log", 2), ("index", 4)):
        tails = Tails(hot)
        getattr(tails, part).detach()
        assert tails.append(send()).stop == stop
        getattr(tails, part + "_bytes").extend(b"resizable again")
    tails = Tails(hot)
    tails.queues[1].detach()
    assert tails.append(send()).stop == hot.STOP_QUEUE_FULL
    assert tails.log.end == 0
    with pytest.raises(BufferError):
        tails.log_bytes.extend(b"still attached")


@both
def test_attach_checks_its_numbers(hot):
    """Sizes that do not fit the buffer are refused, because native code writes where they say."""
    log, queue, index = hot.LogTail(STORE_HOST, b"c", 100), hot.QueueTail(b"t", 0), hot.IndexTail()
    for wrong in (
        (bytearray(10), 0, 11, 0),
        (bytearray(10), 0, 10, 11),
        (bytearray(10), 5, 10, 4),
        (bytearray(10), 0, 0, 0),
        (bytearray(10), (1 << 63) - 10, 10, (1 << 63) - 1),  # a file's name may say so, and its end has no place
    ):
        with pytest.raises(ValueError, match="in a file of"):
            log.attach(*wrong)
    with pytest.raises(ValueError, match="units from 0 in"):
        queue.attach(bytearray(39), 0, 2)
    with pytest.raises(ValueError, match="do not fit"):
        index.attach(bytearray(40 + 4 + 19), 1, 1)
    log.attach(bytearray(10), (1 << 63) - 11, 10, (1 << 63) - 1)
    assert (log.end, log.room()) == ((1 << 63) - 1, 0)
    with pytest.raises((BufferError, TypeError, ValueError)):
        log.attach(b"read only!", 0, 10, 0)
        log.pad()
    with pytest.raises(ValueError, match="allowed are 1 to 127"):
        hot.TopicGate(b"t" * 128, [], 1)


@both
def test_store_time_never_goes_back(hot):
    """A clock that steps back does not take the log with it."""
    tails = Tails(hot)
    tails.append(send(), now_ms=2000)
    tails.append(send(), now_ms=1000)
    tails.append(send(), now_ms=3000)
    assert [m.store_ms for m in stored(tails)] == [2000, 2000, 3000]
    assert tails.log.store_ms == 3000


@both
def test_watched_queues_are_reported_once(hot):
    """Queues that somebody waits on are named once per run, the others not."""
    tails = Tails(hot, queues=3)
    tails.queues[0].watched = tails.queues[2].watched = True
    outcome = tails.append(b"".join(send(e=str(n % 3)) for n in range(9)))
    assert outcome.touched == [tails.queues[0], tails.queues[2]]
    assert tails.append(send(e="1")).touched == []
    assert tails.append(send(e="2")).touched == [tails.queues[2]]


@both
def test_the_outcome_can_be_written(hot):
    """The store joins several runs into one outcome, so its fields are its own to set."""
    tails = Tails(hot)
    outcome = tails.append(send())
    outcome.stop, outcome.row, outcome.messages, outcome.size, outcome.needed = 4, 7, 100, 1 << 40, 5
    outcome.queue, outcome.touched = tails.queues[0], [tails.queues[1]]
    assert (outcome.row, outcome.size, outcome.touched) == (7, 1 << 40, [tails.queues[1]])
    tails.append(send())
    assert (outcome.stop, outcome.row, outcome.messages, outcome.needed, outcome.queue) == (hot.STOP_END, 1, 1, 0, None)


@both
def test_queue_put(hot):
    """Recovery puts units one by one; a record that is there already is passed over, a full queue refuses."""
    queue, memory = hot.QueueTail(b"t", 0), bytearray(40)
    queue.next_offset = 5
    assert queue.room() == 0
    queue.attach(memory, 4, 2)
    assert queue.room() == 1
    assert queue.put(100, 50, -7)
    assert queue.put(90, 60, 1)
    assert (queue.next_offset, queue.log_end, memory[20:]) == (6, 150, struct.pack(">qiq", 100, 50, -7))
    assert not queue.put(150, 10, 0)


@both
def test_index_goes_on_where_the_file_ends(hot):
    """An attached index file is continued, its chains too; a slot that points beyond the count is taken as empty."""
    memory = bytearray(40 + 4 + 20 * 5)
    one = hot.IndexTail()
    one.attach(memory, 1, 5)
    assert one.put(b"t#a", 10, 5000)
    assert one.put(b"t#b", 20, 9000)
    two = hot.IndexTail()
    two.attach(memory, 1, 5)
    assert (two.count, two.room(), two.end_log) == (3, 2, 20)
    assert two.put(b"t#c", 30, 8000)
    assert struct.unpack_from(">iqii", memory, 44 + 60) == (hot.index_hash(b"t#c"), 30, 3, 2)
    memory[40:44] = b"\x7f\xff\xff\xff"
    assert two.put(b"t#d", 40, 9000)
    assert struct.unpack_from(">iqii", memory, 44 + 80) == (hot.index_hash(b"t#d"), 40, 4, 0)
    assert not two.put(b"t#e", 50, 9000)


@both
@pytest.mark.parametrize("size", [*range(25, 44), 0, 4, 63])
def test_an_index_file_that_is_shorter_than_its_header_and_slot_is_refused(hot, size):
    """And nothing of it is read; what has room for the slot and no entry is a full index."""
    index = hot.IndexTail()
    if size < 44:
        with pytest.raises(ValueError, match=f"do not fit into {size} bytes"):
            index.attach(walled(bytes(size)), 1, 0)
    else:
        index.attach(walled(bytes(size)), 1, 0)
    assert not index.put(b"t#a", 10, 5000)


def record_of(**changes):
    return {
        "topic": b"TopicA", "queue_id": 1, "queue_offset": 0, "flag": 0, "sys_flag": 0, "born_ms": BORN_MS,
        "born_host": BORN_HOST, "store_ms": STORE_MS, "reconsume_times": 0, "prepared_offset": 0, "body": b"hello",
        "properties": GOLDEN_RECORD[-89:], "tags_code": 2598919, "keys": [b"TopicA#k1"], **changes,
    }  # fmt: skip


@both
def test_append_record(hot):
    """The slow path's writer makes the captured record, with or without a queue of its own."""
    tails = Tails(hot)
    assert hot.append_record(tails.log, tails.queues[1], tails.index, **record_of(queue_offset=99)) == 0
    assert tails.written() == GOLDEN_RECORD
    assert (units(tails, 1), tails.index.count) == ([(0, 191, 2598919)], 2)
    assert hot.append_record(tails.log, None, None, **record_of(queue_offset=42, body=bytearray(b"other"))) == 191
    assert (stored(tails)[1].queue_offset, stored(tails)[1].body, tails.queues[1].next_offset) == (42, b"other", 1)


@both
def test_append_record_of_ipv6_hosts(hot):
    """Host sizes set their flag bits, and an empty body has checksum 0."""
    tails = Tails(hot, store_host=bytes(16) + STORE_HOST[4:])
    hot.append_record(tails.log, None, None, **record_of(born_host=bytes(20), body=b"", sys_flag=1))
    message = stored(tails)[0]
    assert (message.sys_flag, len(message.born_host_raw), len(message.store_host_raw)) == (0x31, 20, 20)
    assert tails.log_bytes[8:12] == bytes(4)


@both
def test_append_record_without_room(hot):
    """Which file is full is told by a negative answer, and nothing was written."""
    tails = Tails(hot, log_bytes=198)
    assert hot.append_record(tails.log, None, None, **record_of()) == -hot.STOP_LOG_FULL
    tails = Tails(hot, units=0)
    assert hot.append_record(tails.log, tails.queues[0], None, **record_of()) == -hot.STOP_QUEUE_FULL
    tails = Tails(hot)
    tails.index.reserve(2)
    assert (
        hot.append_record(tails.log, tails.queues[0], tails.index, **record_of(keys=[b"a", b"b"]))
        == -hot.STOP_INDEX_FULL
    )
    assert (tails.log.end, tails.queues[0].next_offset, any(tails.log_bytes)) == (0, 0, False)
    for wrong in ({"topic": b""}, {"properties": bytes(32768)}, {"born_host": b"x"}):
        with pytest.raises(LocalProtocolError):
            hot.append_record(tails.log, None, None, **record_of(**wrong))


def put_of(number=0, **changes):
    fields = record_of(
        **{"born_ms": BORN_MS + number, "body": b"%d" % number, "keys": (b"TopicA#k%d" % number,), **changes}
    )
    return PutRecord(
        topic="TopicA",
        **{name: fields[name] for name in PutRecord.__struct_fields__ if name not in {"topic", "is_judged"}},
    )


@both
def test_records_in_one_call_are_what_single_calls_make(hot):
    """To the last byte of log, queue and index; from any of them on."""
    tails, singly = Tails(hot), Tails(hot)
    records = [put_of(0), put_of(1, born_host=bytes(20), sys_flag=1), put_of(2, prepared_offset=-8, flag=9), put_of(3)]
    assert hot.append_records(tails.log, tails.queues[1], tails.index, records, 1, STORE_MS) == 4
    for record in records[1:]:
        fields = {
            name: getattr(record, name) for name in PutRecord.__struct_fields__ if name not in {"topic", "is_judged"}
        }
        hot.append_record(
            singly.log, singly.queues[1], singly.index, topic=b"TopicA", queue_offset=0, store_ms=STORE_MS, **fields
        )
    assert tails.everything() == singly.everything()
    assert hot.append_records(tails.log, tails.queues[1], None, [put_of(5)], 0, STORE_MS) == 1
    assert (len(stored(tails)), tails.index.count) == (4, 4)


@both
@pytest.mark.parametrize("small", [{"log_bytes": 2 * 187 + 7}, {"units": 1}, {"entries": 2}])
def test_records_in_one_call_stop_where_a_file_is_full(hot, small):
    """And before one with many keys, which its caller puts alone."""
    tails = Tails(hot, **small)
    records = [put_of(0), put_of(1), put_of(2)]
    assert hot.append_records(tails.log, tails.queues[1], tails.index, records, 0, STORE_MS) == 1
    assert (len(stored(tails)), tails.queues[1].next_offset, tails.index.count) == (1, 1, 2)
    many = put_of(0)
    many.keys = (b"TopicA#k",) * 5
    tails = Tails(hot)
    assert hot.append_records(tails.log, tails.queues[1], tails.index, [put_of(1), many], 0, STORE_MS) == 1
    with pytest.raises(LocalProtocolError):
        hot.append_records(tails.log, tails.queues[1], tails.index, [put_of(2, born_host=b"x")], 0, STORE_MS)


@both
def test_replies_keep_the_order_of_slow_answers(hot):
    """Frames made elsewhere stand where they were put, and take() empties."""
    replies = hot.Replies('r"é'.encode(), False)
    replies.add_send(1, False, 2, "ID", 3)
    replies.extend(b"slow")
    replies.add_send(2, True, 2, "ID", 3)
    size = len(replies)
    data = replies.take()
    assert (len(data), len(replies), replies.take()) == (size, 0, b"")
    before, after = data.split(b"slow")
    ext = replies_of(before)[0]["extFields"]
    assert ext == {"queueId": "2", "TRACE_ON": "false", "MSG_REGION": 'r"é', "msgId": "ID", "queueOffset": "3"}
    assert 'r"é'.encode() in after


@both
@pytest.mark.parametrize(
    ("text", "value"),
    [(b"", 0), (b"hello world", 1794106052), (b"polygenelubricants", -2147483648), (b"TagA", 2598919), ("标签".encode(), 857175),
     ("😀".encode(), 1772899), (b"\xff", 65533), (b"a" * 33, None)],
)  # fmt: skip
def test_java_hash(hot, text, value):
    """Java's numbers, over UTF-16 units, for text beyond ASCII too."""
    if value is None:
        value = 0
        for char in text.decode():
            value = (value * 31 + ord(char)) & 0xFFFFFFFF
        value -= (value >> 31) << 32
    assert hot.java_hash(text) == value
    assert hot.index_hash(text) == (0 if value == -(2**31) else abs(value))


@both
@given(data=st.binary(max_size=600))
def test_crc31(hot, data):
    """zlib's checksum without its top bit, at every length and alignment."""
    import zlib

    assert hot.crc31(data) == zlib.crc32(data) & 0x7FFFFFFF
    assert hot.crc31(memoryview(data)[3:]) == zlib.crc32(data[3:]) & 0x7FFFFFFF


@both
@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_memory_that_is_not_written_yet_is_of_the_size_and_takes_all(hot, size):
    memory = hot.unwritten(size)
    assert (type(memory), len(memory)) == (bytearray, size)
    memory[:] = b"x" * size
    assert memory.count(b"x") == size


names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "a", "名", "DELAY", "WAI", "TAGSS"])
values = st.one_of(
    st.sampled_from(["true", "false", "k1 k2", " k1  k2 ", UNIQUE_ID, "TagA", "é", "x" * 40]), st.text(max_size=8)
)
texts = st.one_of(
    st.lists(st.tuples(names, values), max_size=6).map(lambda pairs: "\x02".join(f"{n}\x01{v}" for n, v in pairs)),
    st.text(alphabet="aWAIT\x01\x02 ", max_size=12),
).flatmap(lambda text: st.sampled_from([text, text + "\x02"]))
bodies = st.binary(min_size=1, max_size=40)
singles = st.builds(
    lambda body, text, queue, flag, way: send(body, i=text, e=str(queue), h=str(flag), flag=way, binary=way == 0 and flag > 5),
    bodies, texts, st.integers(0, 2), st.integers(-9, 9), st.sampled_from([0, 0, 2]),
)  # fmt: skip
batches = st.builds(
    lambda entries, text: send(encode_batch([(1, b, t.encode("utf-8", "replace")) for b, t in entries]), code=320, m="true", i=text),
    st.lists(st.tuples(bodies, texts), min_size=1, max_size=4), st.sampled_from([None, "WAIT\x01true", "a\x01b"]),
)  # fmt: skip


@needs_native
@settings(max_examples=repeats(300))
@given(rows=st.lists(st.one_of(singles, batches), min_size=1, max_size=6), slow=st.booleans(), index=st.booleans())
def test_fallback_and_native_write_the_same_bytes(rows, slow, index):
    """Random sends and batches: log, queues, index, answers and outcome are equal byte for byte, and decode back."""
    results = []
    for hot in (NATIVE, FALLBACK):
        tails = Tails(hot)
        tails.queues[0].watched = True
        for row in range(len(rows)):
            tails.append(b"".join(rows), row=row, wait_is_slow=slow, index=index)
        results.append(tails.everything())
        stored(tails)
    assert results[0] == results[1]


# -- through a descriptor


class WrittenTails(Tails):
    """Tails whose log is a file: runs are written through its descriptor."""

    def __init__(self, hot, file, *, log_bytes: int = 1 << 20, descriptor: int | None = None, **more):
        super().__init__(hot, log_bytes=log_bytes, **more)
        file.truncate(log_bytes)
        self.log_bytes = mmap.mmap(file.fileno(), log_bytes)
        self.log.attach(self.log_bytes, 0, log_bytes, 0, file.fileno() if descriptor is None else descriptor)


@settings(max_examples=repeats(200))
@given(rows=st.lists(st.one_of(singles, batches), min_size=1, max_size=6), slow=st.booleans())
def test_what_is_written_is_what_is_made_in_place(rows, slow):
    """Records, units, index, answers and outcome, byte for byte, by both modules; also where a run goes on behind one of its own."""
    for hot in filter(None, (NATIVE, FALLBACK)):
        with tempfile.TemporaryFile() as file:
            results = []
            for tails in (Tails(hot), WrittenTails(hot, file)):
                for row in range(len(rows)):
                    tails.append(b"".join(rows), row=row, wait_is_slow=slow)
                results.append(tails.everything())
                stored(tails)
        assert results[0] == results[1]


@both
@pytest.mark.parametrize("size", [1000, 100_000, 262_000, 300_000])
def test_runs_longer_than_what_is_made_ahead(hot, tmp_path, size):
    """They are written in parts; a record that is longer than all of that is made in place."""
    data = b"".join(send(bytes([65 + number % 26]) * size, e="0") for number in range(1 + 900_000 // size))
    with (tmp_path / "log").open("w+b") as file:
        tails, plain = WrittenTails(hot, file, log_bytes=2 << 20), Tails(hot, log_bytes=2 << 20)
        assert tails.append(data).stop == plain.append(data).stop == hot.STOP_END
        assert tails.everything() == plain.everything()
        assert os.pread(file.fileno(), tails.log.end, 0) == plain.written()
        assert tails.append(send(b"more", e="1")).stop == plain.append(send(b"more", e="1")).stop == hot.STOP_END
        assert tails.written() == plain.written()


@needs_native
def test_a_run_that_cannot_be_written_is_an_error(tmp_path):
    """The descriptor is for reading only: EBADF. Where the log ends is not where its file does, so nobody may go on."""
    (tmp_path / "log").touch()
    with (tmp_path / "log").open("r+b") as file, (tmp_path / "log").open("rb") as reading:
        tails = WrittenTails(NATIVE, file, descriptor=reading.fileno())
        with pytest.raises(NATIVE.RunLost, match="Bad file descriptor") as raised:
            tails.append(send(b"lost"))
        assert raised.value.errno == errno.EBADF
        assert bytes(tails.log_bytes[:100]) == bytes(100)
        # What is made in place, by the slow paths, goes on as ever.
        tails.log.attach(tails.log_bytes, 0, len(tails.log_bytes), 0)
        assert tails.append(send(b"kept")).messages == 1
        assert tails.log_bytes[4:8] == (0xDAA320A7).to_bytes(4, "big")


def test_ends_of_queues_are_told_with_what_has_changed():
    """By both alike: all ends, those that have changed since, and the queue with the newest record."""

    def told(module):
        tails = [module.QueueTail(b"T", number) for number in range(4)]
        rooms = [bytearray(200) for _ in tails]
        for tail, room in zip(tails, rooms, strict=True):
            tail.attach(room, 0, 10)
        found = [module.queue_ends(tails)]
        tails[2].put(0, 100, 0)
        tails[1].put(100, 100, 0)
        found.append(module.queue_ends(tails))
        found.append(module.queue_ends(tails, found[0][0]))
        tails[2].put(200, 50, 0)
        tails[3].put(250, 50, 0)
        found.append(module.queue_ends(tails, found[-1][0]))
        with pytest.raises(ValueError, match="8 bytes of ends before, for 4 queues"):
            module.queue_ends(tails, bytes(8))
        return found

    ends = [(0, 0, 0, 0), (0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 2, 1)]
    changed, newest = [[], [1, 2], [1, 2], [2, 3]], [-1, 1, 1, 3]
    wanted = [
        (struct.pack("4q", *end), places, place) for end, places, place in zip(ends, changed, newest, strict=True)
    ]
    for module in filter(None, (FALLBACK, NATIVE)):
        assert told(module) == wanted
        assert module.queue_ends([]) == (b"", [], -1)
