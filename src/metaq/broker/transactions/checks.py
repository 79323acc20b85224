"""Transaction checks (CHECK_TRANSACTION_STATE, 39): rounds over half messages whose transactions were not ended.

A round begins every `transactionCheckInterval` and visits the half messages stored before it, oldest first. One that is old
enough is written again with its number of checks (a new *generation*), one of its group's producers is asked about it, and the
older generation is done. So the half queue's offset advances, and no transaction pins an old log file. After
`transactionCheckMax` checks, or after one at the age of `fileReservedTime`, a half message moves to TRANS_CHECK_MAX_TIME_TOPIC.

A round runs in turns of bounded time; cold records are read in a thread. If all producers of a group are congested, the round
waits for them, but only until the next round would be due: one group must not hold up the others.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metaq.broker.channel import Channel, Effect
from metaq.broker.environment import Environment, ReadCold, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.appender import Appender
from metaq.broker.transactions.progress import TransactionProgress
from metaq.broker.transactions.records import destination, given_up, renewed, whole
from metaq.clock import SteadyTime
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.access import Action
from metaq.model.notices import TransactionCheck
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.store.log.writer import Put, PutRecord
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.001
"""Length of a turn, s; after it the event loop goes on."""
PAUSE_SECONDS: Final = 0.1
"""Pause when there is nothing to do, or nothing can be done now, s."""
READ_COUNT: Final = 64
READ_BYTES: Final = 256 * 1024
_HOUR_MS: Final = 3_600_000


class Verdict(enum.Enum):
    """Action of a round for a half message."""

    WAIT = "it is too young, and so are those behind it: the round ends"
    RENEW = "it has asked for more time: it is written anew, and nobody is asked"
    ASK = "it is written anew, and its producers are asked"
    GIVE_UP = "it goes to the administrator's topic"


def judge(half: StoredMessage, now_ms: int, options: BrokerOptions, reserved_hours: int) -> Verdict:
    """Decide on a half message stored before the round began. Pure.

    Its age counts from bornTimestamp, the producer's clock. If that is in the future, it counts from the store time of its last
    generation, and CHECK_IMMUNITY_TIME_IN_SECONDS is ignored: each generation would start it again. If that is in the future
    too, the broker's clock was set back; the age is unknown, so the producer is asked.
    """
    checks = whole(half.properties.get(props.CHECK_TIMES), 0)
    age_ms = now_ms - half.born_ms
    if checks >= options.transaction_check_max:
        return Verdict.GIVE_UP
    if age_ms > reserved_hours * _HOUR_MS:
        # RocketMQ gives it up unasked, though the broker may only have been down for days, or its clock be wrong.
        return Verdict.GIVE_UP if checks else Verdict.ASK
    asked_for = half.properties.get(props.CHECK_IMMUNITY)
    immune = whole(asked_for, -1) if asked_for is not None else -1
    if age_ms < 0:
        age_ms, immune = now_ms - half.store_ms, -1
    if age_ms < 0:
        return Verdict.ASK
    # Written again although nobody is asked: the half queue's offset must get past it, as in RocketMQ.
    if immune >= 0:
        return Verdict.RENEW if age_ms < immune * 1000 else Verdict.ASK
    # WAIT ends the round: half messages are in the order of their store time, so those behind are younger.
    return Verdict.WAIT if age_ms < options.transaction_time_out else Verdict.ASK


class _CheckRound(Struct):
    """One pass over the half messages stored when it began."""

    patient_until: float
    """End of its waiting for congested producers (monotonic seconds)."""
    slot: int
    """Next slot (QueueOffset in the half queue) to visit."""
    end: int
    found: list[StoredMessage]
    """Half messages read ahead, the next one last."""
    carry_before: int = 0
    """If above 0, the round is retention's: half messages below this LogOffset are written again, and nobody is asked."""
    reading: bool = False


class TransactionChecks:
    """Runs the rounds of one broker."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        appender: Appender,
        progress: TransactionProgress,
        read_cold: ReadCold,
        gatekeeper: Gatekeeper,
    ) -> None:
        self._environment, self._reader, self._clock = environment, environment.store.reader, environment.clock
        self._gatekeeper = gatekeeper
        self._topics, self._members = tables.topics, tables.members
        self._appender, self._progress, self._read_cold = appender, progress, read_cold
        self._log = RateLimitedLog(log, environment.clock)
        self._steady = SteadyTime(environment.clock)
        self.stopwatch = environment.clock.monotonic
        """Clock that measures turns, s."""
        self._round: _CheckRound | None = None
        self._ended_at = self._clock.monotonic()
        self._carry_before = 0
        self.asked = self.rewritten = self.given_up = 0
        """Checks that were sent, half messages that were written anew, and those that were given up, since the start."""
        self._turn = 0
        """Number of questions so far: each goes to the next producer of its group (round robin)."""

    def open(self) -> None:
        """Start the first interval, in which producers have time to connect."""
        self._ended_at = self._clock.monotonic()

    def tick(self) -> None:
        """Log what the rate limit has suppressed."""
        self._steady.now_ms()  # rounds may be far apart, and time between two looks counts as confirmed
        self._log.tick()

    def carry(self, before: int) -> None:
        """Have open half messages below this LogOffset written again by the next steps. From any thread."""
        self._carry_before = max(self._carry_before, before)

    def step(self) -> tuple[list[Effect], float]:
        """Run a round for at most TURN_SECONDS. Returns the checks to send, and the seconds until the next call; 0: soon."""
        asked: list[Effect] = []
        queue = self._reader.existing_queue(HALF_TOPIC, 0)
        end = queue.max_offset if queue else 0
        if self._carry_before and not (self._round is not None and self._round.carry_before):
            before, self._carry_before = self._carry_before, 0
            # It replaces a running round of checks, which begins again after it: retention waits for it with a log file.
            self._round = _CheckRound(0.0, self._progress.first_open, end, [], before)
        if self._round is None:
            interval, now = self._environment.options.transaction_check_interval / 1000, self._clock.monotonic()
            wait = self._ended_at + interval - now
            if wait > 0:
                return asked, min(wait, PAUSE_SECONDS)
            self._round = _CheckRound(now + interval, self._progress.first_open, end, [])
        stop = self.stopwatch() + TURN_SECONDS
        while True:
            if not self._next(self._round, asked):
                return asked, PAUSE_SECONDS
            if self._round is None:
                return asked, PAUSE_SECONDS
            if self.stopwatch() >= stop:
                return asked, 0.0

    def _end_round(self) -> None:
        # A round of retention does not postpone the checks.
        if self._round is not None and not self._round.carry_before:
            self._ended_at = self._clock.monotonic()
        self._round = None

    def _next(self, now: _CheckRound, asked: list[Effect]) -> bool:
        """Visit the next open half message. Returns False if that has to wait."""
        now.slot = self._progress.slots.next_open(now.slot)
        if now.slot >= now.end:
            self._end_round()
            return True
        while now.found and now.found[-1].queue_offset < now.slot:
            now.found.pop()
        if not now.found:
            return self._read(now)
        half = now.found[-1]
        if half.queue_offset > now.slot:
            self._pass_over(now, half.queue_offset)
            return True
        try:
            return self._treat(now, half, asked)
        except Refused as error:
            self._log.warning("held up", "checks of transactions are held up: %s", error)
            return False
        except Saving:
            # Not logged: the topic is there in a moment.
            return False  # the topic for those that are given up is being made

    # ------------------------------------------------------------------ one half message

    def _treat(self, now: _CheckRound, half: StoredMessage, asked: list[Effect]) -> bool:
        if now.carry_before:
            if half.log_offset >= now.carry_before:
                self._end_round()
            else:
                self._renew(half, checked=False, carrying=True)
                now.slot = half.queue_offset + 1
            return True
        options, reserved = self._environment.options, self._environment.store_options.file_reserved_time
        verdict = judge(half, self._steady.now_ms(), options, reserved)
        if verdict is Verdict.WAIT:
            self._end_round()
            return True
        if verdict is Verdict.GIVE_UP:
            self._give_up(half)
        elif verdict is Verdict.RENEW:
            self._renew(half, checked=False)
        else:
            group = half.properties.get(props.PRODUCER_GROUP, "")
            producers = self._producers(group, half)
            channel = self._willing(producers)
            if producers and channel is None:
                self._log.warning(
                    ("congested", group),
                    "checks of transactions wait: the producers of group %.100s leave much unread",
                    group,
                )
                if self._clock.monotonic() < now.patient_until:
                    return False
                # Nothing was written: a check that cannot be sent must not count, or the message would be given up unasked.
                now.slot = half.queue_offset + 1  # the next round asks, and nothing is counted
                return True
            # Counted also when no producer is connected, as in RocketMQ: a transaction whose group is gone ends some time.
            check = self._renew(half, checked=True)
            if channel is None:
                self._log.warning(
                    ("nobody", group), "nobody can be asked what became of a transaction: no producer of group %.100s is "
                    "connected; the check counts", group,
                )  # fmt: skip
            elif check is not None:
                self.asked += 1
                asked.append(Effect(channel, TransactionCheck(group, check)))
        now.slot = half.queue_offset + 1
        return True

    def _producers(self, group: str, half: StoredMessage) -> list[Channel]:
        """Return the group's producers that may send to the topic.

        A check contains the message, and anybody can claim to be of a group.
        """
        topic, allowed = half.properties.get(props.REAL_TOPIC, ""), list[Channel]()
        for member in self._members.producing(group):
            try:
                self._gatekeeper.check_uncovered(member.caller, Action.PUBLISH, topic)
            except Refused as error:
                self._log.warning(
                    ("not allowed", member.caller), "a producer of group %.100s at %s is not asked about transactions: "
                    "%s", group, member.channel.remote, error,
                )  # fmt: skip
            else:
                # One connection of a producer may belong to several groups; each is judged by its own heartbeat's signer.
                allowed.append(member.channel)
        return allowed

    def _willing(self, producers: Sequence[Channel]) -> Channel | None:
        """Return the group's next producer in turn that is not congested; None: there is none."""
        self._turn += 1
        for place in range(len(producers)):
            channel = producers[(self._turn + place) % len(producers)]
            if not channel.congested:
                return channel
        return None

    def _renew(self, half: StoredMessage, *, checked: bool, carrying: bool = False) -> StoredMessage | None:
        """Write the next generation. Returns it as its producer sees it; None: it was given up instead."""
        try:
            topic, queue_id = destination(half)
            record = renewed(half, checked=checked)
            put = self._appender.put([record], carrying=carrying)
            self.rewritten += 1
        except Refused as error:
            if error.reason not in {Reason.ILLEGAL_MESSAGE, Reason.INVALID}:
                # Anything else (a full disk, flow control) passes; these never do, and would stop the round for ever.
                raise
            self._log.error(
                "illegal", "the half message at log offset %d cannot be checked: %s", half.log_offset, error
            )
            self._give_up(half, carrying=carrying)
            return None
        self._progress.finish(half.queue_offset)
        return _as_sent(half, record, put, topic, queue_id, self._environment.store_host)

    def _give_up(self, half: StoredMessage, *, carrying: bool = False) -> None:
        # The copy first, then the mark: a crash in between leaves a half message that is checked once more.
        self._topics.ensure(CHECK_MAX_TOPIC)
        self._appender.put([given_up(half)], carrying=carrying)
        self.given_up += 1
        self._progress.finish(half.queue_offset)
        self._log.warning(
            ("given up", half.properties.get(props.PRODUCER_GROUP)), "nobody has ended the transaction of message %.100s, "
            "producer group %.100s, topic %.100s: after %s checks it is kept in topic %s",
            half.message_id, half.properties.get(props.PRODUCER_GROUP, ""), half.properties.get(props.REAL_TOPIC, ""),
            half.properties.get(props.CHECK_TIMES, "0"), CHECK_MAX_TOPIC,
        )  # fmt: skip

    # ------------------------------------------------------------------ reading

    def _read(self, now: _CheckRound) -> bool:
        if now.reading:
            return False
        slot, count = now.slot, min(READ_COUNT, now.end - now.slot)
        pulled = self._reader.pull(HALF_TOPIC, 0, slot, count, READ_BYTES)
        if pulled.status is not ReadStatus.COLD or pulled.job is None:
            return self._take(now, slot, pulled)
        now.reading = True

        def done(pulled: ReadResult | None) -> None:
            now.reading = False
            if pulled is not None:
                self._take(now, slot, pulled)

        self._read_cold(pulled.job, done)
        return not now.reading

    def _take(self, now: _CheckRound, slot: int, pulled: ReadResult) -> bool:
        """Take over a read from `slot` on. Returns False if nothing can be read there now."""
        records, place = pulled.body, 0
        while place < len(records):
            try:
                now.found.append(decode_record(records, place))
            except RemoteProtocolError as error:
                self._log.error("broken", "a half message behind queue offset %d is damaged: %s", slot, error)
                break
            place += int.from_bytes(records[place : place + 4], "big")
        now.found.reverse()
        if now.found:
            return True
        if pulled.next_offset > slot:
            self._pass_over(now, pulled.next_offset)
            return True
        self._log.error(
            "unreadable", "the half message at queue offset %d cannot be read: %s", slot, pulled.status.name
        )
        now.slot = slot + 1  # it stays open, and those behind it do not wait for it
        return True

    def _pass_over(self, now: _CheckRound, until: int) -> None:
        """Mark half messages as done that have left the log or are damaged in it."""
        self._log.error(
            "gone", "%d half messages from queue offset %d on have left the log or are damaged in it: their transactions "
            "cannot be ended", until - now.slot, now.slot,
        )  # fmt: skip
        while now.slot < until:
            self._progress.finish(now.slot)
            now.slot = self._progress.slots.next_open(now.slot + 1)


def _as_sent(half: StoredMessage, record: PutRecord, put: Put, topic: str, queue_id: int, host: bytes) -> StoredMessage:
    """Return a new generation with the message's real topic and queue, as RocketMQ sends it in a check."""
    return StoredMessage(
        topic=topic, queue_id=queue_id, body=half.body, queue_offset=put.queue_offset, log_offset=put.log_offset,
        flag=half.flag, sys_flag=half.sys_flag, born_ms=half.born_ms, store_ms=put.store_ms,
        reconsume_times=half.reconsume_times, born_host_raw=half.born_host_raw, store_host_raw=host,
        properties_raw=record.properties,
    )  # fmt: skip
