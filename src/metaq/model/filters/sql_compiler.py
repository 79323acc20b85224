"""The compiler of SQL92 filters: a lexer and a recursive descent, one pass over the text.

Apart from `sql`, so that only processes that are given such a filter load it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.model.filters.sql_program import (
    CONTAINS_MAX,
    DEPTH_MAX,
    FEW_TEXTS,
    NAMES_MAX,
    STEPS_MAX,
    Argument,
    Op,
    Program,
    SqlError,
    Step,
)

_STEP_COST: Final = 8
_COMPARISON_COST: Final = 64
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_TOKEN: Final = re.compile(
    r"""
      (?P<skip> [\x20\t\n\r\f]+ | --[^\n\r]*+(?:\r\n|\n|\r) | /\*.*?\*/ )
    | (?P<float> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> [1-9][0-9]*[lL]? | 0 )
    | (?P<text> '[^']*(?:''[^']*)*' )
    | (?P<word> [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<sign> <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
_SEARCHES: Final = {
    "CONTAINS": (Op.CONTAINS, Op.NOT_CONTAINS),
    "STARTSWITH": (Op.STARTS, Op.NOT_STARTS),
    "ENDSWITH": (Op.ENDS, Op.NOT_ENDS),
}
"""No keywords: a property may have such a name, as it may with RocketMQ 4.9."""
_COMPARISONS: Final = {">": Op.GREATER, ">=": Op.GREATER_EQUAL, "<": Op.LESS, "<=": Op.LESS_EQUAL}
_AFTER_OPERAND: Final = "an operator, AND, OR or the end"
_OPERAND: Final = "a property, a literal, NOT or '('"
_HINTS: Final = {
    "!": "'not equal' is written <>",
    '"': "texts stand in single quotes",
    "&": "write AND",
    "|": "write OR",
    "LIKE": "there is no LIKE: use CONTAINS, STARTSWITH or ENDSWITH, where the broker is MetaQ or RocketMQ 5",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic",
    "%": "there is no arithmetic",
    "+": "there is no arithmetic",
    "-": "there is no arithmetic",
    "=": "'equal' is written =",
}


class _Kind(enum.Enum):
    """What an expression is, as far as the rules for operands ask."""

    NUMBER = enum.auto()
    TEXT = enum.auto()
    TRUTH = enum.auto()
    """TRUE, FALSE or NULL."""
    PROPERTY = enum.auto()
    NEGATED = enum.auto()
    CONDITION = enum.auto()


class _Token(Struct, frozen=True):
    kind: str
    """float, integer, text, word, keyword, sign or end."""
    text: str
    """Of a keyword in capitals."""
    at: int


class _Part(Struct):
    """A part of the expression, compiled."""

    kind: _Kind
    steps: list[Step]
    at: int
    stack: int = 1


class SqlCompiler:
    """Goes through a text once. The lexer is lazy: what stands behind an end is not looked at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._names: dict[str, int] = {}
        self._depth = self._steps = self._searches = self._contains = 0
        self._never = ""
        self._at = 0
        self._next = self._scan()

    # -- tokens
    def _error(self, at: int, what: str) -> SqlError:
        before = self._text[:at].replace("\r\n", "\n").replace("\r", "\n")
        return SqlError(before.count("\n") + 1, len(before) - before.rfind("\n"), what)

    def _unexpected(self, expected: str) -> SqlError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(_short(self._text[token.at : token.at + len(token.text)]))
        hint = _HINTS.get(token.text.upper() if token.kind == "word" else token.text, "")
        return self._error(token.at, f"expected {expected}, found {found}{hint and ': ' + hint}")

    def _scan(self) -> _Token:
        text = self._text
        while True:
            if self._at >= len(text):
                return _Token("end", "", len(text))
            if self._at > self._last_line_end and text.startswith("--", self._at):
                self._at += 1  # No comment, which ends with its line; the rest is not searched for that at each dash.
                return _Token("sign", "-", self._at - 1)
            found = _TOKEN.match(text, self._at)
            if found is None:
                raise self._unreadable(self._at)
            start, self._at = self._at, found.end()
            kind = found.lastgroup or ""
            if kind == "skip":
                continue
            what = found.group()
            if kind == "word" and what.upper() in _KEYWORDS:
                return _Token("keyword", what.upper(), start)
            return _Token(kind, what, start)

    def _unreadable(self, at: int) -> SqlError:
        char = self._text[at]
        if char == "'":
            return self._error(at, "a text without its closing quote")
        if self._text.startswith("/*", at):
            return self._error(at, "a comment without its end */")
        hint = _HINTS.get(char, "")
        return self._error(at, f"{char!r} has no meaning here{hint and ': ' + hint}")

    def _advance(self) -> _Token:
        token, self._next = self._next, self._scan()
        return token

    def _take(self, kind: str, text: str) -> bool:
        if self._next.kind == kind and self._next.text == text:
            self._advance()
            return True
        return False

    def _require(self, kind: str, text: str) -> None:
        if not self._take(kind, text):
            raise self._unexpected(repr(text) if kind == "sign" else text)

    def _peek(self) -> _Token:
        """The token behind the next one."""
        at = self._at
        behind = self._scan()
        self._at = at
        return behind

    # -- grammar, lowest precedence first
    def program(self) -> Program:
        whole = self._condition(self._or())
        comment = self._text.startswith("--", self._next.at)  # behind the last line's end RocketMQ's lexer sees none
        if self._next.kind != "end" and not comment:
            raise self._unexpected(_AFTER_OPERAND)
        names = tuple(name.encode() for name in self._names)
        compared = sum(Op.EQUAL <= op <= Op.GREATER_EQUAL for op, _ in whole.steps)
        cost = _STEP_COST * len(whole.steps) + _COMPARISON_COST * compared + len(self._text) // 4
        return Program(self._text, names, tuple(whole.steps), whole.stack, cost, self._searches, self._never)

    def _or(self) -> _Part:
        left = self._and()
        while self._take("keyword", "OR"):
            left = self._logic(left, self._and, Op.OR_NEXT, Op.OR)
        return left

    def _and(self) -> _Part:
        left = self._equality()
        while self._take("keyword", "AND"):
            left = self._logic(left, self._equality, Op.AND_NEXT, Op.AND)
        return left

    def _logic(self, left: _Part, operand: Callable[[], _Part], skip: Op, op: Op) -> _Part:
        left = self._condition(left)
        return self._joined(left, self._condition(operand()), skip, op)

    def _equality(self) -> _Part:
        left = self._comparison()
        while True:
            if self._take("sign", "="):
                left = self._equal(left, self._comparison())
            elif self._take("sign", "<>"):
                left = self._extended(self._equal(left, self._comparison()), Op.NOT)
            elif self._take("keyword", "IS"):
                negated = self._take("keyword", "NOT")
                if not self._take("keyword", "NULL"):
                    raise self._unexpected("NULL" if negated else "NULL or NOT NULL")
                left = self._extended(left, Op.IS_NULL)
                if negated:
                    left = self._extended(left, Op.NOT)
            else:
                return left

    def _comparison(self) -> _Part:
        left = self._unary()
        while True:
            token = self._next
            negated = token.kind == "keyword" and token.text == "NOT"
            if negated:
                token = self._peek()
            word = token.text.upper() if token.kind == "word" else ""
            if token.kind == "sign" and token.text in _COMPARISONS and not negated:
                self._advance()
                left = self._compared(left, self._unary(), _COMPARISONS[token.text])
            elif (token.kind == "keyword" and token.text in {"BETWEEN", "IN"}) or word in _SEARCHES:
                for _ in range(1 + negated):
                    self._advance()
                if word:
                    left = self._search(left, word, negated=negated)
                elif token.text == "IN":
                    left = self._among(left, negated=negated)
                else:
                    left = self._between(left, negated=negated)
            else:
                return left

    def _unary(self) -> _Part:
        # They bind tightest in RocketMQ's grammar: `NOT a > 3` is `(NOT a) > 3`.
        prefixes = list[_Token]()
        while ((token := self._next).text in {"+", "-"} and token.kind == "sign") or self._is_not():
            prefixes.append(self._advance())
            self._deeper(token.at)
        part = self._primary()
        for prefix in reversed(prefixes):
            self._depth -= 1
            if prefix.text == "-":
                part = self._negated(part)
            elif prefix.text == "NOT":
                part = self._extended(self._condition(part), Op.NOT)
        return part

    def _is_not(self) -> bool:
        return self._next.kind == "keyword" and self._next.text == "NOT"

    def _primary(self) -> _Part:
        token = self._next
        if token.kind == "sign" and token.text == "(":
            self._advance()
            self._deeper(token.at)
            part = self._or()
            if not self._take("sign", ")"):
                raise self._unexpected("an operator, AND, OR or ')'")
            self._depth -= 1
            return part
        if token.kind == "keyword" and token.text in {"TRUE", "FALSE", "NULL"}:
            self._advance()
            return self._part(_Kind.TRUTH, Op[token.text], 0, token.at)
        if token.kind == "text":
            return self._part(_Kind.TEXT, Op.TEXT, self._literal("a text"), token.at)
        if token.kind in {"integer", "float"}:
            self._advance()
            number = self._integer(token) if token.kind == "integer" else self._float(token)
            op = Op.DOUBLE if isinstance(number, float) else Op.INT if number <= _INT_MAX else Op.LONG
            return self._part(_Kind.NUMBER, op, number, token.at)
        if token.kind == "word":
            self._advance()
            return self._part(_Kind.PROPERTY, Op.PROPERTY, self._name(token), token.at)
        raise self._unexpected(_OPERAND)

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(at, f"nested more than {DEPTH_MAX} deep, which is the limit")

    # -- operands
    def _name(self, token: _Token) -> int:
        number = self._names.setdefault(token.text, len(self._names))
        if number >= NAMES_MAX:
            raise self._error(token.at, f"the expression names more than {NAMES_MAX} properties, which is the limit")
        return number

    def _integer(self, token: _Token) -> int:
        digits = token.text.rstrip("lL")
        if len(digits) > len(str(_LONG_MAX)) or int(digits) > _LONG_MAX:
            raise self._error(token.at, f"the number {_short(digits)} is larger than {_LONG_MAX}, which is the limit")
        return int(digits)

    def _float(self, token: _Token) -> float:
        number = float(token.text)
        if number == float("inf"):
            raise self._error(token.at, f"the number {_short(token.text)} is larger than a double can be (1.8e308)")
        # RocketMQ refuses 0.0 as well, as if it were too small.
        if number == 0.0:
            raise self._error(
                token.at, f"the number {_short(token.text)} is smaller than the smallest double above 0; for 0 write 0"
            )
        return number

    def _literal(self, what: str) -> bytes:
        if self._next.kind != "text":
            raise self._unexpected(f"{what} in single quotes")
        return self._advance().text[1:-1].replace("''", "'").encode("utf-8", "surrogatepass")

    # -- parts
    def _part(self, kind: _Kind, op: Op, argument: Argument, at: int) -> _Part:
        self._count(1, at)
        return _Part(kind, [(int(op), argument)], at)

    def _extended(self, part: _Part, op: Op, argument: Argument = 0) -> _Part:
        self._count(1, part.at)
        part.steps.append((int(op), argument))
        part.kind = _Kind.CONDITION
        return part

    def _joined(self, left: _Part, right: _Part, skip: Op | None, op: Op) -> _Part:
        self._count(2, left.at)
        if skip is not None:
            left.steps.append((int(skip), len(right.steps) + 1))
        left.steps += right.steps
        left.steps.append((int(op), 0))
        left.stack, left.kind = max(left.stack, right.stack + 1), _Kind.CONDITION
        return left

    def _count(self, steps: int, at: int) -> None:
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise self._error(at, f"the expression has more than {STEPS_MAX} steps, which is the limit: shorten it")

    def _condition(self, part: _Part) -> _Part:
        """The part, which must be one that can be true."""
        if part.kind is _Kind.PROPERTY:
            self._never = self._never or str(
                self._error(part.at, "a property by itself is never true: compare it, such as paid = TRUE")
            )
            return self._extended(part, Op.CAST)
        if part.kind in {_Kind.CONDITION, _Kind.TRUTH}:
            return part
        raise self._error(part.at, "expected a condition, found a value: compare it with something")

    def _negated(self, part: _Part) -> _Part:
        op, value = part.steps[-1]
        if len(part.steps) == 1 and op in {Op.INT, Op.LONG, Op.DOUBLE}:
            assert isinstance(value, int | float)
            part.steps[-1] = op, -value
            part.kind = _Kind.NEGATED
            return part
        part = self._extended(part, Op.NEGATE)
        part.kind = _Kind.NEGATED
        return part

    def _equal(self, left: _Part, right: _Part) -> _Part:
        for part in (left, right):
            if part.kind is _Kind.TRUTH and part.steps[0][0] == Op.NULL:
                raise self._error(part.at, "nothing is equal to NULL: write IS NULL or IS NOT NULL")
        if left.kind is _Kind.TRUTH:
            if right.kind in {_Kind.NUMBER, _Kind.TEXT}:
                raise self._error(right.at, "expected a condition or a property, found a literal that is no boolean")
            if right.kind is _Kind.PROPERTY:
                self._never = self._never or str(
                    self._error(left.at, "TRUE and FALSE match nothing before '=': write them behind, such as a = TRUE")
                )
        return self._joined(left, right, None, Op.EQUAL)

    def _compared(self, left: _Part, right: _Part, op: Op) -> _Part:
        for part in (left, right):
            if part.kind not in {_Kind.NUMBER, _Kind.PROPERTY, _Kind.NEGATED}:
                raise self._error(part.at, "expected a number or a property: only numbers are less or greater")
        return self._joined(left, right, Op.IF_ANY, op)

    def _between(self, value: _Part, *, negated: bool) -> _Part:
        low = self._unary()
        self._require("keyword", "AND")
        high = self._unary()
        if not negated and low.kind is high.kind is _Kind.NUMBER and _is_more(_number(low), _number(high)):
            raise self._error(low.at, "BETWEEN from a larger number to a smaller one matches nothing")
        self._count(len(value.steps), value.at)
        # A copy: both comparisons need the value, and `_compared` takes its steps over.
        again = _Part(value.kind, list(value.steps), value.at, value.stack)
        if negated:
            return self._joined(
                self._compared(value, low, Op.LESS), self._compared(again, high, Op.GREATER), Op.OR_NEXT, Op.OR
            )
        return self._joined(
            self._compared(value, low, Op.GREATER_EQUAL),
            self._compared(again, high, Op.LESS_EQUAL),
            Op.AND_NEXT,
            Op.AND,
        )

    def _among(self, left: _Part, *, negated: bool) -> _Part:
        # As in RocketMQ, where only a property may stand before IN.
        if left.kind is not _Kind.PROPERTY:
            raise self._error(left.at, "expected a property before IN")
        self._require("sign", "(")
        texts = [self._literal("a text")]
        while self._take("sign", ","):
            texts.append(self._literal("a text"))
        if not self._take("sign", ")"):
            raise self._unexpected("',' or ')'")
        # Without repetitions: how the list is searched depends on its length.
        texts = list(dict.fromkeys(texts))
        self._searches += len(texts) > FEW_TEXTS
        return self._extended(left, Op.NOT_IN if negated else Op.IN, tuple(texts))

    def _search(self, left: _Part, word: str, *, negated: bool) -> _Part:
        at = self._next.at
        wanted = self._literal("a text")
        if not wanted:
            raise self._error(at, f"{word} '' matches nothing: name the text to look for")
        if word == "CONTAINS":
            self._contains += 1
            self._searches += 1
            if self._contains > CONTAINS_MAX:
                raise self._error(at, f"the expression has more than {CONTAINS_MAX} CONTAINS, which is the limit")
        return self._extended(left, _SEARCHES[word][negated], wanted)


def _number(part: _Part) -> int | float:
    value = part.steps[0][1]
    assert isinstance(value, int | float)
    return value


def _is_more(one: float, other: float) -> bool:
    """As doubles, if one of them is one."""
    return float(one) > float(other) if isinstance(one, float) or isinstance(other, float) else one > other


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} characters)"
