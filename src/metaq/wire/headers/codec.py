"""Typed headers to `extFields` and back.

A field's wire name is its Python name in camelCase unless `field(name=...)` says otherwise. A field without a default
must be there; None is not sent. Fields that the class does not have are passed over, as every RocketMQ endpoint does.
Numbers are bounded to their Java type, and their digits are counted before they are converted.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import fields

from metaq.errors import BadRequest


class _Bits(NamedTuple):
    width: int

    def holds(self, value: int) -> bool:
        return -(1 << (self.width - 1)) <= value < 1 << (self.width - 1)


Int = Annotated[int, _Bits(32)]
"""Java's int."""
Long = Annotated[int, _Bits(64)]
"""Java's long."""

# Java's Long.parseLong takes leading zeros, so more characters than the 20 of a long's digits and sign.
_NUMBER_CHARS_MAX = 32
# C++ (librocketmq 2.x) sends the batch flag `m` as 1; Java and Go send true.
_TRUE = {"true", "1"}


class Item(NamedTuple):
    """One field of a header class: its attribute, name on the wire, type and bounds."""

    attribute: str
    wire_name: str
    kind: type
    bits: _Bits
    required: bool


class Header(Struct, kw_only=True, rename="camel"):
    """Base of the typed headers."""

    def to_ext(self) -> dict[str, str]:
        """Return the fields as `extFields`: decimal numbers, `true`/`false`, None left out."""
        ext: dict[str, str] = {}
        for attribute, name, kind, _, _ in items(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = value if kind is str else _plain(value) if kind is bool else str(value)
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header in `extFields`. Raises BadRequest, which names the field and its value."""
        return cls(**read_items(items(cls), ext))


def _plain(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def items(cls: type[Header]) -> tuple[Item, ...]:
    """Return the fields of a header class, worked out at its first use."""
    known = _ITEMS.get(cls)
    if known is None:
        known = _ITEMS[cls] = _work_out(cls)
    return known


_ITEMS: dict[type[Header], tuple[Item, ...]] = {}


def _work_out(cls: type[Header]) -> tuple[Item, ...]:
    return tuple(Item(one.name, one.encode_name, *_kind(one.type), one.required) for one in fields(cls))


def _kind(hint: Any) -> tuple[type, _Bits]:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[0], typing.get_args(hint)[1]
    # Optional fields are bounded like the others.
    if options and not isinstance(hint, type):  # X | None
        return _kind(options[0])
    return hint, _Bits(64)


def read_items(wanted: tuple[Item, ...], ext: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute, name, kind, bits, required in wanted:
        text = ext.get(name)
        if text is None:
            if required:
                raise BadRequest(f"the request lacks the field {name}")
        elif kind is str:
            values[attribute] = text
        elif kind is int:
            values[attribute] = _whole(name, text, bits)
        elif kind is bool:
            # Anything else is false, as Java's `Boolean.parseBoolean` has it.
            values[attribute] = text.lower() in _TRUE
        else:
            values[attribute] = _real(name, text)
    return values


def _whole(name: str, text: str, bits: _Bits) -> int:
    try:
        # The length first: int() takes quadratic time, and a peer may send a megabyte of digits. `_` is Python's alone.
        if len(text) > _NUMBER_CHARS_MAX or "_" in text:
            raise ValueError  # noqa: TRY301  one place says what is wrong
        value = int(text)
    except ValueError:
        raise BadRequest(f"the field {name}={text[:40]!r} is not a whole number") from None
    if not bits.holds(value):
        raise BadRequest(f"the field {name}={value} does not fit {bits.width} bits")
    return value


def _real(name: str, text: str) -> float:
    try:
        if len(text) > _NUMBER_CHARS_MAX:
            raise ValueError  # noqa: TRY301  one place says what is wrong
        return float(text)
    except ValueError:
        raise BadRequest(f"the field {name}={text[:40]!r} is not a number") from None
