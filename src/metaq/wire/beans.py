"""Parsed JSON read as fastjson 1.2 fills a Java object with it: by the type that is wanted, not by the type that came.

Clients were written against that leniency: numbers come as texts, booleans as "Y", one object where a list is wanted.
The rules are those of fastjson 1.2.69, the version that RocketMQ 4.9 brings, and hold for every body and configuration
file; `tests/wire/fastjson_vectors.json` is what it did itself. Three things differ on purpose. A number beyond its type
is refused, where Java keeps the low bits of some. Texts of dates are no numbers. A number is read up to 40 characters.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar

from metaq.errors import BadRequest
from metaq.wire import fastjson
from metaq.wire.fastjson import NUMBER_CHARS_MAX

T = TypeVar("T")

# `\Z` and not `$`, here and below: `$` also matches before a line feed at the end.
_WHOLE = re.compile(r"[+-]?\d+\Z")
_TRAILING_ZEROS = re.compile(r"\.0*\Z")
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*\Z")
_NULLS: Final = ("", "null", "NULL")
"""Texts that fastjson reads as null where a number or a boolean is wanted."""
_TRUE: Final = ("true", "1", "y", "T")
_FALSE: Final = ("false", "0", "f", "N")
"""Words in small letters match capitals too; those in capitals do not match small ones: "t" and "n" are refused."""


_LOWEST: Final = {bits: -(1 << bits - 1) for bits in (32, 64)}


_SHORT: Final = reprlib.Repr()
"""Writes the beginning of what a peer sent: neither deep nor long."""
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 60, 60, 60


class Mismatch(ValueError):
    """A value that cannot be converted to the wanted type; the text says what is wanted. The caller adds the field's
    name."""


# -------------------------------------------------------------------- single values: None stands for "not given"


def whole(value: Any, bits: int = 64) -> int | None:
    """Return a whole number of `bits` bits with sign, None for null. A fraction is cut off. Raises Mismatch."""
    need = f"a whole number of {bits} bits"
    if isinstance(value, bool):
        # fastjson takes true for an int and refuses it for a long.
        if bits > 32:
            raise Mismatch(need)
        value = int(value)
    elif isinstance(value, str):
        text = _number_text(value, need)
        if text is None:
            return None
        # fastjson cuts ".0" off a text for an int, and does not for a long.
        if bits == 32:
            text = _TRAILING_ZEROS.sub("", text)
        if not _WHOLE.match(text):
            raise Mismatch(need)
        value = int(text)
    elif isinstance(value, float | Decimal):
        value = _truncated(value, need)
    if value is None:
        return None
    if not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise Mismatch(need)
    return value


def boolean(value: Any) -> bool | None:
    """Return a boolean, of true, false, 1 (any other number is false) or a text ("true", "1", "Y", "T"). Raises
    Mismatch."""
    need = "true or false"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value in _NULLS:
            return None
        for words, meaning in ((_TRUE, True), (_FALSE, False)):
            if value in words or value.lower() in words:
                return meaning
        raise Mismatch(need)
    if isinstance(value, float | Decimal):
        return _truncated(value, need) == 1
    if isinstance(value, int) and -(1 << 31) <= value < 1 << 31:
        return value == 1
    raise Mismatch(need)


def decimal(value: Any) -> float | None:
    """Return a float. Raises Mismatch, also for a number that a double cannot hold."""
    need = "a number"
    if isinstance(value, str):
        text = _number_text(value, need)
        if text is None:
            return None
        if not _NUMBER.match(text):
            raise Mismatch(need)
        value = text
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise Mismatch(need)
    try:
        number = float(value)
    except (OverflowError, ValueError):  # 10**400; a signalling NaN
        raise Mismatch(need) from None
    if number - number != 0:  # infinite, or not a number
        raise Mismatch(need)
    return number


def text(value: Any) -> str | None:
    """Return a text; of anything else the JSON that stood there. Raises Mismatch for JSON that is nested too deep to
    write."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    try:
        # In fastjson's own form: the text is to be what stood there.
        return fastjson.dumps_java(value).decode()
    except RecursionError:
        raise Mismatch("a text") from None


def enum(value: Any, names: Sequence[str]) -> str | None:
    """Return one of `names`, found by name (capitals or not) or ordinal. An unknown name is None. Raises Mismatch."""
    if value is None:
        return None
    if isinstance(value, str):
        lowered = value.lower()
        return next((name for name in names if name.lower() == lowered), None)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    raise Mismatch(f"one of {', '.join(names)}")


def _number_text(value: str, need: str) -> str | None:
    """Return the text of a number without the commas that group its digits; None for null."""
    if value in _NULLS:
        return None
    # Before any conversion: `int` takes quadratic time, and a peer may send megabytes.
    if len(value) > NUMBER_CHARS_MAX:
        raise Mismatch(need)
    return value.replace(",", "")


def _truncated(value: float | Decimal, need: str) -> int:
    # By Decimal: a double above 2^53 would lose digits on its way.
    number = Decimal(value)
    if not number.is_finite() or number.adjusted() >= NUMBER_CHARS_MAX:  # 1e400000000 is short to write
        raise Mismatch(need)
    return int(number)


# -------------------------------------------------------------------- values that know their path, for errors


def parse(data: bytes | memoryview | str, what: str) -> Value:
    """Parse the object in a body or file; `what` names it in errors. Raises BadRequest: unreadable, or no object."""
    try:
        tree = fastjson.loads(data)
    except BadRequest as error:
        raise BadRequest(f"the {what} cannot be read: {error}") from None
    if not isinstance(tree, dict):
        raise BadRequest(f"the {what} is {type(tree).__name__}, need a JSON object")
    return Value(tree, f"the {what}")


class Value:
    """A parsed value with its path, which every error names: `the heartbeat: consumerDataSet[0].groupName`.

    Readers with a default return it for null and for a missing field. All raise BadRequest for what fastjson does not
    convert.
    """

    __slots__ = ("_folded", "name", "parent", "tree")

    def __init__(self, tree: Any, name: str | tuple[Any], parent: Value | None = None) -> None:
        """
        Args:
            tree: the parsed value.
            name: name of the body; with a leading `.`, of a field of `parent`; in a tuple, a key or index in `parent`.
        """
        self.tree, self.name, self.parent = tree, name, parent
        self._folded: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        name = self.name if isinstance(self.name, str) else f"[{_SHORT.repr(self.name[0]):.60}]"
        if self.parent is None:
            return name
        return self.parent.path + (": " + name.lstrip(".") if self.parent.parent is None else name)

    # -- single values
    def whole(self, default: int = 0, bits: int = 64) -> int:
        found = self.read(whole, bits)
        return default if found is None else found

    def given_whole(self, bits: int = 64) -> int:
        """Return a number that must not be null."""
        found = self.read(whole, bits)
        if found is None:
            raise self.wrong(f"a whole number of {bits} bits")
        return found

    def boolean(self, *, default: bool = False) -> bool:
        found = self.read(boolean)
        return default if found is None else found

    def decimal(self, default: float = 0.0) -> float:
        found = self.read(decimal)
        return default if found is None else found

    def text(self, default: str = "") -> str:
        found = self.read(text)
        return default if found is None else found

    def text_or_none(self) -> str | None:
        return self.read(text)

    def enum(self, names: Sequence[str], default: str) -> str:
        return self.read(enum, names) or default

    # -- objects
    def __getitem__(self, field: str) -> Value:
        """Return a field of an object; null, "" and [] count as an object without fields.

        The field is found by its own name, else by one that differs only in capitals, `_`, `-` and a leading `is`.
        """
        tree = self.tree
        if not isinstance(tree, dict):
            if tree is not None and tree not in ("", []):
                raise self.wrong("an object")
            return Value(None, f".{field}", self)
        # A field whose value is null is there: no similar one takes its place.
        found = tree.get(field)
        if found is None and field not in tree:
            found = self._similar(field)
        return Value(found, f".{field}", self)

    def _similar(self, field: str) -> Any:
        if self._folded is None:
            self._folded = {}
            for name, value in self.tree.items():
                if isinstance(name, str):
                    # The first of two similar names counts.
                    self._folded.setdefault(_fold(name), value)
        folded = _fold(field)
        return self._folded.get(folded, self._folded.get(f"is{folded}"))

    def has(self, field: str) -> bool:
        """Return whether an object has a field of exactly this name."""
        return isinstance(self.tree, dict) and field in self.tree

    # The same for a field, without making a Value where the wanted type came: a registration of 10 000 topics has 70 000 fields.
    def whole_in(self, field: str, default: int = 0, bits: int = 64) -> int:
        found = self.tree.get(field) if type(self.tree) is dict else None
        # `type` and not `isinstance`: True is an int, too.
        if type(found) is int and _LOWEST[bits] <= found < -_LOWEST[bits]:
            return found
        return self[field].whole(default, bits)

    def boolean_in(self, field: str, *, default: bool = False) -> bool:
        found = self.tree.get(field) if type(self.tree) is dict else None
        return found if type(found) is bool else self[field].boolean(default=default)

    def text_in(self, field: str, default: str = "") -> str:
        found = self.tree.get(field) if type(self.tree) is dict else None
        return found if type(found) is str else self[field].text(default)

    def enum_in(self, field: str, names: Sequence[str], default: str) -> str:
        found = self.tree.get(field) if type(self.tree) is dict else None
        return found if type(found) is str and found in names else self[field].enum(names, default)

    # -- lists
    def elements(self) -> list[Value]:
        """Return the elements of a list; null has none."""
        if self.tree is None:
            return []
        if not isinstance(self.tree, list):
            raise self.wrong("a list")
        return [Value(item, (at,), self) for at, item in enumerate(self.tree)]

    def objects(self) -> list[Value]:
        """Return the elements of a list of objects, without nulls; a single object is a list of one."""
        if isinstance(self.tree, dict):
            return [self]
        return [item for item in self.elements() if item.tree is not None and item.tree not in ("", [])]

    def texts(self, *, single: bool = False) -> list[str]:
        """Return a list of texts, without nulls. `single`: a bare element counts as a list of one: so for a Java List,
        not for a Set."""
        if single and self.tree is not None and not isinstance(self.tree, list):
            return [self.text()]
        if type(self.tree) is list and all(type(item) is str for item in self.tree):
            return self.tree.copy()
        return [found for item in self.elements() if (found := item.text_or_none()) is not None]

    def wholes(self, bits: int = 64) -> list[int]:
        """Return a list of whole numbers, without nulls."""
        low = _LOWEST[bits]
        if type(self.tree) is list and all(type(item) is int and low <= item < -low for item in self.tree):
            return self.tree.copy()
        return [found for item in self.elements() if (found := item.read(whole, bits)) is not None]

    # -- maps
    def entries(self, *, nulls: bool = False) -> Iterator[tuple[Value, Value]]:
        """Yield keys and values of a map whose keys are data; null has none.

        `nulls`: leave null keys and values out, as some maps of RocketMQ may hold them; else they are a BadRequest.
        """
        if self.tree is None:
            return
        if not isinstance(self.tree, dict):
            raise self.wrong("an object")
        for key, item in self.tree.items():
            value = Value(item, (key,), self)
            # fastjson makes a null of such an object, and RocketMQ's tables are mostly ConcurrentHashMaps, which take
            # none.
            if not nulls and (key is None or item is None or item in ("", [])):
                raise value.wrong("a key and a value that are not null")
            if key is None or item is None:
                continue
            yield Value(key, " (a key)", self), value

    def key(self) -> str:
        """Return a key of a map that is a name. Bare numbers are refused."""
        if isinstance(self.tree, bool):
            return str(self.tree).lower()
        if not isinstance(self.tree, str):
            raise self.wrong("a name in quotes")
        return self.tree

    # -- how
    def wrong(self, need: str) -> BadRequest:
        """Return the error for this value."""
        return BadRequest(f"{self.path} is {_SHORT.repr(self.tree):.60}, need {need}")

    def read(self, convert: Callable[..., T | None], *arguments: Any) -> T | None:
        """Convert the value by one of the functions above. Raises BadRequest where that raises Mismatch."""
        try:
            return convert(self.tree, *arguments)
        except Mismatch as error:
            raise self.wrong(str(error)) from None


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
