"""Messages that consumers give back: the row of the request, and the record that waits for the next try."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_MS,
    FALLBACK,
    NATIVE,
    SCHEDULE,
    STORE_MS,
    TEXT,
    UNIQUE_ID,
    LevelTails,
    binary_head,
    both,
    frame,
    json_head,
    needs_native,
    scanned,
    send,
    stored,
)

OWN = "\x02".join(
    f"{name}\x01v" for name in ("WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
)
"""All that the broker sets, so that it adds nothing at the end."""
BACK_EXT = {
    "group": "payers", "offset": "4711", "delayLevel": "0", "originMsgId": UNIQUE_ID, "originTopic": "TopicA",
    "unitMode": "false", "maxReconsumeTimes": "16",
}  # fmt: skip


def back_tails(hot, **more):
    """The tails of a topic and of the queues of five delay levels; the sixth has none."""
    return LevelTails(hot, delays_ms=range(1000, 6000, 1000), levels=6, **more)


@both
@pytest.mark.parametrize("binary", [False, True])
def test_the_fields_of_what_comes_back(hot, binary):
    """Group, place, level and the limits that it asks for; it has neither topic nor queue."""
    head = binary_head if binary else json_head
    table, _ = scanned(hot, frame(head(36, BACK_EXT, opaque=9, flag=2), b"", int(binary)))
    assert (table.kind(0), table.code(0), table.opaque(0), table.flag(0)) == (hot.KIND_BACK, 36, 9, 2)
    assert table.back(0) == (b"payers", 4711, 0, 16, False, 409)
    ext = {"group": "g", "offset": "-1", "delayLevel": "+07", "metaqRepeated": "true"}
    assert scanned(hot, frame(head(36, ext), b"", int(binary)))[0].back(0) == (b"g", -1, 7, None, True, 409)
    for wrong in (table.topic, table.group, table.queue_id, table.pull, table.ending):
        with pytest.raises(TypeError):
            wrong(0)
    with pytest.raises(TypeError):
        scanned(hot, send())[0].back(0)


@both
@pytest.mark.parametrize(
    "changes",
    [{"group": None}, {"offset": None}, {"delayLevel": None}, {"offset": "x"}, {"offset": "9223372036854775808"},
     {"delayLevel": "2147483648"}, {"maxReconsumeTimes": "x"}, {"unitMode": "perhaps"}, {"metaqRepeated": "perhaps"}],
)  # fmt: skip
def test_what_is_not_understood_is_left_to_the_slow_path(hot, changes):
    """It judges what is missing, or no number."""
    ext = {name: value for name, value in {**BACK_EXT, **changes}.items() if value is not None}
    table, _ = scanned(hot, frame(json_head(36, ext)) + frame(json_head(36, BACK_EXT, flag=1)))
    assert [table.kind(0), table.kind(1)] == [hot.KIND_OTHER, hot.KIND_OTHER]


@both
@pytest.mark.parametrize(
    ("version", "kind"), [("120", 5), ('"120"', 5), ("1.5", 0), ("null", 0), ("[1]", 0), ("99999999999", 0)]
)
def test_the_version_of_its_client(hot, version, kind):
    """It says whether the client means maxReconsumeTimes; without one it is of the oldest."""
    head = json_head(36, BACK_EXT)
    table, _ = scanned(hot, frame(head.replace(b'"version":409', b'"version":' + version.encode())))
    assert table.kind(0) == kind
    if kind:
        assert table.back(0)[5] == 120
    assert scanned(hot, frame(head.replace(b',"version":409', b"")))[0].back(0)[5] == 0


@both
def test_what_comes_back_waits_for_its_next_try(hot):
    """The record is that of the slow path: the message, one more try, where it comes from and where it goes."""
    tails = back_tails(hot)
    tails.levels[2].watched = True
    place, end = tails.put(), tails.log.end
    assert tails.back(place, queue_id=3) == (end, 0, STORE_MS, 3)
    one, two = stored(tails)
    assert (two.topic, two.queue_id, two.queue_offset, two.reconsume_times) == (SCHEDULE.decode(), 2, 0, 1)
    assert (two.body, two.flag, two.sys_flag, two.born_ms, two.born_host_raw) == (
        one.body, 5, 1, BORN_MS, one.born_host_raw,
    )  # fmt: skip
    assert (two.store_ms, two.prepared_offset) == (STORE_MS, -1 - place)
    text = (
        TEXT.replace("WAIT\x01true", "WAIT\x01false")
        + f"\x02RETRY_TOPIC\x01TopicA\x02ORIGIN_MESSAGE_ID\x01{one.offset_id}"
    )
    assert two.properties_raw == f"{text}\x02DELAY\x013\x02REAL_TOPIC\x01%RETRY%payers\x02REAL_QID\x013".encode()
    assert struct.unpack_from(">qiq", tails.level_bytes[2]) == (end, tails.log.end - end, STORE_MS + 3000)
    assert (tails.outcome.messages, tails.outcome.size, tails.outcome.touched) == (
        1,
        tails.log.end - end,
        [tails.levels[2]],
    )
    assert tails.index.count == 1 + 3
    again = tails.put(two.properties_raw, 1)
    assert tails.back(again, now_ms=STORE_MS - 5)[1:] == (0, STORE_MS, 4)
    last = stored(tails)[-1]
    assert last.properties_raw == two.properties_raw.replace(b"DELAY\x013", b"DELAY\x014").replace(
        b"QID\x013", b"QID\x010"
    )
    assert struct.unpack_from(">qiq", tails.level_bytes[3])[2] == STORE_MS - 5 + 4000


@both
@pytest.mark.parametrize(
    ("level", "times", "found"),
    [(0, 0, 3), (0, 2, 5), (1, 9, 1), (5, 0, 5), (6, 0, None), (99, 0, None), (0, 7, None), (-1, 0, None)],
)
def test_the_level_that_it_waits_at(hot, level, times, found):
    """The one asked for, else one more each time; the sixth has no queue yet; below zero it is a dead letter."""
    tails = back_tails(hot)
    done = tails.back(tails.put(times=times), level=level)
    assert (done and done[3]) == found


@both
def test_what_the_slow_path_must_judge_changes_nothing(hot):
    """Spent, forged, damaged, of IPv6 hosts or topics of ours; with properties that are many, twice there, or malformed."""
    tails = back_tails(hot)
    v6 = {"born_host": bytes(20), "sys_flag": 0x10}
    places = [
        tails.put(times=16), tails.put(**v6), tails.put(topic=b"rmq_sys_METAQ_TXN"), tails.put(topic=b"a.b"), tails.put(""),
        tails.put("a\x01b\x02a\x01c"), tails.put("a\x02b\x01c"), tails.put("a\x01"), tails.put(b"a\x01\xff"), tails.put("KEYS\x01a b c d e"),
        tails.put("\x02".join(f"p{n}\x01v" for n in range(25))), tails.put("a\x01" + "x" * 1535), tails.put(f"{OWN}\x02a\x01b\0\x02"),
    ]  # fmt: skip
    inner = tails.put()
    forged = tails.put(body=bytes(tails.log_bytes[inner : tails.log.end])) + 88
    damaged = tails.put()
    tails.log_bytes[damaged + 90] ^= 1
    end = tails.log.end
    places += [forged, damaged, -1, 1, end - 90, end, 1 << 40]
    assert [tails.back(place) for place in places] == [None] * len(places)
    good = tails.put()
    assert tails.back(good, retries_max=0) is tails.back(good, retries_max=-1) is None
    assert tails.back(good, topic=b"") is tails.back(good, topic=b"x" * 128) is None
    assert (tails.outcome.messages, tails.outcome.size, tails.outcome.touched) == (0, 0, [])
    assert [queue.next_offset for queue in tails.levels] == [0] * 5
    assert tails.back(good) is not None


@both
@pytest.mark.parametrize("room", [{"level_units": 0}, {"entries": 3}, {"log_bytes": 600}])
def test_without_room_nothing_is_stored(hot, room):
    """The slow path makes it, of whichever file it is."""
    tails = back_tails(hot, **room)
    place, end = tails.put(body=b"x" * 200), tails.log.end
    assert tails.back(place) is None
    assert (tails.log.end, tails.levels[2].next_offset, tails.index.count) == (end, 0, 1)


@both
def test_without_an_index(hot):
    """messageIndexEnable=false."""
    tails = back_tails(hot)
    assert tails.back(tails.put(), index=False) is not None
    assert tails.index.count == 1


names = st.sampled_from(
    (
        "WAIT",
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "KEYS",
        "UNIQ_KEY",
        "TAGS",
        "a",
        "",
        "CLUSTER",
    )
)
pieces = st.builds(
    lambda name, mark, value: name + mark + value,
    names,
    st.sampled_from(("\x01", "\x01", "\x01", "")),
    st.sampled_from(("v", "a b", " ", "", "\N{SNOWMAN}", "x\x01y", "z\0")),
)
texts = st.builds(
    lambda parts, end: "\x02".join(parts) + end,
    st.lists(pieces, max_size=8, unique_by=lambda piece: piece[:4]),
    st.sampled_from(("", "", "\x02", "\0")),
)


@needs_native
@settings(max_examples=repeats(400), deadline=None)
@given(
    text=texts, times=st.sampled_from((-4, -3, 0, 1, 3, 15, 16, 2**31 - 1)), level=st.sampled_from((-1, 0, 0, 1, 5, 7)),
    edits=st.lists(st.tuples(st.integers(0, 330), st.binary(min_size=1, max_size=3)), max_size=2),
    retries_max=st.sampled_from((16, 16, 2**31 - 1, -1)), queue_id=st.sampled_from((0, 7, 1023)),
)  # fmt: skip
@example(TEXT, 0, 0, [], 16, 0)
def test_both_modules_do_the_same(text, times, level, edits, retries_max, queue_id):
    """Whatever the log holds where the request points to, and whatever it asks for."""
    both_tails = back_tails(NATIVE), back_tails(FALLBACK)
    found = []
    for tails in both_tails:
        place = tails.put(text, times)
        for at, put in edits:
            if at + len(put) <= tails.log.end:
                tails.log_bytes[at : at + len(put)] = put
        found.append(tails.back(place, level=level, retries_max=retries_max, queue_id=queue_id))
    assert found[0] == found[1]
    assert both_tails[0].everything() == both_tails[1].everything()


values = st.one_of(
    st.sampled_from(("0", "-1", "+5", "007", "x", "", "true", "2147483648", "1" * 25)),
    st.integers(-5, 1 << 33),
    st.booleans(),
    st.none(),
    st.just([1]),
)


@needs_native
@settings(max_examples=repeats(300), deadline=None)
@given(
    ext=st.dictionaries(st.sampled_from((*BACK_EXT, "metaqRepeated", "version", "batch")), values, max_size=5),
    version=values,
)
def test_both_modules_read_the_same(ext, version):
    """Any spelling of the fields."""
    head = json_head(36, {**BACK_EXT, **ext}).replace(b'"version":409', b'"version":' + json_text(version))
    one, other = (scanned(hot, frame(head))[0] for hot in (NATIVE, FALLBACK))
    assert (one.kind(0), one.code(0), one.opaque(0)) == (other.kind(0), other.code(0), other.opaque(0))
    if one.kind(0) == NATIVE.KIND_BACK:
        assert one.back(0) == other.back(0)


def json_text(value):
    import json

    return json.dumps(value).encode()
