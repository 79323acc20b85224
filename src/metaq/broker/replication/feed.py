"""What a master tells its slaves of its tables: which entries have changed since a slave asked last.

Changes are numbered. Of each entry only the number of its newest change is kept, oldest first, so a slave that asks for what is
behind a number gets each entry once, as it is now: a thousand commits of a group cost one entry. One that begins, or that knows
another feed's numbers, asks from 0 on and gets all entries: they are noted when the first slave asks.

Nothing is noted, and no memory taken, while no slave follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from metaq.broker.deletion import GROUP, Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.filters import Filters
from metaq.broker.transactions.progress import LOG_POSITION
from metaq.in_pieces import InPieces
from metaq.model.table_changes import LONG_MAX, TableChanges
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

ENTRIES_MAX: Final = 2000
BYTES_MAX: Final = 256 * 1024
"""Entries of one answer, and their bytes (estimate). A slave asks for the others at once."""
IDLE_SECONDS: Final = 60.0
"""Time without a question after which no slave follows any more."""
GONE_MAX: Final = 200_000
"""Entries that are noted beyond twice those that there were at first: mostly such as are gone. Then a new feed begins."""
_OF_A_PIECE: Final = 100
_NOTED_OF_A_PIECE: Final = 1000
_ENTRY_BYTES: Final = 40
_SETTINGS_BYTES: Final = 220

_TOPIC, _GROUP_CONFIG, _GENERATION, _OFFSET, _TRANSACTIONS, _FILTER, _CLOSED, _FLOOR, _DELAYS = range(9)
Key: TypeAlias = tuple[int, str, str, int]
"""Table, and what names the entry in it: topic or group, another name, a queue id."""
_ALL_TRANSACTIONS: Final = (_TRANSACTIONS, "", "", 0)
"""The offsets of half and op messages, which belong together."""
_ALL_DELAYS: Final = (_DELAYS, "", "", 0)


class _Page:
    """The entries of one answer."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}

    def put(self, table: str, name: str, value: object) -> None:
        self.tables.setdefault(table, {})[name] = value

    def put_below(self, table: str, topic: str, group: str) -> dict[Any, Any]:
        of_topic: dict[str, dict[Any, Any]] = self.tables.setdefault(table, {}).setdefault(topic, {})
        return of_topic.setdefault(group, {}) if table == "offsets" else of_topic


class TableFeed:
    """The feed of one master. Only on the thread that owns the broker.

    Args: delays: returns delay level → QueueOffset of the next record to deliver.
    """

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        deletions: Deletions,
        filters: Filters,
        delays: Callable[[], Mapping[int, int]],
    ) -> None:
        self._store, self._clock = environment.store, environment.clock
        self._topics, self._groups, self._offsets = tables.topics, tables.groups, tables.offsets
        self._closed, self._deletions, self._filters = tables.closed_partitions, deletions, filters
        self._current_delays = delays
        self._id = self._now = 0
        """Identity of the feed, 0 while no slave follows; and the number of the newest change."""
        self._changed: dict[Key, int] = {}
        """Entry → number of its newest change, in the order of these."""
        self._noting: InPieces[None] | None = None
        """What is left of noting all that there is."""
        self._at_first = self._first_end = 0
        self._asked_at = 0.0
        self._floors: Mapping[str, int] = {}
        self._delays: Mapping[int, int] = {}
        self._topics.watch(lambda name: self._note((_TOPIC, name, "", 0)))
        self._groups.watch(lambda name: self._note((_GROUP_CONFIG, name, "", 0)))
        self._deletions.watch(lambda key: self._note((_GENERATION, key, "", 0)))
        self._closed.when_changed(lambda topic: self._note((_CLOSED, topic, "", 0)))

    # -- what has changed
    def _note(self, key: Key) -> None:
        if self._id:
            self._now += 1
            self._changed.pop(key, None)
            self._changed[key] = self._now

    def _note_offset(self, topic: str, group: str, queue_id: int) -> None:
        self._note(_ALL_TRANSACTIONS if group == TRANSACTION_GROUP else (_OFFSET, topic, group, queue_id))

    def look(self) -> None:
        """Note what nobody reports, and end the feed when no slave asks any more. Called ten times a second."""
        if not self._id:
            return
        floors, delays = self._store.keeper.floors, self._current_delays()
        if floors is not self._floors:
            for topic, floor in floors.items():
                if self._floors.get(topic) != floor:
                    self._note((_FLOOR, topic, "", 0))
            self._floors = floors
        if delays != self._delays:
            self._delays = delays
            self._note(_ALL_DELAYS)
        idle = self._clock.monotonic() - self._asked_at >= IDLE_SECONDS
        if idle or (self._noting is None and len(self._changed) > 2 * self._at_first + GONE_MAX):
            self.end()

    def end(self) -> None:
        """Forget everything: no slave follows, or this broker leads no more. Whoever asks begins anew."""
        self._id = self._now = self._at_first = self._first_end = 0
        self._changed, self._noting, self._floors, self._delays = {}, None, {}, {}
        self._offsets.noted = self._filters.noted = None

    def _begin(self) -> None:
        self._id = 1 + self._clock.random_below(LONG_MAX)
        self._offsets.noted = self._note_offset
        self._filters.noted = lambda topic, group: self._note((_FILTER, topic, group, 0))
        self._noting = self._note_all()

    def _note_all(self) -> InPieces[None]:
        # Each table as it is now. What changes meanwhile is noted by itself, and once is enough.
        offsets = list(self._offsets.table.items())
        everything = itertools.chain(
            ((_TOPIC, name, "", 0) for name in list(self._topics.table)),
            ((_GROUP_CONFIG, name, "", 0) for name in list(self._groups.table)),
            ((_GENERATION, key, "", 0) for key in {**self._deletions.generations.table, **self._deletions.marks.table}),
            ((_FILTER, *row, 0) for row in list(self._filters.table)),
            ((_CLOSED, topic, "", 0) for topic in self._closed.topics()),
            (
                (_OFFSET, topic, group, queue_id)
                for (topic, group), queues in offsets
                if group != TRANSACTION_GROUP
                for queue_id in list(queues)
            ),
            (_ALL_TRANSACTIONS, _ALL_DELAYS),
        )
        for number, key in enumerate(everything, 1):
            if key not in self._changed:
                self._note(key)
            if not number % _NOTED_OF_A_PIECE:
                yield
        self._at_first, self._first_end = len(self._changed), self._now

    # -- what a slave is told
    @property
    def mark(self) -> tuple[int, int]:
        """Identity of the feed, 0 while no slave follows, and the number of the newest change."""
        return self._id, self._now

    @property
    def at_first(self) -> int:
        """Number up to which there is all that the feed began with; what changed meanwhile was numbered once more."""
        return self._first_end

    def has_news(self, feed: int, position: int) -> bool:
        """Return whether a slave lacks anything that has these changes."""
        return not self._id or feed != self._id or position != self._now

    def changes(self, feed: int, position: int) -> InPieces[TableChanges]:
        """Return the first entries that have changed since."""
        self._asked_at = self._clock.monotonic()
        while not self._id or self._noting is not None:
            if not self._id:
                self._begin()
            noting = self._noting
            if noting is not None:
                yield from _rest(noting)  # another slave's question may be at it, too
                if self._noting is noting:
                    self._noting = None
        self.look()
        feed_now, newest = self._id, self._now
        since = position if feed == feed_now and 0 <= position <= newest else 0
        keys = self._keys_since(since)
        page, size, last = _Page(), 0, since
        together = set[Key]()
        for number, (key, changed) in enumerate(keys, 1):
            if key in {_ALL_TRANSACTIONS, _ALL_DELAYS}:
                together.add(key)
            else:
                size += self._put(page, key)
            last = changed
            if size >= BYTES_MAX or number == ENTRIES_MAX:
                break
            if not number % _OF_A_PIECE:
                yield
        else:
            last = newest
        return self._finish(page, together, (feed_now, since, last), complete=last == newest)

    def _finish(
        self, page: _Page, together: set[Key], numbers: tuple[int, int, int], *, complete: bool
    ) -> TableChanges:
        # In one go with the log's end: these count what is in the log below it.
        if _ALL_TRANSACTIONS in together:
            for topic in (HALF_TOPIC, OP_TOPIC, LOG_POSITION):
                page.put_below("offsets", topic, TRANSACTION_GROUP).update(
                    self._offsets.queues(TRANSACTION_GROUP, topic)
                )
        # With all that has changed also where nothing was delivered: so it holds up to the log's end.
        delays = dict(self._current_delays()) if complete or _ALL_DELAYS in together else None
        feed, since, position = numbers
        return TableChanges(
            feed, since, position, complete=complete, log_end=self._store.log.end, delays=delays,
            needed_from=self._store.keeper.needed_from, **page.tables,
        )  # fmt: skip

    def _keys_since(self, since: int) -> list[tuple[Key, int]]:
        """Return up to ENTRIES_MAX entries that have changed behind a number, oldest first."""
        changed = self._changed
        if self._now - since < len(changed) // 2:  # few have: they are found from the end
            newer = list(itertools.takewhile(lambda entry: entry[1] > since, reversed(changed.items())))
            return newer[: -ENTRIES_MAX - 1 : -1]
        behind = itertools.dropwhile(lambda entry: entry[1] <= since, changed.items())
        return list(itertools.islice(behind, ENTRIES_MAX))

    def _put(self, page: _Page, key: Key) -> int:
        """Add an entry as it is now. Returns its bytes (estimate)."""
        table, name, second, queue_id = key
        size = _ENTRY_BYTES + len(name) + len(second)
        if table == _OFFSET:
            page.put_below("offsets", name, second)[queue_id] = self._offsets.get(second, name, queue_id)
        elif table == _TOPIC:
            page.put("topics", name, self._topics.get(name))
            size += _SETTINGS_BYTES
        elif table == _GROUP_CONFIG:
            page.put("groups", name, self._groups.get(name))
            size += _SETTINGS_BYTES
        elif table == _GENERATION:
            page.put("generations", name, self._generation(name))
        elif table == _FILTER:
            one = page.put_below("filters", name, second)[second] = self._filters.table.get((name, second))
            size += _SETTINGS_BYTES + len(one.expression) if one is not None else 0
        elif table == _CLOSED:
            closed = tuple(sorted(self._closed.of(name)))
            page.put("closed_partitions", name, closed)
            size += 6 * len(closed)
        elif table == _FLOOR and name in self._floors:  # one that is gone lies below the log's begin
            page.put("floors", name, self._floors[name])
        return size

    def _generation(self, key: str) -> int | None:
        table, marks = self._deletions.generations.table, self._deletions.marks.table
        return table.get(key) if GROUP in key else marks.get(key) or table.get(key)


def _rest(pieces: InPieces[None]) -> InPieces[None]:
    """Run what is left of work that others may run as well, in between. `yield from` would pass on that they are at it."""
    for _ in pieces:
        yield
