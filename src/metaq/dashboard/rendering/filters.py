"""Figures as people read them, for templates. Each takes None, which is a dash: nobody has told it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

DASH: Final = "–"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPARK_WIDTH: Final = 120.0
_SPARK_HEIGHT: Final = 28.0


def count(value: float | None) -> str:
    """Return a whole number with thin spaces between thousands."""
    return DASH if value is None else f"{round(value):,}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """Return something a second, with as many digits as matter."""
    if value is None:
        return DASH
    if abs(value) < 0.05:
        return "0"
    return f"{value:.1f}" if abs(value) < 10 else count(value)


def size(value: float | None) -> str:
    """Return bytes with their unit."""
    if value is None:
        return DASH
    step = 0
    while abs(value) >= 1024 and step < len(_UNITS) - 1:
        value, step = value / 1024, step + 1
    return f"{value:.0f} {_UNITS[step]}" if step == 0 or abs(value) >= 100 else f"{value:.1f} {_UNITS[step]}"


def share(value: float | None) -> str:
    """Return a part of 1 in percent."""
    return DASH if value is None else f"{value * 100:.0f}\u202f%"


def age(seconds: float | None) -> str:
    """Return a time that has passed, in its two largest units at most."""
    if seconds is None:
        return DASH
    if seconds < 0.5:
        return "0 s"
    whole = round(seconds)
    for unit, length, lesser, part in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            more = whole % length // part
            return (
                f"{whole // length} {unit} {more} {lesser}"
                if more and whole < length * 10
                else f"{whole // length} {unit}"
            )
    return f"{whole} s"


def time(ms: int | None) -> str:
    """Return a time as ISO 8601 has it, in UTC."""
    if ms is None:
        return DASH
    try:
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def spark(points: Sequence[float | None]) -> str:
    """Return the path of a sparkline, 120 by 28: pieces of a line, broken where nothing is known. "": there is nothing to draw."""
    known = [one for one in points if one is not None]
    if len(known) < 2:
        return ""
    top = max(known)
    scale = (_SPARK_HEIGHT - 3) / top if top > 0 else 0.0
    step = _SPARK_WIDTH / (len(points) - 1)
    parts, pen = list[str](), False
    for index, value in enumerate(points):
        if value is None or not math.isfinite(value):
            pen = False
            continue
        parts.append(f"{'L' if pen else 'M'}{index * step:.1f} {_SPARK_HEIGHT - 1.5 - value * scale:.1f}")
        pen = True
    return "".join(parts)


def newest(points: Sequence[float | None]) -> float | None:
    """Return the newest point of a history."""
    return points[-1] if points else None


def highest(points: Sequence[float | None]) -> float | None:
    """Return the highest point of a history."""
    return max((one for one in points if one is not None), default=None)


def shown(value: float | None, name: str) -> str:
    """Return a figure as the filter of a name shows it."""
    return _FIGURES[name](value)


_FIGURES: Final[Mapping[str, Callable[[float | None], str]]] = {
    "count": count, "rate": rate, "size": size, "share": share, "age": age,
}  # fmt: skip
FILTERS: Final = {
    **_FIGURES, "shown": shown, "time": time, "spark": spark, "newest": newest, "highest": highest,
}  # fmt: skip
