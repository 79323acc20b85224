"""Half messages and their ends in the fast path: what is stored and answered, and what is left to be judged singly."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.wire.record import tags_code
from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_MS,
    ENDING_EXT,
    FALLBACK,
    NATIVE,
    STORE_HOST,
    STORE_MS,
    TEXT,
    UNIQUE_ID,
    Tails,
    binary_head,
    both,
    frame,
    json_head,
    needs_native,
    replies_of,
    scanned,
    send,
    stored,
)

HALF, OP = b"RMQ_SYS_TRANS_HALF_TOPIC", b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d"
GROUP = "payers"
HALF_TEXT = f"{TEXT}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}"


class TransactionTails(Tails):
    """The tails of a topic, and those of the half and the op queue."""

    def __init__(self, hot, *, open_gate=True, op_units=1000, **more):
        super().__init__(hot, **more)
        self.more_bytes = [bytearray(20 * 1000), bytearray(20 * op_units)]
        self.half, self.ops = hot.QueueTail(HALF, 0), hot.QueueTail(OP, 0)
        for queue, memory in zip((self.half, self.ops), self.more_bytes, strict=True):
            queue.attach(memory, 0, len(memory) // 20)
        self.ended = []
        """(slot, op offset) of each half message that has its op record."""
        self.blocked = False
        self.transactions = hot.TransactionGate(OP_PROPERTIES, tags_code("d"), self.may_end, self.note)
        if open_gate:
            self.transactions.half = hot.TopicGate(HALF, [self.half], 1)
            self.transactions.op = hot.TopicGate(OP, [self.ops], 1)
        self.make_gate()

    def make_gate(self, *, body_bytes_max=1 << 22, wait_is_slow=False):
        slow = (b"DELAY", b"TRAN_MSG")
        gate = self.hot.TopicGate(self.topic, self.queues, body_bytes_max, slow, wait_is_slow, self.transactions)
        self.gates = {self.topic: gate}

    def may_end(self, slot):
        return not self.blocked and all(slot != done for done, _ in self.ended)

    def note(self, slot, op_offset):
        self.ended.append((slot, op_offset))

    def everything(self):
        more = [bytes(memory) for memory in self.more_bytes], self.ended, self.half.next_offset, self.ops.next_offset
        return (*super().everything(), *more)


def half(text=HALF_TEXT, body=b"hello", **more):
    return send(body, i=text, **{"e": "1", "f": "4", **more})


def ending_head(offset=0, log_offset=0, outcome=8, group=GROUP, *, binary=False, opaque=9, flag=0, **more):
    ext = {
        **ENDING_EXT, "commitLogOffset": str(log_offset), "commitOrRollback": str(outcome), "producerGroup": group,
        "tranStateTableOffset": str(offset), **more,
    }  # fmt: skip
    ext = {name: value for name, value in ext.items() if value is not None}
    return (binary_head if binary else json_head)(37, ext, opaque=opaque, flag=flag)


def ending(*place, binary=False, body=b"", **more):
    return frame(ending_head(*place, binary=binary, **more), body, int(binary))


@both
@pytest.mark.parametrize("binary", [False, True])
def test_the_fields_of_an_end(hot, binary):
    """Group, half message, and what became of it; it has neither topic nor queue."""
    table, _ = scanned(hot, ending(7, 1 << 40, 12, binary=binary, flag=2))
    assert (table.kind(0), table.code(0), table.opaque(0), table.flag(0)) == (hot.KIND_ENDING, 37, 9, 2)
    assert table.ending(0) == (GROUP.encode(), 7, 1 << 40, 12, UNIQUE_ID.encode())
    assert scanned(hot, ending(msgId=None))[0].ending(0)[4] == b""
    for wrong in (table.topic, table.group, table.queue_id, table.pull):
        with pytest.raises(TypeError):
            wrong(0)
    with pytest.raises(TypeError):
        scanned(hot, send())[0].ending(0)


@both
@pytest.mark.parametrize(
    "changes",
    [{"producerGroup": None}, {"tranStateTableOffset": None}, {"commitLogOffset": None}, {"commitOrRollback": None},
     {"tranStateTableOffset": "x"}, {"commitLogOffset": "9223372036854775808"}, {"commitOrRollback": "2147483648"},
     {"fromTransactionCheck": "perhaps"}],
)  # fmt: skip
def test_an_end_that_is_not_understood_is_left_to_the_slow_path(hot, changes):
    """It judges what is missing, or no number."""
    table, _ = scanned(hot, ending(**changes) + ending(flag=1))
    assert [table.kind(0), table.kind(1)] == [hot.KIND_OTHER, hot.KIND_OTHER]


@both
def test_a_half_message_waits_in_the_half_queue(hot):
    """All its properties, then cluster, topic and queue; the answer names the queue that was asked for."""
    tails = TransactionTails(hot)
    assert tails.take(half(h="7", j="2") + half(opaque=11)) == []
    one, two = stored(tails)
    assert (one.topic, one.queue_id, one.queue_offset, one.sys_flag, one.flag) == (HALF.decode(), 0, 0, 0, 7)
    assert (one.body, one.born_ms, one.store_ms, one.reconsume_times, one.prepared_offset) == (
        b"hello", BORN_MS, STORE_MS, 2, 0,
    )  # fmt: skip
    assert (
        one.properties_raw
        == (HALF_TEXT + "\x02CLUSTER\x01DefaultCluster\x02REAL_TOPIC\x01TopicA\x02REAL_QID\x011").encode()
    )
    assert [tails.half.next_offset, *(queue.next_offset for queue in tails.queues)] == [2, 0, 0]
    assert struct.unpack_from(">qiq", tails.more_bytes[0], 20) == (
        two.log_offset,
        0 + two_size(tails),
        tags_code("TagA"),
    )
    answers = replies_of(tails.replies.take())
    assert [(a["opaque"], a["extFields"]["queueId"], a["extFields"]["queueOffset"]) for a in answers] == [
        (8, "1", "0"), (11, "1", "1"),
    ]  # fmt: skip
    assert tails.index.count == 1 + 2 * 3
    assert (tails.outcome.messages, tails.outcome.size) == (2, tails.log.end)


def two_size(tails):
    first = int.from_bytes(tails.log_bytes[:4], "big")
    return int.from_bytes(tails.log_bytes[first : first + 4], "big")


@both
@pytest.mark.parametrize("binary", [False, True])
def test_a_commit_stores_the_message_and_an_op_record(hot, binary):
    """The message names the half message; the op record its number. Both are announced for those who wait for them."""
    tails = TransactionTails(hot)
    tails.take(half(f="5"))
    tails.replies.clear()
    tails.queues[1].watched = tails.ops.watched = True
    assert tails.take(ending(binary=binary), now_ms=STORE_MS - 5) == []
    waiting, seen, op = stored(tails)
    assert (seen.topic, seen.queue_id, seen.queue_offset, seen.sys_flag) == ("TopicA", 1, 0, 8 | 1)
    assert (seen.properties_raw, seen.body, seen.born_ms) == (waiting.properties_raw, b"hello", BORN_MS)
    assert (seen.prepared_offset, seen.store_ms) == (0, STORE_MS)
    assert (op.topic, op.queue_id, op.queue_offset, op.body, op.properties_raw) == (
        OP.decode(),
        0,
        0,
        b"0",
        OP_PROPERTIES,
    )
    assert (op.born_ms, op.born_host_raw, op.store_ms, op.sys_flag) == (STORE_MS - 5, STORE_HOST, STORE_MS, 0)
    assert struct.unpack_from(">qiq", tails.queue_bytes[1])[2] == tags_code("TagA")
    assert struct.unpack_from(">qiq", tails.more_bytes[1])[2] == tags_code("d")
    assert tails.ended == [(0, 0)]
    assert tails.outcome.touched == [tails.queues[1], tails.ops]
    assert tails.outcome.messages == 2
    assert tails.index.count == 1 + 2 * 3
    answer = tails.replies.take()
    if binary:
        assert answer == struct.pack(">iI", 25, 1 << 24 | 21) + struct.pack(">hBhiiii", 0, 3, 409, 9, 1, 0, 0)
    else:
        assert replies_of(answer) == [{"code": 0, "flag": 1, "language": "PYTHON", "opaque": 9, "version": 409}]


@both
def test_a_rollback_stores_an_op_record_only(hot):
    """And one that nobody waits for is not answered."""
    tails = TransactionTails(hot)
    tails.take(half())
    tails.replies.clear()
    assert tails.take(ending(outcome=12, flag=2)) == []
    assert [message.topic for message in stored(tails)] == [HALF.decode(), OP.decode()]
    assert (tails.ended, tails.outcome.messages, len(tails.replies)) == ([(0, 0)], 1, 0)


@both
@pytest.mark.parametrize(
    "text",
    [
        HALF_TEXT.replace("PGROUP", "PGROUQ"), HALF_TEXT + "\x02DELAY\x013", HALF_TEXT + "\x02REAL_QID\x013", HALF_TEXT + "\x02REAL_TOPIC\x01x",
        HALF_TEXT + "\x02CLUSTER\x01c", HALF_TEXT + "\x02TRANSACTION_CHECK_TIMES\x013", HALF_TEXT + "\x02TRAN_PREPARED_QUEUE_OFFSET\x013",
        HALF_TEXT.replace("TRAN_MSG\x01true", "TRAN_MSG\x01false"), HALF_TEXT + "\x02TAGS\x01TagB", HALF_TEXT + "\x02empty\x01",
        HALF_TEXT + "".join(f"\x02p{n}\x01v" for n in range(20)), HALF_TEXT + "\x02long\x01" + "x" * 32500,
        HALF_TEXT.replace("\x02TRAN_MSG\x01true", ""),
    ],
    ids=lambda text: text[-12:].replace("\x01", "=").replace("\x02", ";"),
)  # fmt: skip
def test_half_messages_with_something_unusual_are_left_to_the_slow_path(hot, text):
    """Without a group, with a delay, with what the broker says itself, a name twice, or too much of anything."""
    tails = TransactionTails(hot)
    assert tails.take(half(text)) == [(0, hot.STOP_SLOW)]
    assert (tails.log.end, tails.half.next_offset, len(tails.replies)) == (0, 0, 0)


@both
def test_half_messages_wait_for_their_queue_and_for_leave(hot):
    """No half queue yet, half messages refused, bits of an end, a batch: the slow path judges."""
    tails = TransactionTails(hot, open_gate=False)
    assert tails.take(half()) == [(0, hot.STOP_SLOW)]
    tails = TransactionTails(hot)
    assert tails.take(half(f="8") + half(f="12") + half(m="true") + half(e="2")) == [
        (row, hot.STOP_SLOW) for row in range(4)
    ]
    tails.transactions.takes_halves = False
    assert tails.take(half()) == [(0, hot.STOP_SLOW)]
    tails.transactions.takes_halves = True
    tails.make_gate(wait_is_slow=True)
    assert tails.take(half(HALF_TEXT.replace("WAIT\x01true", "WAIT\x01false")) + half()) == [(0, hot.STOP_SLOW)]
    assert tails.half.next_offset == 1


@both
def test_ends_that_are_not_plain_change_nothing(hot):
    """Repeated, forged, of another group, of something that only looks like a half message, of a topic without a gate."""
    tails = TransactionTails(hot)
    tails.take(half() + half() + send(e="0") + ending(0, 0))
    whole, first = tails.everything()[:-4], int.from_bytes(tails.log_bytes[:4], "big")
    inner = bytearray(tails.log_bytes[first : 2 * first])
    tails.take(send(bytes(inner), e="0"))
    forged = stored(tails)[-1].log_offset + 88
    tails.log_bytes[forged + 28 : forged + 36] = struct.pack(">q", forged)
    end = tails.log.end
    tries = [
        ending(0, 0), ending(1, 0), ending(0, first), ending(1, first, group="others"), ending(1, first, group=""),
        ending(1, first, 0), ending(1, first, 4), ending(1, first + 1), ending(1, -1), ending(-1, first),
        ending(1, 1 << 40), ending(1, end), ending(1, end - 90), ending(2, 2 * first), ending(1, forged),
        ending(1, first, body=b"x"), ending(1, first, msgId="another"),
    ]  # fmt: skip
    assert tails.take(b"".join(tries)) == [(row, hot.STOP_SLOW) for row in range(len(tries))]
    assert (tails.log.end, tails.ended) == (end, [(0, 0)])
    tails.blocked = True
    assert tails.take(ending(1, first)) == [(0, hot.STOP_SLOW)]
    tails.blocked = False
    tails.gates = {}
    assert tails.take(ending(1, first)) == [(0, hot.STOP_SLOW)]
    tails.make_gate(body_bytes_max=4)
    assert tails.take(ending(1, first)) == [(0, hot.STOP_SLOW)]
    tails.log_bytes[first + 90] ^= 1  # the body does not fit its checksum any more
    tails.make_gate()
    assert tails.take(ending(1, first)) == [(0, hot.STOP_SLOW)]
    assert tails.log.end == end
    assert whole


@both
@pytest.mark.parametrize("room", [{"units": 0}, {"op_units": 0}, {"entries": 5}, {"log_bytes": 1200}])
def test_an_end_without_room_for_all_of_it_stores_nothing(hot, room):
    """The slow path makes room, of whichever file it is."""
    tails = TransactionTails(hot, **room)
    assert tails.take(half(body=b"x" * 500)) == []
    end = tails.log.end
    assert tails.take(ending()) == [(0, hot.STOP_SLOW)]
    assert (tails.log.end, tails.ops.next_offset, tails.queues[1].next_offset, tails.ended) == (end, 0, 0, [])


@both
def test_a_half_message_without_room_asks_for_it(hot):
    """As a plain send does."""
    tails = TransactionTails(hot, log_bytes=200)
    assert tails.take(half()) == [(0, hot.STOP_LOG_FULL)]
    assert tails.outcome.needed > 200


texts = st.sampled_from((
    HALF_TEXT, HALF_TEXT + "\x02", HALF_TEXT.replace("\x02KEYS\x01k1 k2", ""), HALF_TEXT + "\x02a\x01\N{SNOWMAN}", HALF_TEXT + "\x02DELAY\x012",
    HALF_TEXT.replace("true\x02PG", "TRUE\x02PG"), HALF_TEXT.replace("WAIT\x01true", "WAIT\x01false"), HALF_TEXT + "\x02KEYS\x01again",
    HALF_TEXT.replace(GROUP, "others"), HALF_TEXT.replace("TRAN_MSG\x01true\x02", ""), "TRAN_MSG\x01true\x02PGROUP\x01g",
    "a\x01TRAN_MSG\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01payers", "", "PGROUP\x01payers\x02TRAN_MSG\x01", "\x02",
    HALF_TEXT + "\x02REAL_QID\x0100",
))  # fmt: skip
sends = st.builds(
    lambda text, body, queue, flag, oneway, binary, code: (
        "send",
        send(body, i=text, e=str(queue), f=str(flag), flag=2 * oneway, binary=binary, code=code),
    ),
    texts, st.sampled_from((b"x", b"body" * 20)), st.integers(-1, 2), st.sampled_from((0, 1, 4, 5, 8, 0x704, 0x804)),
    st.booleans(), st.booleans(), st.sampled_from((310, 10)),
)  # fmt: skip
ends = st.builds(
    lambda *facts: ("end", facts),
    st.integers(0, 12), st.sampled_from((8, 8, 12, 0, 4)), st.sampled_from((GROUP, GROUP, "others", "g")),
    st.sampled_from((0, 0, 0, 0, 1, -1)), st.booleans(), st.booleans(), st.sampled_from((UNIQUE_ID, UNIQUE_ID, "", "another")),
)  # fmt: skip


@needs_native
@settings(max_examples=repeats(200), deadline=None)
@given(st.lists(st.lists(st.one_of(sends, sends, ends), min_size=1, max_size=6), max_size=8))
def test_both_modules_do_the_same(events):
    """Log, queues, index, answers, and which rows are left: for any interleaving of sends, half messages and ends."""
    both_tails = TransactionTails(NATIVE), TransactionTails(FALLBACK)
    places = [0]
    for event in events:
        data = b""
        for kind, facts in event:
            if kind == "send":
                data += facts
                continue
            number, outcome, group, off, oneway, binary, message_id = facts
            number %= len(places)
            data += ending(
                number + off, places[number], outcome, group, flag=2 * oneway, binary=binary, msgId=message_id
            )
        left, left_fallback = (tails.take(data) for tails in both_tails)
        assert left == left_fallback
        assert both_tails[0].everything() == both_tails[1].everything()
        places = [message.log_offset for message in stored(both_tails[0]) if message.topic == HALF.decode()] or [0]


@needs_native
@settings(max_examples=repeats(600), deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 330), st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from((b"\x01", b"\x02", b"\xff\xff")))),
        max_size=3,
    ),
    text=texts, outcome=st.sampled_from((8, 8, 12)),
)  # fmt: skip
def test_damaged_half_records_are_judged_alike(edits, text, outcome):
    """Whatever the log holds where an end points to: its properties have no checksum."""
    both_tails = TransactionTails(NATIVE), TransactionTails(FALLBACK)
    found = []
    for tails in both_tails:
        tails.take(half(text))
        for at, put in edits:
            if at + len(put) <= tails.log.end:
                tails.log_bytes[at : at + len(put)] = put
        found.append(tails.take(ending(0, 0, outcome)))
    assert found[0] == found[1]
    assert both_tails[0].everything() == both_tails[1].everything()
