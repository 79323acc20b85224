"""Predicate pushdown: which of a batch query's conditions restrict what is read. Pure.

Spark passes conditions that must all hold (never an OR), and applies those again that `pushFilters` returns. So a condition
that is not returned must hold for every row that is read; one that is returned may restrict reading only roughly.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from metaq.errors import LocalProtocolError
from metaq.model.message import check_tag
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue

CLOCK_BACK_MS = 60_000
"""Tolerance for a RocketMQ's clock that was set back: store times are searched with this margin on both sides, ms."""
TAGS_BYTES_MAX = 16 * 1024
"""Most bytes of all tags in a filter: each pull carries them, and our brokers refuse subscriptions above 64 KiB."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)
_REPLACED = "\ufffd"
"""Replacement character, in a column in place of bytes that are not UTF-8. Brokers hash the bytes: no filter finds them."""

_OF_QUEUES: dict[str, tuple[type, Callable[[MessageQueue], Any]]] = {
    "topic": (str, operator.attrgetter("topic")),
    "broker": (str, operator.attrgetter("broker")),
    "queue_id": (int, operator.attrgetter("queue_id")),
}
_NEVER_NULL = frozenset({*_OF_QUEUES, "queue_offset", "store_time"})
_HOLDS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: lambda value, part: part in value,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """Restrictions of what is read. Plain values, except `of_queues`, which are Spark's filters."""

    of_queues: tuple[Filter, ...] = ()
    """Conditions on columns that are constant in a queue."""
    first: int = 0
    """Range of queue offsets."""
    stop: int | None = None
    since_ms: int | None = None
    """Lower bound of store times, ms since 1970; the tolerance for clocks is included."""
    until_ms: int | None = None
    """Upper bound of store times, exclusive; the tolerance for clocks is included."""
    tags: frozenset[str] | None = None
    """Tags to read; None: all messages. Empty: nothing fits."""

    def takes(self, queue: MessageQueue) -> bool:
        """Return whether a message of the queue can fit."""
        return self.tags != frozenset() and all(_fits(one, queue) for one in self.of_queues)

    def takes_topic(self, topic: str) -> bool:
        """Return whether a message of the topic can fit."""
        somewhere = MessageQueue(topic, "", 0)
        return all(_fits(one, somewhere) for one in self.of_queues if _column(one) == "topic")

    def narrowed(
        self,
        slices: Iterable[Slice],
        since: Mapping[MessageQueue, int] | None = None,
        until: Mapping[MessageQueue, int] | None = None,
    ) -> list[Slice]:
        """Restrict the slices.

        Args: since, until: each queue's first offset stored at `since_ms` and `until_ms`, or later.
        """
        left = []
        for piece in slices:
            start = max(piece.start, self.first, (since or {}).get(piece.queue, 0))
            ends = [piece.end, self.stop, (until or {}).get(piece.queue)]
            end = min(end for end in ends if end is not None)
            if start < end and self.takes(piece.queue):
                left.append(Slice(piece.queue, start, end))
        return left


def push(filters: Sequence[Filter], *, by_tag: bool) -> tuple[Pushed, list[Filter]]:
    """Return the restrictions that the conditions imply, and the conditions that Spark must still apply.

    Args: by_tag: whether brokers may be asked to filter by tag.
    """
    gathered = _Collected(by_tag)
    left = [one for one in filters if not gathered.takes(one)]
    return gathered.pushed(), left


class _Collected:
    """Collects restrictions from conditions, one after the other."""

    def __init__(self, by_tag: bool) -> None:
        self._by_tag = by_tag
        self._of_queues: list[Filter] = []
        self._first, self._stops = 0, list[int]()
        self._since, self._until = list[int](), list[int]()
        self._tags: frozenset[str] | None = None

    def pushed(self) -> Pushed:
        return Pushed(
            of_queues=tuple(self._of_queues),
            first=self._first,
            stop=min(self._stops, default=None),
            since_ms=max(self._since, default=None),
            until_ms=min(self._until, default=None),
            tags=self._tags,
        )

    def takes(self, one: Filter) -> bool:
        """Note a condition. Returns True if it then holds for all rows that are read, so that Spark need not apply it."""
        bare = one.child if isinstance(one, Not) else one
        path: tuple[str, ...] = getattr(bare, "attribute", ())
        column = path[0] if len(path) == 1 else None
        if column in _OF_QUEUES and _readable(bare, _OF_QUEUES[column][0]):
            self._of_queues.append(one)
            return True
        if isinstance(one, IsNotNull):  # Spark adds one to each comparison with a column.
            return column in _NEVER_NULL
        if column == "queue_offset" and _readable(one, int):
            return self._offset(one)
        # Never taken: the bounds have a margin for clocks, so Spark applies the condition again.
        if column == "store_time" and _readable(one, dt.datetime):
            self._time(one)
        if column == "tag" and self._by_tag and _readable(one, str):
            return self._tag(one)
        return False

    def _offset(self, one: Any) -> bool:
        first, last = _bounds(one)
        if first is not None:
            self._first = max(self._first, first + isinstance(one, GreaterThan))
        if last is not None:
            self._stops.append(max(0, last + (not isinstance(one, LessThan))))
        # IN with several offsets: least and greatest are bounds, those between are left to Spark.
        return (first, last) != (None, None) and not (isinstance(one, In) and first != last)

    def _time(self, one: Any) -> None:
        try:
            first, last = (None if moment is None else (moment - _EPOCH) // _MILLISECOND for moment in _bounds(one))
        except TypeError:  # A time without a zone: compared with something else than our column.
            return
        if first is not None:
            self._since.append(max(0, first - CLOCK_BACK_MS))
        if last is not None:
            # Spark compares microseconds, brokers milliseconds: all of the bound's millisecond is read.
            self._until.append(max(0, last + 1 + CLOCK_BACK_MS))

    def _tag(self, one: Any) -> bool:
        if not isinstance(one, EqualTo | EqualNullSafe | In):
            return False
        tags = frozenset(one.value if isinstance(one, In) else [one.value])
        try:
            for tag in tags:
                check_tag(tag)
        except LocalProtocolError:  # Not a legal tag, such as one with `||`: no subscription can name it.
            return False
        # 4 bytes for ` || ` between two tags.
        if any(_REPLACED in tag for tag in tags) or sum(len(tag.encode()) + 4 for tag in tags) > TAGS_BYTES_MAX:
            return False
        self._tags = tags if self._tags is None else self._tags & tags
        return True


def _readable(one: Any, kind: type) -> bool:
    """Return whether a condition is a known comparison with values of that type."""
    if type(one) not in _HOLDS or (
        kind is not str and isinstance(one, StringStartsWith | StringEndsWith | StringContains)
    ):
        return False
    values = one.value if isinstance(one, In) else [one.value]
    # A bool is an int to Python, and no column of ours is Boolean.
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _column(one: Any) -> str:
    """Return the column that a condition in `of_queues` is about."""
    return _column(one.child) if isinstance(one, Not) else str(one.attribute[0])


def _fits(one: Filter, queue: MessageQueue) -> bool:
    if isinstance(one, Not):
        return not _fits(one.child, queue)
    _, value_of = _OF_QUEUES[_column(one)]
    return _HOLDS[type(one)](value_of(queue), one.value)


def _bounds(one: Any) -> tuple[Any, Any]:
    """Return lower and upper bound of fitting values, both inclusive at least; None: unbounded."""
    if isinstance(one, In):
        return (min(one.value), max(one.value)) if one.value else (None, None)
    if isinstance(one, EqualTo | EqualNullSafe):
        return one.value, one.value
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return one.value, None
    if isinstance(one, LessThan | LessThanOrEqual):
        return None, one.value
    return None, None
