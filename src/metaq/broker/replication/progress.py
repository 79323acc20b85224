"""Groups' progress on a slave: the master's, and what groups have committed here beyond it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from typing import Final

from metaq.broker.tables.offsets import Offsets, OffsetTable
from metaq.broker.transactions.progress import LOG_POSITION
from metaq.in_pieces import InPieces
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

_OF_A_PIECE: Final = 1000

Ahead = tuple[str, str, int, int, int]
"""(group, topic, queue id, offset, what the master has told)."""


class FollowedProgress:
    """Takes over what has changed at the master, backwards too: a reset. What was only committed here stays.

    Only on the thread that owns the broker.
    """

    def __init__(self, offsets: Offsets) -> None:
        self._own = offsets
        self._told: OffsetTable = {}
        """The master's, as it was told last."""
        self._before: OffsetTable = {}
        """What was told before the master began to tell everything anew."""
        self._agreed: dict[tuple[str, str, int], int] = {}
        """(topic, group, queue id) → the offset here when a lower one was taken over; only a later one was committed since."""
        self._here: set[tuple[str, str, int]] = set()
        """What was committed here since this broker follows."""

    def begin(self) -> None:
        """Begin to follow: nothing is known of the master."""
        self._forget_told()
        self._own.noted = lambda topic, group, queue_id: self._here.add((topic, group, queue_id))

    def _forget_told(self) -> None:
        self._told, self._before, self._agreed, self._here = {}, {}, {}, set()

    def end(self, end_of: Callable[[str, int], int]) -> None:
        """Before this broker leads: no progress lies beyond a queue's end, else its group would pass over what comes there.

        Args: end_of: returns the end of the queue of a topic and queue id.
        """
        self._forget_told()
        self._own.noted = None
        for (topic, group), queues in self._own.table.items():
            if group != TRANSACTION_GROUP:
                for queue_id, offset in queues.items():
                    if offset and offset > (end := end_of(topic, queue_id)):
                        self._own.take(group, topic, queue_id, end)

    def take_back(self, end_of: Callable[[str, int], int], log_end: int, *, was_cut: bool) -> None:
        """Take progress back to where the log ends. Args: as `end`; was_cut: the log was longer a moment ago."""
        for (topic, group), queues in self._own.table.items():
            for queue_id, offset in list(queues.items()) if group != TRANSACTION_GROUP else ():
                if offset > (end := end_of(topic, queue_id)):
                    self._own.take(group, topic, queue_id, end)
                    self._here.discard((topic, group, queue_id))
                    self._forget_what_was_told(topic, group, queue_id)  # the same told again is news
        # What was cut off may have ended some that are open again.
        saved_at = self._transactions_saved_at()
        if was_cut if saved_at is None else saved_at > log_end:
            self._forget_transactions()

    def _transactions_saved_at(self) -> int | None:
        """Where the log ended when progress of transactions was saved; None: a RocketMQ has saved it, or nobody."""
        return self._own.get(TRANSACTION_GROUP, LOG_POSITION, 0)

    def _forget_transactions(self) -> None:
        for topic in (HALF_TOPIC, OP_TOPIC, LOG_POSITION):
            self._own.take(TRANSACTION_GROUP, topic, 0, None)

    def begin_anew(self) -> None:
        """All that the master has is told from now on, by `take`, until `complete`."""
        for row, queues in self._told.items():
            self._before.setdefault(row, {}).update(queues)
        self._told = {}

    def take(self, topic: str, group: str, queue_id: int, offset: int | None) -> None:
        """Take over one offset; None: the master has none any more."""
        row, place = (topic, group), (topic, group, queue_id)
        known, told = self._own.get(group, topic, queue_id), self._told_of(row, queue_id)
        if offset is None:
            if told is not None:
                self._forget(place)
            return
        committed_here = place in self._here and group != TRANSACTION_GROUP
        goes_on = offset >= (told or 0)  # a master that takes its group back says less than before
        if committed_here and goes_on and known is not None and known > offset:
            pass  # it has come nearer to what was committed here
        elif known is None or (offset != told if told is not None else offset > known):
            self._own.take(group, topic, queue_id, offset)
            self._agreed.pop(place, None)
        elif told is None and known != offset:  # of a time before this broker's start: whether it is newer is not known
            self._agreed[place] = known
        self._told.setdefault(row, {})[queue_id] = offset

    def _told_of(self, row: tuple[str, str], queue_id: int) -> int | None:
        told = self._told.get(row, {}).get(queue_id)
        return self._before.get(row, {}).get(queue_id) if told is None else told

    def _forget(self, place: tuple[str, str, int]) -> None:
        topic, group, queue_id = place
        self._own.take(group, topic, queue_id, None)
        self._here.discard(place)
        self._forget_what_was_told(topic, group, queue_id)

    def _forget_what_was_told(self, topic: str, group: str, queue_id: int) -> None:
        self._agreed.pop((topic, group, queue_id), None)
        for table in (self._told, self._before):
            queues = table.get((topic, group), {})
            queues.pop(queue_id, None)
            if not queues:
                table.pop((topic, group), None)

    def complete(self) -> InPieces[None]:
        """Drop what the master had and has not any more: all that it has was told."""
        before, self._before = self._before, {}
        for number, (row, queues) in enumerate(before.items(), 1):
            for queue_id in queues.keys() - self._told.get(row, {}).keys():
                self._forget((*row, queue_id))
            if not number % _OF_A_PIECE:
                yield

    def take_all(self, table: OffsetTable) -> None:
        """Take over a whole table, which has no row that the master has not."""
        self.begin_anew()
        for (topic, group), queues in table.items():
            for queue_id, offset in queues.items():
                self.take(topic, group, queue_id, offset)
        for _ in self.complete():
            pass

    def drop_own(self, topics: Collection[str]) -> None:
        """Drop what was committed here in topics that the master has deleted: it may be of the messages before."""
        for topic, group in [row for row in self._own.table if row[0] in topics] if topics else ():
            for queue_id in list(self._own.queues(group, topic)):
                self._take_told(topic, group, queue_id)

    def queue_began_anew(self, topic: str, queue_id: int) -> None:
        """Drop what was committed here in a queue of which the master has messages from 0 on again.

        The topic was deleted there, or the master began with a later part of the log, and knew nothing of the queue.
        """
        for name, group in [row for row in self._own.table if row[0] == topic]:
            if group != TRANSACTION_GROUP:
                self._take_told(name, group, queue_id)

    def _take_told(self, topic: str, group: str, queue_id: int) -> None:
        self._own.take(group, topic, queue_id, self._told.get((topic, group), {}).get(queue_id))
        self._agreed.pop((topic, group, queue_id), None)
        self._here.discard((topic, group, queue_id))

    def ahead(self, without: Container[str] = ()) -> list[Ahead]:
        """Return what groups have committed here beyond what the master has told last, in topics other than these."""
        found, settled = list[Ahead](), list[tuple[str, str, int]]()
        for place in self._here:
            topic, group, queue_id = place
            told, offset = self._told.get((topic, group), {}).get(queue_id), self._own.get(group, topic, queue_id)
            if told is None or offset is None or topic in without or group == TRANSACTION_GROUP:
                continue
            if offset > max(told, self._agreed.get(place, told)):
                found.append((group, topic, queue_id, offset, told))
            else:
                settled.append(place)
        self._here.difference_update(settled)
        return found
