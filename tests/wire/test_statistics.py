"""Figures over time (315), byte for byte as RocketMQ's fastjson writes them."""

from __future__ import annotations

import pytest

from metaq.errors import BadRequest
from metaq.model.statistics import StatisticFigures, WindowFigures
from metaq.wire import bodies

FIGURES = StatisticFigures(WindowFigures(12, 0.2, 1.5), WindowFigures(600, 0.16666666666666666, 1.0), WindowFigures())
BODY = (
    b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":1.0,"sum":600,"tps":0.16666666666666666},'
    b'"statsMinute":{"avgpt":1.5,"sum":12,"tps":0.2}}'
)


def test_figures_of_three_windows() -> None:
    """Keys in the order of the alphabet, doubles with a point."""
    assert bodies.broker_stats(FIGURES) == BODY
    assert bodies.broker_stats_of(BODY) == FIGURES
    assert bodies.broker_stats_of(b"{}") == StatisticFigures()


def test_wrong_parts_are_named() -> None:
    """By the field."""
    with pytest.raises(BadRequest, match="sum"):
        bodies.broker_stats_of(BODY.replace(b'"sum":12', b'"sum":[]'))
