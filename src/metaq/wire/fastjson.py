"""JSON as RocketMQ's fastjson 1.x writes it, which is not always JSON.

Bodies and files of RocketMQ hold maps with bare integer keys, `{0:"a"}`, and maps whose keys are objects,
`{{"brokerName":"b","queueId":0,"topic":"T"}:5}`.

    loads        reads both, all of standard JSON, and what else fastjson's reader takes; `metaq.wire.beans` has its types
    dumps        writes strictly standard JSON
    dumps_java   writes the two odd forms, which Java's readers demand
    dumps_file   writes the tab-indented text of RocketMQ's configuration files

An object that is a key is a tuple of its (name, value) pairs, sorted by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

import msgspec

from metaq.errors import BadRequest
from metaq.in_pieces import InPieces

DEPTH_MAX = 64
NUMBER_CHARS_MAX = 40

ENTRIES_OF_A_PIECE = 32
"""Entries of a map that are encoded at once: some 0.2 ms."""

ObjectKey = tuple[tuple[str, Any], ...]

# fastjson skips comments, too.
_BLANK = re.compile(r"(?:[ \t\r\n\f\b]|//[^\n]*|/\*(?s:.)*?\*/)*")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9_+.$-]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NUMBER = re.compile(r"([+-]?)0*(\d+)(\.\d*)?([eE][+-]?\d+)?([LSBFD]?)\Z")
# Bare words that fastjson reads as values. NaN and undefined become null there, too.
_CONSTANTS = {"true": True, "false": False, "null": None, "NULL": None, "NaN": None, "undefined": None}
_ESCAPED = dict(zip("bfnrtv\"'\\/01234567", "\b\f\n\r\t\v\"'\\/\0\1\2\3\4\5\6\7", strict=True))
# fastjson reads a list behind these words as a Java Set.
_SETS = ("Set", "TreeSet")


def _decimal(text: str) -> Decimal:
    if len(text) > NUMBER_CHARS_MAX:
        raise BadRequest(f"JSON holds a number of {len(text)} characters, the limit is {NUMBER_CHARS_MAX}")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise BadRequest(f"JSON holds the number {text}, whose exponent is out of all bounds") from None


# Numbers with a fraction are Decimals, as they were written: fastjson makes a text of them where a Java field is a String.
_standard_decode = msgspec.json.Decoder(float_hook=_decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def loads(data: bytes | memoryview | str) -> Any:
    """Parse a text. Bare numbers as keys become int, objects as keys tuples, numbers with a fraction Decimal.

    Raises BadRequest: not even fastjson's JSON, nested deeper than 64, or a number longer than 40 characters.
    """
    try:
        # In one pass of native code; the parser below is far slower.
        return _standard_decode(data)  # nearly all texts
    except RecursionError:
        raise BadRequest(f"JSON is nested deeper than {DEPTH_MAX}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        # A byte order mark: editors put one into configuration files.
        text = data if isinstance(data, str) else bytes(data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    parser = _Parser(text.removeprefix("\ufeff"))
    value = parser.value(0)
    if parser.next_char():
        raise parser.error("nothing more after the value")
    return value


class _Parser:
    """A recursive-descent reader for what msgspec refuses. In Python: nearly all texts of clients are standard JSON."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def error(self, wanted: str) -> BadRequest:
        found = self._text[self._at : self._at + 20]
        return BadRequest(f"JSON broken at character {self._at}: need {wanted}, found {found!r}")

    def next_char(self) -> str:
        """Skip blanks and comments. Return the next character, not consumed; "" at the end."""
        match = _BLANK.match(self._text, self._at)
        if match:
            self._at = match.end()
        return self._text[self._at : self._at + 1]

    def value(self, depth: int) -> Any:
        # Python's own stack would end later, at a depth that differs by version, and inside our caller.
        if depth > DEPTH_MAX:
            raise BadRequest(f"JSON is nested deeper than {DEPTH_MAX}")
        char = self.next_char()
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        if char in ('"', "'"):
            return self._string()
        word = self._word()
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if word in _SETS and self.next_char() == "[":
            return self._array(depth)
        return self._number(word)

    def _object(self, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        self._at += 1
        if self._skipped_commas() == "}":
            self._at += 1
            return result
        while True:
            key = self._key(depth)
            if self.next_char() != ":":
                raise self.error("':'")
            self._at += 1
            # Of a name that comes twice the last value counts, as in fastjson.
            result[key] = self.value(depth + 1)
            if self._closed("}"):
                return result

    def _array(self, depth: int) -> list[Any]:
        result: list[Any] = []
        self._at += 1
        if self._skipped_commas() == "]":
            self._at += 1
            return result
        while True:
            result.append(self.value(depth + 1))
            if self._closed("]"):
                return result

    def _closed(self, bracket: str) -> bool:
        char = self.next_char()
        if char not in (",", bracket) or not char:
            raise self.error(f"',' or '{bracket}'")
        self._at += 1
        if char == "," and self._skipped_commas() == bracket:
            char = bracket
            self._at += 1
        return char == bracket

    def _skipped_commas(self) -> str:
        """Skip commas with nothing before or behind them, as fastjson does, and return the next character."""
        while (char := self.next_char()) == ",":
            self._at += 1
        return char

    def _key(self, depth: int) -> Any:
        char = self.next_char()
        if char in ('"', "'"):
            return self._string()
        if char == "{":
            return as_key(self.value(depth + 1))
        word = self._word()
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        return self._number(word) if word[0] in "0123456789+-" else word

    def _string(self) -> str:
        double = self._text[self._at] == '"'
        match = (_STRING if double else _SINGLE_QUOTED).match(self._text, self._at)
        if not match:
            raise self.error("a closing quote")
        self._at = match.end()
        inner = match.group(1)
        if "\\" not in inner:
            return inner
        plain = _ESCAPE.sub(self._unescaped, inner)
        # Java escapes a character beyond U+FFFF as two, one for each half of its surrogate pair.
        if re.search("[\ud800-\udfff]", plain):
            try:
                return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                raise self.error("whole characters in the string before, not half of a pair") from None
        return plain

    def _unescaped(self, match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in _ESCAPED:
            raise self.error("a valid escape in the string before")
        return _ESCAPED[code]

    def _word(self) -> str:
        match = _WORD.match(self._text, self._at)
        if not match:
            raise self.error("a value")
        self._at = match.end()
        return match.group()

    def _number(self, word: str) -> int | Decimal:
        # Before `int`, which takes quadratic time.
        if len(word) > NUMBER_CHARS_MAX:
            raise BadRequest(f"JSON holds a number of {len(word)} characters, the limit is {NUMBER_CHARS_MAX}")
        match = _NUMBER.match(word)
        if not match:
            raise BadRequest(f"JSON holds the bare word {word!r} where a value must stand")
        sign, digits, fraction, exponent, suffix = match.groups("")
        # Suffixes of Java's literals: F and D make a number with a fraction of it, L, S and B a whole one.
        if suffix in {"F", "D"} and not exponent:
            fraction = f".{fraction.strip('.') or '0'}"
        if fraction.strip(".") or exponent:
            return _decimal(f"{sign}{digits}{fraction}{exponent}")
        return int(sign + digits)


def as_key(value: Any) -> ObjectKey:
    """Return an object as a dictionary key. Raises BadRequest unless it is a flat object with names."""
    if not isinstance(value, dict) or any(
        not isinstance(name, str) or isinstance(part, dict | list) for name, part in value.items()
    ):
        raise BadRequest("JSON has a key that is no flat object")
    return tuple(sorted(value.items()))


def dumps(tree: Any) -> bytes:
    """Return strictly standard JSON, compact, integer keys quoted: what every client family reads."""
    return _encode(tree)


def dumps_java(tree: Any) -> bytes:
    """Return compact text with bare integer keys and objects as keys (tuples of pairs): what Java's tools read."""
    return _write(tree).encode()


def table_in_pieces(
    head: Mapping[str, Any], name: str, entries: Iterable[tuple[Any, Any]], dump: Callable[[Any], bytes] = dumps_java
) -> InPieces[bytes]:
    """Encode an object of `head` and, behind it, the map `name`, some of its entries at a time, as they are computed.

    Args: dump: `dumps` or `dumps_java`.
    """
    left, parts = iter(entries), []
    while some := dict(islice(left, ENTRIES_OF_A_PIECE)):
        parts.append(dump(some)[1:-1])
        yield
    before = dump({**head, name: {}})
    return before[:-2] + b",".join(parts) + b"}}"


def dumps_file(tree: Any) -> str:
    """Return the text of a configuration file: indented by tabs, maps with integer keys bare and in one line (RocketMQ
    4.9)."""
    return _write_pretty(tree, 0)


def file_entry(key: str, tree: Any, depth: int) -> str:
    """Return one entry of a map in a configuration file, `depth` maps down, for `file_map`."""
    return f"{_write_key(key)}:{_write_pretty(tree, depth)}"


def file_map(entries: Iterable[str], depth: int) -> str:
    """Return the text of a map, `depth` maps down, of entries of `file_entry`: what `dumps_file` writes for it.

    So a table of 50 000 topics is written anew from texts that are there, not from its values.
    """
    end = "\n" + "\t" * depth
    text = f",{end}\t".join(entries)
    return f"{{{end}\t{text}{end}}}" if text else "{}"


def _write(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return "{" + ",".join(f"{_write_key(key)}:{_write(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return "[" + ",".join(map(_write, tree)) + "]"
    return _encode(tree).decode()


def _write_key(key: Any) -> str:
    # An object as a key.
    if isinstance(key, tuple):
        return _write(dict(key))
    return _encode(key if isinstance(key, bool | int | Decimal | None) else str(key)).decode()


def _write_pretty(tree: Any, depth: int) -> str:
    if not isinstance(tree, Mapping) or not tree:
        return _write(tree)
    end = "\n" + "\t" * depth + "}"
    # As in RocketMQ's own files: bare keys, and all of them on one line.
    if all(isinstance(key, int) for key in tree):
        return "{" + ",".join(f"{key}:{_write(value)}" for key, value in tree.items()) + end
    indent = "\n" + "\t" * (depth + 1)
    lines = (f"{indent}{_write_key(key)}:{_write_pretty(value, depth + 1)}" for key, value in tree.items())
    return "{" + ",".join(lines) + end
