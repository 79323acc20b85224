"""Figures of one counted thing over time, as RocketMQ's BrokerStatsManager has them."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Statistic(Enum):
    """What is counted, each by a key."""

    TOPIC_MESSAGES_PUT = auto()
    """Of a topic."""
    TOPIC_BYTES_PUT = auto()
    GROUP_MESSAGES_GOT = auto()
    """Of a topic and a group."""
    GROUP_BYTES_GOT = auto()
    GROUP_SENT_BACK = auto()
    BROKER_MESSAGES_PUT = auto()
    """Of a cluster: this broker's."""
    BROKER_MESSAGES_GOT = auto()


class WindowFigures(NamedTuple):
    """One window: between its oldest and its newest sample."""

    total: int = 0
    per_second: float = 0.0
    per_call: float = 0.0
    """Average of a put or a pull; 0 where calls are not counted."""


class StatisticFigures(NamedTuple):
    """The three windows of one key."""

    minute: WindowFigures = WindowFigures()
    hour: WindowFigures = WindowFigures()
    day: WindowFigures = WindowFigures()
