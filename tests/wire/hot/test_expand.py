"""Chunks of staged transactions: what is judged when they are staged, what their copies hold, and where a full file stops."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.log.records import put_record
from metaq.model import properties as props
from metaq.wire.record import copied_from, encode_batch, encode_record, tags_code
from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_HOST,
    BORN_MS,
    FALLBACK,
    NATIVE,
    SLOW,
    STORE_HOST,
    STORE_MS,
    UNIQUE_ID,
    Tails,
    both,
    needs_native,
    stored,
    units,
)

STAGE = b"rmq_sys_METAQ_STAGE"
CLUSTER = "DefaultCluster"


def text(**pairs):
    """A property text; empty values are left out."""
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs.items() if value).encode()


def entry(number=0, body=None, flag=0, **pairs):
    usual = {"KEYS": f"k{number} k", "UNIQ_KEY": UNIQUE_ID[:-1] + str(number % 10), "WAIT": "true", "TAGS": "TagA"}
    return flag, body or b"body %d" % number, text(**usual | pairs)


def chunk(entries, *, log_offset=700, topic="TopicA", queue="1", body=None, **more):
    """The record of a chunk."""
    fields = {
        "topic": STAGE, "queue_id": 0, "queue_offset": 3, "log_offset": log_offset, "flag": 0, "sys_flag": 0,
        "born_ms": BORN_MS, "born_host": BORN_HOST, "store_ms": STORE_MS, "store_host": STORE_HOST, "reconsume_times": 0,
        "prepared_offset": 0, "body": encode_batch(entries) if body is None else body,
        "properties": text(TAGS="chunk", METAQ_TX="t@b", METAQ_PART="p", METAQ_CHUNK="0", REAL_TOPIC=topic, REAL_QID=queue),
    }  # fmt: skip
    return encode_record(**{**fields, **more})


def expand(tails, record, *, row=0, whole=True, now_ms=STORE_MS + 1, index=True, place=700):
    tails.hot.expand(
        record,
        place,
        row,
        tails.gates,
        tails.log,
        tails.index if index else None,
        whole=whole,
        now_ms=now_ms,
        outcome=tails.outcome,
    )
    return tails.outcome


@both
def test_copies_are_the_messages_of_the_chunk(hot):
    """One record a message, in order and back to back, in the queue that the chunk names; each names the chunk."""
    tails = Tails(hot)
    tails.queues[1].watched = True
    outcome = expand(tails, chunk([entry(0, flag=7), entry(1, TAGS="", KEYS=""), entry(2, TAGS="TagB")]))
    assert (outcome.stop, outcome.row, outcome.messages, outcome.size) == (hot.STOP_END, 3, 3, tails.log.end)
    copies = stored(tails)
    assert [copy.body for copy in copies] == [b"body 0", b"body 1", b"body 2"]
    assert {(copy.topic, copy.queue_id) for copy in copies} == {("TopicA", 1)}
    assert [copy.queue_offset for copy in copies] == [0, 1, 2]
    assert [copied_from(copy.prepared_offset) for copy in copies] == [700] * 3
    assert [copy.flag for copy in copies] == [7, 0, 0]
    assert {(copy.born_ms, copy.born_host_raw, copy.store_ms, copy.store_host_raw) for copy in copies} == {
        (BORN_MS, BORN_HOST, STORE_MS + 1, STORE_HOST)
    }
    assert copies[0].properties_raw == entry(0)[2] + b"\x02CLUSTER\x01DefaultCluster"
    assert [code for _, _, code in units(tails, 1)] == [tags_code("TagA"), 0, tags_code("TagB")]
    assert tails.index.count == 1 + 3 + 1 + 3
    assert [queue.queue_id for queue in outcome.touched] == [1]


@both
@pytest.mark.parametrize(("born", "store"), [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_hosts_of_both_sizes(hot, born, store):
    """Copies keep the sender's host, whatever its size, and have this broker's as their store host."""
    tails = Tails(hot, store_host=bytes(range(store)))
    outcome = expand(tails, chunk([entry(0), entry(1)], born_host=bytes(range(born)), store_host=bytes(20)))
    assert outcome.stop == hot.STOP_END
    for found in stored(tails):
        assert (found.born_host_raw, found.store_host_raw) == (bytes(range(born)), bytes(range(store)))


@both
def test_the_rest_follows_from_any_message_on(hot):
    """What a crash has cut is continued: `row` is the first message without a copy; behind the last there is nothing to do."""
    tails = Tails(hot)
    record = chunk([entry(number) for number in range(4)])
    assert expand(tails, record, row=2).messages == 2
    assert [copy.body for copy in stored(tails)] == [b"body 2", b"body 3"]
    outcome = expand(tails, record, row=4)
    assert (outcome.stop, outcome.row, outcome.messages, outcome.touched) == (hot.STOP_END, 4, 0, [])
    for row in (-1, 5):
        with pytest.raises(IndexError):
            expand(tails, record, row=row)


def _broken():
    record = bytearray(chunk([entry()]))
    record[95] ^= 1  # in the body
    return bytes(record)


@both
@pytest.mark.parametrize(
    "record",
    [chunk([entry()], topic="Other"), chunk([entry()], topic=""), chunk([entry()], queue=""), chunk([entry()], queue="2"),
     chunk([entry()], queue="-1"), chunk([entry()], queue="01"), chunk([entry()], queue="x"), chunk([entry()], queue="9" * 19),
     chunk([], body=b""), chunk([], body=b"x" * 30), chunk([], body=encode_batch([entry()])[:-1]), _broken(),
     chunk([entry()], log_offset=701), chunk([entry()])[:-1], chunk([entry()]) + b"\0", b"", chunk([entry(), (0, b"b", b"name")])],
)  # fmt: skip
def test_what_is_no_chunk_for_an_open_queue(hot, record):
    """No gate, no such queue, no batch, or damaged: nothing is written."""
    tails = Tails(hot)
    outcome = expand(tails, record)
    assert (outcome.stop, outcome.row, outcome.messages, tails.log.end) == (hot.STOP_SLOW, 0, 0, 0)
    assert not any(tails.log_bytes)


@both
def test_what_was_judged_when_it_was_staged_is_not_judged_again(hot):
    """Limits that have changed since, and properties that senders may not use, keep no decided message from its queue."""
    tails = Tails(hot, body_bytes_max=3)
    assert expand(tails, chunk([entry(0, DELAY="3", TRAN_MSG="true")])).stop == hot.STOP_END
    assert len(stored(tails)) == 1


SMALL = [({"log_bytes": 500}, "STOP_LOG_FULL"), ({"units": 2}, "STOP_QUEUE_FULL"), ({"entries": 8}, "STOP_INDEX_FULL")]


@both
@pytest.mark.parametrize(("small", "stop"), SMALL)
def test_a_whole_chunk_or_nothing(hot, small, stop):
    """Where a file has no room for all of it, nothing is written, and `needed` says what all of it needs."""
    tails = Tails(hot, **small)
    record = chunk([entry(number) for number in range(5)])
    outcome = expand(tails, record)
    assert (outcome.stop, outcome.row, outcome.messages, tails.log.end) == (getattr(hot, stop), 0, 0, 0)
    assert not any(tails.log_bytes)
    roomy = Tails(hot)
    expand(roomy, record)
    assert outcome.needed == {"STOP_LOG_FULL": roomy.log.end + 8, "STOP_QUEUE_FULL": 5, "STOP_INDEX_FULL": 15}[stop]
    assert (outcome.queue is None) == (stop != "STOP_QUEUE_FULL")


@both
@pytest.mark.parametrize(("small", "stop"), SMALL)
def test_message_by_message_up_to_the_end_of_a_file(hot, small, stop):
    """A chunk that is larger than a file goes as far as the file does, and on from there."""
    tails = Tails(hot, **small)
    record = chunk([entry(number) for number in range(5)])
    outcome = expand(tails, record, whole=False)
    assert (outcome.stop, outcome.row, outcome.messages) == (getattr(hot, stop), 2, 2)
    assert (outcome.size, len(stored(tails))) == (tails.log.end, 2)
    assert outcome.needed == {"STOP_LOG_FULL": tails.log.end // 2 + 8, "STOP_QUEUE_FULL": 1, "STOP_INDEX_FULL": 3}[stop]


@both
def test_without_an_index_keys_need_no_room(hot):
    tails = Tails(hot, entries=1)
    assert expand(tails, chunk([entry(0), entry(1)]), index=False).stop == hot.STOP_END


@both
def test_the_store_time_never_steps_back(hot):
    """A clock that was set back does not make a copy older than the record in front of it."""
    tails = Tails(hot)
    expand(tails, chunk([entry()]), now_ms=STORE_MS + 500)
    expand(tails, chunk([entry()]), now_ms=STORE_MS)
    assert [message.store_ms for message in stored(tails)] == [STORE_MS + 500] * 2


@both
@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 4 << 20, (4 << 20) + 1])
def test_a_message_of_any_size_is_copied_whole(hot, size):
    """A chunk of one message may be as large as messages may be, and is expanded whatever the limit is by then."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    tails = Tails(hot, log_bytes=size + 1000, body_bytes_max=100)
    record = chunk([entry(0, body=body)])
    assert expand(tails, record).stop == hot.STOP_END
    [copy] = stored(tails)
    assert (copy.body, copied_from(copy.prepared_offset)) == (body, 700)
    assert checked(hot, encode_batch([entry(0, body=body)]), body_bytes_max=size) == 1
    assert checked(hot, encode_batch([entry(0, body=body)]), body_bytes_max=size - 1) == -1
    small = Tails(hot, log_bytes=size)
    assert expand(small, record).stop == hot.STOP_LOG_FULL
    assert not any(small.log_bytes)


@needs_native
@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 4 << 20])
def test_both_modules_copy_a_large_message_alike(size):
    """To the last byte."""
    found = []
    for hot in (FALLBACK, NATIVE):
        tails = Tails(hot, log_bytes=size + 1000)
        expand(tails, chunk([entry(0, body=b"y" * size)]))
        found.append(tails.everything())
    assert found[0] == found[1]


# ------------------------------------------------------------------ what is judged when a chunk is staged


def checked(hot, body, *, wait_is_slow=False, cluster=CLUSTER, body_bytes_max=100):
    gate = hot.TopicGate(b"TopicA", [], body_bytes_max, SLOW, wait_is_slow)
    return hot.check_batch(body, gate, hot.LogTail(STORE_HOST, cluster.encode(), 1 << 22))


@both
@pytest.mark.parametrize(
    ("body", "count"),
    [(encode_batch([entry()]), 1), (encode_batch([entry(1), (0, b"b", b"")]), 2), (b"", -1), (b"x" * 22, -1),
     (encode_batch([entry(body=b"x" * 101)]), -1), (encode_batch([(0, b"", b"")]), -1),
     (encode_batch([entry(), entry(DELAY="1")]), -1), (encode_batch([entry(TRAN_MSG="true")]), -1),
     (encode_batch([entry(RETRY_TOPIC="t")]), -1), (encode_batch([(0, b"b", b"name")]), -1),
     (encode_batch([entry()])[:-1], -1), (encode_batch([entry(x="y" * 32600)]), -1),
     (encode_batch([entry(x="y" * 32400)]), 1)],
)  # fmt: skip
def test_a_batch_is_counted_or_left_to_be_judged_singly(hot, body, count):
    """Malformed batches, messages that a send would judge one by one, and properties without room for another cluster name."""
    assert checked(hot, body) == count
    assert checked(hot, memoryview(body)) == count


@both
def test_a_message_that_asks_not_to_wait_is_judged_singly_where_that_matters(hot):
    body = encode_batch([entry(WAIT="false")])
    assert (checked(hot, body), checked(hot, body, wait_is_slow=True)) == (1, -1)


# ------------------------------------------------------------------ both modules, and the writer of single messages

words = st.text(st.characters(exclude_characters="\x01\x02\0", codec="utf-8"), max_size=12)
names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "x", "CLUSTERS", "été"])
entries = st.lists(
    st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(min_size=1, max_size=50),
        st.dictionaries(names, words, max_size=6).map(lambda pairs: text(**pairs)),
    ),
    min_size=1,
    max_size=6,
)


@both
@settings(max_examples=repeats(100))
@given(found=entries, flags=st.integers(0, 0x7FF).map(lambda flags: flags & ~0x30), born=st.sampled_from([8, 20]))
def test_copies_are_what_the_writer_of_single_messages_stores(hot, found, flags, born):
    """Records, units and index entries are those that `put_record` and `append_record` make of each message, to the last byte."""
    born_host = bytes(range(born))
    tails, singly = Tails(hot), Tails(hot)
    outcome = expand(tails, chunk(found, sys_flag=flags, born_host=born_host))
    assert (outcome.stop, outcome.messages) == (hot.STOP_END, len(found))
    for flag, body, properties in found:
        pairs = props.parse(properties.decode()) | {props.CLUSTER: CLUSTER}
        put = put_record(
            "TopicA", 1, body, pairs, flag=flag, sys_flag=flags, born_ms=BORN_MS, born_host=born_host, copy_of=700
        )  # fmt: skip
        assert hot.append_record(
            singly.log, singly.queues[1], singly.index, topic=put.topic.encode(), queue_id=1, queue_offset=0,
            flag=put.flag, sys_flag=put.sys_flag, born_ms=put.born_ms, born_host=put.born_host, store_ms=STORE_MS + 1,
            reconsume_times=put.reconsume_times, prepared_offset=put.prepared_offset, body=put.body,
            properties=put.properties, tags_code=put.tags_code, keys=put.keys,
        ) >= 0  # fmt: skip
    assert tails.written() == singly.written()
    assert tails.queue_bytes == singly.queue_bytes
    assert tails.index_bytes == singly.index_bytes


@needs_native
@settings(max_examples=repeats(150))
@given(st.data())
def test_both_modules_do_the_same(data):
    """Whatever a chunk holds, wherever a byte of it is damaged, and whichever file is small."""
    found = [
        (
            flag,
            body,
            data.draw(st.sampled_from([properties, properties + b"\x02", b"x\x01y\x02" + properties, b"broken"])),
        )
        for flag, body, properties in data.draw(entries)
    ]
    record = bytearray(
        chunk(
            found,
            queue=data.draw(st.sampled_from(["0", "1", "1", "-0", "2", ""])),
            sys_flag=data.draw(st.integers(0, 0x7FF)) & ~0x30,
        )
    )
    if data.draw(st.booleans()):
        record[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    small = data.draw(st.sampled_from([{}, {"log_bytes": 500}, {"units": 1}, {"entries": 4}]))
    slow, limit = data.draw(st.booleans()), data.draw(st.sampled_from([20, 100]))
    outcomes = []
    for hot in (FALLBACK, NATIVE):
        tails = Tails(hot, **small)
        raised = []
        for row in range(3):
            for whole in (True, False):
                try:
                    expand(tails, bytes(record), row=row, whole=whole)
                except IndexError:
                    raised.append((row, whole))
        count = checked(hot, encode_batch(found), wait_is_slow=slow, body_bytes_max=limit)
        outcomes.append((tails.everything(), raised, count))
    assert outcomes[0] == outcomes[1]
