"""Expressions and properties for RocketMQ's SQL filter and for ours.

`wire/sql_vectors.json` says what rocketmq-filter 4.9.7 made of each; `python -m tests.interop.sql` writes it.
"""

from __future__ import annotations

import itertools


def _properties(*pairs: str) -> str:
    """Property text of `name=value`s."""
    return "\x02".join(pair.replace("=", "\x01", 1) for pair in pairs)


PROPERTIES = [
    "",
    _properties("a=5", "b=7", "c=x", "TAGS=red", "flag=true"),
    _properties("a=-5", "b=-5", "c=eu", "flag=TRUE"),
    _properties("a=5.0", "b=5", "c=5.0", "flag=false"),
    _properties("a=abc", "b=abc", "c=it's", "flag=yes"),
    _properties("a= 5", "b=5 ", "c=Ünïcode 漢字 😀", "flag= true"),
    _properties("a=+5", "b=0005", "c=TRUE", "flag=True"),
    _properties("a=2147483647", "b=2147483648", "c=3000000000"),
    _properties("a=-2147483648", "b=-2147483649", "c=9223372036854775807"),
    _properties("a=9223372036854775808", "b=-9223372036854775808", "c=-9223372036854775809"),
    _properties("a=1e3", "b=1E-3", "c=1e400", "flag=1"),
    _properties("a=NaN", "b=-Infinity", "c=Infinity"),
    _properties("a=0x1p3", "b=0x10", "c=1_000"),
    _properties("a=5f", "b=5d", "c=5L", "flag=f"),
    _properties("a=-0.0", "b=0", "c=-0"),
    _properties("a=.5", "b=5.", "c=."),
    _properties("a=\u0665", "b=\uff15", "c=\U0001d7d3"),
    _properties("a=", "=5", "b", "c=\x01", "flag=true"),
    _properties("a=1", "a=5", "b=7", "b=", "c=x\x01y") + "\x02",
    _properties("a=4.9", "b=5.000000000000001", "c=nan", "TAGS=blue", "KEYS=k1 k2", "flag=FALSE"),
    _properties("b=5", "a=12345678901234567890", "c=1e-400"),
    _properties("a=" + "0" * 60 + "5", "b=" + "9" * 60, "c=0." + "3" * 60),
]

_OPERANDS = [
    "a", "b", "missing", "5", "-5", "+5", "3000000000", "-3000000000", "5L", "0", "-0", "5.0", "-0.5", "1e3", ".5", "5.",
    "'5'", "'abc'", "''", "'it''s'", "TRUE", "FALSE", "NULL", "-b", "-missing", "-'x'", "-TRUE", "(a)", "(a = 5)", "(5)",
]  # fmt: skip
_COMPARISONS = ["=", "<>", "<", "<=", ">", ">="]
_CONDITIONS = [
    "a = 5", "b > 6", "missing = 1", "a IS NULL", "missing IS NULL", "c = 'x'", "a = 'abc'", "flag = TRUE", "NULL", "TRUE", "FALSE",
    "a", "missing > 5", "a IN ('5','abc')", "c > 1", "TRUE = a",
]  # fmt: skip
_MORE = [
    # literals
    "a = 2147483647", "a = 2147483648", "a = -2147483648", "a = 9223372036854775807", "a = -9223372036854775807",
    "a = 9223372036854775808", "a = 007", "a = 5l", "a = 1e308", "a = 1e309", "a = 1e-320", "a = 1e-400", "a = 0.0", "a = 0e5",
    "a = 5E0", "a = 5e+0", "a = 5.5E-1", "a = .e5", "a = .", "a = 0x10", "a = 5.0f", "a = 1" + "0" * 400, "c = 'Ünïcode 漢字 😀'",
    "c = 'eu'", 'c = "eu"', "c = 'it's'", "c = 'it''s'", "c = 'eu", "c = ''''", "c = 'a\nb'", "b = 5.000000000000001",
    "a = 12345678901234567890.0", "b = 0.3333333333333333333333333333333333", "c = .33333333333333333", "b > 1e59", "a < 1e-3",
    # names and keywords
    "TAGS = 'red'", "tags = 'red'", "KEYS = 'k1 k2'", "$a = 5", "_a IS NULL", "a1 IS NULL", "1a IS NULL", "contains = 5",
    "contains IS NULL", "é = 5", "a.b = 5", "`a` = 5", "a = 5 And b = 7", "a iS nUlL", "nOt (a = 5)", "a bEtWeEn 4 aNd 6", "ORa IS NULL",
    "null is null", "true", "NOTE IS NULL", "a@b = 1", "a=5", "a=5AND b=7", "a<>5", "a< >5", "a > = 5", "a != 5", "a == 5",
    # null, booleans, chains
    "a = NULL", "NULL = a", "a <> NULL", "a > NULL", "NULL IS NULL", "NULL IS NOT NULL", "TRUE IS NULL", "TRUE = TRUE", "TRUE = FALSE",
    "1 = TRUE", "TRUE = 1", "'true' = TRUE", "flag = TRUE", "flag = FALSE", "flag <> TRUE", "flag = 'true'", "(flag = TRUE) = TRUE",
    "(a = 5) = (b = 7)", "(a = 5) = flag", "(a = 5) = 'x'", "(a = 5) = 5", "flag = (a = 5)", "a = b = TRUE", "a > 1 > 2", "a = 5 = TRUE",
    "a = b > 6", "a = 5 IS NULL", "(a = 5) IS NULL", "(a = 5) IS NOT NULL", "a IS NULL IS NULL", "a > 1 IS NULL", "NOT a IS NULL",
    "NOT (a IS NULL)", "NOT NOT a IS NULL", "NOT a = 5", "NOT (a = 5)", "NOT NOT (a = 5)", "NOT 5", "NOT 'x'", "NOT TRUE", "NOT NULL",
    "NOT -a", "NOT a > 3", "NOT (a > 3)", "NOT a", "a AND b", "a OR TRUE", "5 AND TRUE", "TRUE AND 5", "-a", "-(a = 5)", "- (a = 5) IS NULL",
    "a > -(b = 5)", "missing > -(b = 5)", "a = -(b = 5)", "-(b = 5) = a", "+a = 5", "++a = 5", "+-5 = a", "--5 = 5", "- -5 = a", "-+5 = a",
    "5 = 5", "5 = 5.0", "5 = '5'", "'5' = 5", "'x' = 5", "'x' = 'x'", "5 > 3", "5 > 3.5", "3.5 < 5", "5 < 3000000000", "3000000000 > 2.5",
    "'a' > 5", "5 > 'a'", "a > '5'", "'5' < a", "a > TRUE", "TRUE > a", "(a = 5) > 3", "9007199254740993 = 9007199254740992.0",
    # between
    "a BETWEEN 1 AND 5", "a BETWEEN -5 AND 5", "a BETWEEN 5 AND 1", "a BETWEEN 5 AND 5", "a BETWEEN 1 AND 5.5", "a BETWEEN 5.5 AND 1",
    "a BETWEEN 'a' AND 'b'", "a BETWEEN 'b' AND 'a'", "a BETWEEN NULL AND 5", "a BETWEEN 1 AND NULL", "a BETWEEN TRUE AND 5",
    "a BETWEEN b AND c", "a BETWEEN b AND 100", "a NOT BETWEEN 1 AND 5", "a NOT BETWEEN 5 AND 1", "a NOT BETWEEN -5 AND 4", "5 BETWEEN a AND b",
    "missing BETWEEN 1 AND 5", "missing NOT BETWEEN 1 AND 5", "a BETWEEN missing AND 10", "a NOT BETWEEN missing AND 4", "a BETWEEN 1 AND 5 AND b = 7",
    "a BETWEEN 1 AND 5 OR b = 7", "a BETWEEN 1 OR 5", "a BETWEEN 1", "NOT a BETWEEN 1 AND 5", "NOT (a BETWEEN 1 AND 5)",
    "-a BETWEEN 1 AND 5", "a BETWEEN 1 AND 5 IS NULL", "(a BETWEEN 1 AND 9) BETWEEN 1 AND 2", "'5' BETWEEN 1 AND 9", "a BETWEEN 3000000000 AND 5",
    # in
    "a IN ('5')", "a IN ('5','abc')", "a IN ('1','2','3','4','5','6','7')", "a NOT IN ('5')", "a NOT IN ('1','2','3','4','6','7')",
    "missing IN ('5')", "missing NOT IN ('5')", "a IN ()", "a IN ('5',)", "a IN (5)", "a IN ('5' 'abc')", "a IN '5'", "a IN ('5'", "(a) IN ('5')",
    "'5' IN ('5')", "5 IN ('5')", "-a IN ('5')", "NOT a IN ('5')", "NOT (a IN ('5'))", "a IN ('5') AND b IN ('7')", "a IN ('5') IN ('5')",
    "a in ('')", "c IN ('it''s', 'eu')", "TRUE IN ('true')", "a IN (b)", "a IN (TRUE)", "a NOT IN", "c IN ('x\x01y')", "TAGS IN ('red','blue')",
    # comments and space
    "a = 5 -- five", "a = 5 -- five\n", "a = 5 -- five\n AND b = 7", "-- all\na = 5", "a /* x */ = 5", "a /* * */ = 5", "/**/a=5/**/", "a = 5 /* x",
    "a = /* ' */ 5", "a\t=\n5\r\n", "a\f= 5", "a\u00a0= 5", "\n\n a = 5", "", " ", "-- x", "a = --5", "a = --\n5", "a - - 5", "a = 5 --", "c = '-- x'",
    # errors
    "a >", "> 5", "a 5", "a = 5 AND", "AND a = 5", "OR", "(a = 5", "a = 5)", "((a = 5)", "(a = 5))", "()", "a = ()", "a IS 5", "a IS NOT 5", "a IS",
    "a NOT 5", "a NOT NULL", "a = 5;", "a = 5 b", "a = 5 6", "a LIKE 'x%'", "a LIKE", "a + 1 = 6", "a * 2 = 10", "a / 5 = 1", "a % 2 = 1", "a || b",
    "a && b", "a = 5 & b = 7", "a = 5 || b = 7", "a = 5 XOR b = 7", "5", "'x'", "a, b", "a = :x", "a = ?", "a = {5}", "a = [5]", "now() > 5",
    "a = 0L", "a = 5 L", "CONTAINS", "a CONTAINS", "\x00", "a = '\x00'", "a = 5\x00",
    "(((((((((((((((((((((((((((((((a = 5)))))))))))))))))))))))))))))))",
    " OR ".join(f"a = {number}" for number in range(60)), " AND ".join(f"a <> '{number}x'" for number in range(60)),
    "NOT (NOT (NOT (NOT (a = 5))))", "NOT NOT NOT NOT (a = 5)",
]  # fmt: skip

EXPRESSIONS = list(
    dict.fromkeys([
        *_MORE,
        *(f"{left} {sign} {right}" for left, sign, right in itertools.product(_OPERANDS[:3], _COMPARISONS, _OPERANDS)),
        *(f"{left} {sign} {right}" for left, sign, right in itertools.product(_OPERANDS[3:], ["=", ">"], _OPERANDS[::3])),
        *(f"{one} {word} {other}" for one, word, other in itertools.product(_CONDITIONS, ["AND", "OR"], _CONDITIONS)),
        *(f"NOT ({one}) {word} NOT ({other})" for one, word, other in itertools.product(_CONDITIONS[:7], ["AND", "OR"], _CONDITIONS[:7])),
        *(f"{one} OR {other} AND {third}" for one, other, third in itertools.product(_CONDITIONS[:9:2], repeat=3)),
    ])
)  # fmt: skip

ENDS_EARLY = frozenset({
    "a = 007", "a = 0x10", "a = 0L", "a = 5)", "(a = 5))", "a = 5 b", "a = 5 6", "a = 5 XOR b = 7", "a = 5 L", "a = 5.0f", "c = 'it's'",
    "now() > 5", "a - - 5", "a 5", "a LIKE 'x%'", "a LIKE", "a + 1 = 6", "a, b", "a CONTAINS",
})  # fmt: skip
"""RocketMQ reads the beginning of these, without a word about the rest; we refuse them."""
