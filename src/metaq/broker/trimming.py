"""Trims of topics by an administrator (30023): messages before a time, or before an offset, become unreadable.

The log is shared by all topics, so its files stay until retention takes them. Floors of topics and queues
(`metaq.store.retention.floors`) hide what lies below, at every server, on slaves, and after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from metaq.broker.cleaning import ASKED_MAX
from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.lookup import Lookup
from metaq.broker.tables.topics import check_client_topic
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model.clients import MessageModel
from metaq.model.upkeep.cleaning import QueueTrim, TopicTrim, UnreadInQueue
from metaq.model.upkeep.floors import queue_key
from metaq.saved import PendingOutcome
from metaq.store.queues.consume_queue import ConsumeQueue

if TYPE_CHECKING:  # brokers without clients of MetaQ 1.x load none of its code
    from metaq.broker.metaq1.progress import PartitionProgress

log = logging.getLogger(__name__)

UNREAD_MAX: Final = 1000
"""Entries of groups that have not read what goes, at most: they are for people."""
_UNITS_TRIED: Final = 64
_OF_A_PIECE: Final = 16
"""Queues, or groups, that are looked at in one go: some 0.3 ms."""

CallSoon = Callable[[Callable[[], None]], None]
ReadByMetaq1: TypeAlias = Mapping[str, Mapping[int, int]]
"""Group of MetaQ 1.x → queue id of the topic → first offset that it has not read."""
NOTHING_READ: Final[ReadByMetaq1] = {}


class Trimming:
    """Trims of one broker's topics."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        lookup: Lookup,
        call_soon: CallSoon,
        archives: Callable[[str], bool] | None = None,
        metaq1: PartitionProgress | None = None,
    ) -> None:
        """
        Args:
            archives: whether a topic's messages are archived before they go, whole log files of them; None: none are.
            metaq1: progress of groups of MetaQ 1.x; None: there are none.
        """
        self._archives, self._metaq1 = archives, metaq1
        self._clock, self._store = environment.clock, environment.store
        self._tables, self._lookup, self._call_soon = tables, lookup, call_soon
        self._running = 0

    def read_by_metaq1(self, topic: str) -> ReadByMetaq1:
        """Return what groups of MetaQ 1.x have read of a topic. Raises Saving while that is asked for; Refused BUSY: too much is."""
        return self._metaq1.in_topic(topic) if self._metaq1 is not None else {}

    def plan_before(
        self, topic: str, time_ms: int, read: ReadByMetaq1 = NOTHING_READ
    ) -> InPieces[tuple[TopicTrim, Mapping[str, int]]]:
        """Return what would go if messages stored before a time went, and the floors that do it.

        Raises Refused: INVALID: a topic of the broker's own, or no time since 1970 and up to now; NO_TOPIC.
        """
        queues = self._queues(topic)
        now_ms = self._clock.now_ms()
        if not 0 <= time_ms <= now_ms:
            raise Refused(
                Reason.INVALID,
                f"topic {topic} cannot be trimmed before {time_ms} ms: that is no time from 1970 until now, which is {now_ms} here",
            )
        # First: what comes meanwhile lies behind.
        floor = self._store.log.end
        for number, queue in enumerate(queues, 1):
            first = self._lookup.first_at(topic, queue.queue_id, time_ms)
            floor = min(floor, self._place_of(queue, first, floor))
            if not number % _OF_A_PIECE:
                yield
        return (yield from self._plan(topic, queues, {topic: floor}, read))

    def plan_offsets(
        self, topic: str, offset: int, queue_id: int | None, read: ReadByMetaq1 = NOTHING_READ
    ) -> InPieces[tuple[TopicTrim, Mapping[str, int]]]:
        """Return what would go if messages before an offset went, in one queue or in each, and the floors that do it.

        Raises Refused as `plan_before`; INVALID also: there is no such queue or offset.
        """
        queues = self._queues(topic)
        if offset < 0:
            raise Refused(Reason.INVALID, f"topic {topic} cannot be trimmed before offset {offset}: it is below 0")
        end = self._store.log.end
        if queue_id is not None:
            high = self._lookup.max_offset(topic, queue_id)  # raises: no such queue
            if offset > high:
                raise Refused(
                    Reason.INVALID,
                    f"queue {queue_id} of topic {topic} cannot be trimmed before offset {offset}: it ends at {high}",
                )
            queues = [queue for queue in queues if queue.queue_id == queue_id]
        floors = dict[str, int]()
        for number, queue in enumerate(queues, 1):
            floors[queue_key(topic, queue.queue_id)] = self._place_of(queue, offset, end)
            if not number % _OF_A_PIECE:
                yield
        return (yield from self._plan(topic, queues, floors, read))

    def _queues(self, topic: str) -> list[ConsumeQueue]:
        if self._tables.topics.is_system(topic):
            raise Refused(
                Reason.INVALID,
                f"topic {topic} is the broker's own and cannot be trimmed: its messages go with their time",
            )
        config = self._tables.topics.require(check_client_topic(topic))
        found = (
            self._store.reader.existing_queue(topic, number)
            for number in range(max(config.read_queues, config.write_queues))
        )
        return [queue for queue in found if queue is not None]

    def _place_of(self, queue: ConsumeQueue, offset: int, log_end: int) -> int:
        """Return the LogOffset of a message, or, where its unit is damaged, of the one before it; `log_end`: the queue ends there."""
        if offset >= queue.max_offset:
            return log_end
        # A damaged unit may still be mended: its message, and one more, stay.
        for place in range(offset, max(queue.min_offset, offset - _UNITS_TRIED) - 1, -1):
            unit = queue.unit(place)
            if unit is not None and unit.size > 0 and not unit.is_fill:
                return min(unit.log_offset, log_end)
        return self._store.log.min

    def _plan(
        self, topic: str, queues: list[ConsumeQueue], floors: Mapping[str, int], read: ReadByMetaq1
    ) -> InPieces[tuple[TopicTrim, Mapping[str, int]]]:
        if self._archives is not None and self._archives(topic):
            floors = {key: self._border_below(floor) for key, floor in floors.items()}
        found = list[QueueTrim]()
        store_time = self._store.reader.store_time
        for number, queue in enumerate(queues, 1):
            floor = max(floors.get(topic, 0), floors.get(queue_key(topic, queue.queue_id), 0))
            low, high = queue.min_offset, queue.max_offset
            new = max(low, min(high, queue.first_at(floor)))
            oldest = store_time(topic, queue.queue_id, low) if new > low else 0
            newest = store_time(topic, queue.queue_id, new - 1) if new > low else 0
            found.append(QueueTrim(queue.queue_id, low, high, new, max(0, oldest), max(0, newest)))
            if not number % _OF_A_PIECE:
                yield
        unread = yield from self._unread(topic, [one for one in found if one.messages], read)
        return TopicTrim(topic, tuple(found), unread), floors

    def _border_below(self, floor: int) -> int:
        """Return where the log file begins that holds `floor`: what is archived is whole files that take no more messages."""
        return max((file.start for file in self._store.log.run.files if file.start <= floor), default=0)

    def _unread(self, topic: str, going: list[QueueTrim], read: ReadByMetaq1) -> InPieces[tuple[UnreadInQueue, ...]]:
        """Return what groups have not read of it: those with progress in the topic, also of MetaQ 1.x, and those that consume it now."""
        offsets, consumers = self._tables.offsets, self._tables.members.consumers
        online = {
            name
            for name in self._tables.members.subscribers(topic)
            if consumers[name].model is not MessageModel.BROADCASTING  # its members keep their progress themselves
        }
        # One that is online and has committed nothing has read nothing.
        readers = [
            (group, offsets.queues(group, topic), group in online)
            for group in sorted({*offsets.groups_of(topic), *online})
        ]
        readers += [(group, progress, False) for group, progress in sorted(read.items())]
        found = list[UnreadInQueue]()
        for group, progress, is_online in readers if going else ():
            for queue in going:
                at = progress.get(queue.queue_id, queue.min_offset if is_online else queue.new_min)
                if at < queue.new_min:
                    found.append(UnreadInQueue(group, queue.queue_id, queue.new_min - max(at, queue.min_offset)))
                if len(found) == UNREAD_MAX:
                    return tuple(found)
            yield
        return tuple(found)

    def carry_out(self, topic: str, floors: Mapping[str, int]) -> PendingOutcome[None]:
        """Have messages below floors go, durably.

        The outcome may be Refused BUSY: somebody needs them a while longer, and nothing has changed; NOT_STORED: it has failed. Raises
        Refused BUSY: too many trims are under way.
        """
        if self._running >= ASKED_MAX:
            raise Refused(Reason.BUSY, f"topic {topic} is not trimmed: {ASKED_MAX} trims are under way")
        self._running += 1
        outcome: PendingOutcome[None] = PendingOutcome()

        def ended(moved: bool | None) -> None:
            self._running -= 1
            if moved:
                log.info("topic %s was trimmed by hand", topic)
                outcome.succeed(None)
            elif moved is None:
                outcome.finish(
                    Refused(Reason.NOT_STORED, f"topic {topic} could not be trimmed: the broker's log says why")
                )
            else:
                outcome.finish(
                    Refused(
                        Reason.BUSY,
                        f"topic {topic} is not trimmed: its messages are being archived, or clients of MetaQ 1.x need them for their "
                        "positions; try again",
                    )
                )

        self._store.keeper.trim(floors, lambda moved: self._call_soon(lambda: ended(moved)))
        return outcome
