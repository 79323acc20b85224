"""What consumers ask for: SQL conditions, tag expressions, predicates; and cron expressions of retention."""

from __future__ import annotations

import json
import pathlib

from fuzz.target import parser
from fuzz.targets.frames import BOTH, the_same

from metaq.errors import BadRequest, ConfigError, Refused
from metaq.model.cron import parse_cron
from metaq.model.filters.predicates import predicates_of
from metaq.model.filters.sql import compile_sql
from metaq.model.filters.subscription import subscribe

VECTORS = pathlib.Path(__file__).parents[2] / "tests" / "wire" / "hot" / "sql_vectors.json"
SQL_WORDS = tuple(
    word.encode()
    for word in (
        " AND ", " OR ", " NOT ", " IS NULL ", " IN (", " BETWEEN ", "'", "''", "(", ")", ">=", "<>", "=", "1e400", "0x7f", ".5", "-", " CONTAINS ",
        " STARTSWITH ", " ENDSWITH ", "TRUE", "FALSE", "/*", "*/", "--", "NOT (", "((",
    )
)  # fmt: skip
PROPERTIES = (
    b"", b"a\x015\x02b\x01x\x02", b"a\x01abc\x02b\x01-5.5\x02c\x01true", b"a\x01\xff\x02c\x011e400", b"a\x019223372036854775808\x02b\x01 5 ", b"TAGS\x01a\x02a\x01",
)  # fmt: skip


def sql(data: bytes) -> None:
    """A condition, compiled; on properties of several kinds both modules say the same."""
    program = compile_sql(data.decode("utf-8", "replace"))
    conditions = [hot.Condition(program) for hot in BOTH]
    for text in PROPERTIES:
        the_same([condition.matches(text) for condition in conditions])


def some_sql() -> list[bytes]:
    texts = [one for texts in json.loads(VECTORS.read_text()).values() for one in texts]
    return [one.encode() for one in sorted(set(texts), key=lambda one: (len(one), one))[::7]][:150]


def tags(data: bytes) -> None:
    """A subscription by tags."""
    made = subscribe("T", data.decode("utf-8", "replace"))
    assert subscribe("T", made.expression).tag_hashes == made.tag_hashes


TARGETS = [
    parser("sql", sql, some_sql, ConfigError, words=SQL_WORDS),
    parser(
        "tags",
        tags,
        lambda: [b"*", b"a", b"a || b", b" a||b ||", b"\xc3\xa9 || \xf0\x9f\x98\x80"],
        Refused,
        words=(b"||", b" ", b"*"),
    ),
    parser(
        "predicates",
        lambda data: predicates_of(data.decode("utf-8", "replace")),
        lambda: [b'{"T":"message.tag == 5"}', b"{}"],
        BadRequest,
        ConfigError,
    ),
    parser(
        "cron",
        lambda data: parse_cron(data.decode("utf-8", "replace")),
        lambda: [b"0 0 6,18 * * ?", b"0 0/5 14 ? 1-3 MON-FRI", b"0 15 10 L * ? 2005"],
        ConfigError,
        ValueError,
        words=(b"*", b"?", b"L", b"W", b"#", b"/", b"-", b",", b"MON"),
    ),
]
