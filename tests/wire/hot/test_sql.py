"""SQL expressions on stored properties: as RocketMQ has them, and the same in both modules."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.model.filters.sql import Op, Program, SqlError, compile_sql
from metaq.wire.hot.numbers import NoNumber, java_double, java_integer
from metaq.wire.record import encode_record
from tests.effort import repeats
from tests.sql_cases import ENDS_EARLY, EXPRESSIONS, PROPERTIES
from tests.wire.hot.support import FALLBACK, NATIVE, both, needs_native

VECTORS = json.loads(Path(__file__).with_name("sql_vectors.json").read_text("utf-8"))
"""A letter per property text (T true, F false, N null, X failed), or "" for what does not compile → expressions."""


def compiled(text):
    try:
        return compile_sql(text)
    except SqlError:
        return None


def test_vectors_are_many():
    """At least 500 expressions that RocketMQ compiles, on 20 sets of properties."""
    assert sum(len(texts) for letters, texts in VECTORS.items() if letters) >= 500
    assert len(PROPERTIES) >= 20
    assert sorted(text for texts in VECTORS.values() for text in texts) == sorted(EXPRESSIONS)


def test_the_same_texts_compile():
    """But those of which RocketMQ reads the beginning only: they are refused here."""
    assert [text for text in VECTORS[""] if compiled(text)] == []
    taken = [text for letters, texts in VECTORS.items() if letters for text in texts]
    assert {text for text in taken if not compiled(text)} == ENDS_EARLY


@both
def test_messages_pass_as_with_rocketmq(hot):
    """Every expression on every set of properties; what is null or fails is not true."""
    texts = [properties.encode() for properties in PROPERTIES]
    wrong = {}
    for letters, expressions in VECTORS.items():
        for expression in expressions:
            if letters and expression not in ENDS_EARLY:
                made = hot.Condition(compile_sql(expression))
                got = "".join("T" if made.matches(text) else "-" for text in texts)
                if got != "".join("T" if letter == "T" else "-" for letter in letters):
                    wrong[expression] = got
    assert not wrong


@both
@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a CONTAINS 'bc'", "TF--T"),
        ("a NOT CONTAINS 'bc'", "FT--F"),
        ("a STARTSWITH 'ab'", "TF--F"),
        ("a NOT STARTSWITH 'ab'", "FT--T"),
        ("a ENDSWITH 'cd'", "TF--F"),
        ("a NOT ENDSWITH 'cd'", "FT--T"),
        ("a contains 'abcd'", "TF--F"),
        ("'abcd' CONTAINS 'bc' AND a = 'abcd'", "TF--F"),
        ("NOT (a CONTAINS 'bc')", "FTTTF"),
    ],
)
def test_texts_are_searched_as_rocketmq_5_does(hot, text, matches):
    """What is missing contains nothing, and does not contain it either."""
    made = hot.Condition(compile_sql(text))
    sets = [b"a\x01abcd", b"a\x01b", b"", b"b\x01abcd", b"a\x01xabcx\x02b\x01bc"]
    assert "".join("T" if made.matches(part) else "F" for part in sets) == matches.replace("-", "F")


@both
def test_values_with_odd_bytes_harm_nothing(hot):
    """NUL belongs to a value, 0x01 behind the first too; 0x02 ends it; no UTF-8 is needed."""
    assert hot.Condition(compile_sql("a = 'x\x00y'")).matches(b"a\x01x\x00y\x02")
    assert hot.Condition(compile_sql("a = 'x\x01y'")).matches(b"a\x01x\x01y")
    assert not hot.Condition(compile_sql("a = 'x'")).matches(b"a\x01y\x02x\x01")
    assert hot.Condition(compile_sql("a IS NOT NULL AND a <> 5.5")).matches(b"a\x01\xff\xfe") is False
    assert hot.Condition(compile_sql("a NOT IN ('5')")).matches(b"a\x01\xff\xfe")


@both
def test_many_names_and_texts_are_found(hot):
    """As many properties as an expression may name, and a long list."""
    text = " AND ".join(f"p{number} = {number}" for number in range(64))
    properties = b"\x02".join(b"p%d\x01%d" % (number, number) for number in range(64))
    assert hot.Condition(compile_sql(text)).matches(properties)
    assert not hot.Condition(compile_sql(text)).matches(properties.replace(b"p63", b"q63"))
    among = hot.Condition(compile_sql("a IN (" + ",".join(f"'{number}'" for number in range(5000)) + ")"))
    assert among.matches(b"a\x014999")
    assert not among.matches(b"a\x015000")


@needs_native
@pytest.mark.parametrize(
    "steps",
    [
        (), ((12, 0),), ((7, 0), (7, 1)), ((7, 2),), ((99, 0),), ((6, 5),), ((7, 0), (24, 0)), ((7, 0), (24, b"")),
        ((2, 0), (11, 5)), ((2, 0), (11, 0)), ((2, 0), (11, 1), (2, 0), (12, 0)), ((2, 0),) * 300,
    ],
)  # fmt: skip
def test_a_program_that_is_none_is_refused(steps):
    """Operands that are missing, jumps that lead astray, steps and names that there are not: never run."""
    assert NATIVE is not None
    with pytest.raises(ValueError, match=r"."):
        NATIVE.Condition(Program("", (b"a", b"b"), steps, 2, 1, 0))


NUMBERS = [
    "5",
    "-5",
    "0",
    "3000000000",
    "5.5",
    ".25",
    "1e3",
    "'5'",
    "'x'",
    "TRUE",
    "NULL",
    "FALSE",
    "-a",
    "a",
    "b",
    "c",
]
VALUES = st.one_of(
    st.text(alphabet=st.sampled_from("0123456789.+-eExXpPfdDnNaI \u0665"), max_size=25),
    st.sampled_from(["true", "TRUE", "5", "-0", "0.1", "NaN", "Infinity", "x", "1e22", "123456789012345", "1234567890123456.5"]),
    st.floats().map(repr), st.integers(-(1 << 65), 1 << 65).map(str), st.text(max_size=3),
)  # fmt: skip
CONDITIONS = st.recursive(
    st.builds("{} {} {}".format, st.sampled_from(NUMBERS), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.sampled_from(NUMBERS))
    | st.builds("{} {}".format, st.sampled_from("abc"), st.sampled_from(["IS NULL", "IS NOT NULL", "IN ('5','x')", "NOT IN ('5')",
                "BETWEEN 0 AND 9", "NOT BETWEEN -1 AND b", "CONTAINS '5'", "NOT STARTSWITH '1'", "ENDSWITH 'e'"])),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR", "=", "<>"]), inner) | st.builds("NOT ({})".format, inner),
    max_leaves=6,
)  # fmt: skip


@needs_native
@settings(max_examples=repeats(500))
@given(CONDITIONS, st.lists(st.tuples(st.sampled_from("abcd"), VALUES), max_size=5))
def test_fallback_and_native_agree_on_any_expression_and_properties(text, pairs):
    """Numbers at the borders of their types, digits of other scripts, what is missing: the same answer."""
    program = compiled(text)
    if program is not None:
        properties = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
        assert NATIVE is not None
        assert NATIVE.Condition(program).matches(properties) == FALLBACK.Condition(program).matches(properties)


@given(st.floats(allow_nan=False))
def test_a_double_is_what_python_reads(number):
    """To the last bit, in the pure-Python fallback and so, by the test above, in the native module."""
    assert java_double(repr(number).replace("inf", "Infinity").encode()) == number


@pytest.mark.parametrize(
    "text", ["", "+", ".", "e5", "1e", "1e+", "1_0", "nan", "inf", "0x1", "1.2.3", "\u0665", "1 2", "Infinityf"]
)
def test_no_double(text):
    """Python reads some of these; Java does not."""
    with pytest.raises(NoNumber):
        java_double(text.encode())


@pytest.mark.parametrize(
    "text", ["", "+", "-", " 5", "5 ", "1_0", "5.0", "\U0001d7d3", "2147483648", "-2147483649", "²", "9" * 5000]
)
def test_no_integer(text):
    """Python reads some of these; Java does not."""
    with pytest.raises(NoNumber):
        java_integer(text.encode(), long=False)


# ------------------------------------------------------------------ in pulls
def log_of(*properties, damage=()):
    """(log, units) of records with these property texts; those numbered in `damage` have a size that is not theirs."""
    log, units = bytearray(), bytearray()
    for number, text in enumerate(properties):
        record = encode_record(
            topic=b"T", queue_id=1, queue_offset=number, log_offset=len(log), flag=0, sys_flag=0, born_ms=1,
            born_host=bytes(8), store_ms=2, store_host=bytes(8), reconsume_times=0, prepared_offset=0,
            body=b"x" * number, properties=text,
        )  # fmt: skip
        units += struct.pack(">qiq", len(log), len(record), 0)
        log += record
        if number in damage:
            log[-len(record) + 3] ^= 1
    return bytes(log), bytes(units)


@both
def test_a_look_takes_the_records_of_which_the_expression_is_true(hot):
    """The rest is passed over, and the look says how far it came."""
    log, units = log_of(b"a\x011", b"a\x015", b"b\x015", b"a\x019\x02", b"")
    wanted = hot.Filter((), hot.Condition(compile_sql("a > 3")))
    found = hot.select(units, 0, 0, 5, wanted, 32, 9999, 0, len(log), log, 0)
    assert (found.count, found.next_offset, found.damaged) == (2, 5, False)
    owner = hot.QueueTail(b"T", 1)
    whole = hot.read(units, 0, 0, 5, wanted, 32, 9999, 0, len(log), log, 0, 1 << 20, owner, len(log))
    assert (whole[0], whole[2]) == (2, 5)
    assert hot.sift(log, wanted, 32, 9999) == (2, whole[5], -1, whole[4])
    assert hot.sift(log, wanted, 1, 9999)[2] == 3
    with pytest.raises(ValueError, match="pass the log"):
        hot.select(units, 0, 0, 5, wanted, 32, 9999, 0, len(log))


@both
def test_retried_messages_are_judged_by_the_topic_they_come_from(hot):
    """By its expression; those of a topic that has none, and those that do not say, pass."""
    texts = [
        b"a\x011",
        b"a\x011\x02RETRY_TOPIC\x01orders",
        b"RETRY_TOPIC\x01orders\x02a\x015",
        b"a\x011\x02RETRY_TOPIC\x01other",
    ]
    log, units = log_of(*texts)
    wanted = hot.Filter((), None, {b"orders": hot.Condition(compile_sql("a > 3"))})
    found = hot.select(units, 0, 0, 4, wanted, 32, 9999, 0, len(log), log, 0)
    owner = hot.QueueTail(b"T", 1)
    assert found.count == 3
    assert hot.check(found, hot.gather(found, log, 0), owner, 0)[0] == 3
    assert hot.sift(log, wanted, 32, 9999)[0] == 3


@both
def test_a_look_ends_after_some_work(hot):
    """An expensive expression over much text costs many looks, and not one that stops everybody."""
    log, units = log_of(*[b"b\x01" + b"x" * 30_000] * 60)
    wanted = hot.Filter((), hot.Condition(compile_sql("a > 3")))
    found = hot.select(units, 0, 0, 60, wanted, 32, 9999, 0, len(log), log, 0)
    assert found.count == 0
    assert 30 < found.next_offset < 40


@both
def test_what_is_no_record_passes_the_filter_and_fails_the_check(hot):
    """So that the damage is found, and mended, as without a filter."""
    log, units = log_of(b"a\x011", b"a\x012", b"a\x015", damage={1})
    wanted = hot.Filter((), hot.Condition(compile_sql("a > 3")))
    found = hot.read(units, 0, 0, 3, wanted, 32, 9999, 0, len(log), log, 0, 1 << 20, hot.QueueTail(b"T", 1), 0)
    assert (found[0], found[2], found[6]) == (0, 1, True)


@needs_native
@settings(max_examples=repeats(200))
@given(
    texts=st.lists(st.lists(st.sampled_from([b"a\x011", b"a\x015", b"b\x015", b"", b"a", b"\x02"]), max_size=3).map(b"\x02".join), max_size=8),
    damage=st.frozensets(st.integers(0, 7), max_size=2), flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
    limits=st.tuples(st.integers(0, 6), st.integers(0, 400)),
)  # fmt: skip
def test_fallback_and_native_look_alike(texts, damage, flips, limits):
    """Random records, damaged ones too: the same selection, and the same bytes of it."""
    log, units = log_of(*texts, damage=damage)
    spoilt = bytearray(log)
    for place, value in flips:
        if place < len(spoilt):
            spoilt[place] = value
    outcomes = []
    for hot in (FALLBACK, NATIVE):
        assert hot is not None
        wanted = hot.Filter((), hot.Condition(compile_sql("a > 3 OR b = 5")))
        found = hot.select(units, 0, 0, len(texts), wanted, *limits, 0, len(log), bytes(spoilt), 0)
        outcomes.append((found.count, found.size, found.next_offset, found.spans(), found.damaged))
        outcomes[-1] += (hot.sift(log, wanted, *limits) if not damage else (),)
    assert outcomes[0] == outcomes[1]


def test_steps_have_the_numbers_of_the_native_module():
    """The order of `Op` is that of the enum in `native/sql.pxi`."""
    source = Path(__file__).parents[3] / "src" / "metaq" / "wire" / "hot" / "native" / "sql.pxi"
    names = source.read_text().partition("cdef enum:")[2].partition("OP_COUNT")[0].replace(",", " ").split()
    assert [name.removeprefix("OP_") for name in names] == [op.name for op in Op]
