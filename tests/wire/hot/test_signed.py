"""Runs of signed rows: exactly those whose signatures `metaq.wire.signing` verifies, as far as they are plain; native as fallback."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.model.acl.secret import Credentials, Secret
from metaq.wire.command import Command, SerializeType, decode, encode
from metaq.wire.signing import ACCESS_KEY, DIALECTS, SIGNATURE, content, sign, signature, verify
from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_HOST,
    ENDING_EXT,
    FALLBACK,
    NATIVE,
    PULL_EXT,
    SEND_EXT,
    STORE_MS,
    Tails,
    both,
    needs_native,
)
from tests.wire.hot.test_parts import parts_of
from tests.wire.test_signing import QUERY, SECRET, SEND

ME, OTHER = (
    Credentials("rocketmq2", SECRET),
    Credentials("somebody", Secret("a secret of more than sixty-four bytes " * 3)),
)


def key_of(hot, who: Credentials = ME):
    return hot.SignKey(who.access_key.encode(), who.secret_key.reveal().encode())


def scanned(hot, data: bytes):
    table = hot.FrameTable(1 << 24, signed=True)
    assert table.scan(data, 0, len(data)) == len(data)
    return table


def frame(
    ext: dict[str, str], body: bytes = b"", code: int = 310, who: Credentials | None = ME, left_out=(), **more
) -> bytes:
    command = Command(code, 7, ext=dict(ext), body=body, language="JAVA", **more)
    if who is not None:
        sign(command, who, left_out)
    return encode(command)


def raw(header: bytes, body: bytes = b"") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


@both
def test_a_send_that_java_signed_is_verified(hot):
    """By its account's secret only, and only as it is."""
    data = frame(SEND, "héllo".encode(), who=None)
    table = scanned(hot, data)
    assert hot.access_key_of(table, 0) == b"rocketmq2"
    assert hot.signed_rows(table, 0, 1, key_of(hot)) == 1
    assert hot.signed_rows(table, 0, 1, hot.SignKey(b"rocketmq2", b"12345679")) == 0
    assert hot.signed_rows(table, 0, 1, hot.SignKey(b"rocketmq3", b"12345678")) == 0
    for old, new in (("héllo".encode(), "hällo".encode()), (b'"e":"1"', b'"e":"2"'), (b'"a":"PG"', b'"A":"PG"')):
        assert data.count(old) == 1
        assert hot.signed_rows(scanned(hot, data.replace(old, new)), 0, 1, key_of(hot)) == 0


@both
@pytest.mark.parametrize("serialize", list(SerializeType))
def test_sends_batches_and_pulls_are_taken_and_nothing_else(hot, serialize):
    """Ends of transactions and what comes back name no topic that could be judged."""
    taken = [
        frame(SEND_EXT, b"x", serialize=serialize),
        frame({**SEND_EXT, "m": "true"}, b"x", 320, serialize=serialize),
        frame(PULL_EXT, b"", 11, serialize=serialize),
        frame(PULL_EXT, b"", 361, serialize=serialize),
    ]
    assert hot.signed_rows(scanned(hot, b"".join(taken)), 0, 4, key_of(hot)) == 4
    for other in (frame(ENDING_EXT, b"", 37, serialize=serialize), frame(QUERY, b"", 12, None, serialize=serialize)):
        table = scanned(hot, other)
        assert hot.access_key_of(table, 0) == b""
        assert hot.signed_rows(table, 0, 1, key_of(hot)) == 0


@both
def test_a_run_ends_at_the_first_row_of_another_account_or_of_none(hot):
    rows = [
        frame(SEND_EXT, b"1"),
        frame(SEND_EXT, b"2"),
        frame(SEND_EXT, b"3", who=OTHER),
        frame(SEND_EXT, b"4", who=None),
    ]
    forged = frame(SEND_EXT, b"5").replace(b"5", b"6")
    table = scanned(hot, b"".join([*rows, frame(SEND_EXT, b"5"), forged, frame(SEND_EXT, b"7")]))
    mine, others = key_of(hot), key_of(hot, OTHER)
    assert [hot.signed_rows(table, row, 7, mine) for row in range(7)] == [2, 2, 2, 3, 5, 5, 7]
    assert [hot.signed_rows(table, row, 7, others) for row in range(7)] == [0, 1, 3, 3, 4, 5, 6]
    assert [hot.access_key_of(table, row) for row in (0, 2, 3)] == [b"rocketmq2", b"somebody", b""]
    assert hot.signed_rows(table, 0, 1, mine) == 1
    for row, end in ((-1, 2), (0, 8), (3, 2)):
        with pytest.raises(IndexError):
            hot.signed_rows(table, row, end, mine)


@both
def test_a_run_is_bounded_in_rows_and_bytes(hot):
    """So that a connection does not have many verified that it must bring again."""
    table = scanned(hot, frame(SEND_EXT, b"x") * 300)
    assert hot.signed_rows(table, 0, 300, key_of(hot)) == 256
    table = scanned(hot, frame(SEND_EXT, bytes(100_000)) * 5)
    assert hot.signed_rows(table, 0, 5, key_of(hot)) == 3
    table = scanned(hot, frame(SEND_EXT, bytes(256 * 1024)))
    assert hot.signed_rows(table, 0, 1, key_of(hot)) == 0


@both
@pytest.mark.parametrize("left_out", DIALECTS, ids=["new", "as brokers verify", "old"])
def test_each_dialect_is_verified(hot, left_out):
    ext = {**PULL_EXT, "ReqT": "0", "_UNIQUE_KEY_QUERY": "true"}
    assert hot.signed_rows(scanned(hot, frame(ext, b"", 11, left_out=left_out)), 0, 1, key_of(hot)) == 1
    wrong = frame(ext, b"", 11, left_out={"topic"})
    assert hot.signed_rows(scanned(hot, wrong), 0, 1, key_of(hot)) == 0


@needs_native
@pytest.mark.parametrize("by_processor", [True, False])
def test_bodies_of_every_length_are_hashed_right(by_processor):
    """With the processor's instructions and without."""
    try:
        if NATIVE._sha1_by_processor(by_processor) != by_processor:
            pytest.skip("this processor has none")
        for size in (*range(200), 1000, 4096, 65_537):
            body = bytes(i * 7 & 255 for i in range(size))
            for who in (ME, OTHER):
                assert (
                    NATIVE.signed_rows(scanned(NATIVE, frame(SEND_EXT, body, who=who)), 0, 1, key_of(NATIVE, who)) == 1
                )
    finally:
        NATIVE._sha1_by_processor(True)


@both
def test_a_sender_of_a_sweep_is_taken_while_the_rules_know_its_key(hot):
    """Only what it has signed; its other requests are left, and all are once its key is exchanged."""
    tails, key = Tails(hot), key_of(hot)
    tails.table = hot.FrameTable(1 << 24, signed=True)
    keys = {key.access_key: key}
    sender = (tails.gates, BORN_HOST, keys, key)
    pieces = [
        frame(SEND_EXT, b"1"),
        frame(SEND_EXT, b"2", who=OTHER),
        frame(SEND_EXT, b"3", who=None),
        frame(SEND_EXT, b"4") * 2,
    ]

    def used() -> list[bool]:
        data, parts = parts_of(list(enumerate(pieces)))
        hot.append_parts(
            data, parts, [sender] * 4, tails.table, tails.log, tails.index, STORE_MS, tails.replies, tails.outcome
        )
        return [parts[at + 4] == parts[at + 3] for at in range(0, len(parts), 6)]

    assert used() == [True, False, False, True]
    keys[key.access_key] = key_of(hot)  # the same secret: it is the rules' doing that counts
    assert used() == [False] * 4
    keys.clear()
    assert used() == [False] * 4


# ---------------------------------------------------------------- whatever a client sends

NAMES = st.sampled_from(
    [*SEND_EXT, *PULL_EXT, ACCESS_KEY, SIGNATURE, "SecurityToken", "ReqT", "_UNIQUE_KEY_QUERY", "é", "", "zz"]
)
TEXTS = st.text(max_size=6) | st.sampled_from(["", "rocketmq2", "somebody", "café 😀", "a\x01b\x02", '"\\/'])
VALUES = TEXTS | st.integers(-3, 3) | st.booleans() | st.none() | st.just([]) | st.just({"a": "b"})


def written(pairs: list[tuple[str, object]], escape: bool) -> bytes:
    """A JSON object in which names may come twice."""
    text = ",".join(
        f"{json.dumps(name, ensure_ascii=escape)}:{json.dumps(value, ensure_ascii=escape)}" for name, value in pairs
    )
    return b"{" + text.encode() + b"}"


@st.composite
def frames(draw) -> bytes:
    """A request that is signed, or nearly: fields are added, taken away, changed, doubled and moved, before or after it is."""
    code, ext, body = draw(
        st.sampled_from(
            [(310, SEND_EXT, b"x"), (320, {**SEND_EXT, "m": "true"}, b"x"), (11, PULL_EXT, b""), (37, ENDING_EXT, b"")]
        )
    )
    ext = {**ext, **draw(st.dictionaries(NAMES, TEXTS, max_size=2))}
    if draw(st.booleans()):
        ext["SecurityToken"] = draw(TEXTS)
    who = draw(st.sampled_from([ME, OTHER, Credentials("nobody", SECRET)]))
    signed = {**ext, ACCESS_KEY: draw(st.sampled_from([who.access_key, who.access_key, "rocketmq2"]))}
    left_out = draw(st.sampled_from(DIALECTS))
    signed[SIGNATURE] = signature(content(signed, body, left_out), who.secret_key)
    if draw(st.booleans()):
        return encode(Command(code, 7, ext=signed, body=body, serialize=draw(st.sampled_from(list(SerializeType)))))
    pairs: list[tuple[str, object]] = draw(st.permutations(list(signed.items())))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(pairs)))
        change = draw(st.sampled_from(["add", "take", "double", "bad"]))
        if change == "take":
            pairs = pairs[:place] + pairs[place + 1 :]
        elif change == "double" and place < len(pairs):
            pairs = [*pairs, (pairs[place][0], draw(VALUES))]
        elif change == "add":
            pairs = [*pairs[:place], (draw(NAMES), draw(VALUES)), *pairs[place:]]
        elif pairs:
            name, value = pairs[place - 1]
            pairs = [
                *pairs[: place - 1],
                (name, draw(st.just(f"{value}!") | st.just(str(value)[:-1]) | VALUES)),
                *pairs[place:],
            ][:34]
    blank = draw(st.sampled_from([b"", b" "]))
    head = b'{"code":%d,%b"extFields":%b%b,"flag":0,"language":"JAVA","opaque":7,"version":409}' % (
        code, blank, blank, written(pairs, draw(st.booleans())),
    )  # fmt: skip
    data = raw(head, body)
    if draw(st.integers(0, 9)) == 0:  # no UTF-8, perhaps
        place = draw(st.integers(8, len(data) - 1))
        data = data[:place] + draw(st.binary(min_size=1, max_size=1)) + data[place + 1 :]
    return data


def is_plain(command: Command) -> bool:
    ext = command.ext
    return all(ext) and "".join(ext).isascii() and len(ext) <= 32 and len(ext.get(SIGNATURE, "").encode()) == 28


@settings(max_examples=repeats(400), deadline=None)
@given(st.lists(frames(), min_size=1, max_size=4))
def test_nothing_passes_that_the_slow_path_would_refuse(datas):
    """And of what is written as clients write it, nothing is left to it that is signed."""
    data = b"".join(datas)
    hots = [FALLBACK] if NATIVE is None else [FALLBACK, NATIVE]
    results = []
    for hot in hots:
        table = hot.FrameTable(1 << 24, signed=True)
        table.scan(data, 0, len(data))
        found = []
        for row in range(len(table)):
            runs = [hot.signed_rows(table, row, row + 1, key_of(hot, who)) > row for who in (ME, OTHER)]
            found.append((table.kind(row), hot.access_key_of(table, row), runs))
            whole = [hot.signed_rows(table, row, len(table), key_of(hot, who)) for who in (ME, OTHER)]
            assert [stop > row for stop in whole] == runs
            for who, taken in zip((ME, OTHER), runs, strict=True):
                if taken:
                    command = decode(table.frame(row))
                    assert command.ext[ACCESS_KEY] == who.access_key
                    assert verify(command.ext, command.body, who.secret_key)
        results.append(found)
    assert results[0] == results[-1]


@settings(max_examples=repeats(100), deadline=None)
@given(
    st.dictionaries(st.text(st.characters(max_codepoint=127), min_size=1, max_size=9), st.text(max_size=9), max_size=8),
    st.binary(max_size=200),
    st.sampled_from(list(SerializeType)),
    st.sampled_from(DIALECTS),
)
def test_everything_plain_that_is_signed_passes(more, body, serialize, left_out):
    """Whatever the names and texts are."""
    data = frame({**more, **SEND_EXT}, body, serialize=serialize, left_out=left_out)
    command = decode(memoryview(data)[4:])
    assert verify(command.ext, body, SECRET)
    for hot in [FALLBACK] if NATIVE is None else [FALLBACK, NATIVE]:
        table = scanned(hot, data)
        expected = is_plain(command) and table.kind(0) != hot.KIND_OTHER
        assert hot.signed_rows(table, 0, 1, key_of(hot)) == expected
