"""Frames of one read event to rows: the forms that clients send, and what hostile ones may send."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_MS,
    ENDING_EXT,
    FALLBACK,
    GOLDEN_SEND,
    NATIVE,
    PULL_EXT,
    SEND_EXT,
    UNIQUE_ID,
    Tails,
    binary_head,
    both,
    frame,
    json_head,
    needs_native,
    scanned,
    send,
    send_ext,
)  # fmt: skip


@both
def test_golden_send(hot):
    """The captured send of a Java producer is understood field by field."""
    data = frame(GOLDEN_SEND, b"hello")
    table, consumed = scanned(hot, data)
    assert (consumed, len(table), table.error, table.needed) == (len(data), 1, "", 0)
    assert (table.kind(0), table.code(0), table.opaque(0), table.flag(0), table.binary(0)) == (
        hot.KIND_SEND,
        310,
        8,
        0,
        False,
    )
    assert (table.group(0), table.topic(0), table.default_topic(0), table.queue_id(0)) == (
        b"PG",
        b"TopicA",
        b"TBW102",
        1,
    )
    assert (table.body_bytes(0), bytes(table.frame(0))) == (5, data[4:])


@both
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("code", "m", "kind"), [(310, "false", 1), (310, "true", 2), (320, "true", 2), (10, "false", 1), (10, "true", 2)]
)
def test_forms_of_a_send(hot, binary, code, m, kind):
    """Letters and long names, JSON and binary: a send is a send, and a batch is one by code or by flag."""
    table, _ = scanned(hot, send(code=code, binary=binary, m=m))
    assert (table.kind(0), table.code(0), table.topic(0), table.queue_id(0), table.binary(0)) == (
        kind,
        code,
        b"TopicA",
        1,
        binary,
    )


@both
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("text", ["1e9", "1E2", "1.0", "0e0", "-5.0", "5."])
def test_numbers_with_a_fraction_or_an_exponent_are_none(hot, binary, text):
    """As Java has it, and the slow path, which answers: the fallback took 1e9 for a whole number."""
    assert scanned(hot, send(g=text, binary=binary))[0].kind(0) == hot.KIND_OTHER
    if not binary:
        bare = send(g="@").replace(b'"@"', text.encode().ljust(3))
        assert scanned(hot, bare)[0].kind(0) == hot.KIND_OTHER
        spelt = send(g="1e9").replace(b'"1e9"', b'"1\\u00659"')
        spelt = (len(spelt) - 4).to_bytes(4, "big") + b"\0" + (len(spelt) - 13).to_bytes(3, "big") + spelt[8:]
        assert scanned(hot, spelt)[0].kind(0) == hot.KIND_OTHER


@both
@pytest.mark.parametrize("name", ["code", "flag", "opaque"])
@pytest.mark.parametrize("form", ["%d.0", "%de0", '"%d.0"', '"%d\\u002e0"'])
def test_a_head_whose_numbers_have_a_fraction_is_not_understood_here(hot, name, form):
    """It is left to the slow path, which says what is wrong: the fallback knew the code of such a request."""
    numbers = {"code": "310", "flag": "0", "opaque": "8"}
    numbers[name] = form % int(numbers[name])
    head = "{" + ",".join(f'"{key}":{value}' for key, value in numbers.items()) + "}"
    table, _ = scanned(hot, frame(head.encode(), b"x"))
    assert (table.kind(0), table.code(0)) == (hot.KIND_OTHER, -1)


@both
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("text", "number"),
    [("00", 0), ("01", 1), ("+3", 3), ("-0", 0), ("-07", -7), ("0" * 31 + "9", 9), ("02147483647", 2**31 - 1)],
)
def test_numbers_are_read_as_java_reads_them(hot, binary, text, number):
    """Leading zeros and a plus sign are legal, and no reason to leave the fast path."""
    for code in (310, 320, 10):
        table, _ = scanned(hot, send(code=code, binary=binary, e=text))
        assert table.kind(0) in {hot.KIND_SEND, hot.KIND_BATCH}
        assert table.queue_id(0) == number


@both
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "-",
        "+-5",
        "-+5",
        "0x1",
        " 5",
        "5 ",
        "1_0",
        "\u0663",
        "0" * 32 + "9",
        "2147483648",
        "-02147483649",
        "9" * 30,
    ],
)
def test_what_is_no_number_is_left_to_the_slow_path(hot, binary, text):
    """It says what is wrong, or knows better."""
    if binary and not text:
        return  # A binary field without a value is not there.
    assert scanned(hot, send(binary=binary, e=text))[0].kind(0) == hot.KIND_OTHER


@both
@pytest.mark.parametrize("code", [11, 361])
@pytest.mark.parametrize("binary", [False, True])
def test_pull(hot, code, binary):
    """A pull gives all its fields, with our maxMsgBytes or 0 without it."""
    ext = {**PULL_EXT, "maxMsgBytes": "1048576"} if binary else PULL_EXT
    data = frame(binary_head(code, ext), b"", 1) if binary else frame(json_head(code, ext))
    table, _ = scanned(hot, data)
    assert table.kind(0) == hot.KIND_PULL
    assert table.pull(0) == (
        b"CG", b"TopicA", 3, 17, 32, 6, 12, 15000, b"TagA || TagB", 1795226548705, b"TAG", 1048576 if binary else 0,
    )  # fmt: skip
    assert (table.group(0), table.topic(0), table.default_topic(0), table.queue_id(0)) == (b"CG", b"TopicA", b"", 3)


@both
def test_pull_without_the_optional_fields(hot):
    """An absent subscription and expression type are None, not empty."""
    ext = {name: value for name, value in PULL_EXT.items() if name not in {"subscription", "expressionType"}}
    table, _ = scanned(hot, frame(json_head(11, {**ext, "subscription": None})))
    assert (table.pull(0)[8], table.pull(0)[10]) == (None, None)


@both
def test_unquoted_values_and_any_key_order(hot):
    """The Node and C++ clients send numbers and truths without quotes, and keys in their own order."""
    ext = {**send_ext(), "e": 1, "g": BORN_MS, "h": -7, "m": False, "d": 4, "f": 0, "j": 0}
    tree = {"opaque": 8, "extFields": dict(reversed(ext.items())), "flag": 0, "remark": None, "version": 1, "code": 310}
    table, _ = scanned(hot, frame(json.dumps(tree, indent=1).encode(), b"hello"))
    assert (table.kind(0), table.queue_id(0), table.topic(0)) == (hot.KIND_SEND, 1, b"TopicA")


@both
@pytest.mark.parametrize("code", [34, 105, 324, 999, -5])
def test_other_codes_are_left_to_the_slow_path(hot, code):
    """A code without a fast path keeps its code and opaque, with any ext or none."""
    for ext in ({"group": "G", "n": 1, "deep": {"a": [1, 2, {"b": None}]}}, None):
        table, _ = scanned(hot, frame(json_head(code, ext, opaque=77), b"body"))
        assert (table.kind(0), table.code(0), table.opaque(0), table.body_bytes(0)) == (hot.KIND_OTHER, code, 77, 4)
        with pytest.raises(TypeError):
            table.topic(0)


@both
def test_a_response_is_never_a_send(hot):
    """Code 10 with the response flag is FLUSH_DISK_TIMEOUT, not a send."""
    table, _ = scanned(hot, send(code=10, flag=1) + send(flag=1) + send(flag=2))
    assert [table.kind(row) for row in range(3)] == [hot.KIND_OTHER, hot.KIND_OTHER, hot.KIND_SEND]
    assert [table.flag(row) for row in range(3)] == [1, 1, 2]


@both
@pytest.mark.parametrize(
    "changes",
    [{name: None} for name in "abcdefgh"]
    + [{"e": " 1"}, {"e": ""}, {"e": "2147483648"}, {"f": "-2147483649"}, {"e": True}, {"e": []},
       {"g": "9223372036854775808"}, {"g": "99999999999999999999999"}, {"h": "x"}, {"b": 5}, {"b": {}}, {"m": "yes"},
       {"m": 2}, {"i": 7}],
)  # fmt: skip
def test_unusual_headers_are_left_to_the_slow_path(hot, changes):
    """A missing mandatory field and a value of another type are not understood here, but keep code and opaque."""
    ext = {name: value for name, value in {**SEND_EXT, **changes}.items() if value is not None}
    table, _ = scanned(hot, frame(json_head(310, ext), b"hello"))
    assert (table.kind(0), table.code(0), table.opaque(0)) == (hot.KIND_OTHER, 310, 8)


@both
@pytest.mark.parametrize("value", ["-0", "0", "-2147483648", "2147483647"])
def test_numbers_at_their_bounds(hot, value):
    """Numbers count up to the bounds of their type."""
    table, _ = scanned(hot, send(e=value))
    assert (table.kind(0), table.queue_id(0)) == (hot.KIND_SEND, int(value))


@both
@pytest.mark.parametrize("value", ["true", "TRUE", "True", "1", 1, True])
def test_ways_to_say_batch(hot, value):
    """The batch flag counts in any spelling that a client was seen to send."""
    table, _ = scanned(hot, send(m=value))
    assert table.kind(0) == hot.KIND_BATCH


@both
def test_of_a_key_given_twice_the_last_counts(hot):
    """As in every other decoder of the system, so that no check sees another value than the append."""
    head = GOLDEN_SEND.replace(b'"b":"TopicA"', b'"b":"Hidden","b":"TopicB"')
    table, _ = scanned(hot, frame(head, b"hello"))
    assert (table.kind(0), table.topic(0)) == (hot.KIND_SEND, b"TopicB")


@both
def test_escapes(hot):
    """Every JSON escape is undone, surrogate pairs too, in values and in names."""
    head = GOLDEN_SEND.replace(b'"a":"PG"', rb'"\u0061":"\"\\\/\b\f\n\r\t\u00e9\u4e2d\ud83d\ude00\u0041"')
    table, _ = scanned(hot, frame(head, b"hello"))
    assert table.group(0) == '"\\/\b\f\n\r\té中😀A'.encode()


@both
@pytest.mark.parametrize(
    "broken",
    [b"", b"{}", b"[]", b"null", b"nonsense", b'{"code":310', b'{"code":310,}', b'{"code":310} x', b'{"code":31.0.1}',
     b'{"code":"x"}', b'{"opaque":1}', b'{"code":310,"opaque":null}', b'{"code":1,"x":"\x01"}', b'{"code":1,"x":"\\q"}',
     b'{"code":1,"x":"\\ud800"}', b'{"code":1,"x":"\\udc00\\ud800"}', b'{"code":1,"x":"\\u12"}', b'{"code":1,"x":01}',
     b'{"code":1,"x":[1,]}', b'{"code":1,"x":{"a"}}', b'{"code":1,"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
     b'{"code":99999999999}', b"\xff\xfe", b'{"code":1,"x":tru}', b'{"code":1,"x":-}'],
)  # fmt: skip
def test_broken_json_is_a_row_without_code(hot, broken):
    """A frame whose header is no JSON object with a code is framed all the same; the slow path answers or closes."""
    data = frame(broken, b"body") + send()
    table, consumed = scanned(hot, data)
    assert (consumed, len(table)) == (len(data), 2)
    assert (table.kind(0), table.code(0), table.opaque(0)) == (hot.KIND_OTHER, -1, 0)
    assert table.kind(1) == hot.KIND_SEND


@both
def test_text_that_is_no_utf8_is_left_to_the_slow_path(hot):
    """A topic of broken bytes is no topic; in a field that nobody reads they do no harm."""
    bad, harmless = GOLDEN_SEND.replace(b"TopicA", b"T\xff\xfeA"), GOLDEN_SEND.replace(b"broker-a", b"br\xff\xfe")
    for queue in (b'"1"', b'"001"'):  # the pure-Python fallback reads the second another way
        texts = [text.replace(b'"e":"1"', b'"e":' + queue) for text in (bad, harmless)]
        texts += [texts[1].replace(b'"n":', b'"\xff":'), texts[1].replace(b'"n":"', b'"more":["\xff"],"n":"')]
        # Names within a value that nobody reads are not those of fields.
        texts += [
            texts[1].replace(b'"n":"', b'"more":%b,"n":"' % nested) for nested in (b'{"a":"\xff"}', b'[{"d":"x"}]')
        ]
        table, _ = scanned(hot, b"".join(frame(text, b"hello") for text in texts))
        assert [table.kind(row) for row in range(6)] == [hot.KIND_OTHER, *[hot.KIND_SEND] * 5]


@both
@pytest.mark.parametrize(
    ("head", "code"),
    [(b"", -1), (bytes(20), -1), (binary_head(310, SEND_EXT)[:-1], -1), (binary_head(310, SEND_EXT) + b"x", -1),
     (struct.pack(">hBhiii", 310, 0, 409, 8, 0, -1) + bytes(4), -1), (struct.pack(">hBhiii", 310, 0, 409, 8, 0, 99) + bytes(4), -1),
     (struct.pack(">hBhiiii", 310, 0, 409, 8, 0, 0, 1) + b"x", 310),
     (struct.pack(">hBhiiiihb", 310, 0, 409, 8, 0, 0, 3, -1, 0), 310),
     (struct.pack(">hBhiiiihbi", 310, 0, 409, 8, 0, 0, 7, 1, 97, 99), 310),
     (struct.pack(">hBhiiiihbi", 310, 0, 409, 8, 0, 0, 7, 1, 97, -1), 310)],
)  # fmt: skip
def test_broken_binary_headers(hot, head, code):
    """Lengths that are negative or overrun make the row unreadable, or leave it to the slow path."""
    table, _ = scanned(hot, frame(head, b"body", 1))
    assert (table.kind(0), table.code(0)) == (hot.KIND_OTHER, code)


@both
def test_an_empty_binary_value_is_absent(hot):
    """The binary form has no empty strings: RocketMQ decodes them as null."""
    table, _ = scanned(hot, send(binary=True, i="") + send(binary=True, a=""))
    assert [table.kind(0), table.kind(1)] == [hot.KIND_SEND, hot.KIND_OTHER]


@both
@pytest.mark.parametrize("cut", [0, 1, 3, 4, 7, 8, 9, 100, -1])
def test_an_unfinished_frame_waits(hot, cut):
    """Whole frames are consumed, the rest stays, and its size is told as soon as four bytes of it are there."""
    whole, tail = send(b"first"), send(b"second")
    table, consumed = scanned(hot, whole + tail[:cut])
    left = len(tail[:cut])
    assert (consumed, len(table), table.needed, table.error) == (len(whole), 1, len(tail) if left >= 4 else 0, "")


@both
@pytest.mark.parametrize(
    "bad", [bytes(4), b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x03", b"GET / HTTP/1.1\r\n",
            struct.pack(">iI", 20, 2 << 24 | 4), struct.pack(">iI", 20, 17), struct.pack(">i", 1025)],
)  # fmt: skip
def test_what_can_never_be_a_frame(hot, bad):
    """Impossible lengths, types and header sizes are an error as soon as they are seen; rows before it are good."""
    good = send(b"x")
    table, consumed = scanned(hot, good + bad, frame_bytes_max=1024)
    assert (consumed, len(table)) == (len(good), 1)
    assert table.error
    assert table.kind(0) == hot.KIND_SEND


@both
def test_rows_max(hot):
    """No more rows than asked for; the next call goes on behind them."""
    data = send() * 5
    table = hot.FrameTable(1 << 24, 2)
    at, seen = 0, 0
    while consumed := table.scan(data, at, len(data)):
        at, seen = at + consumed, seen + len(table)
    assert (at, seen) == (len(data), 5)


@both
def test_rows_are_bounded(hot):
    """A row that does not exist is an IndexError, also after release()."""
    table, _ = scanned(hot, send())
    with pytest.raises(IndexError):
        table.kind(1)
    table.release()
    assert len(table) == 0
    with pytest.raises(IndexError):
        table.kind(0)
    with pytest.raises(ValueError, match="scan of"):
        table.scan(b"abc", 2, 9)


@both
def test_the_buffer_is_held_until_released(hot):
    """A bytearray cannot be resized under the rows, and can after release()."""
    data = bytearray(send())
    table, _ = scanned(hot, data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    table.release()
    data.extend(b"more")


def seen(hot: Any, data: bytes) -> Any:
    """All that a scan tells, for comparing the modules."""
    table, consumed = scanned(hot, data, frame_bytes_max=1 << 20)
    rows = []
    for row in range(len(table)):
        kind = table.kind(row)
        facts: list[Any] = [
            kind,
            table.code(row),
            table.opaque(row),
            table.flag(row),
            table.binary(row),
            bytes(table.frame(row)),
        ]
        if kind == hot.KIND_ENDING:
            facts.append(table.ending(row))
        elif kind:
            facts += [table.group(row), table.topic(row), table.default_topic(row), table.queue_id(row)]
        if kind == hot.KIND_PULL:
            facts.append(table.pull(row))
        rows.append(facts)
    return consumed, table.needed, table.error, rows


text = st.text(max_size=12)
number = st.integers(-(2**64), 2**64)
any_value = st.one_of(text, number, st.booleans(), st.none(), number.map(str), st.lists(text, max_size=2))
any_ext = st.dictionaries(st.sampled_from([*SEND_EXT, *PULL_EXT, "topic", "n", "é"]), any_value, max_size=16)
any_frame = st.one_of(
    st.builds(lambda ext, code, flag: frame(json_head(code, {**SEND_EXT, **ext}, flag=flag), b"body"), any_ext,
              st.sampled_from([310, 320, 11, 10, 34]), st.sampled_from([0, 0, 1, 2])),
    st.builds(lambda ext, code: frame(json_head(code, {**PULL_EXT, **ext})), any_ext, st.sampled_from([11, 361, 310])),
    st.builds(lambda ext, code: frame(binary_head(code, {**SEND_EXT, **ext}), b"body", 1),
              st.dictionaries(st.sampled_from([*SEND_EXT, *PULL_EXT]), st.one_of(text, number.map(str))),
              st.sampled_from([310, 320, 11])),
)  # fmt: skip


@needs_native
@settings(max_examples=repeats(200))
@given(frames=st.lists(any_frame, max_size=4), garbage=st.binary(max_size=12))
def test_fallback_and_native_agree(frames, garbage):
    """Random frames with garbage behind them: both modules see the same rows."""
    data = b"".join(frames) + garbage
    assert seen(NATIVE, data) == seen(FALLBACK, data)


@both
@settings(max_examples=repeats(50))
@given(frames=st.lists(any_frame, min_size=1, max_size=4), cuts=st.lists(st.integers(0, 4000), max_size=4))
def test_splitting_changes_nothing(hot, frames, cuts):
    """The same bytes in pieces, the unconsumed rest presented again, give the same frames."""
    data = b"".join(frames)
    found, held = [], b""
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        held += data[start:stop]
        consumed, _, error, rows = seen(hot, held)
        assert not error
        found += rows
        held = held[consumed:]
    assert held == b""
    assert found == seen(hot, data)[3]


MUTATED = [
    frame(GOLDEN_SEND, b"hello"), send(code=10), send(binary=True), frame(json_head(11, PULL_EXT)),
    frame(json_head(37, ENDING_EXT)), frame(binary_head(37, ENDING_EXT), b"", 1),
    frame(binary_head(11, PULL_EXT), b"", 1), send(m="true", i=f"KEYS\x01a\x02UNIQ_KEY\x01{UNIQUE_ID}"),
]  # fmt: skip


@needs_native
@settings(max_examples=repeats(600))
@given(
    which=st.integers(0, len(MUTATED) - 1),
    edits=st.lists(st.tuples(st.integers(4, 500), st.one_of(st.binary(max_size=3), st.sampled_from(list(b'"\\{}[],:019-eE. \xc3')).map(lambda b: bytes([b]))), st.integers(0, 3)), min_size=1, max_size=3),
)  # fmt: skip
def test_mutated_frames_do_not_crash_and_agree(which, edits):
    """A valid frame with bytes replaced, put in or taken out is judged alike, and appending it harms nobody."""
    data = bytearray(MUTATED[which])
    for at, put, drop in edits:
        data[at : at + drop] = put
    whole = bytes(data)
    length = struct.pack(">i", len(whole) - 4)
    for case in (whole, length + whole[4:]):
        native, fallback = seen(NATIVE, case), seen(FALLBACK, case)
        if native != fallback:
            # The fallback's decoder takes a whole number written as 1.0 or 1e0; the native one leaves it to the slow path.
            assert b"." in case or b"e" in case or b"E" in case
            spelled = [(a, b) for a, b in zip(native[3], fallback[3], strict=True) if a != b]
            assert all(a[0] == NATIVE.KIND_OTHER and a[1] in {b[1], -1} for a, b in spelled)
        else:
            one, other = Tails(NATIVE), Tails(FALLBACK)
            one.append(case)
            other.append(case)
            assert one.everything() == other.everything()


@both
@pytest.mark.parametrize("name", ["e", "g", "j", "l", "m"])
def test_a_name_that_comes_twice_must_fit_twice(hot, name):
    """In both forms: of two values the last counts, and if either is none of its kind, the slow path judges."""
    value = {"m": "false"}.get(name, "1")

    def pair(text):
        return struct.pack(">h", 1) + name.encode() + struct.pack(">i", len(text)) + text.encode()

    ext = {**send_ext(), name: value}
    for first, last, kind in (("zz", value, 0), (value, "zz", 0), (value, value, 1)):
        plain = binary_head(310, {key: text for key, text in ext.items() if key != name})
        at, more = len(binary_head(310, {})) - 4, pair(first) + pair(last)
        size = struct.unpack_from(">i", plain, at)[0] + len(more)
        binary = plain[:at] + struct.pack(">i", size) + plain[at + 4 :] + more
        text = json_head(310, ext).replace(
            f'"{name}":"{value}"'.encode(), f'"{name}":"{first}","{name}":"{last}"'.encode()
        )
        for form, head in enumerate((text, binary)):
            assert scanned(hot, frame(head, b"x", form))[0].kind(0) == kind, (form, first, last)
