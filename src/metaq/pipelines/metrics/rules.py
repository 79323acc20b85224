"""Alert rules: `lag_seconds{group=billing, topic~"orders-*"} > 60 for 3`

    rules   = rule { ";" rule }
    rule    = column [ "{" [ label { "," label } ] "}" ] operator number [ "for" windows ]
    label   = name ( "=" | "!=" | "~" | "!~" ) value         ~ takes a glob: * ? [...]
    value   = a word, or a text in double quotes, in which \\" and \\\\ stand for " and \\
    operator = ">" | ">=" | "<" | "<=" | "==" | "!="

`column` is one of the figures of a window (`metaq.pipelines.metrics.figures`), `name` is topic, group or broker. A rule holds for
a series once its condition was true in so many consecutive windows; without `for`, in one.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.pipelines.metrics.figures import LABELS, METRIC_OF

FOR_MAX = 1000
"""Most windows that a rule may ask for."""
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_MATCHES = ("!=", "!~", "=", "~")
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\["\\])*")|(?P<sign>>=|<=|==|!=|!~|[{},;<>=~])|(?P<word>[^\s{},;<>=~!"]+))"""
)


class Label(Struct, frozen=True):
    """Condition on one label of a series."""

    name: str
    how: str
    """One of `=`, `!=`, `~` and `!~`."""
    value: str

    def fits(self, found: str) -> bool:
        same = fnmatch.fnmatchcase(found, self.value) if self.how.endswith("~") else found == self.value
        return same != self.how.startswith("!")


class Rule(Struct, frozen=True):
    """One condition on the windows of each series that matches its labels."""

    column: str
    labels: tuple[Label, ...]
    comparison: str
    threshold: float
    windows: int = 1

    @property
    def metric(self) -> str:
        """Metric that has the column."""
        return METRIC_OF[self.column]

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return whether it applies to a series with these labels."""
        return all(label.fits(labels.get(label.name, "")) for label in self.labels)

    def holds(self, value: float | None) -> bool:
        """Return whether the condition is true for a window's value; False for None."""
        return value is not None and OPERATORS[self.comparison](value, self.threshold)

    def __str__(self) -> str:
        """Return the canonical text of the rule: equal rules have equal texts."""
        labels = ", ".join(f"{one.name}{one.how}{_quoted(one.value)}" for one in self.labels)
        times = f" for {self.windows}" if self.windows > 1 else ""
        number = int(self.threshold) if self.threshold.is_integer() else self.threshold
        return f"{self.column}{f'{{{labels}}}' if labels else ''} {self.comparison} {number}{times}"


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the rules of a `;`-separated text; empty ones are skipped.

    Raises: ConfigError: malformed; the text has the position (the first character is 1).
    """
    return _Parser(text).rules()


class _Token(NamedTuple):
    kind: str
    """text, sign, word or end."""
    value: str
    place: int


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            what = "the text in quotes does not end" if text[place] == '"' else f"{text[place]!r} means nothing here"
            raise _wrong(text, place, what)
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", len(text.rstrip()))]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._at = text, _tokens(text), 0

    def rules(self) -> tuple[Rule, ...]:
        found: list[Rule] = []
        while self._next.kind != "end":
            if not self._took(";"):
                found.append(self._rule())
                if self._next.kind != "end" and not self._took(";"):
                    raise self._wrong("need `;` between two rules, or `for` and a number of windows")
        return tuple(found)

    def _rule(self) -> Rule:
        column = self._take("word", f"need a figure, such as {', '.join(sorted(METRIC_OF)[:3])}")
        if column.value not in METRIC_OF:
            near = difflib.get_close_matches(column.value, METRIC_OF, n=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise _wrong(self._text, column.place, f"there is no figure {column.value}{hint}")
        labels = self._labels(METRIC_OF[column.value]) if self._took("{") else ()
        sign = self._take("sign", f"need one of {' '.join(OPERATORS)}")
        if sign.value not in OPERATORS:
            raise _wrong(self._text, sign.place, f"need one of {' '.join(OPERATORS)} here, not {sign.value}")
        number = self._take("word", f"need a number after {sign.value}")
        windows = 1
        if self._next == ("word", "for", self._next.place):
            self._at += 1
            windows = self._windows()
        return Rule(column.value, labels, sign.value, self._number(number), windows)

    def _labels(self, metric: str) -> tuple[Label, ...]:
        found: list[Label] = []
        while not self._took("}"):
            if found and not self._took(","):
                raise self._wrong("need `,` or `}` behind a label")
            name = self._take("word", "need a label: topic, group or broker")
            if name.value not in LABELS[metric]:
                raise _wrong(
                    self._text, name.place, f"{metric} has no label {name.value}; it has {', '.join(LABELS[metric])}"
                )
            how = self._take("sign", f"need one of {' '.join(_MATCHES)}")
            if how.value not in _MATCHES:
                raise _wrong(self._text, how.place, f"need one of {' '.join(_MATCHES)} here, not {how.value}")
            found.append(Label(name.value, how.value, self._value()))
        return tuple(found)

    def _value(self) -> str:
        token = self._next
        if token.kind not in {"text", "word"}:
            raise self._wrong('need a value: a word, or a text in "quotes"')
        self._at += 1
        return re.sub(r'\\(["\\])', r"\1", token.value[1:-1]) if token.kind == "text" else token.value

    def _number(self, token: _Token) -> float:
        try:
            value = float(token.value)
        except ValueError:
            value = math.nan
        # `nan` and `inf` are floats to Python, and no threshold.
        if not math.isfinite(value):
            raise _wrong(self._text, token.place, f"{token.value!r} is no number")
        return value

    def _windows(self) -> int:
        token = self._take("word", "need a number of windows after `for`")
        # Nine digits decide: int refuses texts of more than 4300.
        if not (token.value.isascii() and token.value.isdigit() and 1 <= int(token.value[:9]) <= FOR_MAX):
            raise _wrong(self._text, token.place, f"need a number of windows from 1 to {FOR_MAX}, not {token.value!r}")
        return int(token.value)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _took(self, sign: str) -> bool:
        taken = (self._next.kind, self._next.value) == ("sign", sign)
        self._at += taken
        return taken

    def _take(self, kind: str, need: str) -> _Token:
        if self._next.kind != kind:
            raise self._wrong(need)
        self._at += 1
        return self._tokens[self._at - 1]

    def _wrong(self, need: str) -> ConfigError:
        token = self._next
        found = "but the text ends here" if token.kind == "end" else f"not {token.value}"
        return _wrong(self._text, token.place, f"{need}, {found}")


def _wrong(text: str, place: int, what: str) -> ConfigError:
    begin = max(0, place - 30)
    return ConfigError(f"rules, character {place + 1} ({text[begin:place]}▸{text[place : place + 20]}): {what}")


def _quoted(value: str) -> str:
    if re.fullmatch(r"""[^\s{},;<>=~!"]+""", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
