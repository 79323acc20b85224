"""Figures over a minute, an hour and a day (315)."""

from __future__ import annotations

from metaq.model.statistics import StatisticFigures, WindowFigures
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree


def broker_stats(figures: StatisticFigures) -> bytes:
    """Encode the answer to VIEW_BROKER_STATS_DATA (315)."""
    return fastjson.dumps(
        {
            "statsDay": _tree(figures.day),
            "statsHour": _tree(figures.hour),
            "statsMinute": _tree(figures.minute),
        }
    )


def _tree(window: WindowFigures) -> Tree:
    return {"avgpt": window.per_call, "sum": window.total, "tps": window.per_second}


def broker_stats_of(body: Body) -> StatisticFigures:
    """Decode the answer to 315."""
    tree = beans.parse(body, "statistics")
    return StatisticFigures(*(_window(tree[name]) for name in ("statsMinute", "statsHour", "statsDay")))


def _window(tree: Value) -> WindowFigures:
    return WindowFigures(tree.whole_in("sum"), tree["tps"].decimal(), tree["avgpt"].decimal())
