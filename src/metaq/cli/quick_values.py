"""Plain values of command lines, without pydantic: typer 0.29 imports it for the first value, which takes as long as all the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_NOT_PLAIN: Final = object()


def read_values_quickly(parameters: list[Any]) -> None:
    """Have typer's parameters read texts and decimal numbers by themselves; anything else, also a wrong value, stays typer's."""
    for parameter in parameters:
        # Typer's own, of the versions that have it; others do not import pydantic.
        whole = getattr(parameter, "get_runtime_param", None)
        if whole is not None and not isinstance(whole, _Reading):
            parameter.get_runtime_param = _Reading(parameter.type_descriptor, whole)


class _Reading:
    """Stands for the method of a parameter that returns how its values are read, and is what it returns."""

    def __init__(self, descriptor: Any, whole: Callable[[], Any]) -> None:
        self._kind, self._info, self._whole = descriptor.annotation, descriptor.parameter_info, whole

    def __call__(self) -> _Reading:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        plain = _NOT_PLAIN
        if self._info.parser is None:
            if not several:
                plain = self._plain(self._kind, value)
            elif self._kind == list[str] and isinstance(value, list | tuple):
                plain = [*value] if all(isinstance(one, str) for one in value) else _NOT_PLAIN
        return self._whole().coerce(value, param=param, ctx=ctx) if plain is _NOT_PLAIN else plain

    def _plain(self, kind: Any, value: Any) -> Any:
        if kind is str:
            return value if isinstance(value, str) else _NOT_PLAIN
        if kind is bool:
            return value if isinstance(value, bool) else _NOT_PLAIN
        if kind not in {int, float} or self._info.clamp:
            return _NOT_PLAIN
        if isinstance(value, str) and value.isascii() and value.isdigit():
            number = kind(value)
        elif type(value) is kind:
            number = value
        else:
            return _NOT_PLAIN
        low, high = self._info.min, self._info.max
        inside = (low is None or number >= low) and (high is None or number <= high)
        return number if inside else _NOT_PLAIN
