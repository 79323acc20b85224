"""The screen of `metaq top`: three tables that fit the terminal, drawn after each look, and the keys that change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from metaq.admin.brokers import BrokerStatus, behind
from metaq.admin.figures.activity import Activity, GroupActivity, TopicActivity
from metaq.amounts import count, size
from metaq.cli.cluster.top_figures import (
    GroupSort,
    TopicSort,
    behind_text,
    growth_text,
    number,
    share,
    sorted_groups,
    sorted_topics,
    state_of,
)
from metaq.cli.keys import keys
from metaq.cli.output import iso_time
from metaq.clock import SYSTEM
from metaq.errors import MetaqError

T = TypeVar("T")
Sort = TypeVar("Sort", TopicSort, GroupSort)

_DISK_FULL: Final = 0.85
"""Used share of the disk from which on it is shown in red: RocketMQ's brokers clean by force there."""
_STEP_SECONDS: Final = 0.25
"""How often the size of the terminal is looked at between two looks."""
_COLUMNS_MAX: Final = 140
"""Columns of the widest screen: beyond, figures would be far from their names."""
_KEYS: Final = "q quit   p pause   t sort topics   g sort groups"


class View(NamedTuple):
    """How a look is shown. `rows`: topics and groups at most; None: as many as fit."""

    topics: TopicSort = TopicSort.STORED
    groups: GroupSort = GroupSort.LAG
    rows: int | None = None
    paused: bool = False
    fault: str = ""
    """Why the last look has failed."""


class _Column(NamedTuple, Generic[T]):
    """A column. It is left out where the terminal is narrower than `width`."""

    title: str
    text: Callable[[T], str | Text]
    width: int = 0
    left: bool = False


def _broker_columns(brokers: Sequence[BrokerStatus]) -> list[_Column[BrokerStatus]]:
    def disk(one: BrokerStatus) -> Text:
        full = one.disk_used is not None and one.disk_used >= _DISK_FULL
        return Text(share(one.disk_used), "bold red" if full else "")

    return [
        _Column("broker", lambda one: Text(one.broker, "red" if one.error else ""), left=True),
        _Column("id", lambda one: str(one.broker_id), 40),
        _Column("address", lambda one: one.address, 90, left=True),
        _Column("stored/s", lambda one: "" if one.error else number(one.put_rate)),
        _Column("delivered/s", lambda one: "" if one.error else number(one.get_rate), 40),
        _Column("p99 ms", lambda one: number(one.put_p99_ms), 60),
        _Column("p99.9 ms", lambda one: number(one.put_p999_ms), 100),
        _Column("connections", lambda one: number(one.connections), 76),
        _Column("disk", disk, 50),
        _Column("behind", lambda one: behind_text(behind(brokers, one)), 110),
    ]


_TOPIC_COLUMNS: Final[list[_Column[TopicActivity]]] = [
    _Column("topic", lambda one: one.topic, left=True),
    _Column("stored/s", lambda one: number(one.stored)),
    _Column("bytes/s", lambda one: "" if one.stored_bytes is None else size(round(one.stored_bytes)), 60),
    _Column("delivered/s", lambda one: number(one.delivered), 40),
    _Column("groups", lambda one: number(one.groups), 70),
    _Column("lag", lambda one: number(one.lag), 50),
]
_GROUP_COLUMNS: Final[list[_Column[GroupActivity]]] = [
    _Column("group", lambda one: one.group, left=True),
    _Column("members", lambda one: Text(number(one.members), "" if one.members or not one.lag else "red"), 50),
    _Column("topics", lambda one: number(one.topics), 70),
    _Column("lag", lambda one: number(one.lag)),
    _Column("growth/s", lambda one: Text(growth_text(one.growth), "yellow" if (one.growth or 0) > 0 else "green"), 60),
    _Column("delivered/s", lambda one: number(one.delivered), 40),
]
_SORTED_COLUMNS: Final[dict[TopicSort | GroupSort, str]] = {
    TopicSort.STORED: "stored/s",
    TopicSort.BYTES: "bytes/s",
    TopicSort.DELIVERED: "delivered/s",
    TopicSort.LAG: "lag",
    TopicSort.NAME: "topic",
    GroupSort.LAG: "lag",
    GroupSort.GROWTH: "growth/s",
    GroupSort.DELIVERED: "delivered/s",
    GroupSort.MEMBERS: "members",
    GroupSort.NAME: "group",
}


def screen_of(found: Activity, view: View, columns: int, lines: int) -> RenderableType:
    """Return a look as it is drawn on a terminal of so many columns and lines."""
    columns = min(columns, _COLUMNS_MAX)
    # Those that are gone come first: they are what an operator looks for.
    brokers = sorted(found.brokers, key=lambda one: not one.error)[: max(1, (lines - 6) // 3)]
    remarks = [(f"{one.broker}: {state}", "red") for one in brokers if (state := state_of(one))]
    remarks += [(note, "yellow") for note in found.notes]
    if view.fault:
        remarks.append((f"the last update has failed: {view.fault}", "red"))
    remarks = remarks[: max(1, lines // 5)]
    # Beside these: title, three headings, two empty lines, keys.
    room = max(2, lines - 7 - len(brokers) - len(remarks))
    groups = sorted_groups(found.groups, view.groups)[: view.rows]
    topics = sorted_topics(found.topics, view.topics)[: view.rows]
    topics = topics[: max(room // 2, room - len(groups))]
    return Group(
        _title(found, view),
        _table(_broker_columns(found.brokers), brokers, columns, ""),
        *(_line(text, style) for text, style in remarks),
        Text(""),
        _table(_TOPIC_COLUMNS, topics, columns, _SORTED_COLUMNS[view.topics]),
        Text(""),
        _table(_GROUP_COLUMNS, groups[: room - len(topics)], columns, _SORTED_COLUMNS[view.groups]),
        _line(_KEYS, "dim"),
    )


def _title(found: Activity, view: View) -> Text:
    clusters = sorted({one.cluster for one in found.brokers})
    up = [one for one in found.brokers if not one.error]
    parts = [
        (iso_time(found.now_ms) or "")[:19].replace("T", " ") + " UTC",
        ", ".join(clusters) or "no cluster",
        f"{len(up)} of {count(len(found.brokers), 'broker')}",
        count(len(found.topics), "topic"),
        count(len(found.groups), "group"),
    ]
    return _line(("paused   " if view.paused else "") + "   ".join(parts), "bold")


def _line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _table(columns: Sequence[_Column[T]], rows: Sequence[T], width: int, sorted_by: str) -> Table:
    """Return a table. The column that it is sorted by is there at any width, and underlined."""
    shown = [one for one in columns if width >= one.width or one.title == sorted_by]
    table = Table(box=None, pad_edge=False, header_style="bold cyan", width=width)
    for number_of, one in enumerate(shown):
        heading = Text(one.title, "underline" if one.title == sorted_by else "")
        table.add_column(
            heading,
            justify="left" if one.left else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if number_of == 0 else None,
        )
    for row in rows:
        table.add_row(*(one.text(row) for one in shown))
    return table


class Screen:
    """Looks again and again, and draws.

    Args:
        look: returns what is drawn, and the seconds that it has taken.
        interval: seconds between two looks; at least as many as one takes, so that brokers are not asked all the time.
    """

    def __init__(
        self, look: Callable[[], tuple[Activity, float]], interval: float, view: View, console: Console | None = None
    ) -> None:
        self._look, self._interval, self._view = look, interval, view
        self._console = console or Console()

    def run(self) -> None:
        """Return when q is pressed. Raises MetaqError: the first look has failed."""
        found, took = self._look()
        with keys() as pressed, Live(console=self._console, screen=True, auto_refresh=False) as live:
            while True:
                self._draw(live, found)
                if self._wait(live, found, pressed, max(self._interval, took)):
                    return
                try:
                    found, took = self._look()
                    self._view = self._view._replace(fault="")
                except MetaqError as error:
                    self._view = self._view._replace(fault=str(error))

    def _draw(self, live: Live, found: Activity) -> None:
        width, height = self._console.size
        live.update(screen_of(found, self._view, width, height), refresh=True)

    def _wait(self, live: Live, found: Activity, pressed: Callable[[float], str], seconds: float) -> bool:
        """Wait until the next look, and do what keys say. Return whether it is over."""
        until, drawn_for = SYSTEM.monotonic() + seconds, self._console.size
        while self._view.paused or SYSTEM.monotonic() < until:
            key = pressed(
                _STEP_SECONDS if self._view.paused else min(_STEP_SECONDS, max(0.0, until - SYSTEM.monotonic()))
            )
            if key in {"q", "Q"}:
                return True
            changed = self._changed(key)
            if changed != self._view or self._console.size != drawn_for:
                self._view, drawn_for = changed, self._console.size
                self._draw(live, found)
        return False

    def _changed(self, key: str) -> View:
        view = self._view
        if key in {"p", "P", " "}:
            return view._replace(paused=not view.paused)
        if key in {"t", "T"}:
            return view._replace(topics=_next(view.topics))
        if key in {"g", "G"}:
            return view._replace(groups=_next(view.groups))
        return view


def _next(sort: Sort) -> Sort:
    every = list(type(sort))
    return every[(every.index(sort) + 1) % len(every)]
