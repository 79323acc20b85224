"""Transactions of several messages: `with producer.atomic() as tx`, all of whose messages are delivered, or none.

Messages gather here (`metaq.client.conversation.staged.parts`), are staged when there are too many, and decided at the
end; what is asked of whom is `metaq.client.conversation.staged.atomic`'s business, and `Courier` carries it. `Atomic`
and `metaq.aio.Atomic` are the same object and differ in how one waits: what takes long is a generator of futures,
driven by either.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from msgspec import Struct

from metaq.amounts import count
from metaq.client.conversation.driver import converse
from metaq.client.conversation.staged.atomic import (
    ROLLBACK_SECONDS,
    AtomicSteps,
    Ending,
    Standing,
    Steps,
    outcome_of,
    settled,
)
from metaq.client.conversation.staged.parts import REQUEST_BYTES, Parts, is_large
from metaq.client.identity.names import checked
from metaq.client.identity.options import checked_seconds
from metaq.client.producing.accumulator import check_body
from metaq.client.producing.courier import Courier
from metaq.client.shared.core import ClientCore
from metaq.client.shared.messages import NO_KEYS, Selector, as_message, chosen, queue_for_key
from metaq.client.shared.sending import found_within
from metaq.client.shared.serializers import Encode
from metaq.client.shared.values import Sent_contra
from metaq.errors import (
    ClientError,
    ConfigError,
    InvalidMessage,
    MetaqError,
    NotSupported,
    RequestTimeout,
    TransactionEnded,
    TransactionFailed,
)
from metaq.model import Message, MessageQueue, TransactionOutcome
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.model.topics.topic import check_topic
from metaq.model.transactions.staging import DecisionOutcome, Phase, coordinator_of, transaction_id

log = logging.getLogger("metaq.client")

Result = TypeVar("Result")
Waiting = Generator[concurrent.futures.Future[Any], Any, Result]
"""Yields what must be waited for; its result is sent in, or its MetaqError thrown."""

TIMEOUT: Final = 30.0
EXPIRE_AFTER: Final = 3600.0
EXPIRE_MAX: Final = 30 * 24 * 3600
OPEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of messages that were sent in a transaction and are not staged yet, beside one request under way per broker."""

_STANDINGS = {TransactionOutcome.COMMIT: Standing.COMMITTED, TransactionOutcome.ROLLBACK: Standing.ROLLED_BACK}
_OUTCOMES = {standing: outcome for outcome, standing in _STANDINGS.items()}


class AtomicResult(Struct, frozen=True):
    """How a transaction of several messages ended.

    `transaction_id` is empty if there was no message. `delivered`: all brokers have said that every message is in its queue; if
    not, those that were away deliver when they are back. `missing`: parts that a broker has lost, for the log and its operator.
    """

    transaction_id: str
    outcome: TransactionOutcome
    """COMMIT or ROLLBACK."""
    messages: int
    """Number of its messages."""
    delivered: bool = False
    missing: tuple[str, ...] = ()


class Outlet(Struct, frozen=True):
    """What a transaction needs of its producer. The functions are for any thread."""

    core: ClientCore
    courier: Courier
    message_bytes_max: int
    serialize: Encode | None
    check_open: Callable[[], None]
    queues_now: Callable[[str, bool], list[MessageQueue] | None]
    """Queues of a topic, or (True) of its fixed list; None: they are not known yet."""
    find_queues: Callable[[str, bool], Coroutine[Any, Any, list[MessageQueue]]]
    turn: Callable[[list[MessageQueue]], MessageQueue]
    """The next queue in turn, over all transactions and sends of the producer."""


class Way(Struct, frozen=True):
    """How a message's queue is chosen."""

    ordering_key: str | None = None
    selector: Selector | None = None
    queue: MessageQueue | None = None
    strict: bool = False

    def check(self, topic: str) -> None:
        """Raises ConfigError, TypeError: no queue of the topic can be chosen this way."""
        if self.strict and (self.ordering_key is None or self.selector is not None or self.queue is not None):
            raise ConfigError("strict=True is for an ordering_key: a queue or selector is never exchanged anyway")
        if self.queue is not None and not isinstance(self.queue, MessageQueue):
            raise TypeError(f"queue is {self.queue!r}: pass a MessageQueue, for example one of producer.queues(topic)")
        if self.queue is not None and self.queue.topic != topic:
            raise ConfigError(f"the queue {self.queue} is not one of topic {topic}")
        if self.ordering_key is not None and not isinstance(self.ordering_key, str):
            raise TypeError(f"ordering_key is {self.ordering_key!r}: pass text, str({self.ordering_key!r})")


class _Turn:
    """The queue for messages of a topic that name none; it changes after each request's worth of bytes."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue, self.bytes = queue, 0


class _State(enum.Enum):
    OPEN = "going on"
    PREPARING = "being prepared"
    PREPARED = "prepared"
    ENDED = "ended"


class AtomicBase:
    """What the two kinds share. Made by `producer.atomic`, which says what `timeout` and `expire_after` are, seconds, and raises
    ConfigError. It ends once: by `commit` or `rollback`, or when its block is left."""

    def __init__(self, outlet: Outlet, timeout: float, expire_after: float) -> None:
        self._timeout = checked_seconds("timeout", timeout, least=0.001)
        self._expire_after = max(1, round(checked_seconds("expire_after", expire_after, least=0.001)))
        if self._expire_after > EXPIRE_MAX:
            raise ConfigError(f"expire_after={expire_after!r}: need seconds, up to {EXPIRE_MAX}")
        self._outlet, self._core, self._courier = outlet, outlet.core, outlet.courier
        self._lock = threading.Lock()
        self._parts = Parts(self._core.id_prefixes.next, body_bytes_max=lambda _broker: outlet.message_bytes_max)
        self._state = _State.OPEN
        self._topics: set[str] = set()
        self._turns: dict[str, _Turn] = {}
        self._staging: dict[str, concurrent.futures.Future[None]] = {}
        """The newest request to stage, by broker."""
        self._wanted: TransactionOutcome | None = None
        self._ending: concurrent.futures.Future[Ending] | None = None
        self._failure: MetaqError | None = None
        """The error of the `send` that ended the transaction."""

    _steps: AtomicSteps | None = None
    """None: there is no message yet. Of the class, too, for `__del__` of what could not be made."""

    def __del__(self) -> None:
        # A child of `fork` has copies of its parent's.
        if self._steps is not None and self._state is _State.OPEN and self._core.in_own_process:
            log.warning(
                "an atomic() transaction of %s was neither committed nor rolled back, so nothing of it is delivered: "
                "use `with producer.atomic() as tx`, or call commit()", count(self.messages, "message"),
            )  # fmt: skip

    @property
    def id(self) -> str:
        """The transaction's id, for `producer.outcome` and `producer.settle`.

        Raises ClientError: there is no message yet.
        """
        if self._steps is None:
            raise ClientError(
                "the transaction has no id before its first message: the id names the broker of that message's queue, "
                "which decides"
            )
        return self._steps.transaction

    @property
    def messages(self) -> int:
        """The number of messages sent in it."""
        return self._parts.rows

    @property
    def outcome(self) -> TransactionOutcome | None:
        """How it ended: COMMIT, ROLLBACK, or UNKNOWN if that could not be found out; None while it is going on."""
        ending = self._ended
        return None if ending is None else _OUTCOMES.get(ending.standing, TransactionOutcome.UNKNOWN)

    @property
    def result(self) -> AtomicResult | None:
        """How it ended; None before that is clear."""
        ending = self._ended
        return None if ending is None else self._result_of(ending)

    @property
    def _ended(self) -> Ending | None:
        future = self._ending
        return future.result() if future is not None and future.done() and future.exception() is None else None

    # -------------------------------------------------------------- messages

    def _sending(self, message: Message, way: Way) -> Waiting[str]:
        """Add a message; its id. Raises as `send`."""
        self._check_going_on()
        self._check_message(message)
        checked(check_topic, message.topic)
        way.check(message.topic)
        # Nothing of the transaction is changed by these waits, so they hold no lock.
        if self._outlet.queues_now(message.topic, way.strict) is None:
            yield self._start(self._find_queues(message.topic, way.strict))
        text = message.property_text(None, self._core.namespace.name).encode()
        # Room for the property with the message's id, which its chunk adds.
        if len(text) > PROPERTIES_BYTES_MAX - 128:
            raise InvalidMessage(
                f"tag, keys and properties together exceed {PROPERTIES_BYTES_MAX - 128} bytes of UTF-8"
            )
        queue = self._queue(message, way)
        if queue.broker not in self._courier.capable:
            yield self._start(self._courier.check_level(queue.broker))
        if is_large(message.body, text) and queue.broker not in self._courier.takes_large:
            yield self._start(self._courier.check_large(queue.broker, f"a body of {len(message.body)} bytes"))
        with self._lock:
            # Again, under the lock: another thread may have ended the transaction while this one waited.
            self._check_going_on()
            message_id = self._parts.add(self._core.namespace.wrapped_queue(queue), message.flag, message.body, text)
            self._topics.add(message.topic)
            if self._steps is None:
                self._steps = self._begun(queue.broker)
        while (full := self._relief()) is not None:
            try:
                yield full
            except MetaqError as error:
                yield from self._give_up(error)
        return message_id

    async def _find_queues(self, topic: str, strict: bool) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await found_within(self._timeout, lambda: self._outlet.find_queues(topic, strict))
        except TimeoutError:
            raise RequestTimeout(f"no name server told the route of topic {topic} within {self._timeout:g} s") from None

    def _check_message(self, message: Message) -> None:
        check_body(message.body, self._outlet.message_bytes_max)
        if message.delay_level:
            raise InvalidMessage(
                f"delay_level={message.delay_level}: the messages of an atomic() block are delivered when it is committed"
            )
        if not message.wait_store_ok:
            raise InvalidMessage("wait_store_ok=False has no sense in an atomic() block: only its end is acknowledged")

    def _begun(self, broker: str) -> AtomicSteps:
        """Begin with the first message: its broker becomes the coordinator."""
        clock = self._core.clock
        unique = f"{self._core.id_prefixes.next().decode()}{clock.random_below(1 << 64):016X}"

        def make(name: str) -> str:
            return transaction_id(unique, name)

        return AtomicSteps(
            checked(make, broker), self._parts,
            born_ms=clock.now_ms, expire_after=self._expire_after, now=self._courier.now,
        )  # fmt: skip

    def _queue(self, message: Message, way: Way) -> MessageQueue:
        if way.queue is not None:
            return way.queue
        queues = self._outlet.queues_now(message.topic, way.strict)
        assert queues is not None
        if way.selector is not None:
            return chosen(way.selector, queues)
        if way.ordering_key is not None:
            return queue_for_key(way.ordering_key, queues)
        with self._lock:
            turn = self._turns.get(message.topic)
            # A request's worth for each queue: messages in turn would make many small parts.
            if turn is None or turn.bytes >= REQUEST_BYTES:
                turn = self._turns[message.topic] = _Turn(self._outlet.turn(self._nearest(queues)))
            turn.bytes += len(message.body)
            return turn.queue

    def _nearest(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Queues at the coordinator, so that few brokers take part; else at a broker that has not failed lately."""
        if self._steps is not None:
            own = [queue for queue in queues if queue.broker == self._steps.coordinator]
            if own:
                return own
        well = self._courier.well({queue.broker for queue in queues})
        return [queue for queue in queues if queue.broker in well]

    def _relief(self) -> concurrent.futures.Future[None] | None:
        """Stage some of the gathered messages if they are too many. Returns what must be awaited before there is room."""
        with self._lock:
            while self._parts.waits > OPEN_BYTES_MAX and self._state is _State.OPEN:
                assert self._steps is not None
                broker = self._parts.fullest()
                before = self._staging.get(broker)
                # One that failed is returned, too: waiting for it raises its error in `send`.
                if before is not None and (not before.done() or before.exception() is not None):
                    return before
                steps = self._steps.overflow(broker, self._timeout)
                self._staging[broker] = self._start(self._courier.drive(steps))
        return None

    # -------------------------------------------------------------- the end

    def _preparing(self) -> Waiting[None]:
        """Store everything, decide nothing. Raises as `prepare`."""
        self._outlet.check_open()
        with self._lock:
            self._check_going_on()
            self._state = _State.PREPARING
            future = self._start(
                self._end(lambda steps: steps.finish(DecisionOutcome.PREPARED, self._timeout), Standing.PREPARED)
            )
        ending: Ending = yield future
        if ending.standing is Standing.PREPARED:
            self._state = _State.PREPARED
            return
        with self._lock:
            self._state, self._wanted, self._ending = _State.ENDED, TransactionOutcome.ROLLBACK, future
            self._failure = self._failure_of(ending)
        raise self._failure

    def _deciding(self, outcome: TransactionOutcome, seconds: float) -> Waiting[AtomicResult]:
        """End it. Raises as `commit` and `rollback`."""
        self._outlet.check_open()
        with self._lock:
            if self._ending is None:
                self._ending = self._start(self._end(self._way_to(outcome, seconds), _STANDINGS[outcome]))
                self._state, self._wanted = _State.ENDED, outcome
            elif self._wanted is not outcome:
                assert self._wanted is not None
                raise TransactionEnded(
                    f"{self._name} has ended with {self._wanted.value!r} already: it cannot {outcome.value} any more"
                )
            future = self._ending
        ending: Ending = yield future
        if ending.missing:
            log.error(
                "%s is committed, and the brokers of these parts have lost them: %s",
                self._name,
                ", ".join(ending.missing),
            )
        reached = _OUTCOMES.get(ending.standing)
        if reached is outcome or (outcome is TransactionOutcome.ROLLBACK and ending.standing is Standing.OPEN):
            return self._result_of(ending)
        if reached is TransactionOutcome.COMMIT:
            raise TransactionEnded(
                f"{self._name} has been committed by somebody else: it cannot be rolled back any more"
            )
        raise self._failure_of(ending)

    def _way_to(self, outcome: TransactionOutcome, seconds: float) -> Callable[[AtomicSteps], Steps[Ending]]:
        prepared = self._state is not _State.OPEN

        def make(steps: AtomicSteps) -> Steps[Ending]:
            if outcome is TransactionOutcome.ROLLBACK:
                return steps.roll_back(seconds)
            return steps.commit_prepared(seconds) if prepared else steps.finish(DecisionOutcome.COMMIT, seconds)

        return make

    async def _end(self, make: Callable[[AtomicSteps], Steps[Ending]], nothing: Standing) -> Ending:
        """In the loop: end it, once the requests under way are answered. `nothing`: the outcome of a transaction
        without messages."""
        steps = self._steps
        if steps is None:
            return Ending(nothing, delivered=True)
        # The decision must come behind all chunks: a broker refuses those of a transaction that is over.
        for staged in list(self._staging.values()):
            try:
                await asyncio.wrap_future(staged)
            except MetaqError as error:
                return await self._courier.drive(steps.give_up(error))
        ending = await self._courier.drive(make(steps))
        if ending.standing is Standing.COMMITTED:
            # The commit may have created topics, whose routes were guesses until now.
            for topic in self._topics:
                self._core.routes.forget_guess(topic)
        return ending

    def _give_up(self, error: MetaqError) -> Waiting[None]:
        """End a transaction of which something could not be staged. Raises what became of it."""
        with self._lock:
            if self._ending is None:
                self._ending = self._start(self._end(lambda steps: steps.give_up(error), Standing.ROLLED_BACK))
                self._state, self._wanted = _State.ENDED, TransactionOutcome.ROLLBACK
            future = self._ending
        ending: Ending = yield future
        self._failure = self._failure_of(ending)
        raise self._failure

    def _leaving(self, error: BaseException | None) -> Waiting[None]:
        """Its block was left."""
        if error is None:
            if self._failure is not None:  # Which the block has passed over.
                raise self._failure
            if self._ending is None:
                yield from self._deciding(TransactionOutcome.COMMIT, self._timeout)
            return
        # A forked child must not end its parent's transaction.
        if self._ending is not None or not self._core.in_own_process:
            return
        if self._state is not _State.OPEN and not isinstance(error, Exception):
            log.warning("%s is left prepared: %r came, and nobody knows how far its block has come", self._name, error)
            return
        try:
            # Short while it is open: if no broker hears of it, it expires. Prepared, it would stay.
            seconds = ROLLBACK_SECONDS if self._state is _State.OPEN else self._timeout
            yield from self._deciding(TransactionOutcome.ROLLBACK, seconds)
        except MetaqError as failure:  # The block's own error is the one to be raised.
            log.warning("%s", failure)

    # -------------------------------------------------------------- words

    @property
    def _name(self) -> str:
        return f"transaction {self._steps.transaction}" if self._steps is not None else "a transaction without messages"

    def _check_going_on(self) -> None:
        """Raises TransactionEnded, ClientClosed, ClientForked."""
        self._outlet.check_open()
        if self._state is not _State.OPEN:
            raise self._failure or TransactionEnded(
                f"{self._name} is {self._state.value}: another message needs another transaction"
            )

    def _result_of(self, ending: Ending) -> AtomicResult:
        outcome = _OUTCOMES.get(ending.standing, TransactionOutcome.UNKNOWN)
        if ending.standing is Standing.OPEN:
            outcome = TransactionOutcome.ROLLBACK
        name = self._steps.transaction if self._steps is not None else ""
        return AtomicResult(name, outcome, self.messages, ending.delivered, ending.missing)

    def _failure_of(self, ending: Ending) -> MetaqError:
        """The error of a transaction that was not completed."""
        why = ending.why
        if isinstance(why, NotSupported):
            return why
        reason = (
            str(why) if why is not None else "it had been rolled back before: by its expiry (expire_after), or by hand"
        )
        state, text = _STATES[ending.standing]
        failure = TransactionFailed(
            f"{self._name} was not completed: {reason}. {text.format(seconds=self._expire_after)}", self.id, state
        )
        failure.__cause__ = why
        return failure

    def _start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        return self._core.thread.start(work)

    def __repr__(self) -> str:
        name = self._steps.transaction if self._steps is not None else "not begun"
        return f"<{type(self).__name__} {name}: {self.messages} messages, {self._state.value}>"


_STATES = {
    Standing.ROLLED_BACK: ("rolled back", "It is rolled back: nothing of it was or will be delivered, so do it again"),
    Standing.OPEN: (
        "open",
        "No commit was sent: nothing of it will be delivered, and the brokers drop it after {seconds} s; do it again",
    ),
    Standing.PREPARED: ("prepared", "It is prepared, and waits for a decision: producer.settle(id, commit=...)"),
    Standing.UNKNOWN: (
        "unknown",
        "What became of it is unknown: ask producer.outcome(id), or make sure with producer.settle(id, commit=False)",
    ),
}
"""State → the words of an error: what it is, and what to do."""


class Atomic(AtomicBase, Generic[Sent_contra]):
    """One transaction of several messages. Use it with `with`. Safe from many threads."""

    def send(
        self,
        topic: str | Message,
        body: Sent_contra | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        flag: int = 0,
        properties: dict[str, str] | None = None,
        strict: bool = False,
    ) -> str:
        """Add a message to the transaction; returns its id. Nobody sees it before the commit, or ever without one.

        Args: as in `Producer.send`. Without a key, selector or queue it goes to a queue at the broker that decides.
        Raises:
            TypeError, ConfigError.
            InvalidMessage: too large (bodies as in `Producer.send`, but not compressed), or with a delay.
            NoRoute: the topic is unknown.
            NotSupported: its broker has no such transactions, or is an older one without messages above 1 MiB in them.
            RequestTimeout, ConnectionFailed: the transaction may go on after these.
            TransactionFailed: what was sent so far could not be staged, and the transaction has ended.
            TransactionEnded, ClientClosed, ClientForked.
        """
        message = as_message(topic, body, tag, keys, flag=flag, properties=properties, serialize=self._outlet.serialize)
        return self._wait(self._sending(message, Way(ordering_key, selector, queue, strict)))

    def prepare(self) -> None:
        """Store everything, at every broker, and decide nothing: from now on it does not expire, until it is committed or
        rolled back, here or by `Producer.settle`.

        Raises TransactionFailed, NotSupported; TransactionEnded; ClientClosed, ClientForked.
        """
        self._wait(self._preparing())

    def commit(self) -> AtomicResult:
        """End it: all its messages are delivered.

        Raises TransactionFailed: it was not completed, see its `state`; NotSupported; TransactionEnded: it was rolled back here
        before; ClientClosed, ClientForked.
        """
        return self._wait(self._deciding(TransactionOutcome.COMMIT, self._timeout))

    def rollback(self) -> AtomicResult:
        """End it: none of its messages is delivered.

        Raises TransactionFailed: it was prepared, and the coordinator could not be reached; TransactionEnded: it was
        committed before; ClientClosed, ClientForked.
        """
        return self._wait(self._deciding(TransactionOutcome.ROLLBACK, self._timeout))

    def _wait(self, work: Waiting[Result]) -> Result:
        if self._core.in_own_process and self._core.thread.current:
            raise ClientError("an atomic() block waits, which the client's own thread must not: use another thread")
        return converse(work, concurrent.futures.Future.result)

    def __enter__(self) -> Self:
        self._check_going_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._leaving(error))


async def outcome(courier: Courier, transaction: str, timeout: float) -> Phase:
    """In the loop: where a transaction stands."""
    checked(coordinator_of, transaction)
    seconds = checked_seconds("timeout", timeout, least=0.001)
    return await courier.drive(outcome_of(transaction, seconds, courier.now))


async def settle(courier: Courier, transaction: str, timeout: float, *, commit: bool) -> TransactionOutcome:
    """In the loop: decide a transaction by its id."""
    checked(coordinator_of, transaction)
    seconds = checked_seconds("timeout", timeout, least=0.001)
    ending = await courier.drive(settled(transaction, commit=commit, seconds=seconds, now=courier.now))
    return _OUTCOMES[ending.standing]
