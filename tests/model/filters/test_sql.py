"""SQL expressions: what is wrong with one is said with its place, and none costs more than the limits allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model.filters import sql_compiler
from metaq.model.filters.sql import STACK_MAX, Op, SqlError, compile_sql


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("a >", (1, 4), "expected a property, a literal, NOT or '(', found the end"),
        ("a = 5 AND\n  b LIKE 'x%'", (2, 5), "found 'LIKE': there is no LIKE: use CONTAINS"),
        ("a\r\n=\r\n= 5", (3, 1), "'equal' is written ="),
        ("a != 5", (1, 3), "'not equal' is written <>"),
        ('a = "eu"', (1, 5), "texts stand in single quotes"),
        ("a && b", (1, 3), "write AND"),
        ("a = 5 b", (1, 7), "expected an operator, AND, OR or the end, found 'b'"),
        ("(a = 5", (1, 7), "expected an operator, AND, OR or ')', found the end"),
        ("a IN ('x' 'y')", (1, 11), "expected ',' or ')', found \"'y'\""),
        ("a IN (5)", (1, 7), "expected a text in single quotes, found '5'"),
        ("5 IN ('5')", (1, 1), "expected a property before IN"),
        ("a IS 5", (1, 6), "expected NULL or NOT NULL, found '5'"),
        ("a IS NOT 5", (1, 10), "expected NULL, found '5'"),
        ("a BETWEEN 1 OR 5", (1, 13), "expected AND, found 'OR'"),
        ("a BETWEEN 5 AND 1", (1, 11), "from a larger number to a smaller one"),
        ("a = NULL", (1, 5), "write IS NULL"),
        ("a > 'x'", (1, 5), "only numbers are less or greater"),
        ("a > 5 > 3", (1, 1), "only numbers are less or greater"),
        ("a = 5 OR 'x'", (1, 10), "expected a condition, found a value"),
        ("NOT 5", (1, 5), "expected a condition, found a value"),
        ("a = 'eu", (1, 5), "a text without its closing quote"),
        ("a = 5 /* x", (1, 7), "a comment without its end */"),
        ("a CONTAINS 5", (1, 12), "expected a text in single quotes"),
        ("a CONTAINS ''", (1, 12), "CONTAINS '' matches nothing"),
        ("a = 1" + "0" * 400, (1, 5), "(401 characters) is larger than 9223372036854775807"),
        ("a = 1e400", (1, 5), "larger than a double can be"),
        ("a = 0.0", (1, 5), "for 0 write 0"),
        ("", (1, 1), "an empty expression"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_column(text, place, said):
    """The text names what was expected and what was found there, and how it is written instead."""
    with pytest.raises(SqlError) as caught:
        compile_sql(text)
    assert isinstance(caught.value, ConfigError)
    assert (caught.value.line, caught.value.column) == place
    assert said in caught.value.text
    assert str(caught.value).startswith(f"SQL filter, line {place[0]}, column {place[1]}: ")


TOO_LARGE = {
    "brackets": ("(" * 10_000 + "a = 5" + ")" * 10_000, "nested more than 64 deep"),
    "NOTs": ("NOT " * 10_000 + "TRUE", "nested more than 64 deep"),
    "minuses": ("-" * 60_000 + "5 = a", "nested more than 64 deep"),
    "bytes": ("a = '" + "x" * (1 << 20) + "'", "an expression of 1048582 bytes, the limit is 65536"),
    "digits": ("a = 1" + "0" * 60_000, "is larger than"),
    "steps": (" OR ".join(["a = 5"] * 5000), "more than 2048 steps"),
    "searches": (" OR ".join(["a CONTAINS 'x'"] * 17), "more than 16 CONTAINS"),
    "names": (" OR ".join(f"p{number} = 5" for number in range(65)), "names more than 64 properties"),
    "steps that double": ("-(" * 30 + "a" + " BETWEEN 1 AND 2) " * 29 + ") = 5", "more than 2048 steps"),
}


@pytest.mark.parametrize(("text", "said"), TOO_LARGE.values(), ids=list(TOO_LARGE))
def test_what_is_too_large_is_refused(text, said):
    """In depth, length, steps, properties or digits: at once, and with the limit."""
    with pytest.raises(SqlError, match=said):
        compile_sql(text)


def test_dashes_are_looked_through_once(monkeypatch):
    """Each of 60 000 could begin a comment: that its line has no end is seen once, and not by the pattern at each of them."""
    matched = []
    pattern = sql_compiler._TOKEN

    class Counting:
        def match(self, text, at):
            matched.append(at)
            return pattern.match(text, at)

    monkeypatch.setattr(sql_compiler, "_TOKEN", Counting())
    with pytest.raises(SqlError, match="nested more than 64 deep"):
        compile_sql("a = " + "-" * 60_000)
    assert len(matched) < 10


def test_limits_are_usable_up_to_their_end():
    """The deepest, the longest and the widest that are allowed compile."""
    compile_sql("(" * 64 + "a = 5" + ")" * 64)
    compile_sql("a IN (" + ",".join(f"'{number:04}'" for number in range(9000)) + ")")
    compile_sql(" OR ".join(f"p{number} = 5" for number in range(64)))
    compile_sql("TRUE = " * 682 + "TRUE")
    compile_sql(" OR ".join(["a CONTAINS 'x'"] * 16))
    deep = compile_sql("TRUE OR TRUE AND FALSE = (" * 64 + "TRUE" + ")" * 64)
    assert deep.stack_max == 64 * 3 + 1 < STACK_MAX


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("paid", "line 1, column 1: a property by itself is never true"),
        ("a > 5 AND paid", "line 1, column 11: a property by itself is never true"),
        ("TRUE = paid", "line 1, column 1: TRUE and FALSE match nothing before '='"),
        ("paid = TRUE", ""),
    ],
)
def test_a_condition_that_is_never_true_is_told_of(text, why):
    """RocketMQ takes it, so we do, but whoever asks can know."""
    assert why in compile_sql(text).never
    assert bool(compile_sql(text).never) == bool(why)


def test_a_program_says_what_it_looks_at():
    """Names once each, in their order; numbers of the type that RocketMQ gives them; a minus is part of its number."""
    program = compile_sql("b > -5 OR a IN ('x', 'x', 'it''s') AND b < 3000000000 OR a = 5L OR c = -.5")
    assert program.names == (b"b", b"a", b"c")
    assert {(Op(op), argument) for op, argument in program.steps} >= {
        (Op.INT, -5), (Op.LONG, 3_000_000_000), (Op.INT, 5), (Op.DOUBLE, -0.5), (Op.IN, (b"x", b"it's")),
    }  # fmt: skip


@given(st.text(alphabet=st.sampled_from("ab5'()<>=-+,.*/ \n\tNOTANDLIKEx\x00é"), max_size=60))
def test_any_text_compiles_or_is_refused_with_its_place(text):
    """Never another error; and the place is one of the text, or just behind it."""
    try:
        program = compile_sql(text)
    except SqlError as error:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    else:
        assert program.steps
