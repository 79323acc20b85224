"""Delayed messages and sends to retry topics in the fast path: what is stored and answered, and what is judged singly."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.wire.record import encode_batch
from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_MS,
    FALLBACK,
    NATIVE,
    RETRY,
    SCHEDULE,
    SLOW,
    STORE_MS,
    TEXT,
    LevelTails,
    both,
    frame,
    json_head,
    needs_native,
    replies_of,
    send,
    stored,
)

DELAYS_MS = (1000, 5000, 10_000)


class DelayTails(LevelTails):
    """The tails of a topic, of a retry topic, and of the queues of four delay levels, the last of which has none yet."""

    def __init__(self, hot, *, levels=4, **more):
        super().__init__(hot, delays_ms=DELAYS_MS, levels=levels, **more)
        self.retry_bytes = bytearray(20 * 1000)
        self.retry = hot.QueueTail(RETRY, 0)
        self.retry.attach(self.retry_bytes, 0, 1000)
        self.make_gates()

    def make_gates(self, *, wait_is_slow=False, retries_max=16):
        slow = tuple(name for name in SLOW if name != b"RETRY_TOPIC")
        make = self.hot.TopicGate
        self.gates = {
            self.topic: make(self.topic, self.queues, self.body_bytes_max, SLOW, wait_is_slow, None, self.delays),
            RETRY: make(RETRY, [self.retry], self.body_bytes_max, slow, wait_is_slow, None, self.delays, retries_max),
        }

    def everything(self):
        return (*super().everything(), bytes(self.retry_bytes), self.retry.next_offset)


def delayed(level="2", text=TEXT, body=b"hello", **more):
    return send(body, i=f"{text}\x02DELAY\x01{level}", **more)


def retried(text=TEXT, times=1, limit="16", **more):
    text = f"{text}\x02RETRY_TOPIC\x01TopicA\x02DELAY\x013"
    return send(i=text, b=RETRY.decode(), e="0", j=str(times), l=limit, **more)


@both
def test_a_delayed_message_waits_in_the_queue_of_its_level(hot):
    """All its properties, then cluster, topic and queue; the unit says when it is due; the answer names the queue asked for."""
    tails = DelayTails(hot)
    tails.levels[1].watched = True
    assert tails.take(delayed(h="7", j="2", f="1") + delayed("002", opaque=11), now_ms=STORE_MS) == []
    one, two = stored(tails)
    assert (one.topic, one.queue_id, one.queue_offset, one.sys_flag, one.flag) == (SCHEDULE.decode(), 1, 0, 1, 7)
    assert (one.body, one.born_ms, one.store_ms, one.reconsume_times, one.prepared_offset) == (
        b"hello", BORN_MS, STORE_MS, 2, 0,
    )  # fmt: skip
    more = "\x02CLUSTER\x01DefaultCluster\x02REAL_TOPIC\x01TopicA\x02REAL_QID\x011"
    assert one.properties_raw == f"{TEXT}\x02DELAY\x012{more}".encode()
    assert two.properties_raw == f"{TEXT}\x02DELAY\x01002{more}".encode()
    assert struct.unpack_from(">qiq", tails.level_bytes[1], 20) == (
        two.log_offset, tails.log.end - two.log_offset, STORE_MS + 5000,
    )  # fmt: skip
    assert [queue.next_offset for queue in (*tails.queues, *tails.levels)] == [0, 0, 0, 2, 0]
    answers = replies_of(tails.replies.take())
    assert [(a["opaque"], a["extFields"]["queueId"], a["extFields"]["queueOffset"]) for a in answers] == [
        (8, "1", "0"), (11, "1", "1"),
    ]  # fmt: skip
    assert tails.index.count == 1 + 2 * 3
    assert (tails.outcome.messages, tails.outcome.size, tails.outcome.touched) == (2, tails.log.end, [tails.levels[1]])


@both
def test_it_is_due_by_the_clock_though_the_store_time_never_runs_back(hot):
    """A clock that was set back: the record keeps the later time, and the message waits no longer than it asks for."""
    tails = DelayTails(hot)
    tails.take(delayed("1"))
    tails.take(delayed("1"), now_ms=STORE_MS - 60_000)
    assert [message.store_ms for message in stored(tails)] == [STORE_MS, STORE_MS]
    assert tails.due(1) == [STORE_MS + 1000, STORE_MS - 59_000]


@both
@pytest.mark.parametrize("level", ["0", "000", "x", "+1", "-1", "1 ", "1.0", "1000000000", "9" * 30])
def test_who_asks_for_no_level_is_not_delayed(hot, level):
    """Zero, or what is no number of at most nine digits: a plain message, which drops WAIT."""
    tails = DelayTails(hot)
    assert tails.take(delayed(level)) == []
    (message,) = stored(tails)
    assert (message.topic, message.queue_id) == ("TopicA", 1)
    text = f"{TEXT}\x02DELAY\x01{level}".replace("WAIT\x01true\x02", "")
    assert message.properties_raw == f"{text}\x02CLUSTER\x01DefaultCluster".encode()
    assert [queue.next_offset for queue in (*tails.queues, *tails.levels)] == [0, 1, 0, 0, 0]


@both
def test_a_level_above_the_last_is_the_last(hot):
    """As many as the broker has; without any, nothing is delayed."""
    tails = DelayTails(hot, levels=3)
    assert tails.take(delayed("4") + delayed("999999999")) == []
    assert tails.due(3) == [STORE_MS + 10_000] * 2
    tails = DelayTails(hot, levels=0)
    assert tails.take(delayed("4")) == []
    assert stored(tails)[0].topic == "TopicA"


@both
@pytest.mark.parametrize(
    "text",
    [
        TEXT + "\x02REAL_QID\x013", TEXT + "\x02REAL_TOPIC\x01x", TEXT + "\x02CLUSTER\x01c", TEXT + "\x02TAGS\x01TagB",
        TEXT + "\x02empty\x01", TEXT + "".join(f"\x02p{n}\x01v" for n in range(20)), TEXT + "\x02long\x01" + "x" * 32550,
        TEXT + "\x02DELAY\x012", TEXT + "\x02TRAN_MSG\x01true\x02PGROUP\x01g", TEXT + "\x02TRAN_MSG\x01false",
        TEXT + "\x02MSG_TYPE\x01reply", TEXT + "\x02RETRY_TOPIC\x01x",
    ],
    ids=lambda text: text[-12:].replace("\x01", "=").replace("\x02", ";"),
)  # fmt: skip
def test_delayed_messages_with_something_unusual_are_left_to_the_slow_path(hot, text):
    """What the broker says itself, a name twice, half messages, too much of anything."""
    tails = DelayTails(hot)
    assert tails.take(delayed(text=text)) == [(0, hot.STOP_SLOW)]
    assert (tails.log.end, len(tails.replies)) == (0, 0)


@both
def test_a_level_without_a_queue_and_whatever_is_no_single_send_is_left(hot):
    """The slow path makes the queue; it refuses batches, and flags of transactions."""
    tails = DelayTails(hot)
    batch = encode_batch([(0, b"x", b"DELAY\x012")])
    tries = (
        delayed("4")
        + delayed(f="4")
        + delayed(e="2")
        + delayed(m="true")
        + send(batch, code=320, i="WAIT\x01true", m="true")
    )
    tries += send(encode_batch([(0, b"x", b"a\x01b")]), code=320, i="DELAY\x010", m="true")
    assert tails.take(tries) == [(row, hot.STOP_SLOW) for row in range(6)]
    assert not tails.delays.is_open(4)
    with pytest.raises(ValueError, match="level 5"):
        tails.delays.open(5, tails.levels[0], 1)
    with pytest.raises(ValueError, match="ms"):
        tails.delays.open(1, tails.levels[0], -1)
    with pytest.raises(ValueError, match="levels"):
        hot.DelayGate(SCHEDULE, -1)
    tails.make_gates(wait_is_slow=True)
    assert tails.take(delayed(text=TEXT.replace("WAIT\x01true", "WAIT\x01false")) + delayed()) == [(0, hot.STOP_SLOW)]


@both
@pytest.mark.parametrize(
    ("room", "stop"), [({"log_bytes": 200}, "LOG"), ({"level_units": 0}, "QUEUE"), ({"entries": 1}, "INDEX")]
)
def test_a_delayed_message_without_room_asks_for_it(hot, room, stop):
    """As a plain send does, for the queue of its level."""
    tails = DelayTails(hot, **room)
    assert tails.take(delayed()) == [(0, getattr(hot, f"STOP_{stop}_FULL"))]
    if stop == "QUEUE":
        assert tails.outcome.queue is tails.levels[1]
    assert tails.log.end == 0


@both
def test_a_send_to_a_retry_topic_is_plain_until_its_retries_are_used_up(hot):
    """By the group's limit, or by the sender's own if that is lower: then the slow path files it with the dead letters."""
    tails = DelayTails(hot)
    assert tails.take(retried() + retried(times=15) + retried(times=15, limit=None, binary=True)) == []
    assert tails.due(3) == [STORE_MS + 10_000] * 3
    assert {message.properties["REAL_TOPIC"] for message in stored(tails)} == {RETRY.decode()}
    assert [message.reconsume_times for message in stored(tails)] == [1, 15, 15]
    spent = (
        retried(times=16) + retried(times=3, limit="3") + retried(times=16, limit="99") + retried(times=0, limit="0")
    )
    assert tails.take(spent) == [(row, hot.STOP_SLOW) for row in range(4)]
    tails.make_gates(retries_max=-1)
    assert tails.take(retried(times=0)) == [(0, hot.STOP_SLOW)]
    tails.make_gates()
    plain = send(i=TEXT, b=RETRY.decode(), e="0")
    batch = send(encode_batch([(0, b"x", b"a\x01b")]), code=320, b=RETRY.decode(), e="0", i="WAIT\x01true", m="true")
    assert tails.take(plain + batch) == [(1, hot.STOP_SLOW)]
    assert tails.retry.next_offset == 1
    assert tails.take(send(l="0") + send(l="7", j="9")) == [], "of other topics nobody looks at it: Go sends 0"


@both
@pytest.mark.parametrize("limit", ["x", "2147483648", "1.5", None, [1]])
def test_a_limit_that_is_no_number_is_for_the_slow_path(hot, limit):
    """It says so."""
    tails = DelayTails(hot)
    ext = {"a": "PG", "b": "TopicA", "c": "T", "d": "4", "e": "1", "f": "0", "g": "1", "h": "0", "l": limit}
    assert tails.take(frame(json_head(310, ext), b"x")) == [(0, hot.STOP_SLOW)]


texts = st.sampled_from((
    TEXT, TEXT + "\x02", "", TEXT.replace("\x02KEYS\x01k1 k2", ""), TEXT + "\x02a\x01\N{SNOWMAN}", TEXT + "\x02REAL_QID\x0100",
    TEXT.replace("WAIT\x01true", "WAIT\x01false"), TEXT + "\x02KEYS\x01again", TEXT + "\x02TRAN_MSG\x01true", "\x02",
    TEXT + "\x02RETRY_TOPIC\x01TopicA", "XDELAY\x011", "a\x01DELAY\x013", TEXT + "\x02CLUSTER\x01x", "DELAYED\x011",
))  # fmt: skip
levels = st.sampled_from((None, None, "1", "2", "3", "4", "5", "0", "03", "", "x", "1000000000", "999999999", "1\x01"))


def with_level(text, level):
    return text if level is None else "\x02".join(part for part in (text, f"DELAY\x01{level}") if part)


sends = st.builds(
    lambda text, level, body, queue, flag, oneway, binary, code, topic, times: send(
        body, i=with_level(text, level), e=str(queue), f=str(flag), flag=2 * oneway, binary=binary, code=code, b=topic,
        j=str(times),
    ),
    texts, levels, st.sampled_from((b"x", b"body" * 20)), st.integers(-1, 2), st.sampled_from((0, 1, 4, 5, 8, 0x704, 0x804)),
    st.booleans(), st.booleans(), st.sampled_from((310, 10)), st.sampled_from(("TopicA", RETRY.decode())),
    st.sampled_from((0, 1, 15, 16)),
)  # fmt: skip
limited = st.builds(
    lambda times, limit, binary: retried(times=times, limit=limit, binary=binary),
    st.sampled_from((-1, 0, 1, 15, 16, 17)), st.sampled_from(("0", "16", "-1", "+5", "007", "2147483647", "x", None)),
    st.booleans(),
)  # fmt: skip
batches = st.builds(
    lambda text, level, common: send(
        encode_batch([(0, b"x", with_level(text, level).encode())]), code=320, i=common, m="true"
    ),
    texts, levels, st.sampled_from(("WAIT\x01true", "DELAY\x011", "DELAY\x010", "")),
)  # fmt: skip


@needs_native
@settings(max_examples=repeats(300), deadline=None)
@given(
    events=st.lists(st.lists(st.one_of(sends, sends, limited, batches), min_size=1, max_size=6), max_size=8),
    wait_is_slow=st.booleans(), cluster=st.sampled_from((b"DefaultCluster", b"")), count=st.integers(0, 4),
)  # fmt: skip
def test_both_modules_do_the_same(events, wait_is_slow, cluster, count):
    """Log, queues, index, answers, and which rows are left: for any sends, delayed or not, to a topic and a retry topic."""
    both_tails = [DelayTails(hot, cluster=cluster, levels=count) for hot in (NATIVE, FALLBACK)]
    for tails in both_tails:
        tails.make_gates(wait_is_slow=wait_is_slow, retries_max=16)
    for number, event in enumerate(events):
        left, left_fallback = (tails.take(b"".join(event), now_ms=STORE_MS - 7 * number) for tails in both_tails)
        assert left == left_fallback
        assert both_tails[0].everything() == both_tails[1].everything()
