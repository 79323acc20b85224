"""Predicates (server-side filter functions): registry, and scheduling of the processes that run them (docs/predicates.md).

Questions of one group are evaluated one after the other, and of those who wait the group that has used the least helper time
comes first. Helper processes are few (`filterServerNums`), and a slow predicate must delay its own group only. So slow groups
(`paces`) have helpers of their own, up to `EXTRA_MAX`, which run behind all other processes and end when nobody has needed them
for a while. A group is known as slow after its first long question: the helper that still works on it becomes one of those, and
another takes its place. A helper that exceeds `filterTimeLimit` or `filterMemoryLimit`, or dies, is replaced, and its group is paused, longer
each time. Then the messages that it had are evaluated singly. A message that fails alone is delivered, as is one for which the
predicate raises: no message is lost through a broken predicate.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from metaq.broker.channel import Channel
from metaq.broker.part import BrokerPart
from metaq.broker.pulls.paces import Paces
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.histogram import Measured
from metaq.log import RateLimitedLog
from metaq.model.filters.predicates import FAILED, NO, OUT_OF_MEMORY, PREDICATE, RAISED, predicates_of
from metaq.options import MIB, BrokerOptions

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.1
"""Time of a question after which its helper is one for slow groups, and another takes its place, s."""
EXTRA_MAX = 4
"""Helpers of slow groups."""
IDLE_SECONDS = 10.0
"""Time after which a helper of slow groups ends that nobody has needed, s."""
GROUP_JOBS_MAX = 256
BYTES_MAX = 64 * MIB
"""Bytes of all messages that wait for evaluation."""
JOB_SECONDS = 10.0
"""Time after which a pull is answered with what was evaluated so far, s."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Pause of a group after its helper has failed once, doubled with each failure up to the second value, s."""
# A helper imports the operator's modules before it is ready.
READY_SECONDS = 30.0


class Helper(Protocol):
    """A process that evaluates predicates. See `metaq.app.predicate_process`."""

    def ask(self, question: bytes) -> None: ...

    def step_back(self) -> None:
        """Run behind all other processes from now on."""
        ...

    def kill(self, why: str) -> None: ...

    def close(self) -> None: ...


OnHelperAnswer = Callable[[Helper, bytes | None, str], None]
"""Callback (helper, answer, reason) for each answer of a helper. Answer None: it has ended, for that reason."""
MakeHelper = Callable[[OnHelperAnswer], Helper]


class Job(Struct, eq=False):
    """The messages of one pull to evaluate. `verdicts` has a byte for each that is done; 0: not delivered."""

    group: str
    predicate: str
    records: Sequence[memoryview]
    done: Callable[[Job], None]
    """Called once: when all are evaluated, or at the deadline; not if the connection has ended."""
    deadline: float
    verdicts: bytearray
    owner: Channel | None = None
    """The channel that pulled, see `closed`."""
    head: bytes = b""
    """Prefix of each question."""
    why: str = ""
    """The last error."""
    gone: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


class _Group:
    """Jobs of one group."""

    __slots__ = ("careful", "failures", "jobs", "not_before", "trip", "waits_since")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.trip = 0
        """Messages of its first job that a helper has now; 0: none."""
        self.failures = 0
        self.careful = 0
        """Messages still to be evaluated singly, after a failure."""
        self.not_before = 0.0
        self.waits_since = 0.0


class _Busy(Struct):
    """State of a helper."""

    group: str = ""
    """"" while it starts or is idle."""
    job: Job | None = None
    since: float = 0.0
    """When it was asked, made, or became idle."""
    ready: bool = False
    slow: bool = False
    """It is one for slow groups."""


class Predicates(BrokerPart):
    """The predicates of one broker. Used on the event loop only."""

    leads = False

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        make_helper: MakeHelper | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """Args: places: name → `module:function`, instead of `filterPredicates`.

        Raises ConfigError: `filterPredicates` cannot be read.
        """
        self._options, self._clock, self._make_helper = options, clock, make_helper
        self.places = predicates_of(options.filter_predicates) if places is None else places
        self._errors: dict[str, str] = {}
        self._log = RateLimitedLog(log, clock)
        self._groups: dict[str, _Group] = {}
        self._helpers: dict[Helper, _Busy] = {}
        self._paces = Paces()
        self.outcomes = dict.fromkeys(("yes", "no", "raised", "failed"), 0)
        """What became of messages that were evaluated."""
        self.seconds = Measured()
        """Of each question to a helper."""
        self._bytes = 0
        self._closed = False
        self._start_pause, self._start_not_before = FIRST_PAUSE, 0.0
        self._start_why = ""
        """Why a helper did not start last; "" since one has."""

    def open(self) -> None:
        """Start the helper processes."""
        for _ in range(self._wanted):
            self._add_helper()

    @property
    def _wanted(self) -> int:
        return max(1, self._options.filter_server_nums) if self.places and self._make_helper is not None else 0

    @property
    def trouble(self) -> str:
        """Why pulls of predicates get nothing: no helper process starts; "" while all is well."""
        up = any(busy.ready for busy in self._helpers.values())
        return f"no helper process of predicates starts: {self._start_why}" if self._start_why and not up else ""

    @property
    def registered(self) -> str:
        """Registered names, for error texts."""
        return ", ".join(sorted(self.places)) or "none (filterPredicates)"

    def check(self, name: str) -> None:
        """Return if the predicate can be used. Raises Refused BAD_FILTER: it is unknown, or could not be imported."""
        if name not in self.places:
            raise Refused(
                Reason.BAD_FILTER, f"this broker has no predicate {name[:100]!r}; registered are: {self.registered}"
            )
        if name in self._errors:
            raise Refused(
                Reason.BAD_FILTER, f"the predicate {name} ({self.places[name]}) cannot be used: {self._errors[name]}"
            )

    def judge(
        self,
        group: str,
        predicate: str,
        records: Sequence[memoryview],
        done: Callable[[Job], None],
        *,
        owner: Channel | None = None,
        head: bytes = b"",
    ) -> None:
        """Queue messages for evaluation; `done(job)` is called later. Raises Refused: BAD_FILTER, BUSY (too many wait)."""
        self.check(predicate)
        queue = self._groups.setdefault(group, _Group())
        now = self._clock.monotonic()
        job = Job(group, predicate, records, done, now + JOB_SECONDS, bytearray(), owner, head)
        # Refused instead of queued without bound: clients repeat the pull, and memory stays bounded.
        if len(queue.jobs) >= GROUP_JOBS_MAX or self._bytes + job.size > BYTES_MAX:
            raise Refused(
                Reason.BUSY,
                f"[OVERLOAD]system busy: {len(queue.jobs)} pulls of group {group} and {self._bytes} bytes of all groups wait "
                f"for predicates: {predicate} is slower than the messages come",
            )
        self._bytes += job.size
        if owner is not None:
            owner.keep(job.size)
        if not queue.jobs:
            queue.waits_since = now
            self._paces.came(self._paces.of(group, predicate))
        queue.jobs.append(job)
        self._dispatch()

    # -------------------------------------------------------------- turns

    def _dispatch(self) -> None:
        """Give idle helpers the next jobs, and end surplus ones."""
        now = self._clock.monotonic()
        self._dispatch_to(now, slow=False)
        if self._dispatch_to(now, slow=True):
            self._add_for_slow(now)
        quick = [busy for busy in self._helpers.values() if not busy.slow]
        idle = [one for one, busy in self._helpers.items() if busy.ready and not busy.group and not busy.slow]
        for helper in idle[: max(0, len(quick) - self._wanted)]:
            self._end(helper)

    def _dispatch_to(self, now: float, *, slow: bool) -> bool:
        """Give idle helpers of one kind the next jobs of such groups. Returns whether some of these have to wait."""
        idle = [one for one, busy in self._helpers.items() if busy.ready and not busy.group and busy.slow == slow]
        waiting = []
        for name, group in self._groups.items():
            # One question per group at a time, so that a slow predicate holds one helper, not all.
            if group.trip or not group.jobs or group.not_before > now:
                continue
            pace = self._paces.of(name, group.jobs[0].predicate)
            if pace.slow == slow:
                waiting.append((pace.used, group.waits_since, name))
        for _, _, name in sorted(waiting):
            if not idle:
                return True
            self._send(idle.pop(), name, self._groups[name], now)
        return False

    def _add_for_slow(self, now: float) -> None:
        """Start a helper for slow groups, one at a time: it may be enough."""
        slow = [busy for busy in self._helpers.values() if busy.slow]
        if len(slow) < EXTRA_MAX and all(busy.ready for busy in slow) and now >= self._start_not_before:
            self._add_helper(slow=True)

    def _end(self, helper: Helper) -> None:
        del self._helpers[helper]
        helper.kill("it is not needed any more")

    def _account(self, busy: _Busy) -> None:
        """Count the time of a question that is over."""
        assert busy.job is not None
        seconds = self._clock.monotonic() - busy.since
        self.seconds.add(seconds)
        self._paces.took(busy.group, busy.job.predicate, seconds)

    def _send(self, helper: Helper, name: str, group: _Group, now: float) -> None:
        job = group.jobs[0]
        rest = job.records[len(job.verdicts) :]
        # After a failure one at a time, to find the message that ends the helper.
        records = rest[:1] if group.careful else rest
        group.trip = len(records)
        self._helpers[helper] = _Busy(name, job, now, ready=True, slow=self._helpers[helper].slow)
        self._paces.began(self._paces.of(name, job.predicate))
        word = job.predicate.encode()
        helper.ask(b"".join((bytes([len(word)]), word, job.head, *records)))

    def helper_answered(self, helper: Helper, answer: bytes | None, why: str) -> None:
        """Process an answer of a helper, or its end."""
        # Its jobs are another helper's or over if it was removed before.
        busy = self._helpers.get(helper)
        if busy is None or self._closed:
            return
        if answer is None or answer[:1] == bytes([OUT_OF_MEMORY]):
            del self._helpers[helper]
            if answer is not None:
                why = f"it needed more than {self._options.filter_memory_limit} bytes (filterMemoryLimit)"
                helper.kill(why)
            self._lost(busy, why)
        elif not busy.ready:
            self._ready(busy, answer)
        else:
            self._helpers[helper] = _Busy(since=self._clock.monotonic(), ready=True, slow=busy.slow)
            self._account(busy)
            self._judged(busy, answer)
        self._dispatch()

    def _ready(self, busy: _Busy, answer: bytes) -> None:
        busy.ready, busy.since = True, self._clock.monotonic()
        self._start_pause, self._start_why = FIRST_PAUSE, ""
        errors: dict[str, str] = msgspec.json.decode(answer)["errors"]
        for name, text in errors.items():
            if self._errors.get(name) != text:
                log.error("the predicate %s (%s) cannot be used: %s", name, self.places[name], text)
        self._errors = errors
        self._refuse_broken()

    def _refuse_broken(self) -> None:
        """Finish jobs that were queued before their predicate turned out to be unusable: they must not pass unfiltered."""
        for name, group in list(self._groups.items()):
            # A helper has the first one: its answer will finish that.
            for job in list(group.jobs)[1 if group.trip else 0 :]:
                if job.predicate in self._errors:
                    group.jobs.remove(job)
                    job.why = f"the predicate {job.predicate} cannot be used: {self._errors[job.predicate]}"
                    self._finish(job)
            self._forget_if_done(name, group)

    def _judged(self, busy: _Busy, answer: bytes) -> None:
        group, job = self._groups[busy.group], busy.job
        assert job is not None
        verdicts, text = answer[: group.trip], answer[group.trip :].decode("utf-8", "replace")
        # A protocol error of the helper process.
        if len(verdicts) < group.trip:
            self._failed(busy.group, group, job, "it answered for fewer messages than it was asked")
            return
        if RAISED in verdicts:
            self._log.warning(
                ("raised", job.predicate, busy.group),
                "the predicate %s raised for %d messages of group %s, which are delivered: %s",
                job.predicate, verdicts.count(RAISED), busy.group, text,
            )  # fmt: skip
        refused, raised = verdicts.count(NO), verdicts.count(RAISED)
        self.outcomes["no"] += refused
        self.outcomes["raised"] += raised
        self.outcomes["yes"] += len(verdicts) - refused - raised
        job.verdicts += verdicts
        group.careful = max(0, group.careful - group.trip)
        group.trip = 0
        if not group.careful:
            group.failures = 0
        self._go_on(busy.group, group, job)

    def _lost(self, busy: _Busy, why: str) -> None:
        """Process the end of a helper."""
        if busy.group:
            assert busy.job is not None
            self._account(busy)
            self._failed(busy.group, self._groups[busy.group], busy.job, why)
        elif not busy.ready:
            self._log.error(("start",), "a helper process for predicates did not start: %s; trying again", why)
            self._start_why = why
            self._start_not_before = self._clock.monotonic() + self._start_pause
            self._start_pause = min(LONGEST_PAUSE, 2 * self._start_pause)
        self._fill_up(self._clock.monotonic())

    def _failed(self, name: str, group: _Group, job: Job, why: str) -> None:
        now = self._clock.monotonic()
        job.why = f"the predicate {job.predicate} failed: {why}"
        if group.trip == 1:
            # This message alone ends the helper. FAILED delivers it; else it would be evaluated again and again.
            job.verdicts.append(FAILED)
            self.outcomes["failed"] += 1
            group.careful = max(0, group.careful - 1)
            self._log.error(
                ("failed", job.predicate, name),
                "the predicate %s failed with a message of group %s, which is delivered: %s", job.predicate, name, why,
            )  # fmt: skip
        else:
            group.careful = max(group.careful, group.trip)
            self._log.error(
                ("failing", job.predicate, name),
                "the predicate %s failed with %d messages of group %s, which are judged one by one now: %s",
                job.predicate, group.trip, name, why,
            )  # fmt: skip
        group.trip = 0
        # A predicate that fails every time must not keep starting processes.
        group.not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(group.failures, 10))
        group.failures += 1
        self._go_on(name, group, job)

    def _go_on(self, name: str, group: _Group, job: Job) -> None:
        now = self._clock.monotonic()
        group.waits_since = now
        if len(job.verdicts) < len(job.records) and now < job.deadline and not job.gone:
            return
        group.jobs.popleft()
        self._forget_if_done(name, group)
        self._finish(job)

    def _finish(self, job: Job) -> None:
        self._bytes -= job.size
        if job.owner is not None:
            job.owner.keep(-job.size)
        if not job.gone:
            job.done(job)

    def closed(self, channel: object) -> None:
        """Drop the jobs of a closed connection, except for the one that a helper has now."""
        for name, group in list(self._groups.items()):
            for job in [job for job in group.jobs if job.owner is channel]:
                job.gone = True
                if not group.trip or job is not group.jobs[0]:
                    group.jobs.remove(job)
                    self._finish(job)
            self._forget_if_done(name, group)

    def end(self, why: str) -> None:
        """End all helpers because the predicates are replaced, and answer waiting jobs with what is evaluated so far."""
        self._closed = True
        for helper in self._helpers:
            helper.kill(why)
        jobs = [job for group in self._groups.values() for job in group.jobs]
        # Before the jobs are finished, whose pulls may ask again.
        self._groups.clear()
        for job in jobs:
            job.why = why
            self._finish(job)

    def _forget_if_done(self, name: str, group: _Group) -> None:
        if not group.jobs and not group.failures and not group.careful:
            self._groups.pop(name, None)

    # -------------------------------------------------------------- time

    def tick(self) -> None:
        """Kill helpers over their time limit, answer overdue jobs, and start helpers that are needed."""
        if not self.places or self._closed:
            return
        self._log.tick()
        now, limit = self._clock.monotonic(), self._options.filter_time_limit / 1000
        for helper, busy in self._helpers.items():
            if busy.group and now - busy.since > limit:
                helper.kill(f"it took longer than {self._options.filter_time_limit} ms (filterTimeLimit)")
            elif not busy.ready and busy.since and now - busy.since > READY_SECONDS:
                helper.kill(f"it was not ready after {READY_SECONDS:g} s")
        for name, group in list(self._groups.items()):
            # What is evaluated so far is answered; the job that a helper has now ends with its answer or its time
            # limit.
            while group.jobs and not group.trip and now >= group.jobs[0].deadline:
                self._finish(group.jobs.popleft())
            if not group.jobs and now > group.not_before + LONGEST_PAUSE:
                self._groups.pop(name, None)
        self._part_slow(now)
        self._fill_up(now)
        self._dispatch()

    def _part_slow(self, now: float) -> None:
        """Set helpers apart that have worked on one question for long, and end those set apart that nobody needs."""
        slow = sum(busy.slow for busy in self._helpers.values())
        for helper, busy in list(self._helpers.items()):
            if busy.slow and busy.ready and not busy.group and now - busy.since > IDLE_SECONDS:
                self._end(helper)
            elif busy.group and not busy.slow and now - busy.since > PATIENCE_SECONDS and slow < 2 * EXTRA_MAX:
                assert busy.job is not None
                pace = self._paces.of(busy.group, busy.job.predicate)
                pace.seconds = max(pace.seconds, now - busy.since)
                busy.slow = True
                slow += 1
                helper.step_back()

    def _fill_up(self, now: float) -> None:
        """Start helpers for those that are set apart or have ended."""
        while sum(not busy.slow for busy in self._helpers.values()) < self._wanted and now >= self._start_not_before:
            self._add_helper()

    def _add_helper(self, *, slow: bool = False) -> None:
        assert self._make_helper is not None
        helper = self._make_helper(self.helper_answered)
        # Not 0, by which `tick` knows a helper that is not starting.
        self._helpers[helper] = _Busy(since=self._clock.monotonic() or 1e-9, slow=slow)
        if slow:
            helper.step_back()

    def close(self) -> None:
        """End all helpers, and wait for that. Waiting pulls are not answered: their connections end too."""
        self._closed = True
        for helper in self._helpers:
            helper.kill("the broker stops")
        for helper in self._helpers:
            helper.close()


def passes(verdict: int) -> bool:
    """Return whether a message with this verdict is delivered."""
    return verdict != NO


def no_classes(predicates: Predicates) -> str:
    """Return the error text for a Java class filter (classFilterMode)."""
    return (
        "The broker does not support consumer to filter message by class: it runs no code of clients. It has predicates, "
        f"chosen by name in the subscription (expression type {PREDICATE}); registered are: {predicates.registered}"
    )
