"""Commands and answers of one connection: numbers, any cut of the stream, any order, and what is no answer."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from metaq.metaq1.conversation.pipeline import FIRST_OPAQUE, Pipeline
from metaq.wire.metaq1.commands import (
    Answer,
    GetLine,
    OffsetLine,
    PutLine,
    Reader,
    ResultLine,
    TooLong,
    ValueLine,
    VersionLine,
    encode,
)

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
BODIES = st.binary(max_size=40)
INTS, LONGS = st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
MAKERS = st.one_of(
    st.builds(lambda topic, part, body: lambda opaque: PutLine(topic, part, 0, body, opaque, 7), WORDS, INTS, BODIES),
    st.builds(lambda topic, group, at: lambda opaque: GetLine(topic, group, 0, at, 9, opaque), WORDS, WORDS, LONGS),
    st.builds(lambda topic, group, at: lambda opaque: OffsetLine(topic, group, 0, at, opaque), WORDS, WORDS, LONGS),
    st.just(VersionLine),
)
ANSWERS = st.one_of(
    st.builds(lambda code, body: lambda opaque: ResultLine(code, body, opaque), INTS, BODIES),
    st.builds(lambda body: lambda opaque: ValueLine(body, opaque), BODIES),
)


def received(pipeline: Pipeline[str], data: bytes, cuts: list[int]) -> list[tuple[str, Answer | TooLong]]:
    """What `data` brings when it comes in these pieces, the rest of each piece presented again."""
    found: list[tuple[str, Answer | TooLong]] = []
    rest = b""
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(bounds):
        rest += data[start:end]
        if len(rest) >= pipeline.needed:
            some, used = pipeline.receive(rest)
            found += some
            rest = rest[used:]
    assert rest == b""
    return found


@given(st.data(), st.lists(st.tuples(MAKERS, ANSWERS), max_size=12), st.lists(st.integers(0, 10_000), max_size=8))
def test_each_answer_finds_its_command_in_whatever_order_and_pieces(data, pairs, cuts):
    """And what is written is read back by a server's reader."""
    pipeline: Pipeline[str] = Pipeline()
    written, answers = b"", []
    for number, (make, answer) in enumerate(pairs):
        opaque, line = pipeline.send(make, f"w{number}")
        assert opaque == FIRST_OPAQUE + number
        written += line
        answers.append((f"w{number}", answer(opaque)))
    reader, start, lines = Reader(1 << 20), 0, []
    while start < len(written):
        line, start = reader.next(written, start)
        lines.append(line)
    assert lines == [make(FIRST_OPAQUE + number) for number, (make, _) in enumerate(pairs)]
    shuffled = data.draw(st.permutations(answers))
    assert received(pipeline, b"".join(encode(answer) for _, answer in shuffled), cuts) == shuffled
    assert len(pipeline) == 0
    assert pipeline.broken is None


def test_numbers_begin_at_the_least_and_go_round():
    """Past the largest, and past one that still waits."""
    pipeline: Pipeline[str] = Pipeline()
    assert pipeline.send(VersionLine, "first") == (-2147483648, b"version -2147483648\r\n")
    pipeline._numbers = itertools.count(2**32 - 1)
    assert pipeline.send(VersionLine, "last")[0] == 2147483647
    assert pipeline.send(VersionLine, "again")[0] == -2147483647
    assert pipeline.end() == ["first", "last", "again"]


def test_an_answer_that_nobody_waits_for_is_passed_over():
    """As one to a command whose time was up, a second one, and a command of the server's."""
    pipeline: Pipeline[str] = Pipeline()
    gone, _ = pipeline.send(VersionLine, "gone")
    kept, _ = pipeline.send(VersionLine, "kept")
    pipeline.forget(gone)
    lines = [ResultLine(200, b"1", gone), ResultLine(200, b"2", kept), ResultLine(200, b"3", kept), VersionLine(kept)]
    found, _ = pipeline.receive(b"".join(encode(line) for line in lines))
    assert found == [("kept", ResultLine(200, b"2", kept))]


def test_what_came_before_a_broken_line_is_answered_and_nothing_behind_it():
    pipeline: Pipeline[str] = Pipeline()
    first, _ = pipeline.send(VersionLine, "first")
    second, _ = pipeline.send(VersionLine, "second")
    data = encode(ResultLine(200, b"ok", first)) + b"nonsense\r\n" + encode(ResultLine(200, b"ok", second))
    found, _ = pipeline.receive(data)
    assert found == [("first", ResultLine(200, b"ok", first))]
    assert "nonsense" in str(pipeline.broken)
    assert pipeline.end() == ["second"]


def test_an_answer_that_is_too_long_takes_no_memory_and_the_next_one_is_read():
    """Its bytes are passed over as they come."""
    pipeline: Pipeline[str] = Pipeline(answer_bytes_max=10)
    long, _ = pipeline.send(VersionLine, "long")
    short, _ = pipeline.send(VersionLine, "short")
    found, used = pipeline.receive(encode(ValueLine(bytes(1000), long))[:200])
    assert found == [("long", TooLong(ValueLine(b"", long), 1000))]
    rest = encode(ValueLine(bytes(1000), long))[used:] + encode(ResultLine(200, b"ok", short))
    while rest:
        some, used = pipeline.receive(rest)
        found += some
        assert used
        rest = rest[used:]
    assert found[1:] == [("short", ResultLine(200, b"ok", short))]


def test_a_word_that_cannot_be_written_leaves_nobody_waiting():
    from metaq.errors import LocalProtocolError

    pipeline: Pipeline[str] = Pipeline()
    try:
        pipeline.send(lambda opaque: GetLine("two words", "g", 0, 0, 1, opaque), "nobody")
    except LocalProtocolError as error:
        assert "two words" in str(error)
    else:
        raise AssertionError("it was written")
    assert len(pipeline) == 0
    pipeline.send(VersionLine, "first")
    assert pipeline.end() == ["first"]
