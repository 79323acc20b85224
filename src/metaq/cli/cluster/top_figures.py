"""How `metaq top` sorts what it shows, and its figures as people read them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from metaq.amounts import size

if TYPE_CHECKING:
    from metaq.admin import BrokerStatus, GroupActivity, TopicActivity

T = TypeVar("T")


class TopicSort(enum.StrEnum):
    """What topics are sorted by: the most first, names from a to z."""

    STORED = "stored"
    BYTES = "bytes"
    DELIVERED = "delivered"
    LAG = "lag"
    NAME = "name"


class GroupSort(enum.StrEnum):
    """What groups are sorted by."""

    LAG = "lag"
    GROWTH = "growth"
    DELIVERED = "delivered"
    MEMBERS = "members"
    NAME = "name"


def sorted_topics(found: Iterable[TopicActivity], by: TopicSort) -> list[TopicActivity]:
    """Sort topics: the most first; what is not known comes last."""
    keys: dict[TopicSort, Callable[[TopicActivity], float | None]] = {
        TopicSort.STORED: lambda one: one.stored,
        TopicSort.BYTES: lambda one: one.stored_bytes,
        TopicSort.DELIVERED: lambda one: one.delivered,
        TopicSort.LAG: lambda one: one.lag,
    }
    return _sorted(sorted(found, key=lambda one: one.topic), keys.get(by))


def sorted_groups(found: Iterable[GroupActivity], by: GroupSort) -> list[GroupActivity]:
    """Sort groups: as `sorted_topics`."""
    keys: dict[GroupSort, Callable[[GroupActivity], float | None]] = {
        GroupSort.LAG: lambda one: one.lag,
        GroupSort.GROWTH: lambda one: one.growth,
        GroupSort.DELIVERED: lambda one: one.delivered,
        GroupSort.MEMBERS: lambda one: one.members,
    }
    return _sorted(sorted(found, key=lambda one: one.group), keys.get(by))


def _sorted(by_name: list[T], key: Callable[[T], float | None] | None) -> list[T]:
    if key is None:
        return by_name

    def order(one: T) -> float:
        figure = key(one)
        return float("-inf") if figure is None else figure

    return sorted(by_name, key=order, reverse=True)


def state_of(broker: BrokerStatus) -> str:
    """Return what is wrong with a broker; empty if nothing is."""
    if broker.error:
        return broker.error if broker.registered else f"gone: {broker.error}"
    away = "" if broker.registered else "not registered at the name servers"
    return "; ".join(filter(None, (away, broker.trouble)))


def number(value: float | None) -> str:
    """Return a number for people; empty for None."""
    return "" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def growth_text(value: float | None) -> str:
    """Return how a lag grows, with its sign; empty if it does not, or it is not known."""
    return f"{value:+,.1f}" if value else ""


def share(value: float | None) -> str:
    """Return a share as `42%`; empty for None."""
    return "" if value is None else f"{value:.0%}"


def behind_text(value: int | None) -> str:
    """Return how many bytes a slave lacks; empty for None."""
    return "" if value is None else size(value)
