"""Values of any page, with the same text in every field that has a text."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

HOSTILE = """<img src=x onerror=alert(1)>"'><script>alert(2)</script>{{7*7}}{% raw %}&lt;javascript:alert(3)//\u202e\x00\ud7ff"""
HARMLESS = "harmless"


def filled(kind: Any, text: str) -> Any:
    """A value of this type: texts are `text`, figures are there, lists have an entry."""
    return msgspec.convert(_plain(inspect.type_info(kind), text), kind)


def _plain(kind: inspect.Type, text: str) -> Any:
    match kind:
        case inspect.StrType():
            return text
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 0.5
        case inspect.ListType() | inspect.VarTupleType():
            return [_plain(kind.item_type, text)] * 2
        case inspect.DictType():
            return {_plain(kind.key_type, text): _plain(kind.value_type, text)}
        case inspect.UnionType():
            return _plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)), text)
        case inspect.StructType():
            return {field.encode_name: _plain(field.type, text) for field in kind.fields}
    raise AssertionError(f"values of pages have no {kind}")
