"""Retention by topic: `deletePolicy` of MetaQ 1.x (docs/formats/store-folder.md, `metaqFloors.json`).

All topics share one log, so a topic's messages expire log file by log file. Its *floor* is the LogOffset below which its
messages cannot be read any more, though their bytes may still lie there. Retention moves it to the begin of a log file, an
administrator (`trim`) to any place, or that of one queue alone (`metaq.model.upkeep.floors`). A log file is deleted when it lies below the
floors of all topics in it.
"""

from __future__ import annotations

import bisect
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from metaq.errors import ConfigError
from metaq.model.cron import Cron
from metaq.model.retention import Retentions, TopicRetention, is_carried
from metaq.model.upkeep.floors import floor_of, topic_of
from metaq.store.config_file import ConfigFile
from metaq.store.log.parts import Parts
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.queues.table import QueueKey
from metaq.store.retention.expiry import FILES_PER_RUN_MAX, FileAge

log = logging.getLogger(__name__)
_NAMED_MAX: Final = 5
_UNITS_TRIED: Final = 64

Ask = Callable[[str, int], bool]
"""(topic, LogOffset) → whether its messages below may expire now. False: it is asked again at the next look."""


class _Saved(Struct, frozen=True):
    """Content of `metaqFloors.json`."""

    floors: dict[str, int] = field(default_factory=dict)


class Holding(Struct, frozen=True):
    """Log files that are kept for one topic alone."""

    topic: str
    bytes: int
    """Size of the log files that would go if this topic's messages expired."""


class Floors:
    """Moves floors when topics' messages expire. Used by the housekeeping thread; others may read `table`, `kept`, `holding`."""

    def __init__(self, parts: Parts, flush: Callable[[], None]) -> None:
        """`flush`: makes the log durable up to its end; a failure is told to the parts' state."""
        self._parts, self._flush = parts, flush
        self._file = ConfigFile(parts.folder.config / "metaqFloors.json", parts.disk)
        self.retentions: Retentions | None = None
        """None: all topics obey `fileReservedTime` alone."""
        self.table: Mapping[str, int] = self._load()
        """Topic or queue (`metaq.model.upkeep.floors`) → floor, of those above the log's begin. Replaced as a whole: readers need no lock."""
        self.holding: Holding | None = None
        self.kept: Mapping[str, int] = {}
        """Topic → LogOffset of its oldest message at the last look. Replaced as a whole, so that readers need no lock."""
        self._asked: tuple[Ask, ...] = ()
        self._looked_ms = parts.clock.now_ms()
        self._due: set[str] = set()
        """Topics whose cron has come due, until they have nothing more to expire: a look moves a floor by ten files at most."""
        self._never: set[Cron] = set()
        self._oldest: dict[QueueKey, tuple[ConsumeQueue, int, int]] = {}
        """Queue, its min offset at the last look, and the LogOffset of the message there: read once, not at each look."""
        self._told: deque[Mapping[str, int] | None] = deque()
        """What `follow` was given, for the housekeeping thread."""
        self._ahead: dict[str, int] = {}
        """A master's floors to which this log does not reach yet."""

    def _load(self) -> dict[str, int]:
        try:
            text = self._file.load()
            saved = msgspec.json.decode(text, type=_Saved).floors if text else {}
        except (ConfigError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
            log.warning(
                "%s is ignored (%s): messages that topics had let go of can be read again until their log file goes",
                self._file.path, error,
            )  # fmt: skip
            return {}
        end = self._parts.log.end
        if strange := sorted(topic for topic, floor in saved.items() if floor > end):
            log.warning(
                "%s knows floors behind the log's end at %d, which are ignored: of %s", self._file.path, end, strange[0]
            )
        table = {topic: floor for topic, floor in saved.items() if self._parts.log.min < floor <= end}
        if strange:
            self._replace(table)
        return table

    def _replace(self, table: Mapping[str, int]) -> None:
        """Save the table so that no older one is found again: its higher floors would hide new messages. Raises OSError."""
        try:
            for _ in range(2):  # so that `.bak` holds it, too
                self._file.save(msgspec.json.encode(_Saved(dict(table))).decode())
        except OSError as error:
            log.warning("%s is removed, since it could not be written: %s", self._file.path, error)
            # The backup is removed first: it would be read once the file is gone.
            for path in reversed(self._file.paths):
                path.unlink(missing_ok=True)
            self._parts.disk.sync_folder(self._parts.folder.config)

    def apply(self) -> None:
        """Move the min offsets of queues to their topics' floors: recovery puts them at the log's begin."""
        for queue in self._parts.queues.all() if self.table else ():
            if floor := self.of(queue):
                queue.correct_min(floor)

    def of(self, queue: ConsumeQueue) -> int:
        """Return the floor of a queue; 0: it has none."""
        return floor_of(self.table, queue.topic, queue.queue_id)

    def ask(self, ask: Ask) -> None:
        """From now on, ask before a topic's floor moves."""
        self._asked = (*self._asked, ask)

    def cut(self, log_end: int) -> None:
        """Lower floors to `log_end`, at which the log is cut next. Raises OSError."""
        if any(floor > log_end for floor in self.table.values()):
            self.table = {topic: min(floor, log_end) for topic, floor in self.table.items()}
            self._replace(self.table)

    # ------------------------------------------------------------------ moving

    def look(self, now_ms: int, files: Sequence[FileAge], *, at_once: bool) -> None:
        """Move the floors of topics whose messages have expired, when their crons are due, or `at_once`.

        Args: files: all log files but the newest, oldest first. Raises OSError: the floors could not be saved; none moved.
        """
        retentions, since = self.retentions, self._looked_ms
        if retentions is None:
            return
        self._looked_ms = now_ms
        queues = self._parts.queues.all()
        rules = {topic: retentions.of(topic) for topic in {queue.topic for queue in queues} if not is_carried(topic)}
        self._tell_of_crons({rule.when for rule in rules.values()}, now_ms)
        fired: dict[Cron, bool] = {}
        for topic, rule in rules.items():
            if rule.when not in fired:
                fired[rule.when] = rule.when.is_due(since, now_ms)
            if at_once or fired[rule.when]:
                self._due.add(topic)
        self._due &= rules.keys()
        moved: dict[str, int] = {}
        for topic in sorted(self._due):
            floor = max(self.table.get(topic, 0), self._parts.log.min)
            # At most ten files at a look, as with the log itself: a mistake in the settings can be stopped.
            place, more = _wanted(floor, files, rules[topic], now_ms)
            if place > floor and all(ask(topic, place) for ask in self._asked):
                moved[topic] = place
            elif place > floor:
                more = True
            if not more:
                self._due.discard(topic)
        if moved:
            self._move(moved, queues, "whose time is up")

    def trim(self, wanted: Mapping[str, int]) -> bool:
        """Move floors (`metaq.model.upkeep.floors`) up to places below the log's end, by an administrator's word; none goes back.

        Returns False if somebody who was asked needs the messages a while longer: none has moved, try again. Raises OSError: the
        floors could not be saved; none moved.
        """
        moved = {
            key: floor for key, floor in wanted.items() if floor > max(self.table.get(key, 0), self._parts.log.min)
        }
        # All are asked: each begins with its work.
        answers = [ask(topic_of(key), floor) for ask in self._asked for key, floor in moved.items()]
        if not all(answers):
            return False
        if moved:
            self._move(moved, self._parts.queues.all(), "trimmed by hand")
        return True

    def kept_after_look(self, now_ms: int, files: Sequence[FileAge]) -> int | None:
        """Return what `kept_from` would after all topics had let go of what has expired; None: no topic has a rule of its own."""
        if self.retentions is None:
            return None
        places = [self.kept_from()]
        kept = self.kept
        for topic, low in kept.items():
            floor, more = max(self.table.get(topic, 0), self._parts.log.min), True
            while more:
                floor, more = _wanted(floor, files, self.retentions.of(topic), now_ms)
            places.append(max(low, floor))
        return min(places[1:], default=places[0])

    def _move(self, moved: Mapping[str, int], queues: Sequence[ConsumeQueue], why: str) -> None:
        self._flush()  # a power cut must not leave saved floors behind the log's end
        if self._parts.state.failed is not None:
            return
        # The settled begin: a floor may be forgotten only if no power cut brings back a log file below it.
        log_min = self._parts.log.settled_min
        table = {topic: floor for topic, floor in {**self.table, **moved}.items() if floor > log_min}
        # Saved before a reader sees it: a message that was gone once must not come back after a crash.
        self._file.save(msgspec.json.encode(_Saved(table)).decode())
        self.table = table
        for queue in queues:
            if floor := floor_of(moved, queue.topic, queue.queue_id):
                try:
                    queue.correct_min(floor)
                except FileNotFoundError:
                    if self._parts.queues.holds(queue):
                        raise  # else its topic was deleted meanwhile
        named = ", ".join(f"{key} below log offset {moved[key]}" for key in sorted(moved)[:_NAMED_MAX])
        log.info("%d topics let go of their messages, %s: %s", len({topic_of(key) for key in moved}), why, named)

    def _tell_of_crons(self, crons: set[Cron], now_ms: int) -> None:
        for cron in sorted(crons - self._never, key=lambda cron: cron.text):
            if cron.following_ms(now_ms) is None:
                self._never.add(cron)
                log.warning(
                    "deleteWhen=%s does not come to be due any more: no message of topics with it is deleted unless the disk "
                    "is full",
                    cron.text,
                )

    # ------------------------------------------------------------------ a slave's

    def follow(self, told: Mapping[str, int] | None) -> None:
        """Have `keep_up` take over a master's floors; None: forget those to which the log did not come. From any thread."""
        self._told.append(told)

    def keep_up(self) -> None:
        """Move floors to where the master's are, once the log is durable up to there. They never go back.

        Raises OSError: the floors could not be saved; none moved.
        """
        while self._told:
            told = self._told.popleft()
            self._ahead = {} if told is None else {**self._ahead, **told}
        # A floor beyond the log's end would hide what a new master appends there.
        end, log_min = self._parts.state.flushed, self._parts.log.settled_min
        due = {topic: floor for topic, floor in self._ahead.items() if floor <= end}
        moved = {topic: floor for topic, floor in due.items() if floor > max(self.table.get(topic, 0), log_min)}
        if moved:
            self._move(moved, self._parts.queues.all(), "as the master's have")
        if due:
            self._ahead = {topic: floor for topic, floor in self._ahead.items() if topic not in due}

    # ------------------------------------------------------------------ what is held

    def kept_from(self) -> int:
        """Return the LogOffset of the oldest message that a topic keeps; the log's end: there is none. Looks at all queues."""
        log, lows, seen = self._parts.log, dict[str, int](), dict[QueueKey, tuple[ConsumeQueue, int, int]]()
        for queue in self._parts.queues.all():
            key, low = (queue.topic, queue.queue_id), queue.min_offset
            if is_carried(queue.topic) or low >= queue.max_offset:
                continue
            known = self._oldest.get(key)
            if known is None or known[0] is not queue or known[1] != low:
                known = queue, low, self._oldest_of(queue, low)
            if known[2] >= 0:
                seen[key] = known
            place = known[2] if known[2] >= 0 else log.min
            lows[queue.topic] = min(place, lows.get(queue.topic, place))
        self._oldest, self.kept = seen, lows
        ordered = sorted(lows, key=lows.__getitem__)
        self.holding = None
        if not ordered:
            return log.end
        starts = [file.start for file in log.run.files]

        def file_of(place: int) -> int:
            return starts[max(0, bisect.bisect_right(starts, place) - 1)] if starts else place

        second = file_of(lows[ordered[1]] if len(ordered) > 1 else max(log.end - 1, lows[ordered[0]]))
        if held := second - file_of(lows[ordered[0]]):
            self.holding = Holding(ordered[0], held)
        return lows[ordered[0]]

    def _oldest_of(self, queue: ConsumeQueue, low: int) -> int:
        """Return the LogOffset of the message at a queue's min offset, or of the next one with a good unit; -1: unknown."""
        try:
            for offset in range(low, min(queue.max_offset, low + _UNITS_TRIED)):
                unit = queue.peek(offset)
                if unit is not None and unit.size > 0 and not unit.is_fill:
                    return unit.log_offset
        except FileNotFoundError:
            if self._parts.queues.holds(queue):
                raise
        return -1


def _wanted(floor: int, files: Sequence[FileAge], rule: TopicRetention, now_ms: int) -> tuple[int, bool]:
    """Return where the topic's floor may go, at most ten files on, and whether it could go further. Pure."""
    count = 0
    for file in files:
        if file.end <= floor:
            continue
        if now_ms - file.last_ms < rule.policy.keep_seconds * 1000:
            break
        if count == FILES_PER_RUN_MAX:
            return floor, True
        floor, count = file.end, count + 1
    return floor, False
