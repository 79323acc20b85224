"""The looks at everything at the end of a schedule, when the pair is even and nobody sends any more."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import metaq
from metaq.model import SendStatus
from metaq.model.leadership import CutTail
from tests.crash.pair_ledger.ledger import TOPIC, Broken, Entry, Key, Live, Load, Outcome, Place, Seen
from tests.crash.pair_ledger.pair import Lost, Side, messages_in, placed
from tests.store.log.test_raw import raw_log
from tests.support import eventually

if TYPE_CHECKING:
    from tests.crash.pair_ledger.course import Course

NAMED_MAX = 5


class Checks:
    """What is held against the ledger."""

    def __init__(self, course: Course, load: Load) -> None:
        self._course, self._pair, self._entries = course, course.pair, load.entries
        self._log: dict[Place, Key] = {}
        self._cut: Lost = set()
        self._by_power: Lost = set()

    def all(self, live: Iterable[Live]) -> int:
        """Returns how many acknowledged messages are gone that may be. Raises Broken.

        Args: live: groups that have consumed all the time.
        """
        self._same_logs()
        self._readable()
        self._read_log()
        self._read_cuts()
        lost = self._acknowledged()
        self._refused()
        self._order()
        for group in live:
            self._consumed(group)
        return lost

    def _same_logs(self) -> None:
        states = [self._pair.state(side) for side in self._pair.sides]
        assert all(state is not None for state in states), "the pair is even"
        ends = {state.log_end for state in states if state is not None}
        if len(ends) != 1:
            raise Broken(f"the logs end at {ends} though nobody sends")
        begin, end = max(state.log_min for state in states if state is not None), ends.pop()
        logs = [raw_log(side.data, begin, end) for side in self._pair.sides]
        if logs[0] != logs[1]:
            place = next(at for at, (one, other) in enumerate(zip(*logs, strict=True)) if one != other)
            raise Broken(f"the logs differ at log offset {begin + place}, of [{begin}, {end})")

    def _readable(self) -> None:
        """Wait for the slave's word that it has all: consumers of a SYNC_MASTER read what its slave has reported."""

        def is_told() -> bool:
            states = (self._pair.state(side) for side in self._pair.sides)
            (leader,) = (state for state in states if state is not None and state.leads)
            return any(slave.copied >= leader.log_end for slave in leader.slaves)

        eventually(is_told, self._course.wanted.patience, what="the slave has reported all")

    def _read_log(self) -> None:
        # The name servers may have the new leader's topics only when it registers the next time.
        read = eventually(self._read, self._course.wanted.patience, what="the log can be read")
        offsets: dict[int, int] = {}
        for (queue_id, offset), key in read:
            if offset != offsets.setdefault(queue_id, 0):
                raise Broken(f"queue {queue_id} goes on with offset {offset} behind {offsets[queue_id] - 1}")
            offsets[queue_id] += 1
            self._log[queue_id, offset] = key
        for side in self._pair.sides:
            if dict(messages_in(side.data)) != self._log:
                raise Broken(f"the queues have other messages than the log of {side.name}")

    def _read(self) -> list[tuple[Place, Key]]:
        with metaq.Reader(self._pair.namesrv, TOPIC, stop_at_end=True, instance_name="reader") as reader:
            return [placed(message) for message in reader]

    def _read_cuts(self) -> None:
        for side in self._pair.sides:
            state = self._pair.state(side)
            assert state is not None, "the pair is even"
            for cut in state.cuts:
                self._cut |= self._read_cut(side, cut)
            self._course.report.cuts += len(state.cuts)
            self._by_power |= side.lost_by_power

    def _read_cut(self, side: Side, cut: CutTail) -> Lost:
        found = list(messages_in(Path(cut.folder))) if cut.folder else []
        told, counted = dict(cut.queues.get(TOPIC, {})), Counter(queue_id for (queue_id, _), _ in found)
        if told != counted:
            raise Broken(
                f"{side.name} says that it has cut off {told} at {cut.log_offset}, and has kept {dict(counted)}"
            )
        self._course.tell(f"{side.name} has cut off [{cut.log_offset}, {cut.log_end}): {dict(counted)}")
        return set(found)

    # ------------------------------------------------------------------ the ledger

    def _acknowledged(self) -> int:
        lost = [entry for entry in self._entries.values() if entry.place and self._log.get(entry.place) != entry.key]
        sure = [entry for entry in lost if not self._may_be_lost(entry)]
        if sure:
            raise Broken(f"{len(sure)} messages are lost that may not be: {self._named(sure)}")
        return len(lost)

    def _may_be_lost(self, entry: Entry) -> bool:
        assert entry.place is not None, "it is acknowledged"
        there = entry.place, entry.key
        if self._course.wanted.mode == "sync" and entry.status is SendStatus.SEND_OK:
            return False
        if self._course.flush == "SYNC_FLUSH" and entry.status is SendStatus.SEND_OK:
            return there in self._cut
        return there in self._cut or there in self._by_power

    def _refused(self) -> None:
        """Nothing is there that was refused, or more often than it was tried."""
        copies = Counter(self._log.values())
        unknown = copies.keys() - self._entries.keys()
        if unknown:
            raise Broken(f"messages are there that nobody sent: {list(unknown)[:NAMED_MAX]}")
        often = [entry for entry in self._entries.values() if copies[entry.key] > entry.copies_max]
        often += [
            entry for entry in self._entries.values() if not entry.copies_max and entry.key in dict(self._swapped())
        ]
        if often:
            raise Broken(f"{len(often)} messages are there too often, or were refused: {self._named(often)}")

    def _swapped(self) -> Iterable[tuple[Key, Place]]:
        return ((key, place) for place, key in self._cut | self._by_power)

    def _order(self) -> None:
        """In each queue the messages of a producer that it knows to be stored come first in the order in which it sent them."""
        first: dict[Key, Place] = {}
        for place, key in sorted(self._log.items()):
            first.setdefault(key, place)
        sent = sorted(
            (entry for entry in self._entries.values() if entry.place and self._log.get(entry.place) == entry.key),
            key=lambda entry: (entry.key[0], entry.queue_id, entry.key[1]),
        )
        for before, after in itertools.pairwise(sent):
            if (before.key[0], before.queue_id) == (after.key[0], after.queue_id) and first[before.key] > first[
                after.key
            ]:
                raise Broken(f"{after.key} comes before {before.key}: {first[after.key]}, {first[before.key]}")

    def _consumed(self, live: Live) -> None:
        """A group that consumed all the time has seen everything that is acknowledged and there, each at its place."""
        wanted = {
            entry.key for entry in self._entries.values() if entry.place and self._log.get(entry.place) == entry.key
        }
        gone = self._cut | self._by_power

        def hidden(seen: Seen) -> set[Key]:
            # Whoever has consumed a message that was cut off later is behind what stands in its place since: offsets are all
            # that a group knows of its progress.
            told = {place for places in seen.values() for place in places}
            return {self._log[place] for place, _ in gone if place in self._log and place in told}

        seen = live.seen_when(lambda seen: wanted <= seen.keys() | hidden(seen), self._course.wanted.patience)
        self._course.report.hidden += len(hidden(seen) - seen.keys())
        if lacks := wanted - hidden(seen) - seen.keys():
            entries = [self._entries[key] for key in lacks]
            raise Broken(f"{live.name} has not seen {len(lacks)} messages: {self._named(entries)}")
        known = {(place, key) for place, key in self._log.items()} | gone
        if strange := {(place, key) for key, places in seen.items() for place in places} - known:
            raise Broken(
                f"{live.name} has seen {len(strange)} messages that are nowhere: {sorted(strange)[:NAMED_MAX]}"
            )

    def _named(self, entries: list[Entry]) -> str:
        entries.sort(key=lambda entry: (entry.place or (0, 0), entry.key))
        shown = [
            f"{entry.key} at {entry.place}, {entry.status.name if entry.status else ''}, {_counted(entry.outcomes)}, "
            f"{'cut off' if (entry.place, entry.key) in self._cut else 'gone with the power' if (entry.place, entry.key) in self._by_power else 'nowhere'}"
            f", there now: {self._log.get(entry.place) if entry.place else None}{''.join(f', {why}' for why in entry.refusals[-1:])}"
            for entry in [*entries[:NAMED_MAX], *entries[-1:]]
        ]
        return "; ".join(shown)


def _counted(outcomes: list[Outcome]) -> str:
    return ", ".join(f"{count} {outcome.value}" for outcome, count in Counter(outcomes).items())
