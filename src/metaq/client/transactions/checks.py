"""Answers to transaction checks (39): by the process's own knowledge, or by the application's check function.

The application's check may take its time (it asks a database), so it runs neither in the client's loop nor beside a
thousand others: a `CheckPool` has some workers, threads or tasks, and holds so many questions more. One question about a
transaction at a time: each check stores the half message anew, and only the newest place of it settles the transaction.

What this process knows itself needs no check: a transaction whose block is still running is not decided yet, and one that
has ended here ended as it did, whether or not the broker has heard of it; and a copy at another broker than the
transaction's was given up by its send. `TransactionLedger` keeps that.
"""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.sending.transactions import EndTransaction, half_of
from metaq.client.observing.tracing import TracedEnd, Tracer
from metaq.client.shared.core import ClientCore
from metaq.errors import BufferFull, MetaqError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage, TransactionOutcome
from metaq.model.message import HalfMessage
from metaq.model.notices import TransactionCheck

log = logging.getLogger("metaq.client")

IDLE_SECONDS = 60.0
"""Idle time after which a thread above the minimum ends, s."""
CLOSE_SECONDS = 5.0
"""Time for which a closing producer waits for running checks, s."""
ANSWER_SECONDS = 10.0
"""Time for sending the answer to a check, s. If it is lost, the broker asks again."""
DECIDED_MAX = 10_000
"""Outcomes kept in memory. Older transactions are left to the check function, which must know them anyway."""

Answer = bool | TransactionOutcome | None
"""An application's verdict on a transaction: True or COMMIT, False or ROLLBACK, None or UNKNOWN."""
Check = Callable[[StoredMessage], Answer]
AsyncCheck = Callable[[StoredMessage], Awaitable[Answer]]


def outcome_of(answer: object) -> TransactionOutcome:
    """Convert an application's answer to an outcome. Raises TypeError: it is none."""
    if answer is None:
        return TransactionOutcome.UNKNOWN
    if isinstance(answer, TransactionOutcome):
        return answer
    if isinstance(answer, bool):
        return TransactionOutcome.COMMIT if answer else TransactionOutcome.ROLLBACK
    raise TypeError(
        f"{answer!r} says nothing of a transaction: need True (commit), False (roll back) or None (unknown)"
    )


def text_of(error: BaseException) -> str:
    """The `repr` of an exception, which may itself raise for one of the application's own."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001
        return type(error).__name__


def check_function(function: object, what: str, *, awaited: bool) -> None:
    """Raises TypeError: `function`, a `what`, cannot be called with one argument, or is of the wrong kind."""
    name = getattr(function, "__qualname__", None) or repr(function)
    if not callable(function):
        raise TypeError(f"{what} is {function!r}: pass a function of one argument")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{what} {name} has a `yield`: calling it would run nothing of it")
    if inspect.iscoroutinefunction(function) and not awaited:
        raise TypeError(
            f"{what} {name} is asynchronous, and nobody awaits it here: use metaq.aio, or make it with `def`"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # Native code, whose signature may be unknown.
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise TypeError(f"{what} {name}{signature} cannot be called with one argument: {error}") from None


class Home(NamedTuple):
    """The broker of a half message."""

    broker: str
    host: str
    """Address and port in its offset ids, in hex."""

    def is_not(self, half: StoredMessage) -> bool:
        """Whether the half message of a check is surely another broker's. Brokers may be renamed or move, so neither
        name nor address alone decides."""
        # An offset id is the host, and 16 hex digits of the log offset.
        return bool(half.broker) and half.broker != self.broker and half.offset_id[:-16] != self.host


class Undecided:
    """A transaction in progress: where its half message is. It lives as long as the transaction, which alone holds it."""

    def __init__(self, home: Home, half: HalfMessage) -> None:
        self.home, self.half = home, half

    def moved(self, half: HalfMessage) -> None:
        """Note that a check of that broker has stored the half message anew: the end must name that place."""
        self.half = half


class Decided(NamedTuple):
    """The outcome of a transaction that ended here."""

    outcome: TransactionOutcome
    home: Home


class TransactionLedger:
    """The process's knowledge of its own transactions. Any thread."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: in a forked child the transactions are the parent's."""
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[str, Undecided] = weakref.WeakValueDictionary()
        """Transactions that are going on. Weak: one that nobody can end any more is left to the check."""
        self._decided: dict[str, Decided] = {}

    def begun(self, message_id: str, transaction: Undecided) -> None:
        """The transaction is going on: checks are answered with UNKNOWN from now on."""
        with self._lock:
            self._open[message_id] = transaction

    def ended(self, message_id: str, outcome: TransactionOutcome, home: Home) -> None:
        """Note how a transaction ended here. The outcomes of the newest `DECIDED_MAX` are kept, for the broker may not
        have got them."""
        with self._lock:
            self._open.pop(message_id, None)
            if outcome is not TransactionOutcome.UNKNOWN:
                self._decided[message_id] = Decided(outcome, home)
            if len(self._decided) > DECIDED_MAX:
                # A dict keeps the order of insertion: the first one is the oldest.
                del self._decided[next(iter(self._decided))]

    def answer(self, question: TransactionCheck) -> TransactionOutcome | None:
        """How the transaction ended, as far as this process knows by itself; UNKNOWN while it is going on.

        Another broker than that of the transaction asks about a copy that was given up: its acknowledgement was lost, and
        the message was sent again, there. Committed as well, it would be delivered a second time.
        """
        message_id = question.half.message_id
        with self._lock:
            decided, transaction = self._decided.get(message_id), self._open.get(message_id)
        known = decided or transaction
        if known is None:
            return None
        if known.home.is_not(question.half):
            return TransactionOutcome.ROLLBACK
        if decided is not None:
            return decided.outcome
        assert transaction is not None
        transaction.moved(half_of(question.half))
        return TransactionOutcome.UNKNOWN


LEDGER = TransactionLedger()
"""The ledger of all producers of the process: brokers ask any client of the group."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LEDGER.clear)


class PoolLimits(Struct, frozen=True):
    """RocketMQ's checkThreadPoolMinSize, checkThreadPoolMaxSize and checkRequestHoldMax."""

    workers_min: int
    workers_max: int
    held_max: int


class Question(Struct):
    """A check, and the broker's address."""

    check: TransactionCheck
    address: str


class Held:
    """Checks that wait for a worker, and those that are being answered. Any thread; all but `changed` under its lock."""

    def __init__(self, held_max: int) -> None:
        self.held_max = held_max
        self.changed = threading.Condition()
        self.closed = False
        self.when_idle: Callable[[], object] | None = None
        """Called once no check is being answered any more."""
        self._waiting: dict[str, Question] = {}
        self._running: dict[str, Question] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, question: Question) -> bool:
        """Add a check. Returns whether it waits now; else it has joined one about the same transaction.

        Raises BufferFull.
        """
        message_id = question.check.half.message_id
        for known in (self._running, self._waiting):
            if message_id in known:
                # The newer question names the place of the half message that an answer has to name.
                known[message_id] = question
                return False
        if len(self._waiting) >= self.held_max:
            raise BufferFull(f"{len(self._waiting)} checks wait already, and {len(self._running)} run")
        self._waiting[message_id] = question
        return True

    def runs(self, message_id: str) -> bool:
        return message_id in self._running

    def take(self) -> Question | None:
        """Take the oldest waiting check, for a worker; pair with `newest`. None: there is none."""
        if self.closed or not self._waiting:
            return None
        message_id = next(iter(self._waiting))
        question = self._running[message_id] = self._waiting.pop(message_id)
        return question

    def newest(self, message_id: str, answered: Question | None) -> Question | None:
        """Return the newest check of the transaction, which is the one to answer.

        None: it is `answered`, so nothing is left to do; the transaction is forgotten.
        """
        question = self._running[message_id]
        if question is not answered:
            return question
        del self._running[message_id]
        if self.when_idle is not None and not self._running:
            self.when_idle()
        return None

    def abandon(self) -> None:
        """Forget the checks that were being answered: their workers are gone."""
        self._running.clear()

    def close(self) -> int:
        """Drop what waits, refuse what comes. Returns how many were dropped."""
        self.closed = True
        dropped = len(self._waiting)
        self._waiting.clear()
        self.changed.notify_all()
        return dropped


class CheckPool(abc.ABC):
    """Answers the checks of one producer. Its methods run in the client's loop, unless they say otherwise."""

    def __init__(self, core: ClientCore, group: str, limits: PoolLimits) -> None:
        self.group = group
        self._core, self._limits = core, limits
        self._held = Held(limits.held_max)
        self._workers = 0
        self._log = RateLimitedLog(log, core.clock)
        self.tracer: Tracer | None = None

    def check(self, question: TransactionCheck, address: str) -> None:
        """Take a broker's check."""
        # What the process knows itself takes no worker, so a full pool cannot delay it.
        known = LEDGER.answer(question)
        if known is not None:
            self._core.spawn(self._answer(Question(question, address), known))
            return
        held = self._held
        with held.changed:
            # No answer: the broker asks again.
            if held.closed:
                return
            try:
                waits = held.add(Question(question, address))
            except BufferFull as error:
                self._log.warning(
                    "full", "passed over a check of transaction %s (group %s): %s; checks_held_max is %d. The broker asks "
                    "again; a larger check_workers_max would help", question.half.message_id, self.group, error,
                    held.held_max,
                )  # fmt: skip
                return
            if waits:
                self._work_waits()
            elif held.runs(question.half.message_id):
                self._log.warning(
                    "slow", "transaction %s (topic %s, group %s) is asked about again, and its check has not returned since "
                    "then; %d others wait for one of %d that may run (check_workers_max)",
                    question.half.message_id, question.half.topic, self.group, len(held), self._limits.workers_max,
                )  # fmt: skip

    @abc.abstractmethod
    def _work_waits(self) -> None:
        """Under the lock: start a worker for waiting checks, if one is needed."""

    async def close(self) -> None:
        """Take no more checks, and wait a while for those that run."""
        # First, so that no check comes to a pool that drops it.
        self._core.remove_checker(self)
        held, loop, idle = self._held, asyncio.get_running_loop(), asyncio.Event()
        with held.changed:
            dropped = held.close()
            held.when_idle = lambda: loop.call_soon_threadsafe(idle.set)
            if not held.running:
                idle.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await idle.wait()
        if dropped or held.running:
            log.warning(
                "the producer of group %s was closed with %d checks waiting and %d running: brokers ask again",
                self.group, dropped, held.running,
            )  # fmt: skip

    def _newest(self, question: Question, answered: Question | None) -> Question | None:
        """Any thread: the check that is still to be answered, see `Held.newest`."""
        with self._held.changed:
            return self._held.newest(question.check.half.message_id, answered)

    def _raised(self, question: Question, error: BaseException) -> tuple[TransactionOutcome, str]:
        """Any thread: log that the application's check function failed."""
        what = text_of(error)
        self._log.error(
            ("raised", type(error)), "the check of transaction %s (topic %s, group %s) failed: %s; the broker asks again",
            question.check.half.message_id, question.check.half.topic, self.group, what, error=error,
        )  # fmt: skip
        return TransactionOutcome.UNKNOWN, what

    async def _answer(self, question: Question, outcome: TransactionOutcome, remark: str | None = None) -> None:
        """Send the answer to the broker that asked. If it is lost, the broker asks again."""
        half = question.check.half
        call = EndTransaction(
            group=question.check.group,
            broker=half.broker or None,
            half=half_of(half),
            ending=outcome,
            from_check=True,
            remark=remark,
        )
        try:
            await self._core.send_oneway(question.address, call)
        except FAULTS as error:
            self._log.warning(
                ("untold", question.address), "the answer to a check, %s transaction %s, did not reach %s: %s; it asks again",
                outcome.value, half.message_id, question.address, error,
            )  # fmt: skip
            return
        if self.tracer is not None:
            self.tracer.settled(TracedEnd(half.topic, half.message_id, outcome, from_check=True))


class ThreadedChecks(CheckPool):
    """A check that is called in threads. They end with the producer, or with the process."""

    def __init__(self, core: ClientCore, group: str, limits: PoolLimits, function: Check) -> None:
        super().__init__(core, group, limits)
        self._function = function
        self._idle = 0

    def _work_waits(self) -> None:
        # An idle worker takes it, or all are busy and the next that is free will look.
        if len(self._held) <= self._idle or self._workers >= self._limits.workers_max:
            self._held.changed.notify()
        else:
            self._workers += 1
            threading.Thread(target=self._work, name=f"metaq-check-{self.group}", daemon=True).start()

    def _work(self) -> None:
        while (question := self._next()) is not None:
            outcome, remark = self._asked(question)
            answered = None
            # The same check may have come again while the function ran: its place is the one to name.
            while (newest := self._newest(question, answered)) is not None:
                with contextlib.suppress(MetaqError, concurrent.futures.CancelledError):  # The client was closed.
                    self._core.thread.run(self._answer(newest, outcome, remark), ANSWER_SECONDS)
                answered = newest

    def _asked(self, question: Question) -> tuple[TransactionOutcome, str | None]:
        try:
            answer = self._function(question.check.half)
            if inspect.iscoroutine(answer):
                answer.close()  # or it would warn that it was never awaited, beside our error
            return outcome_of(answer), None
        except BaseException as error:  # noqa: BLE001  SystemExit too: the thread is ours, and others wait for it
            return self._raised(question, error)

    def _next(self) -> Question | None:
        """The next question; None: the thread is not needed any more."""
        held = self._held
        with held.changed:
            while (question := held.take()) is None:
                spare = self._workers > self._limits.workers_min
                if not held.closed:
                    self._idle += 1
                    woken = held.changed.wait(IDLE_SECONDS if spare else None)
                    self._idle -= 1
                    # Counted anew: other threads may have ended while this one waited.
                    spare = not woken and self._workers > self._limits.workers_min
                if held.closed or (spare and not len(held)):
                    self._workers -= 1
                    return None
            return question


class AwaitedChecks(CheckPool):
    """A check that is awaited in tasks of the application's event loop."""

    def __init__(self, core: ClientCore, group: str, limits: PoolLimits, function: AsyncCheck) -> None:
        super().__init__(core, group, limits)
        self._function = function
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def live_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Any thread: checks run in that loop, unless another was given before that is not closed."""
        with self._held.changed:
            if self._loop is None or self._loop.is_closed():
                # A closed loop's tasks will never end by themselves, so their number and questions are forgotten.
                self._loop, self._workers = loop, 0
                self._held.abandon()
                for _ in range(min(len(self._held), self._limits.workers_max)):
                    self._work_waits()

    def _work_waits(self) -> None:
        if self._loop is None or self._workers >= self._limits.workers_max:
            return  # Somebody is there, or will be.
        self._workers += 1
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            self._workers -= 1
            self._log.warning(
                "closed", "the event loop of the producer of group %s is closed: nobody checks its transactions here",
                self.group,
            )  # fmt: skip

    def _begin(self) -> None:
        # Held here: the loop itself keeps only weak references to tasks.
        task = asyncio.get_running_loop().create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while (question := self._next()) is not None:
            outcome = TransactionOutcome.UNKNOWN
            remark: str | None = "the check was cancelled"
            try:
                outcome, remark = await self._asked(question)
            finally:  # A cancelled check answers too, and its task ends.
                answered = None
                while (newest := self._newest(question, answered)) is not None:
                    with contextlib.suppress(MetaqError):  # The client was closed.
                        self._core.thread.start(self._answer(newest, outcome, remark))
                    answered = newest

    async def _asked(self, question: Question) -> tuple[TransactionOutcome, str | None]:
        try:
            answer = self._function(question.check.half)
            if not inspect.isawaitable(answer):
                raise TypeError(  # noqa: TRY301  answered as any other fault of the check
                    "the check returned nothing that can be awaited: make it `async def`"
                )
            return outcome_of(await answer), None
        except Exception as error:  # noqa: BLE001  whatever the application's own code raises
            return self._raised(question, error)
        # A cancelled task ends without `_next`, which would have counted it.
        except BaseException:
            with self._held.changed:
                self._workers -= 1
            raise

    def _next(self) -> Question | None:
        with self._held.changed:
            question = self._held.take()
            if question is None:
                self._workers -= 1
            return question
