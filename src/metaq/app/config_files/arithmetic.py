"""Arithmetic in a server.ini: `maxSegmentSize=1024*1024*1024`."""

from __future__ import annotations

import ast
from typing import Final

from metaq.errors import ConfigError

_LARGEST: Final = 2**63


def calculate(text: str) -> int:
    """Return the value of an expression of whole numbers with + - * / % and parentheses, by Java's rules.

    Raises ConfigError: no such expression, or beyond 64 bits.
    """
    try:
        return _calculated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError("it is no calculation with whole numbers") from None
    except ZeroDivisionError:
        raise ConfigError("it divides by zero") from None


def _calculated(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int() as result):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_calculated(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            result = _calculated(operand)
        case ast.BinOp(left=left, op=op, right=right):
            result = _combined(op, _calculated(left), _calculated(right))
        case _:
            raise ConfigError("it is no calculation with whole numbers")
    if not -_LARGEST <= result < _LARGEST:
        raise ConfigError("it is beyond 64 bits")
    return result


def _combined(op: ast.operator, left: int, right: int) -> int:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return _quotient(left, right)
        case ast.Mod():
            return left - right * _quotient(left, right)
    raise ConfigError("it is no calculation with whole numbers")


def _quotient(left: int, right: int) -> int:
    """Divide towards zero, as Java does; Python rounds down."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size
