"""SQL filters, the pure-Python fallback: a compiled expression on the property text of a record. Contract:
__init__.pyi."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from metaq.model.filters.sql import Argument, Op, Program
from metaq.wire.hot.numbers import NoNumber, java_double, java_integer

Value = bool | int | float | bytes | None


class Condition:
    """A compiled expression."""

    __slots__ = ("__weakref__", "_steps", "program")

    def __init__(self, program: Program) -> None:
        self.program = program
        self._steps = [
            (Op(op), frozenset(argument) if isinstance(argument, tuple) else argument) for op, argument in program.steps
        ]

    def matches(self, properties: bytes) -> bool:
        try:
            return self._run(property_table(properties)) is True
        except NoNumber:
            return False

    def _run(self, table: Mapping[bytes, bytes]) -> Value:
        names, steps, at = self.program.names, self._steps, 0
        stack = list[Value]()
        while at < len(steps):
            op, argument = steps[at]
            at += 1
            if op is Op.PROPERTY:
                assert isinstance(argument, int)
                stack.append(table.get(names[argument]))
            elif op <= Op.TEXT:
                assert not isinstance(argument, frozenset)
                stack.append(_constant(op, argument))
            elif op in _SKIPS:
                assert isinstance(argument, int)
                at += argument * _is_settled(op, stack[-1])
            elif op in _BINARY:
                right = stack.pop()
                stack[-1] = _binary(op, stack[-1], right)
            else:
                stack[-1] = _unary(op, stack[-1], argument)
        (result,) = stack
        return result


_SKIPS: Final = frozenset({Op.AND_NEXT, Op.OR_NEXT, Op.IF_ANY})
_BINARY: Final = frozenset({Op.AND, Op.OR, Op.EQUAL, Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL})


def _constant(op: Op, argument: Argument) -> Value:
    if op is Op.NULL:
        return None
    if op in {Op.TRUE, Op.FALSE}:
        return op is Op.TRUE
    assert not isinstance(argument, tuple)
    return Long(argument) if op is Op.LONG else argument


class Long(int):
    """An integer of 64 bits, whatever its size: a text is compared with it as one."""


def _is_settled(op: Op, value: Value) -> bool:
    return value is None if op is Op.IF_ANY else value is (op is Op.OR_NEXT)


def _unary(op: Op, value: Value, argument: Argument | frozenset[bytes]) -> Value:
    if op is Op.NEGATE:
        return None
    if op is Op.IS_NULL:
        return value is None
    if op is Op.NOT:
        return None if value is None else not value
    if op is Op.CAST:
        return None if value is None else value is True
    if op in {Op.IN, Op.NOT_IN}:
        assert isinstance(argument, frozenset)
        return (value in argument) is (op is Op.IN) if isinstance(value, bytes) else None
    if not isinstance(value, bytes):
        return False
    assert isinstance(argument, bytes)
    if op in {Op.CONTAINS, Op.NOT_CONTAINS}:
        found = argument in value
    elif op in {Op.STARTS, Op.NOT_STARTS}:
        found = value.startswith(argument)
    else:
        found = value.endswith(argument)
    return found is (op in {Op.CONTAINS, Op.STARTS, Op.ENDS})


def _binary(op: Op, left: Value, right: Value) -> Value:
    if op in {Op.AND, Op.OR}:
        settled = op is Op.OR
        if right is settled:
            return settled
        return None if left is None or right is None else not settled
    if op is Op.EQUAL:
        if left is None or right is None:
            return True if left is right else None if left is None else False
        if isinstance(left, bytes) and isinstance(right, bytes):
            return left == right
        return _compare(left, right) == 0
    if left is None or right is None:
        return None
    if isinstance(left, bytes) and isinstance(right, bytes):
        # RocketMQ compares two texts as texts for =, but as doubles for < and >.
        left, right = java_double(left), java_double(right)
    order = _compare(left, right)
    if op is Op.LESS:
        return order < 0
    if op is Op.LESS_EQUAL:
        return order <= 0
    return order > 0 if op is Op.GREATER else order >= 0


def _compare(left: bool | float | bytes, right: bool | float | bytes) -> int:
    """Below 0, 0, above 0. A text becomes what the other one is."""
    if isinstance(left, bool) and isinstance(right, bytes):
        raise NoNumber  # RocketMQ fails on it too
    if isinstance(left, bytes):
        left = _like(left, right)
    elif isinstance(right, bytes):
        right = _like(right, left)
    assert not isinstance(left, bytes)
    assert not isinstance(right, bytes)
    if isinstance(left, bool) or isinstance(right, bool):
        # RocketMQ's order knows of booleans only whether they are the same.
        return 0 if left is right else -1
    if isinstance(left, float) or isinstance(right, float):
        one, other = _rank(float(left)), _rank(float(right))
        return (one > other) - (one < other)
    return (left > right) - (left < right)


def _like(text: bytes, other: bool | float | bytes) -> bool | float:
    if isinstance(other, bool):
        # Java's parseBoolean takes every other text for false.
        return text.lower() == b"true"
    if isinstance(other, float):
        return java_double(text)
    return java_integer(text, long=isinstance(other, Long))


def _rank(number: float) -> int:
    """Numbers in Java's order of doubles: -0.0 before 0.0, what is no number behind all, and equal to itself."""
    if number != number:  # noqa: PLR0124
        return (1 << 63) - 1
    bits: int = struct.unpack(">q", struct.pack(">d", number))[0]
    return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF) - 1


def property_table(properties: bytes) -> dict[bytes, bytes]:
    """Properties by name; the last of a name counts, and what has no name or no value is none."""
    table = dict[bytes, bytes]()
    for piece in properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        # RocketMQ also drops pairs with an empty name or value.
        if name and value:
            table[name] = value
    return table
