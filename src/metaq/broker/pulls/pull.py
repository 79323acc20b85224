"""Pulls (PULL_MESSAGE, 11): checks, reads and long polling.

What depends on group, topic and filter only is an `Admission`, which is cached (`metaq.broker.pulls.admission`): then a pull
costs one look-up and the read.

Two responses differ from RocketMQ's on purpose. A subscription version newer than the heartbeat's is not refused with
SUBSCRIPTION_NOT_LATEST (25) if the expression is the same, or unknown; if unknown, the response is unfiltered, and the client,
which tests tags itself, loses nothing. (Java 5.x clients race their own heartbeats and would be refused for 30 s.) And a held
pull whose filter refuses all new messages stays held, from the offset reached.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from metaq.broker.channel import Channel
from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.long_polling import HELD_BYTES, HeldPull, HeldPulls
from metaq.broker.part import BrokerPart
from metaq.broker.pulls.admission import FILTER_FACTOR, NEVER, Admission, Admissions, Changes
from metaq.broker.pulls.fast_path import PullFastPaths
from metaq.broker.pulls.filters import Filters
from metaq.broker.pulls.predicate_pulls import PredicatePulls
from metaq.broker.pulls.predicates import Predicates
from metaq.broker.pulls.redirect import Redirect
from metaq.broker.requests import COMMIT, FILTER, HOLD, PullRequest
from metaq.broker.stats import Stats
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.options import MIB
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire.hot import PullGate, PullPath
from metaq.wire.record import times_of

LIFTED_BYTES_MAX = 8 * MIB
"""Response bytes of one pull at most, whatever its `maxMsgBytes` (docs/formats/extensions.md)."""
LIFTED_COUNT_MAX = 65_535
REPAIR_SECONDS = 1.0
"""Hold time of a pull whose messages the store is restoring (OFFSET_FOUND_NULL), s: no append will wake it."""
HOLD_SECONDS_MAX = 600.0
"""Longest hold time, s. RocketMQ's clients ask for 15 or 20 s."""
LOOKS_PER_PULL = 7
"""Further reads of a pull with an SQL filter before it is answered with the offset reached."""
LOOK_SECONDS = 0.002
"""Time after which no further read begins, s: the event loop has other clients."""
SAMPLED = 7
"""Bits of a held pull's number that are 0 where it is measured how long it is held: one in eight."""
LOOKS_PER_WAKE = 8
"""Reads per wake-up. If all were filtered out, answer with the offset reached; the client continues there."""


class PullOutcome(enum.Enum):
    """Outcome of a pull; servers map it to their protocol's codes (RocketMQ: 0, 20, 19, 21)."""

    __hash__ = object.__hash__  # members are single: enum's own hash is a Python call, and each pull looks some up

    FOUND = "messages"
    GO_ON = "none that fits, and it is known how far that holds: ask for what follows"
    NOTHING_NEW = "nothing there yet"
    OUT_OF_RANGE = "the queue holds other offsets"
    COLD = "nothing yet: run `ReadResult.job` in a thread, then ask `PullService.after_cold`"


OUTCOME_OF = {
    ReadStatus.FOUND: PullOutcome.FOUND,
    ReadStatus.NO_MATCHED_MESSAGE: PullOutcome.GO_ON,
    ReadStatus.MESSAGE_WAS_REMOVING: PullOutcome.GO_ON,
    ReadStatus.OFFSET_FOUND_NULL: PullOutcome.NOTHING_NEW,
    ReadStatus.OFFSET_OVERFLOW_ONE: PullOutcome.NOTHING_NEW,
    ReadStatus.OFFSET_OVERFLOW_BADLY: PullOutcome.OUT_OF_RANGE,
    ReadStatus.OFFSET_TOO_SMALL: PullOutcome.OUT_OF_RANGE,
    ReadStatus.COLD: PullOutcome.COLD,
}
"""Other statuses mean an empty or unknown queue, where the outcome depends on the offset: see `_answer`."""
_FOUND, _COLD = PullOutcome.FOUND, PullOutcome.COLD
_NO_MATCH = ReadStatus.NO_MATCHED_MESSAGE


WatchAnswers: TypeAlias = Callable[[Caller, str, ReadResult], None]
"""Called with who pulls, its group, and the messages that it gets. Raises nothing."""


class PullChannel(Channel, Protocol):
    """A channel of a client that pulls."""

    def answer_pull(self, pull: Pull, answer: PullAnswer | Exception) -> None:
        """Send the response of a held pull, or the error. Raises nothing."""
        ...


class FastAnswers(Protocol):
    """A connection whose server has the compiled extension encode responses. Optional for other protocols."""

    def fast_answer(self, fast: FastPull, pull: Pull, place: int) -> bytes | None:
        """Encode the response of a held pull: the messages from this QueueOffset on.

        Returns None if it has to be answered on the slow path. Raises nothing.
        """
        ...

    def write_fast(self, answers: bytes) -> None:
        """Send responses of `fast_answer` at once. Raises nothing."""
        ...


class FastPull(Struct):
    """Fast-path data of a held pull, with which it can be answered without a `PullAnswer`."""

    channel: FastAnswers
    fast_path: PullPath
    gate: PullGate
    generation: int
    """Generation of fast path and gate; they are valid while `PullFastPaths.current` returns it."""


class Pull(Struct):
    """A pull in progress."""

    channel: PullChannel
    caller: Caller
    admission: Admission
    request: PullRequest
    count_max: int
    bytes_max: int
    hold_ms: int
    """Long-polling time-out, ms; 0: answer at once."""
    reply_to: Any
    """The server's own data for the response."""
    seen_changes: Changes = NEVER
    """Change counters at the time of the admission."""
    fast: FastPull | None = None
    """Set by a server with a fast path, if the pull is plain."""

    @property
    def size(self) -> int:
        """Memory that it takes while it waits, bytes (estimate)."""
        return HELD_BYTES + FILTER_FACTOR * len(self.request.subscription or b"")


class PullAnswer(NamedTuple):
    """Response of a pull."""

    outcome: PullOutcome
    status: ReadStatus
    """Status of the read; RocketMQ's name of it is the response's remark."""
    pulled: ReadResult
    next_offset: int
    suggest_broker_id: int


class PullService(BrokerPart):
    """Answers pulls, at once or from long polling."""

    leads = False

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        held_pulls: HeldPulls,
        stats: Stats,
        gatekeeper: Gatekeeper,
        *,
        filters: Filters,
        predicates: Predicates,
        redirect: Redirect,
        in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self._redirect, self._in_doubt = redirect, in_doubt
        self._environment, self._clock, self._reader = environment, environment.clock, environment.store.reader
        self._log = environment.store.log.tail
        self._offsets, self._held_pulls, self._stats, self._gatekeeper = tables.offsets, held_pulls, stats, gatekeeper
        self._closed_partitions = tables.closed_partitions
        self._by_predicate = PredicatePulls(
            self._reader, held_pulls, environment.clock, predicates, self._counted_answer
        )
        self.admissions = Admissions(environment, tables, gatekeeper, filters, predicates)
        self.fast_paths = PullFastPaths(environment, tables, stats, self.admissions.changes)
        self._watch: WatchAnswers | None = None

    def watch(self, watch: WatchAnswers) -> None:
        """Call `watch` with each answer that has messages. Pulls take longer then: there is no fast path for them."""
        self._watch, self.fast_paths.watched = watch, True
        self.fast_paths.close()

    # -- making a pull
    def make(self, channel: PullChannel, caller: Caller, request: PullRequest, reply_to: Any) -> Pull:
        """Check a request, and store its piggybacked offset. `caller`: the signer of the request. Raises Refused."""
        (
            group, topic, queue_id, _, count_max, flags, commit_offset, hold_ms, subscription, version,
            expression_type, lifted_bytes,
        ) = request  # fmt: skip
        brought = flags & FILTER != 0
        admission = self.admissions.admit(
            caller, group, topic, subscription if brought else None, expression_type, brought=brought
        )
        if not 0 <= queue_id < admission.queues:
            raise Refused(
                Reason.INVALID,
                f"queueId[{queue_id}] is illegal, topic:[{admission.topic}] topicConfig.readQueueNums:[{admission.queues}]",
            )
        if self._closed_partitions:
            self._closed_partitions.check(admission.topic, queue_id)
        # After a rebalance Java's consumer raises its subscription version, and pulls may overtake the heartbeat with it.
        if version > admission.version and not brought:
            wanted = admission.wanted
            by_sql = wanted is not None and wanted.condition is not None  # clients test tags themselves, but not SQL
            if by_sql if subscription is None else subscription.decode("utf-8", "replace") != admission.expression:
                raise Refused(
                    Reason.SUBSCRIPTION_OLD,
                    f"the consumer's subscription not latest: {admission.topic} asks version {version}, the heartbeat's "
                    f"is {admission.version}",
                )
            if subscription is None and wanted is not None and not wanted.reads:
                admission = admission._replace(wanted=None)
        # After all checks: a refused pull must not move the group.
        if flags & COMMIT and commit_offset >= 0:
            self._offsets.put(admission.group.name, admission.topic, queue_id, commit_offset, pulled=True)
        options = self._environment.store_options
        # Our clients ask for more than RocketMQ's bound; others never send the field.
        if lifted_bytes > 0:
            bytes_max, count_limit = min(lifted_bytes, LIFTED_BYTES_MAX), LIFTED_COUNT_MAX
        else:
            bytes_max = options.max_transfer_bytes_on_message_in_memory
            count_limit = options.max_transfer_count_on_message_in_memory
        # As RocketMQ: longPollingEnable=false turns the hold time into shortPollingTimeMills.
        if not flags & HOLD or hold_ms < 0:
            hold_ms = 0
        elif not self._environment.options.long_polling_enable:
            hold_ms = self._environment.options.short_polling_time_mills
        return Pull(
            channel, caller, admission, request, max(1, min(count_max, count_limit)), bytes_max, hold_ms, reply_to,
            self.admissions.seen_changes,
        )  # fmt: skip

    def _renew(self, pull: Pull) -> None:
        """Update a held pull to the group's current filter.

        If the group can no longer pull, its next pull is refused; this one is answered. Raises Refused: the caller has lost its
        permission while the pull was held.
        """
        request = pull.request
        if self.admissions.changes() == pull.seen_changes:
            return
        self._gatekeeper.check_consumer(pull.caller, pull.admission.group.name, (pull.admission.topic,))
        # Its filter came with it, so no heartbeat can change it.
        if request.flags & FILTER:
            return
        try:
            admission = self.admissions.admit(
                pull.caller, request.group, request.topic, None, request.expression_type, brought=False
            )
        except Refused:
            return
        pull.seen_changes = self.admissions.seen_changes
        if request.version <= admission.version:
            # Otherwise the heartbeat behind this pull's subscription is still on its way: keep the old filter.
            pull.admission = admission

    # -- reading
    def read(self, pull: Pull, offset: int) -> ReadResult:
        """Read messages from `offset` on."""
        admission = pull.admission
        return self._reader.pull(
            admission.topic, pull.request.queue_id, offset, pull.count_max, pull.bytes_max, admission.wanted,
            in_pieces=True, read_end=self._log.read_end,
        )  # fmt: skip

    def first(self, pull: Pull) -> PullAnswer | None:
        """Read for a pull that has just arrived. Returns its response; None: it is held.

        With the outcome COLD, the server runs `ReadResult.job` in a thread, then calls `after_cold`.
        """
        admission, offset = pull.admission, pull.request.offset
        if admission.predicate:
            return self._by_predicate.first(pull)
        began = self._clock.monotonic() if self._stats.measuring_pull else None
        pulled = self._reader.pull(  # not `self.read`: one Python call less
            admission.topic, pull.request.queue_id, offset, pull.count_max, pull.bytes_max, admission.wanted,
            in_pieces=True, read_end=self._log.read_end,
        )  # fmt: skip
        # Only SQL filters read messages; hashes of tags are compared in the queue's index, a whole range at once.
        if pulled.status is _NO_MATCH and admission.wanted is not None and admission.wanted.reads:
            pulled, offset = self._further(pull, pulled, offset)
        if began is not None and pulled.status is not ReadStatus.COLD:
            self._stats.pulled(self._clock.monotonic() - began)
        answer = self._answer(pull, pulled, offset)
        if answer.outcome is _FOUND:
            self._count(pull, answer)
            return answer
        if answer.outcome is PullOutcome.NOTHING_NEW and pull.hold_ms:
            # OFFSET_FOUND_NULL: the records are there again soon, without an append that would wake the pull.
            held_max = HOLD_SECONDS_MAX if pulled.status is not ReadStatus.OFFSET_FOUND_NULL else REPAIR_SECONDS
            now = self._clock.monotonic()
            deadline, since = (
                now + min(pull.hold_ms / 1000, held_max),
                0.0 if self._held_pulls.serial & SAMPLED else now,
            )
            key = (admission.topic, pull.request.queue_id)
            reads = admission.wanted is not None and admission.wanted.reads
            subscription = pull.request.subscription  # not `pull.size`: a call less
            size = HELD_BYTES + FILTER_FACTOR * len(subscription) if subscription else HELD_BYTES
            held = HeldPull(pull.channel, key, offset, deadline, pull, reads, size=size, since=since)
            if self._held_pulls.hold(held):
                return None
        if answer.outcome is PullOutcome.NOTHING_NEW and offset > pull.request.offset:
            answer = _gone_on(answer)
        self._count(pull, answer)
        return answer

    def _further(self, pull: Pull, pulled: ReadResult, place: int) -> tuple[ReadResult, int]:
        """Read on behind messages that an SQL filter has refused, some ms at most. Returns the last read and its offset."""
        until = self._clock.monotonic() + LOOK_SECONDS
        for _ in range(LOOKS_PER_PULL):
            if self._clock.monotonic() > until:
                break
            following = self.read(pull, pulled.next_offset)
            if following.status is ReadStatus.COLD:  # not on the event loop: the client continues there
                return pulled, place
            pulled, place = following, pulled.next_offset
            if pulled.status is not _NO_MATCH:
                break
        return pulled, place

    def answer_grown(self) -> None:
        """Answer the held pulls whose queues grew. Called after appends."""
        if self._held_pulls.grown:
            self.answer_plain()
            for pull, answer in self.woken():
                pull.channel.answer_pull(pull, answer)

    def tick(self) -> None:
        """Answer the held pulls whose queues grew, and the overdue ones."""
        self.answer_grown()
        for pull, answer in self.overdue():
            pull.channel.answer_pull(pull, answer)

    def options_changed(self, _names: Collection[str]) -> None:
        """Close the fast paths after a change of options, on which reads depend."""
        self.fast_paths.close()

    def closed(self, channel: Channel) -> None:
        """Drop the held pulls of a closed connection."""
        self._held_pulls.closed(channel)

    def answer_plain(self) -> None:
        """Answer plain held pulls whose queue grew, those of a connection in one write. `woken` answers the others.

        This is the latency of a single message on its way to the consumer, so all clean-up comes after the writes.
        """
        held_pulls, generation = self._held_pulls, self.fast_paths.current()
        if generation is None:
            return
        answered: list[tuple[HeldPull, FastAnswers, bytes]] = []
        for key, tail in held_pulls.grown.items():
            end = held_pulls.end_of(tail)
            for held in held_pulls.waiting(key):
                pull: Pull = held.request
                fast = pull.fast
                if fast is not None and fast.generation == generation and held.place < end:
                    answer = fast.channel.fast_answer(fast, pull, held.place)
                    if answer is not None:
                        answered.append((held, fast.channel, answer))
        if len(answered) == 1:
            _, channel, answer = answered[0]
            channel.write_fast(answer)
        elif answered:
            by_channel: dict[FastAnswers, list[bytes]] = {}
            for _, channel, answer in answered:
                by_channel.setdefault(channel, []).append(answer)
            for channel, answers in by_channel.items():
                # One write per connection: a consumer that waits at many queues gets one segment instead of many.
                channel.write_fast(b"".join(answers))
        for held, _, _ in answered:
            held_pulls.remove(held)
            if held.since:
                self._stats.times.held.add(self._clock.monotonic() - held.since)
        if answered and self._stats.measuring_delivery:
            self._measure_delivery(answered[0][0])

    def _measure_delivery(self, held: HeldPull) -> None:
        queue = self._reader.existing_queue(*held.key)
        units = queue.units(held.place, 1) if queue is not None else []
        record = self._reader.record_at(units[0].log_offset) if units else None
        if record is not None:
            self._stats.delivered(*times_of(record))

    def woken(self) -> Iterator[tuple[Pull, PullAnswer | Exception]]:
        """Return responses (or errors) of held pulls whose queue grew. Called after every append, behind `answer_plain`."""
        for held in self._held_pulls.ready():
            pull: Pull = held.request
            try:
                answer = self._woken(pull, held)
            except Exception as error:  # noqa: BLE001  sent to this client; other pulls go on
                yield pull, error
            else:
                if answer is not None:
                    yield pull, answer

    def _woken(self, pull: Pull, held: HeldPull) -> PullAnswer | None:
        """Return the response; None: the filter refuses all, and the pull is held again."""
        self._renew(pull)
        if pull.admission.predicate:
            return self._by_predicate.woken(pull, held)
        pulled = self.read(pull, held.place)
        for _ in range(LOOKS_PER_WAKE):  # one read scans some 800 units, as in RocketMQ
            if pulled.status is not ReadStatus.NO_MATCHED_MESSAGE:
                break
            held.place = pulled.next_offset
            pulled = self.read(pull, held.place)
        if pulled.status is ReadStatus.OFFSET_OVERFLOW_ONE and self._held_pulls.hold(held.renewed()):
            return None
        return self._late(pull, held, pulled)

    def overdue(self) -> Iterator[tuple[Pull, PullAnswer | Exception]]:
        """Return responses (or errors) of held pulls whose deadline has passed."""
        return self._given_up(self._held_pulls.overdue())

    def give_up(self, channel: Channel) -> Iterator[tuple[Pull, PullAnswer | Exception]]:
        """Return responses (or errors) of all pulls held for a connection, as if their deadlines had passed."""
        return self._given_up(self._held_pulls.of(channel))

    def _given_up(self, pulls: Iterable[HeldPull]) -> Iterator[tuple[Pull, PullAnswer | Exception]]:
        for held in pulls:
            pull: Pull = held.request
            try:
                self._renew(pull)
                if pull.admission.predicate:
                    answer = self._by_predicate.overdue(pull, held)
                else:
                    answer = self._late(pull, held, self.read(pull, held.place))
            except Exception as error:  # noqa: BLE001  sent to this client; other pulls go on
                yield pull, error
            else:
                if answer is not None:
                    yield pull, answer

    def _late(self, pull: Pull, held: HeldPull, pulled: ReadResult) -> PullAnswer:
        answer = self._answer(pull, pulled, held.place)
        # The deadline came while units were being filtered out: the client continues where the broker has come.
        if answer.outcome is PullOutcome.NOTHING_NEW and held.place > pull.request.offset:
            answer = _gone_on(answer)
        if held.since:
            self._stats.times.held.add(self._clock.monotonic() - held.since)
        self._count(pull, answer)
        return answer

    def after_cold(self, pull: Pull, pulled: ReadResult) -> PullAnswer | None:
        """Return the response after a cold read; None: the channel is answered later. Raises Refused."""
        if pull.admission.predicate:
            return self._by_predicate.after_cold(pull, pulled)
        return self._counted_answer(pull, pulled, pull.request.offset)

    def _counted_answer(self, pull: Pull, pulled: ReadResult, offset: int) -> PullAnswer:
        answer = self._answer(pull, pulled, offset)
        self._count(pull, answer)
        return answer

    def _answer(self, pull: Pull, pulled: ReadResult, offset: int) -> PullAnswer:
        if pulled.status is ReadStatus.FOUND:  # the common case without a look-up: hashing an enum member is slow
            outcome = _FOUND
        else:  # in an empty or unknown queue, any offset but 0 is out of range
            empty = PullOutcome.OUT_OF_RANGE if offset else PullOutcome.NOTHING_NEW
            outcome = OUTCOME_OF.get(pulled.status, empty)
        next_offset = pulled.next_offset
        if outcome is PullOutcome.OUT_OF_RANGE and (
            self._environment.store.state.follows is not None or self._in_doubt()
        ):
            # A slave may lack what its master has, and a leader in doubt what its successor has: nobody is sent elsewhere in the queue
            # by it. RocketMQ's answers GO_ON to both, and has a client that is ahead of it ask without a pause.
            ahead = pulled.status is not ReadStatus.OFFSET_TOO_SMALL
            outcome, next_offset = PullOutcome.NOTHING_NEW if ahead else PullOutcome.GO_ON, offset
            return PullAnswer(outcome, pulled.status, pulled, next_offset, pull.admission.group.broker_id)
        suggested = self._redirect.after(pull.admission.group, pulled)
        return PullAnswer(outcome, pulled.status, pulled, next_offset, suggested)

    def _count(self, pull: Pull, answer: PullAnswer) -> None:
        if answer.outcome is _FOUND:
            admission, pulled = pull.admission, answer.pulled
            size = len(pulled.body) if pulled.long is None else len(pulled.long)
            self._stats.got(admission.group.name, admission.topic, 1, pulled.count, size)
            if self._stats.measuring_delivery and pulled.long is None:
                self._stats.delivered(*times_of(pulled.body))
            if self._watch is not None:
                self._watch(pull.caller, admission.group.name, pulled)
        elif answer.outcome is not _COLD:
            self._stats.missed()


def _gone_on(answer: PullAnswer) -> PullAnswer:
    """Turn NOTHING_NEW into GO_ON: the client continues at the offset reached, and nothing is filtered twice."""
    return answer._replace(outcome=PullOutcome.GO_ON, status=_NO_MATCH)
