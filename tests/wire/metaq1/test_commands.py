"""The lines of MetaQ 1.x: those recorded from the original, those it ends a connection for, and any cut into pieces."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import LocalProtocolError, RemoteProtocolError
from metaq.model.metaq1.partition import POSITION_MAX
from metaq.model.transactions.metaq1 import BranchKey, LocalKey
from metaq.wire.metaq1.commands import (
    LINE_BYTES_MAX,
    NO_OPAQUE,
    Code,
    GetLine,
    Line,
    OffsetLine,
    PutLine,
    QuitLine,
    Reader,
    ResultLine,
    StatsLine,
    Step,
    SyncLine,
    TooLong,
    TransactionLine,
    ValueLine,
    VersionLine,
    encode,
    put_body,
    put_place,
    whole_result,
)
from tests.model.transactions.test_metaq1 import KEYS

SESSION = "10.0.0.5-1373971200000-1"
LOCAL = LocalKey(SESSION, 1)
BRANCH = BranchKey(7, b"g1", b"b1", "uqA")

GOLDEN: list[tuple[bytes, Line]] = [
    (b"put test 0 5 0 1\r\nhello", PutLine("test", 0, 0, b"hello", 1)),
    (b"put test 0 5 0 907060870 2\r\nhello", PutLine("test", 0, 0, b"hello", 2, 907060870)),
    (
        b"put test -1 11 1 1871851234 -2147483647\r\n\x00\x00\x00\x05attr1hi",
        PutLine("test", -1, 1, b"\x00\x00\x00\x05attr1hi", -2147483647, 1871851234),
    ),
    (
        b"put test 0 2 0 TX:10.0.0.5-1373971200000-1:1 9\r\nt1",
        PutLine("test", 0, 0, b"t1", 9, transactional=True, key=LOCAL),
    ),
    (
        b"put test 0 2 0 1532276279 TX:10.0.0.5-1373971200000-1:1 -2147483644\r\nt1",
        PutLine("test", 0, 0, b"t1", -2147483644, 1532276279, transactional=True, key=LOCAL),
    ),
    (b"put test 0 0 0 null 9\r\n", PutLine("test", 0, 0, b"", 9, transactional=True)),
    (b"get test g 0 0 1024 8\r\n", GetLine("test", "g", 0, 0, 1024, 8)),
    (b"get test g 0 9223372036854775807 1024 12\r\n", GetLine("test", "g", 0, POSITION_MAX, 1024, 12)),
    (b"get test g 0 -1 1024 13\r\n", GetLine("test", "g", 0, -1, 1024, 13)),
    (b"offset test g 0 7 17\r\n", OffsetLine("test", "g", 0, 7, 17)),
    (b"version 5\r\n", VersionLine(5)),
    (b"stats  1\r\n", StatsLine(None, 1)),
    (b"stats help 1\r\n", StatsLine("help", 1)),
    (b"quit\r\n", QuitLine()),
    (
        b"transaction TX:10.0.0.5-1373971200000-1:1 10.0.0.5-1373971200000-1 BEGIN 20 -2147483645\r\n",
        TransactionLine(LOCAL, SESSION, Step.BEGIN, -2147483645, 20),
    ),
    (
        b"transaction TX:10.0.0.5-1373971200000-1:1 10.0.0.5-1373971200000-1 COMMIT_ONE_PHASE -2147483642\r\n",
        TransactionLine(LOCAL, SESSION, Step.COMMIT_ONE_PHASE, -2147483642),
    ),
    (
        b"transaction XID:7:6731:6231:uqA 10.0.0.5-1373971200000-1 BEGIN uqA -2147483638\r\n",
        TransactionLine(BRANCH, SESSION, Step.BEGIN, -2147483638, qualifier="uqA"),
    ),
    (
        b"transaction XID:7:6731:6231:uqA 10.0.0.5-1373971200000-1 BEGIN 20 uqA -2147483638\r\n",
        TransactionLine(BRANCH, SESSION, Step.BEGIN, -2147483638, 20, "uqA"),
    ),
    (
        b"transaction null 10.0.0.5-1373971200000-1 RECOVER uqA -2147483634\r\n",
        TransactionLine(None, SESSION, Step.RECOVER, -2147483634, qualifier="uqA"),
    ),
    (
        b"sync test 0 5 0 -5468925858225827840 907060870 -2147483648\r\nhello",
        SyncLine("test", 0, 0, -5468925858225827840, b"hello", -2147483648, 907060870),
    ),
    (b"sync test 0 5 0 7 3\r\nhello", SyncLine("test", 0, 0, 7, b"hello", 3)),
    (
        b"result 200 24 1\r\n-5468927205637619712 0 0",
        ResultLine(Code.SUCCESS, b"-5468927205637619712 0 0", 1),
    ),
    (b"result 404 37 10\r\nCould not find message at position 50", ResultLine(404, b"Could not find message at position 50", 10)),
    (b"value 3 8\r\nabc", ValueLine(b"abc", 8)),
]  # fmt: skip

READ_ONLY: list[tuple[bytes, Line]] = [
    (b"version\r\n", VersionLine(NO_OPAQUE)),
    (b"vxx 3\r\n", VersionLine(3)),
    (b"version 5 6 7\r\n", VersionLine(5)),
    (b"qqq now\r\n", QuitLine()),
    (b"stats\r\n", StatsLine()),
    (b"stats   \r\n", StatsLine()),
    (b"stats 1\r\n", StatsLine("1", NO_OPAQUE)),
    (b"stats topics 4 surplus words\r\n", StatsLine("topics", 4)),
    (b"get test g 0 0 1024 8 surplus\r\n", GetLine("test", "g", 0, 0, 1024, 8)),
    (b"offset test g 0 7 17 surplus\r\n", OffsetLine("test", "g", 0, 7, 17)),
    (b"get  g 0 0 1024 8\r\n", GetLine("", "g", 0, 0, 1024, 8)),
    (b"get test g 0 00000000000000000000000000005 1024 8   \r\n", GetLine("test", "g", 0, 5, 1024, 8)),
    (b"put test 0 5 0 -1 2\r\nhello", PutLine("test", 0, 0, b"hello", 2)),
    ("get tést g 0 0 1 8\r\n".encode(), GetLine("tést", "g", 0, 0, 1, 8)),
    (b"get t\xff g 0 0 1 8\r\n", GetLine("t\N{REPLACEMENT CHARACTER}", "g", 0, 0, 1, 8)),
    (b"get a\nb g 0 0 1 8\r\n", GetLine("a\nb", "g", 0, 0, 1, 8)),
    (b"transaction XID:7:6731:6231:uqA s END 2\r\n", TransactionLine(BRANCH, "s", Step.END, 2)),
    (b"transaction null s RECOVER  2\r\n", TransactionLine(None, "s", Step.RECOVER, 2)),
]

MALFORMED = [
    b"\r\n", b" \r\n", b"hello\r\n", b"PUT test 0 0 0 1\r\n", b"puts test 0 0 0 1\r\n", b"gets a b 0 0 1 1\r\n", b"g\r\n",
    b"stat 1\r\n", b"sync\r\n", b"x\r\n", b"data 0 1\r\n", b"offsets a g 0 0 1\r\n", b"results 200 0 1\r\n", b" get a g 0 0 1 1\r\n",
    b"put\r\n", b"put test 0\r\n", b"put test 0 x 0 1\r\n", b"put test 0 -1 0 1\r\n", b"put test 0 2147483648 0 1\r\n",
    b"put test 0 0 1\r\n", b"put test 0 0 0 1 2 3 4 5\r\n", b"put test x 0 0 1\r\n", b"put test 0 0 x 1\r\n",
    b"put test 0 0 0 x\r\n", b"put test 0 0 0 1x 2\r\n", b"put test 0 0 0 2147483648 2\r\n", b"put test 0 0 0 TX:a 2\r\n",
    b"put test 0 0 0 1 XID:1:2 2\r\n", b"put test 0 5 1\r\nhello", b"put test 0 5 x 1\r\nhello", b"put test  0 0 0 1\r\n",
    b"get test g 0 0 1024\r\n", b"get test g x 0 1024 1\r\n", b"get test g 0 9223372036854775808 1024 1\r\n",
    b"get test g 0 0 2147483648 1\r\n", b"get test g 0 0 1024 x\r\n", b"get test g 0 0 1024 +1\r\n", b"get test g 0 1e3 1 1\r\n",
    "get test g 0 0 1 \N{ARABIC-INDIC DIGIT ONE}\r\n".encode(), b"get test g 0 0 1 --1\r\n", b"get test g 0 0 1 -\r\n",
    b"get test g 0 0 1 " + b"1" * 100 + b"\r\n", b"offset test g 0 0\r\n", b"offset test g 0 x 1\r\n", b"version x\r\n", b"stats topics x\r\n",
    b"transaction\r\n", b"transaction null s RECOVER\r\n", b"transaction null s DO 1\r\n", b"transaction null s begin 1\r\n",
    b"transaction TX:a:b s BEGIN 1\r\n", b"transaction bad s BEGIN 1\r\n", b"transaction null s RECOVER 1 q 3 4\r\n",
    b"transaction null s RECOVER x q 3\r\n", b"transaction null s RECOVER 99999999999 3\r\n",
    b"sync test 0 0 0 1\r\n", b"sync test 0 0 0 1 2 3 4\r\n", b"sync test 0 0 0 x 3\r\n", b"sync test 0 -1 0 1 2\r\n",
    b"result 200 0\r\n", b"result 200 -1 1\r\n", b"result x 0 1\r\n", b"value 0\r\n", b"value x 1\r\n", b"value -1 1\r\n",
]  # fmt: skip
"""Whole lines, with their body where they have one, for which a connection ends."""


def read_all(data: bytes, body_bytes_max: int = 1000) -> list[Line | TooLong]:
    """All lines; nothing is left over."""
    reader, start, found = Reader(body_bytes_max), 0, []
    while True:
        line, start = reader.next(data, start)
        if line is None:
            assert start == len(data)
            return found
        found.append(line)


@pytest.mark.parametrize(("data", "line"), GOLDEN, ids=[repr(data)[2:40] for data, _ in GOLDEN])
def test_a_recorded_line_is_read_and_written_as_the_original_does(data, line) -> None:
    """Byte for byte, both ways."""
    assert read_all(data) == [line]
    assert encode(line) == data


@pytest.mark.parametrize(("data", "line"), READ_ONLY, ids=[repr(data)[2:40] for data, _ in READ_ONLY])
def test_what_the_original_takes_leniently_is_taken_so(data, line) -> None:
    """Surplus and missing words, other v- and q-words, bytes that are no UTF-8."""
    assert read_all(data) == [line]


@pytest.mark.parametrize("data", MALFORMED, ids=repr)
def test_a_malformed_line_ends_the_reading_and_says_why(data) -> None:
    """After all that came before it; and nothing else is raised, wherever the bytes are cut."""
    reader = Reader(1000)
    line, start = reader.next(b"version 1\r\n" + data)
    assert line == VersionLine(1)
    with pytest.raises(RemoteProtocolError) as error:
        reader.next(b"version 1\r\n" + data, start)
    assert 10 < len(str(error.value)) < 600
    with pytest.raises(RemoteProtocolError):
        feed(Reader(1000), data, [1] * len(data))


def feed(reader: Reader, data: bytes, sizes: list[int]) -> list[Line | TooLong]:
    """What a reader finds if the data come in such pieces; it is given again what it does not use, as a session does."""
    found, kept, at = list[Line | TooLong](), b"", 0
    for size in [*sizes, len(data)]:
        kept, at = kept + data[at : at + size], at + size
        if len(kept) < reader.needed:
            continue
        start = 0
        while True:
            line, start = reader.next(kept, start)
            if line is None:
                break
            found.append(line)
        kept = kept[start:]
    assert kept == b""
    return found


INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
WORDS = st.text(st.characters(blacklist_characters=" \r\n", blacklist_categories=["Cs"]), min_size=1, max_size=20)
BODIES = st.binary(max_size=100)
CHECKSUMS = st.integers(-1, 2**31 - 1)
QUALIFIERS = WORDS.filter(lambda word: not word.isascii() or not word.isdigit())
LINES = st.one_of(
    st.builds(PutLine, WORDS, INTS, INTS, BODIES, INTS, CHECKSUMS),
    st.builds(
        PutLine, WORDS, INTS, INTS, BODIES, INTS, CHECKSUMS, st.just(value=True),
        st.none() | KEYS.filter(lambda key: not set(str(key)) & set(" \r\n")),
    ),
    st.builds(GetLine, WORDS, WORDS, INTS, LONGS, INTS, INTS),
    st.builds(OffsetLine, WORDS, WORDS, INTS, LONGS, INTS),
    st.builds(
        TransactionLine, st.none() | KEYS.filter(lambda key: not set(str(key)) & set(" \r\n")), WORDS, st.sampled_from(Step), INTS,
        st.none() | st.integers(0, 2**31 - 1), st.none() | QUALIFIERS,
    ),
    st.builds(SyncLine, WORDS, INTS, INTS, LONGS, BODIES, INTS, CHECKSUMS),
    st.builds(StatsLine, st.none() | WORDS, INTS),
    st.builds(VersionLine, INTS),
    st.just(QuitLine()),
    st.builds(ResultLine, INTS, BODIES, INTS),
    st.builds(ValueLine, BODIES, INTS),
)  # fmt: skip


@given(st.lists(LINES, max_size=5), st.lists(st.integers(1, 50), max_size=50))
def test_lines_are_read_back_however_they_are_cut(lines, sizes) -> None:
    """No boundary of a packet matters."""
    assert feed(Reader(1000), b"".join(map(encode, lines)), sizes) == lines


@given(st.binary(max_size=200) | st.text(" \r\nputgevalsync019-xTX:", max_size=200).map(str.encode))
def test_any_bytes_are_lines_or_end_the_reading(data) -> None:
    """Whatever a peer sends: no other exception, and whole and in pieces it reads the same."""
    whole, pieces = [], []
    for found, sizes in ((whole, []), (pieces, [1] * len(data))):
        try:
            reader, kept, at = Reader(50), b"", 0
            for size in [*sizes, len(data)]:
                kept, at, start = kept + data[at : at + size], at + size, 0
                while True:
                    line, start = reader.next(kept, start)
                    if line is None:
                        break
                    found.append(line)
                kept = kept[start:]
        except RemoteProtocolError:
            found.append("broken")
    assert whole == pieces


def test_a_body_beyond_the_limit_is_passed_over_without_memory() -> None:
    """However long it claims to be, and nothing is kept of what comes; the line itself is told, so that it can be answered."""
    reader = Reader(1000)
    line, start = reader.next(b"put test 0 2147483647 0 7\r\nabc")
    assert (line, start) == (TooLong(PutLine("test", 0, 0, b"", 7), 2**31 - 1), 27)
    assert reader.next(b"abc") == (None, 3)
    piece = bytes(2**20)
    tracemalloc.start()
    for _ in range(2047):
        assert reader.next(piece) == (None, len(piece))
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    last = 2**31 - 1 - 3 - 2047 * 2**20
    assert reader.next(bytes(last) + b"version 1\r\n") == (VersionLine(1), last + 11)


def test_a_malformed_put_ends_the_reading_when_its_body_has_come() -> None:
    """As the original does; also if the body is longer than the limit."""
    for size in (10, 2000):
        reader = Reader(1000)
        data = b"put test 0 %d 0\r\n" % size
        assert reader.next(data)[0] is None
        with pytest.raises(RemoteProtocolError, match="it has 5 words"):
            while True:
                line, start = reader.next(data)
                assert line is None
                data = data[start:] + bytes(500)


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    """At the limit, with or without its end; and it is searched once, not once for each packet."""
    reader = Reader(1000)
    line = b"get " + b"g" * (LINE_BYTES_MAX - 4)
    assert reader.next(line) == (None, 0)
    with pytest.raises(RemoteProtocolError, match="a line of more than 131072 bytes, which begins with b'get ggg"):
        reader.next(line + b"g")
    with pytest.raises(RemoteProtocolError, match="a line of more than"):
        Reader(1000).next(line + b"g\r\n")
    reader, data = Reader(1000), b"version 1\r"
    assert reader.next(data) == (None, 0)
    assert reader.next(data + b"\n") == (VersionLine(1), 11)
    assert Reader(1000).next(b"version 1\n") == (None, 0)


@pytest.mark.parametrize("word", ["", "a b", "a\r", "a\nb"])
def test_a_word_that_would_break_the_line_is_not_written(word) -> None:
    """Nobody can smuggle a second command into a name."""
    for line in (
        GetLine(word, "g", 0, 0, 1, 1),
        OffsetLine("t", word, 0, 0, 1),
        StatsLine(word),
        PutLine(word, 0, 0, b"", 1),
    ):
        with pytest.raises(LocalProtocolError, match="cannot be a word of a line"):
            encode(line)


def test_the_place_of_a_put_is_read_and_written() -> None:
    """Id, partition, offset."""
    assert put_body(-5468927205637619712, 0, 25) == b"-5468927205637619712 0 25"
    assert put_place(b"-5468927205637619712 0 25") == (-5468927205637619712, 0, 25)
    for body in (b"", b"1 2", b"1 2 3 4", b"x 0 0", b"1 2147483648 0"):
        with pytest.raises(RemoteProtocolError):
            put_place(body)


@pytest.mark.parametrize(
    "data",
    [
        b"result 200 24 -2147483648\r\n-5468927205637619712 0 0",
        b"result 200 24 -2147483648\r\n-5468927205637619712 0 0result 200 0 5\r\n",
        b"result 200 0 2147483647\r\n",
        b"result 404 3 1\r\nabc",
        b"result 200 4 1\r\nabc",
        b"result 200 24 -21474836",
        b"result 200 0 2147483648\r\n",
        b"result 200 0 -2147483649\r\n",
        b"result 200 11 1\r\n01234567890",
        b"result 200 0\r\n",
        b"result  200 0 1\r\n",
        b"result 0200 00 01\r\n",
        b"value 3 1\r\nabc",
        b"resultat 200 0 1\r\n",
        b"result -200 0 1\r\n",
        b"result 200 0 1 2\r\n",
    ],
)
def test_whole_result(data: bytes) -> None:
    """It says what the reader says, or nothing."""
    quick = whole_result(b"x" + data, 1, 10 if b"11 1" in data else 100)
    try:
        line, end = Reader(10 if b"11 1" in data else 100).next(b"x" + data, 1)
    except RemoteProtocolError:
        line, end = None, 0
    if quick is not None:
        assert quick == (line, end)
    else:
        # what is left to the reader: unfinished, malformed, too long, or not for the quick way
        assert not isinstance(line, ResultLine) or line.code < 0 or data.count(b" ") > 3


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"-5468927205637619712 0 0", (-5468927205637619712, 0, 0)),
        (b"9223372036854775807 2147483647 -1", (9223372036854775807, 2147483647, -1)),
        (b"-9223372036854775808 -1 9223372036854775807", (-9223372036854775808, -1, 9223372036854775807)),
    ],
)
def test_put_place(body: bytes, place: tuple[int, int, int]) -> None:
    assert put_place(body) == place


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1 2",
        b"1 2 3 4",
        b"1 2 x",
        b"1  2 3",
        b"9223372036854775808 0 0",
        b"0 2147483648 0",
        b"0 0 -9223372036854775809",
        b"1 2 3\n",
    ],
)
def test_no_put_place(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        put_place(body)
