"""Address patterns of white lists, in RocketMQ's notation.

A pattern has 4 decimal parts joined by dots, or 8 hexadecimal ones by colons. A part is a number, `*` or a range `1-10`;
the last one may be a choice `{1,2,5}`. `::` stands for parts of zero. Patterns joined by commas match what any of them
matches, `*` alone matches every address, an empty text none.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

Part: TypeAlias = tuple[int, int]
"""Lowest and highest number of one part."""
Box: TypeAlias = tuple[Part, ...]
"""Of each part what matches: 4 of IPv4 or 8 of IPv6."""

EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
"""Each of these matches both families, as in RocketMQ."""
PATTERN_CHARS_MAX: Final = 4096
CHOICES_MAX: Final = 256
FOUND_MAX: Final = 4096
"""Addresses of which the answer is kept: connections come and go, a peer may send millions of requests."""

_V4, _V6 = 4, 8
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{1,4}")
_OUTSIDE_BRACES: Final = re.compile(r",(?![^{}]*\})")
_ANY: Final = "*"


class BadPattern(ValueError):
    """A text that is no address pattern. The error's text says why, and what to write instead."""


class AddressPattern(Struct, frozen=True):
    """One entry of a white list. Compared and shown by its text."""

    text: str
    boxes: tuple[Box, ...] = ()
    everybody: bool = False

    def matches(self, address: str) -> bool:
        """Return whether the address is meant; False for what is none, such as a host name."""
        return self.covers(parts_of(address))

    def covers(self, parts: tuple[int, ...]) -> bool:
        """Return the same for an address of which the parts are known (`parts_of`)."""
        if self.everybody:
            return bool(parts)
        return bool(self.boxes) and any(_inside(parts, box) for box in self.boxes)


NOBODY: Final = AddressPattern("")


class AddressList:
    """A white list. The time of a look-up does not depend on the number of single addresses; answers are kept."""

    def __init__(self, patterns: Iterable[AddressPattern]) -> None:
        self.patterns: Final = tuple(patterns)
        self._single = dict[tuple[int, ...], AddressPattern]()
        self._ranges = list[AddressPattern]()
        for pattern in self.patterns:
            singles = [_single(box) for box in pattern.boxes]
            if pattern.everybody or None in singles:
                self._ranges.append(pattern)
            else:
                self._single.update((address, pattern) for address in singles if address is not None)

        self.find: Final = functools.lru_cache(FOUND_MAX)(self._find)
        """Return a pattern that matches the address, or None."""

    def _find(self, address: str) -> AddressPattern | None:
        parts = parts_of(address)
        if not parts:
            return None
        found = self._single.get(parts)
        return found or next((pattern for pattern in self._ranges if pattern.covers(parts)), None)


@functools.lru_cache(FOUND_MAX)
def parts_of(address: str) -> tuple[int, ...]:
    """Return the 4 or 8 numbers of an address; () if it is none.

    An IPv4 address that a socket of IPv6 shows as `::ffff:10.0.0.1` is the IPv4 one, as for Java. A zone (`%eth0`) is ignored.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return tuple(int.from_bytes(found.packed[at : at + 2], "big") for at in range(0, 16, 2))
        found = found.ipv4_mapped
    return tuple(found.packed)


def parse_pattern(text: str) -> AddressPattern:
    """Parse an entry of a white list. Raises BadPattern."""
    if len(text) > PATTERN_CHARS_MAX:
        raise BadPattern(f"the address pattern has {len(text)} characters, the limit is {PATTERN_CHARS_MAX}")
    if not text.strip():
        return NOBODY
    if text.strip() in EVERYBODY:
        return AddressPattern(text, everybody=True)
    boxes = list[Box]()
    for piece in _OUTSIDE_BRACES.split(text):
        boxes += _boxes(piece.strip(), text)
        if len(boxes) > CHOICES_MAX:
            raise BadPattern(f"{_short(text)}: more than {CHOICES_MAX} addresses; write ranges, or several entries")
    return AddressPattern(text, tuple(boxes))


def _boxes(piece: str, whole: str) -> list[Box]:
    """What one of the patterns joined by commas matches."""
    if not piece:
        raise BadPattern(f"{_short(whole)}: nothing stands before or after a comma")
    if piece in EVERYBODY:
        raise BadPattern(f"{_short(whole)}: '*' matches every address, and must stand alone")
    if "/" in piece:
        raise BadPattern(f"{_short(piece)}: networks are not written with '/'; write 10.0.*.* or 2001:db8:*")
    if "%" in piece:
        raise BadPattern(f"{_short(piece)}: a zone after '%' cannot be told apart here; leave it out")
    if "{" in piece or "}" in piece:
        return [_box(single) for single in _choices(piece)]
    return [_box(piece)]


def _choices(piece: str) -> list[str]:
    head, brace, tail = piece.partition("{")
    choice, end, rest = tail.partition("}")
    if not brace or not end or rest or "{" in choice or not head.endswith((".", ":")):
        raise BadPattern(f"{_short(piece)}: a choice is written as the last part only, as in 10.0.0.{{1,2}}")
    return [head + one.strip() for one in choice.split(",")]


def _box(piece: str) -> Box:
    if ":" in piece:
        return _box_v6(piece)
    parts = piece.split(".")
    if parts[-1] == _ANY and 1 < len(parts) < _V4:
        parts += [_ANY] * (_V4 - len(parts))
    if len(parts) != _V4:
        raise BadPattern(f"{_short(piece)} is not an IP address: {len(parts)} parts, IPv4 has {_V4}")
    return tuple(_part(part, piece, _DECIMAL, 10, 255) for part in parts)


def _box_v6(piece: str) -> Box:
    if "." in piece:  # only as in ::ffff:10.0.0.1
        parts = parts_of(piece)
        if not parts:
            raise BadPattern(f"{_short(piece)} is not an IP address")
        return tuple((part, part) for part in parts)
    if piece.count("::") > 1 or ":::" in piece:
        raise BadPattern(f"{_short(piece)}: '::' may stand once")
    before, zeros, after = piece.partition("::")
    head, tail = (side.split(":") if side else [] for side in (before, after))
    if zeros:
        if len(head) + len(tail) >= _V6:
            raise BadPattern(f"{_short(piece)}: '::' leaves no part out")
        head += ["0"] * (_V6 - len(head) - len(tail)) + tail
    elif len(head) < _V6 and (head[-1] == _ANY or "-" in head[-1]):
        head += [_ANY] * (_V6 - len(head))  # RocketMQ compares the beginnings only
    if len(head) != _V6:
        raise BadPattern(f"{_short(piece)} is not an IP address: {len(head)} parts, IPv6 has {_V6}")
    box = tuple(_part(part, piece, _HEXADECIMAL, 16, 0xFFFF) for part in head)
    address = _single(box)
    if address is not None and address[:6] == (0, 0, 0, 0, 0, 0xFFFF):
        return tuple((byte, byte) for part in address[6:] for byte in divmod(part, 256))
    return box


def _part(part: str, piece: str, rule: re.Pattern[str], base: int, most: int) -> Part:
    if part == _ANY:
        return 0, most
    low, dash, high = part.partition("-")
    ends = (low, high) if dash else (low, low)
    if not all(rule.fullmatch(end) for end in ends):
        hint = ": no leading zeros, which some read as octal" if part.startswith("0") and part.isdecimal() else ""
        raise BadPattern(f"{_short(piece)}: {_short(part)} is no part of an IP address{hint}")
    first, last = (int(end, base) for end in ends)
    if max(first, last) > most:
        raise BadPattern(f"{_short(piece)}: {_short(part)} is above {most if base == 10 else 'ffff'}")
    if first > last:
        raise BadPattern(f"{_short(piece)}: the range {_short(part)} ends before it begins")
    return first, last


def _inside(parts: tuple[int, ...], box: Box) -> bool:
    return len(parts) == len(box) and all(low <= part <= high for part, (low, high) in zip(parts, box, strict=True))


def _single(box: Box) -> tuple[int, ...] | None:
    """The address that a box is, if it is a single one."""
    return tuple(low for low, _ in box) if all(low == high for low, high in box) else None


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
