"""The master of a synchronous pair: sends every message of its partitions to the slave, whoever put it, and says what the slave has.

The log is followed, not the puts: what a 1.x client, a RocketMQ client or a commit appends to a partition is read as 1.x frames and
sent as `sync`, in the order of each partition and many at a time. Acknowledgements of all servers wait for the slave as they do for
RocketMQ's synchronous slaves (`metaq.broker.log.acks.Copies`).

When the slave comes, it is asked where its copy of each partition ends (`copy_ends`). It gets what it lacks, so that byte positions stay
the same on both sides; only then are puts taken. A copy that differs gets what is put from now on, as with the original.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from metaq.broker.environment import Environment
from metaq.broker.log.appender import Appender
from metaq.broker.metaq1.pair.branches import BranchCopies
from metaq.broker.metaq1.pair.copy_ends import CopyEnds
from metaq.broker.metaq1.pair.given_up import Outcomes
from metaq.broker.metaq1.pair.health import SlaveHealth
from metaq.broker.metaq1.pair.lanes import TEST_BODY, Lane, LaneState, UnderWay, messages_of
from metaq.broker.metaq1.pair.slave_link import SlaveLink
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.part import BrokerPart
from metaq.errors import Refused
from metaq.log import RateLimitedLog
from metaq.model.metaq1.pair import (
    STATUS_TOPIC,
    BranchCopy,
    BranchStep,
    Heard,
    SamsaSettings,
    SyncMessage,
)
from metaq.model.metaq1.partition import FRAME_HEADER_BYTES
from metaq.model.topics.system import HALF_TOPIC, SCHEDULE_TOPIC
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.saved import Saving
from metaq.store.metaq1.frames import FrameReader, FrameRun, FramesRead
from metaq.store.queues.consume_queue import Unit
from metaq.wire.hot import crc31

log = logging.getLogger(__name__)

SUCCESS: Final = 200
RUN_MESSAGES: Final = 512
RUN_BYTES: Final = 1 << 20
"""Messages, and bytes of their records, that are read at a time; one message at least."""
WINDOW_BYTES: Final = 16 << 20
"""Bytes of messages that wait for the slave's answers, about: above that it gets no more."""
FRAME_BYTES_MAX: Final = 1 << 28
_OPAQUES: Final = 1 << 32


class Samsa(BrokerPart):
    """The master of a pair. A `metaq.broker.log.acks.Copies`. Only on the thread that owns the broker."""

    required = True
    carries_alone = True
    in_doubt = False
    lacks_for_now = False
    """Byte positions of the slave are made by its own hand, of the same messages."""

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        bases: Bases,
        partitions: Partitions,
        settings: SamsaSettings,
        broker_id: int,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.settings = settings
        self._environment, self._reader, self._log = environment, environment.store.reader, environment.store.log.tail
        self._bases, self._partitions, self._call_soon = bases, partitions, call_soon
        self._frames = FrameReader(environment.store.reader, broker_id)
        self._now = environment.clock.monotonic
        self._link: SlaveLink | None = None
        self._live = False
        """The slave has all that is here, or gets it: puts are taken."""
        self._lanes: list[Lane] = []
        self._listed: Sequence[Any] = ()
        self._opaques = itertools.count()
        self._sent: dict[int, UnderWay] = {}
        """By opaque, oldest first."""
        self._sent_bytes = 0
        self._places: list[tuple[int, int]] = []
        """Heap of (LogOffset, opaque) of `_sent`; some have been answered."""
        self.outcomes = Outcomes()
        self.copied = self._log.end
        self._looked_at = self._log.end
        """End of the log when all lanes were looked at."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._pumping = False
        self._changed: list[Callable[[], None]] = []
        self.generation = 0
        self.keeps_branches = False
        self._steps: dict[int, tuple[Callable[[Heard | None], None], float]] = {}
        """Opaque → who waits for the answer to a step of a branch, and until when."""
        self.branches = BranchCopies(self)
        """The slave's copies of XA branches."""
        self.health = SlaveHealth(settings, self._now, self._tell)
        self._faults = RateLimitedLog(log, environment.clock)
        self._copy_ends = CopyEnds(self, bases, settings, self._now, self._faults)
        appender.when_grown(self._grew)

    def when_changed(self, changed: Callable[[], None]) -> None:
        """Register a callback for changes of `connected`, `enough` and of `health.suspended`."""
        self._changed.append(changed)

    def _tell(self) -> None:
        for changed in self._changed:
            changed()

    # ------------------------------------------------------------------ what acknowledgements ask

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def available(self) -> bool:
        return self._live

    @property
    def enough(self) -> bool:
        return self._live

    @property
    def lacking(self) -> str:
        if self._link is None:
            return "Slave is disconnected "  # the original's words, with their blank
        count = sum(lane.tail.next_offset - lane.next for lane in self._lanes if lane.state is LaneState.OPEN)
        return f"Slave {self.settings.url} lacks {count} older messages: they are being copied, try again"

    def lacks(self, begin: int, end: int) -> bool:
        return self.outcomes.lacks(begin, end)

    def refusal_of(self, topic: str) -> str | None:
        if topic in {SCHEDULE_TOPIC, HALF_TOPIC} or topic.startswith(RETRY_PREFIX):
            return (
                "this broker is the master of a synchronous pair of MetaQ 1.x, whose slave would not have it: delayed messages, half "
                "messages and those that a consumer gives back need a slave of RocketMQ's kind (brokerRole=SYNC_MASTER)"
            )
        return None

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        if self.copied >= log_end:
            done()
        else:
            self._waiting.append((log_end, done))

    def failure_of(self, message_id: int, partition: int) -> str | None:
        """Return what whoever put a message is told, in the original's words; None: the slave has it."""
        if self.outcomes.has(message_id):
            return None
        topic = self.outcomes.topic_of(message_id)
        if topic is None:
            topic = next((one.lane.topic for one in self._sent.values() if one.message_id == message_id), None)
        where = f"partition '{topic}-{partition}'" if topic is not None else f"partition {partition}"
        return f"Put message to [slave '{self.settings.url}'] [{where}] failed"

    # ------------------------------------------------------------------ the slave comes and goes

    def attach(self, link: SlaveLink) -> None:
        """Use a connection to the slave."""
        self._link = link
        self.generation += 1
        self.tell(BranchCopy(BranchStep.ASK), self._keeps)
        self._copy_ends.attached()
        self._lanes, self._listed = [], ()
        self._look_for_lanes()
        self._soon()
        self._tell()

    def detach(self, why: str) -> None:
        """The connection has ended. What was under way is given up, as by the original: the slave may have it or not."""
        if self._link is None:
            return
        self._link, was_live, self._live = None, self._live, False
        self._copy_ends.detached()
        self.keeps_branches = False
        steps, self._steps = self._steps, {}
        for done, _ in steps.values():
            done(None)
        now = self._now()
        for sent in list(self._sent.values()):
            self._give_up(sent, now)
            self.health.failed()
        self._sent.clear()
        self._sent_bytes = 0
        self._places.clear()
        for lane in self._lanes if was_live else ():
            self._give_up_rest(lane, now)
        self._release(self._log.end)
        log.warning("the slave %s is disconnected: %s. Puts are refused until it is back", self.settings.url, why)
        self._tell()

    # ------------------------------------------------------------------ branches

    def tell(self, copy: BranchCopy, done: Callable[[Heard | None], None]) -> None:
        if self._link is None:
            done(None)
            return
        opaque = self.next_opaque()
        self._steps[opaque] = done, self._now() + self.settings.send_timeout
        self._link.send(opaque, copy)

    def when_synced(self, done: Callable[[], None]) -> None:
        self.when_copied(self._log.end, done)

    def _keeps(self, heard: Heard | None) -> None:
        self.keeps_branches = heard is not None and heard.code == SUCCESS
        if self.keeps_branches:
            self.branches.connected()

    # ------------------------------------------------------------------ partitions

    def _look_for_lanes(self) -> None:
        """Have a lane for each partition that clients see."""
        queues, tails = self._reader.listed_queues()
        if tails is self._listed:
            return
        self._listed = tails
        known = {lane.tail: lane for lane in self._lanes}
        lanes = list[Lane]()
        for queue, tail in zip(queues, tails, strict=True):
            if not self._partitions.is_visible(queue.topic):
                continue
            lane = known.get(tail)
            if lane is None:
                lane = Lane(queue, tail)
                if self._live and queue.min_offset == 0:
                    # It was made while the slave was there: all of its messages are new.
                    lane.state = LaneState.OPEN
            lanes.append(lane)
        self._lanes = lanes

    # ------------------------------------------------------------------ where copies end

    @property
    def link(self) -> SlaveLink | None:
        return self._link

    def next_opaque(self) -> int:
        """Return the opaque of the next command to the slave."""
        return next(self._opaques) % _OPAQUES - (_OPAQUES >> 1)

    def begin(self, lane: Lane, queue_offset: int, position: int) -> None:
        """Send from this message on: the slave's copy ends before it."""
        lane.state, lane.next, lane.position, lane.differs = LaneState.OPEN, queue_offset, position, False
        lane.checked = False
        if lane.left and not self._live:
            log.info(
                "the slave %s lacks %d messages of partition %s, from position %d on: they are copied",
                self.settings.url, lane.tail.next_offset - lane.next, lane.name, position,
            )  # fmt: skip
        self._soon()

    def differ(self, lane: Lane, why: str, queue_offset: int | None = None) -> None:
        """Send from this message on, or what is put from now on, to other byte positions than here."""
        if queue_offset is None:
            queue_offset = lane.tail.next_offset
            if self._live:
                self._give_up_rest(lane, self._now())
        lane.state, lane.next, lane.position, lane.checked = LaneState.OPEN, queue_offset, None, True
        if not lane.differs:
            lane.differs = True
            log.warning(
                "partition %s has other byte positions at the slave %s than here: %s. It gets new messages only; consumers go on there by "
                "message ids (recoverOffset=true)",
                lane.name, self.settings.url, why,
            )  # fmt: skip
        self._soon()

    # ------------------------------------------------------------------ sending

    def _grew(self, *_: object) -> None:
        if self._link is not None:
            self._soon()

    def _soon(self) -> None:
        """Send in another turn of the loop: then one look finds what many read events have put."""
        if not self._pumping:
            self._pumping = True
            self._call_soon(self.go_on)

    def go_on(self) -> None:
        """Send what there is to send."""
        self._pumping = False
        link = self._link
        if link is None:
            return
        end, now = self._log.end, self._now()
        self._look_for_lanes()
        unknown = False
        for lane in self._lanes:
            if lane.state is LaneState.REFUSED and lane.again_at <= now and not lane.under_way:
                lane.state = LaneState.UNKNOWN
            if lane.state is LaneState.UNKNOWN:
                self._copy_ends.ask(lane, link)
            if lane.state is not LaneState.OPEN:
                unknown = True
                if self._live:
                    self._give_up_rest(lane, now)
                continue
            while lane.left and not lane.reading and not link.congested and self._sent_bytes < WINDOW_BYTES:
                if not lane.checked and lane.under_way:
                    break
                before = lane.next
                self._read_on(lane, link)
                if self._link is not link:
                    return
                if lane.next == before or lane.state is not LaneState.OPEN:
                    break
        self._looked_at = end
        if not (self._live or unknown or self._sent or any(lane.left for lane in self._lanes)):
            self._live = True
            self.copied = max(self.copied, self._log.end)
            log.info("the slave %s has all that is here: puts are taken", self.settings.url)
            self._tell()
        self._look_at_copied()

    def _read_on(self, lane: Lane, link: SlaveLink) -> None:
        """Read the next messages of a partition, and send them."""
        units = lane.queue.units(max(lane.next, lane.queue.min_offset), RUN_MESSAGES)
        if not units:
            lane.next = max(lane.next, lane.queue.min_offset)
            return
        lane.next = max(lane.next, lane.queue.min_offset)
        count = size = 0
        for unit in units:
            size += unit.size
            if count and (size > RUN_BYTES or not lane.checked):
                break
            count += 1
        places = [unit.log_offset for unit in units]
        lane.reading = True
        # A compressed body may be longer than its record: what does not fit is read again with more room.
        self._read_run(lane, count, max(size, FRAME_HEADER_BYTES), places, link)

    def _read_run(self, lane: Lane, count: int, size: int, places: list[int], link: SlaveLink) -> None:
        def read(found: FramesRead | Refused) -> None:
            lane.reading = False
            if self._link is not link or lane.state is not LaneState.OPEN:
                return
            if isinstance(found, Refused):
                self._faults.warning("reading", "partition %s cannot be read for the slave: %s", lane.name, found)
                self._stop_lane(lane)
                return
            if found.queue_offset > lane.next:  # lost messages
                lane.next, lane.position = found.queue_offset, None
                self._soon()
                return
            messages = messages_of(lane.topic, lane.partition, bytes(found.body))
            if not messages:
                if (found.body or found.count) and size < FRAME_BYTES_MAX:
                    lane.reading = True
                    self._read_run(lane, 1, size * 4, places, link)
                return
            self._send(lane, messages, places, link)

        self.read(FrameRun(lane.topic, lane.partition, lane.next, count, 0, size), read, link)

    def read(self, run: FrameRun, done: Callable[[FramesRead | Refused], None], link: SlaveLink) -> None:
        """Read frames, in a thread of the connection if they are not at hand."""
        found = self._frames.read(run)
        if isinstance(found, FramesRead):
            done(found)
        else:
            # More of the same lane follows when it has come.
            def then(read: FramesRead | Refused) -> None:
                done(read)
                self._soon()

            link.read(found, then)

    def _send(self, lane: Lane, messages: list[SyncMessage], places: list[int], link: SlaveLink) -> None:
        deadline = self._now() + self.settings.send_timeout
        if lane.position is None and not lane.differs:
            with contextlib.suppress(Saving, Refused, ValueError):
                lane.position = self._bases.touch(lane.topic, lane.partition).position(lane.next)
        for message, place in zip(messages, places, strict=False):
            opaque, size = self.next_opaque(), FRAME_HEADER_BYTES + len(message.body)
            self._sent[opaque] = UnderWay(lane, lane.next, place, message.message_id, size, lane.position, deadline)
            heapq.heappush(self._places, (place, opaque))
            self._sent_bytes += size
            lane.under_way += 1
            lane.next += 1
            if lane.position is not None:
                lane.position += size
            link.send(opaque, message)

    # ------------------------------------------------------------------ answers

    def answered(self, opaque: int, heard: Heard) -> None:
        """Take an answer of the slave. `answers_over` follows the last one that has come."""
        sent = self._sent.pop(opaque, None)
        if sent is not None:
            self._sent_bytes -= sent.size
            sent.lane.under_way -= 1
            if heard.code == SUCCESS:
                self.health.took()
                self.outcomes.taken(sent.message_id)
                self._check_position(sent, heard)
            else:
                self._give_up(sent, self._now())
                self.health.failed()
                self.refused(sent.lane, heard)
            if sent.lane.left or not self._live:
                self._soon()
            return
        if (step := self._steps.pop(opaque, None)) is not None:
            step[0](heard)
            return
        if self._copy_ends.answered(opaque, heard):
            self._soon()
        elif self.health.is_test(opaque):
            self.health.tested(good=heard.code == SUCCESS)

    def answers_over(self) -> None:
        """Release what waited for the answers that have come."""
        self._look_at_copied()

    def _check_position(self, sent: UnderWay, heard: Heard) -> None:
        lane, words = sent.lane, heard.body.split(b" ")
        was, lane.checked = lane.checked, True
        if sent.position is None or lane.differs or len(words) != 3:
            return
        if words[2] == b"%d" % sent.position:
            self._copy_ends.reached[lane.topic, lane.partition] = sent.position + sent.size
            return
        why = f"message {sent.message_id} lies at position {words[2].decode('ascii', 'replace')[:20]} there, and at {sent.position} here"
        if was:
            self.differ(lane, why, lane.next)  # more is under way
        else:
            self.differ(lane, why)

    def refused(self, lane: Lane, heard: Heard) -> None:
        """The slave does not take messages of a partition: ask it later where its copy ends."""
        text = heard.body[:200].decode("utf-8", "replace")
        self._faults.warning(
            lane.name, "the slave %s refuses partition %s: %d %s", self.settings.url, lane.name, heard.code, text
        )
        self._stop_lane(lane)

    def _stop_lane(self, lane: Lane) -> None:
        lane.pause(self._now())
        if self._live:
            self._give_up_rest(lane, self._now())
        self._look_at_copied()

    def _give_up(self, sent: UnderWay, now: float) -> None:
        sent.lane.given_up = max(sent.lane.given_up, sent.queue_offset + 1)
        self.outcomes.gave_up(sent.place, sent.lane.topic, sent.message_id, now)

    def _give_up_rest(self, lane: Lane, now: float) -> None:
        """Give up what was not sent of a partition: whoever put it is told so, and the slave gets it when it takes it again."""
        start = max(lane.next, lane.given_up, lane.queue.min_offset)
        stop = lane.tail.next_offset
        while start < stop:
            units = lane.queue.units(start, RUN_MESSAGES)
            if not units:
                break
            ids = self._ids(lane, start, units)
            for number, unit in enumerate(units):
                self.outcomes.gave_up(unit.log_offset, lane.topic, ids[number] if number < len(ids) else None, now)
                if self._live:
                    self.health.failed()
            start += len(units)
        lane.given_up = max(lane.given_up, stop)

    def _ids(self, lane: Lane, start: int, units: Sequence[Unit]) -> list[int]:
        """Return the ids of messages that were just put; fewer, if they are not to be read at once."""
        size = sum([unit.size for unit in units])
        found = self._frames.read(FrameRun(lane.topic, lane.partition, start, len(units), 0, size))
        if not isinstance(found, FramesRead) or found.queue_offset != start:
            return []
        return [message.message_id for message in messages_of(lane.topic, lane.partition, bytes(found.body))]

    def _look_at_copied(self) -> None:
        """Find out up to where the slave has the log, but for what was given up."""
        while self._places and self._places[0][1] not in self._sent:
            heapq.heappop(self._places)
        copied = self._looked_at if not self._places else min(self._looked_at, self._places[0][0])
        for lane in self._lanes:
            if lane.state is LaneState.OPEN and lane.left:
                unit = lane.queue.unit(max(lane.next, lane.queue.min_offset))
                if unit is not None:
                    copied = min(copied, unit.log_offset)
        self._release(copied)

    def _release(self, copied: int) -> None:
        if copied <= self.copied:
            return
        self.copied = copied
        due = [done for place, done in self._waiting if place <= copied]
        if due:
            self._waiting = [entry for entry in self._waiting if entry[0] > copied]
            for done in due:
                done()

    # ------------------------------------------------------------------ time

    def _test(self) -> None:
        """See whether a slave that has failed too often takes messages again."""
        if not self.health.due:
            return
        self.health.pause()  # if there is nobody to ask, or the last test was not answered
        if self._link is not None:
            opaque, message_id = self.next_opaque(), self._partitions.ids.take()
            self.health.begin(opaque)
            self._link.send(opaque, SyncMessage(STATUS_TOPIC, 0, 0, message_id, TEST_BODY, crc31(TEST_BODY)))

    def tick(self) -> None:
        """Give up what has waited too long, and go on with what waits."""
        now = self._now()
        while self._sent:
            opaque = next(iter(self._sent))
            sent = self._sent[opaque]
            if sent.deadline > now:
                break
            del self._sent[opaque]
            self._sent_bytes -= sent.size
            sent.lane.under_way -= 1
            self._give_up(sent, now)
            self.health.failed()
        self._copy_ends.tick(now)
        for opaque, (done, deadline) in list(self._steps.items()):
            if deadline > now:
                break
            del self._steps[opaque]
            done(None)
        self.outcomes.forget_old(now)
        self._test()
        self._faults.tick()
        self.go_on()
