"""Transactions: a message that consumers get if, and only if, a local transaction has been committed.

The message is stored first, unseen (a *half message*). Then the local transaction runs, under the message's id. Its
end is reported to the broker that stored the half message. If that report never arrives, because the process has died
or the connection is gone, the broker asks any producer of the group, and `check` looks up what became of the id
(`metaq.client.transactions.checks`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.retry import Purpose, judge, may_have_moved
from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.conversation.sending.transactions import EndTransaction, half_at, half_message
from metaq.client.identity.options import check_flag
from metaq.client.observing.tracing import TracedEnd
from metaq.client.producing.accumulator import BatchStream
from metaq.client.producing.base import ProducerBase
from metaq.client.producing.producer import Producer
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.messages import NO_KEYS, Selector, as_message
from metaq.client.shared.serializers import Serialize
from metaq.client.shared.values import Sent_contra
from metaq.client.transactions.checks import (
    LEDGER,
    Answer,
    Check,
    CheckPool,
    Home,
    PoolLimits,
    ThreadedChecks,
    Undecided,
    check_function,
    outcome_of,
    text_of,
)
from metaq.errors import (
    BadRequest,
    BrokerError,
    ClientError,
    ConfigError,
    InvalidMessage,
    MetaqError,
    NoRoute,
    SendFailed,
    TransactionEnded,
)
from metaq.model import Message, MessageQueue, SendReceipt, SendStatus, TransactionOutcome
from metaq.model.message import HalfMessage

log = logging.getLogger("metaq.client")

REPORT_PAUSE_MAX = 0.2
"""Longest pause between two reports of an end, s: another leader may be there by then."""
CHECK_AFTER_MAX = 7 * 24 * 3600


class Told(enum.Enum):
    """What is known of the report of a transaction's end to its broker, `HANDED_OVER`, `CONFIRMED`, `REFUSED` or `UNTOLD`: see the texts."""

    HANDED_OVER = "it was handed to the connection; nobody answers it"
    CONFIRMED = "the broker has answered that it is done"
    REFUSED = "the broker has answered that it does not do it"
    UNTOLD = "it is not known to have reached the broker, which will ask the producers of the group"


class TransactionResult(Struct, frozen=True):
    """How a transaction ended here (`outcome`), and whether its broker knows (`told`).

    `receipt` is the half message's: its offset is that among the broker's half messages, not in the topic. `why`: what
    went wrong, for REFUSED and UNTOLD. `error`: what `execute` of `send_in_transaction` raised; None: nothing.
    """

    receipt: SendReceipt
    outcome: TransactionOutcome
    told: Told
    why: str = ""
    error: Exception | None = None

    @property
    def message_id(self) -> str:
        """The id of the transaction, and of the message."""
        return self.receipt.message_id

    @property
    def status(self) -> SendStatus:
        """Of the half message. With another than SEND_OK the transaction was rolled back before it began."""
        return self.receipt.status


class HalfSend(Struct, frozen=True):
    """A half message to be sent, and where to."""

    message: Message
    ordering_key: str | None = None
    selector: Selector | None = None
    queue: MessageQueue | None = None
    timeout: float | None = None
    check_after: int | None = None
    """Seconds before the broker may check."""


class TransactionBase:
    """What the two kinds of transaction share. Made by `producer.transaction`.

    It ends once: by `commit`, `rollback` or `unknown`, or when its block is left.
    """

    def __init__(self, producer: TransactionProducerBase[Any], wanted: HalfSend) -> None:
        self._producer, self._wanted = producer, wanted
        self._receipt: SendReceipt | None = None
        self._begun: Undecided | None = None
        self._lock = threading.Lock()
        self._outcome: TransactionOutcome | None = None
        self._ending: concurrent.futures.Future[TransactionResult] | None = None

    @property
    def message(self) -> Message:
        """The message that was given."""
        return self._wanted.message

    @property
    def id(self) -> str:
        """The id of the transaction and of its message: what the local transaction keeps, and `check` looks up.

        Raises ClientError: the transaction has not begun.
        """
        return self.receipt.message_id

    @property
    def receipt(self) -> SendReceipt:
        """The broker's acknowledgement of the half message. Raises ClientError: the transaction has not begun."""
        if self._receipt is None:
            raise ClientError("the transaction has not begun: use `with`, or call begin()")
        return self._receipt

    @property
    def outcome(self) -> TransactionOutcome | None:
        """How it ended here; None while it is going on."""
        return self._outcome

    @property
    def result(self) -> TransactionResult | None:
        """How it ended and whether the broker knows; None before that is clear."""
        ending = self._ending
        return ending.result() if ending is not None and ending.done() else None

    def _check_new(self) -> None:
        if self._receipt is not None:
            raise TransactionEnded(
                f"transaction {self.id} has begun before: each `with` needs a transaction of its own"
            )

    def _stored(self, receipt: SendReceipt) -> None:
        """Begin, now that the half message is stored. Raises BadRequest: the broker did not say where."""
        try:
            half = half_at(receipt.message_id, receipt.offset, receipt.offset_id)
        except BadRequest as error:
            raise BadRequest(
                f"broker {receipt.queue.broker} took the half message {receipt.message_id} and did not say where it is: {error}; "
                "nothing was begun here, and when the broker asks, the check will not find it"
            ) from None
        self._receipt = receipt
        self._begun = Undecided(Home(receipt.queue.broker, receipt.offset_id[:-16]), half)
        LEDGER.begun(receipt.message_id, self._begun)

    def _decide(
        self, outcome: TransactionOutcome, error: Exception | None = None
    ) -> concurrent.futures.Future[TransactionResult]:
        """End it: the decision is sent at once.

        Raises TransactionEnded: it ended otherwise; ClientError: it has not begun; ClientForked: it is the parent's.
        """
        receipt = self.receipt
        self._producer.check_process()
        # Two threads may end it at the same time: only the first decides.
        with self._lock:
            if self._ending is None:
                assert self._begun is not None
                self._outcome = outcome
                # Before the report is sent: a check that arrives meanwhile is answered with this outcome.
                LEDGER.ended(receipt.message_id, outcome, self._begun.home)
                self._ending = self._producer._end(  # noqa: SLF001  a part of the producer
                    receipt, self._begun.half, outcome, error
                )
            elif self._outcome is not outcome:
                assert self._outcome is not None
                raise TransactionEnded(
                    f"transaction {self.id} has ended with {self._outcome.value!r} already: it cannot {outcome.value} any more"
                )
            return self._ending

    def _left(self, error: BaseException | None) -> concurrent.futures.Future[TransactionResult]:
        """End it because its block was left."""
        if self._ending is not None:
            return self._ending
        if error is None:
            return self._decide(TransactionOutcome.COMMIT)
        if isinstance(error, Exception):
            return self._decide(TransactionOutcome.ROLLBACK)
        return self._decide(TransactionOutcome.UNKNOWN)  # Ctrl-C: nobody knows how far it has come.

    def _executed(self, outcome: TransactionOutcome) -> concurrent.futures.Future[TransactionResult]:
        """End it with the verdict of `execute`, unless `execute` has ended it itself."""
        return self._ending if self._ending is not None else self._decide(outcome)

    def _execute_failed(self, error: Exception) -> concurrent.futures.Future[TransactionResult]:
        """End it as UNKNOWN: nobody knows what `execute` did before it failed, unless it had ended the transaction
        itself."""
        log.error(
            "transaction %s (topic %s): execute failed: %s; the check settles it", self.id, self.message.topic,
            text_of(error), exc_info=error,
        )  # fmt: skip
        return self._ending if self._ending is not None else self._decide(TransactionOutcome.UNKNOWN, error)

    def _not_safe(self) -> SendFailed | None:
        """The error of a half message on which no transaction may begin; None: it is safe."""
        status = self.receipt.status
        if status is SendStatus.SEND_OK:
            return None
        text = f"status {status.name}"
        return SendFailed(
            f"the half message {self.id} for topic {self.message.topic} was stored with {text}, and was rolled back: "
            "nothing has happened, so begin again",
            ((self.receipt.queue.broker, text),),
        )

    def __repr__(self) -> str:
        state = "not begun" if self._receipt is None else self._outcome.value if self._outcome else "going on"
        name = f" {self._receipt.message_id}" if self._receipt is not None else ""
        return f"<{type(self).__name__}{name} for topic {self.message.topic}: {state}>"


T = TypeVar("T", bound=TransactionBase)


class TransactionProducerBase(ProducerBase[Sent_contra], Generic[T, Sent_contra]):
    """What the two kinds of transactional producer share."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        check: Callable[..., Any],
        confirm: bool = False,
        check_workers_min: int = 1,
        check_workers_max: int = 1,
        checks_held_max: int = 2000,
        serialize: Serialize[Sent_contra] | None = None,
        **options: Any,
    ) -> None:
        """

        Args:
            group: brokers ask any producer of it how a transaction ended, so all of them must know.
            check: called with the message (a `StoredMessage`; its `message_id` is the transaction's id) when a broker
                asks; returns True (commit), False (roll back) or None (not known yet: ask later), or a
                `TransactionOutcome`.
            confirm: wait for the broker's answer to a commit or rollback.
            check_workers_min, check_workers_max: threads that call `check` (in asyncio: tasks); as many as the former
                stay when there is nothing to check.
            checks_held_max: checks that wait for one of them; further ones are passed over, and asked again.
            options: as of `Producer`.

        Raises: ConfigError, TypeError. The brokers learn of the producer at once, so that it is asked also for
              transactions of others of its group.
        """
        self._open = False
        for name, value, least in (
            ("check_workers_min", check_workers_min, 0),
            ("check_workers_max", check_workers_max, 1),
            ("checks_held_max", checks_held_max, 1),
        ):
            if type(value) is not int or value < least:
                raise ConfigError(f"{name}={value!r}: need a whole number from {least} on")
        if check_workers_min > check_workers_max:
            raise ConfigError(
                f"check_workers_min={check_workers_min} is more than check_workers_max={check_workers_max}"
            )
        check_flag("confirm", confirm)
        self._check_kind(check)
        # After all checks: this connects, and a refused argument must leave no client behind.
        super().__init__(namesrv, group=group, serialize=serialize, **options)
        self._confirm = confirm
        self._endings: set[concurrent.futures.Future[TransactionResult]] = set()
        self._pool = self._new_pool(check, PoolLimits(check_workers_min, check_workers_max, checks_held_max))
        self._pool.tracer = self._tracer
        self._core.thread.post(self._core.add_checker, self._pool)

    @abstractmethod
    def _check_kind(self, check: Callable[..., Any]) -> None:
        """Raises TypeError: this kind of producer cannot call such a check."""

    @abstractmethod
    def _new_pool(self, check: Callable[..., Any], limits: PoolLimits) -> CheckPool: ...

    @abstractmethod
    def _new_transaction(self, wanted: HalfSend) -> T: ...

    def transaction(
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
        wait_store_ok: bool = True,
        properties: dict[str, str] | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> T:
        """A transaction around one message: `with producer.transaction(topic, body) as tx`.

        Entering the block stores the message unseen; leaving it commits; raising an exception in it rolls back. What is not
        an `Exception` (Ctrl-C, a cancelled task) leaves the outcome to `check`, as `tx.unknown()` does.

        Args:
            as in `send`; there is no delay: brokers ignore it in transactions.
            check_after: seconds before the broker asks for the first time, if not its own `transactionTimeOut`; its
                check loop may make it longer.

        Raises: TypeError, InvalidMessage, ConfigError. Entering raises what `send` raises, and SendFailed also where the
              half message is stored with another status than SEND_OK: it is rolled back then.
        """
        if isinstance(topic, list | tuple):
            raise TypeError("a transaction has one message: there are no transactional batches")
        message = as_message(
            topic, body, tag, keys, flag=flag, wait_store_ok=wait_store_ok, properties=properties,
            serialize=self._serialize,
        )  # fmt: skip
        return self._new_transaction(
            self._wanted(message, ordering_key, selector, queue, timeout=timeout, check_after=check_after)
        )

    @staticmethod
    def _wanted(
        message: Message,
        ordering_key: str | None,
        selector: Selector | None,
        queue: MessageQueue | None,
        *,
        timeout: float | None,
        check_after: float | None,
    ) -> HalfSend:
        if not isinstance(message, Message):
            raise TypeError(f"{message!r} is no message: pass one metaq.Message; there are no transactional batches")
        message.check()
        if message.delay_level:
            raise InvalidMessage(
                f"delay_level={message.delay_level}: the message of a transaction cannot be delayed, brokers ignore it"
            )
        if check_after is not None and not 0 < check_after <= CHECK_AFTER_MAX:
            raise ConfigError(f"check_after={check_after!r}: need seconds, up to {CHECK_AFTER_MAX}")
        # Brokers read whole seconds; 0 would let them ask at once.
        seconds = None if check_after is None else max(1, round(check_after))
        return HalfSend(message, ordering_key, selector, queue, timeout, seconds)

    def _hand_in_half(self, wanted: HalfSend, stream: BatchStream) -> SendFuture:
        """Send a half message on its way. Raises as `submit`."""

        def finish(outgoing: Outgoing) -> Outgoing:
            return half_message(outgoing, self._core.namespace.wrapped(self.group), wanted.check_after)

        def send(message: Message) -> SendFuture:
            return self._accumulator.send_alone(message, stream.apart(), None, wanted.timeout, finish)

        if self._spans is None:
            return send(wanted.message)
        return self._spans.around_half(wanted.message, send)

    # -------------------------------------------------------------- the end

    def check_process(self) -> None:
        """Raise ClientForked in a forked child. Any thread."""
        self._core.check_process()

    def master_address(self, broker: str) -> str | None:
        """Any thread: where the master of that name listens; None: it is not known to be up."""
        data = self._core.routes.broker(broker)
        return data.master if data is not None else None

    def _end(
        self, receipt: SendReceipt, half: HalfMessage, outcome: TransactionOutcome, error: Exception | None
    ) -> concurrent.futures.Future[TransactionResult]:
        """Any thread: report the end of a transaction to the broker of its half message."""

        spans = self._spans
        span = spans.ending(receipt.queue.topic, half.message_id, outcome) if spans is not None else None

        async def report() -> TransactionResult:
            told, why = await self._report(receipt, half, outcome, error)
            if spans is not None and span is not None:
                spans.told(span, why)
            return TransactionResult(receipt, outcome, told, why, error)

        try:
            future = self._core.thread.start(report())
        except MetaqError as failure:  # The interpreter is exiting.
            future = concurrent.futures.Future()
            future.set_result(TransactionResult(receipt, outcome, Told.UNTOLD, str(failure), error))
            return future
        self._endings.add(future)
        future.add_done_callback(self._endings.discard)
        return future

    async def _report(
        self, receipt: SendReceipt, half: HalfMessage, outcome: TransactionOutcome, error: Exception | None
    ) -> tuple[Told, str]:
        """In the loop: report the end, to whoever leads the half message's broker by then. Tried again only while it has surely not
        arrived: a RocketMQ that gets it twice delivers twice."""
        clock = asyncio.get_running_loop().time
        call = EndTransaction(
            group=self.group,
            broker=receipt.queue.broker,
            half=half,
            ending=outcome,
            remark=None if error is None else text_of(error),
        )
        deadline, failed = clock() + self._accumulator.limits.timeout, 0
        while True:
            try:
                await self._report_once(receipt.queue.broker, call, max(0.0, deadline - clock()))
            except FAULTS as failure:
                failed += 1
                if may_have_moved(failure):
                    self._core.leaders.doubt(receipt.queue.broker)
                judgement = judge(failure, Purpose.COMMIT, failed)
                # Our brokers keep the first end of a transaction, so a repetition does no harm there.
                twice_is_once = not judgement.maybe_done or self._core.is_ours(receipt.queue.broker)
                # A look beyond the deadline is no use, but one just before it is.
                pause = min(judgement.pause, REPORT_PAUSE_MAX)
                if judgement.again and twice_is_once and clock() + pause < deadline:
                    await self._core.leaders.pause(receipt.queue.broker, pause)
                    continue
                refused = isinstance(failure, BrokerError) and not judgement.again
                return self._unreported(receipt, call, Told.REFUSED if refused else Told.UNTOLD, failure)
            if self._tracer is not None:
                self._tracer.settled(TracedEnd(receipt.queue.topic, half.message_id, outcome))
            return (Told.CONFIRMED if self._confirmed(outcome) else Told.HANDED_OVER), ""

    def _confirmed(self, outcome: TransactionOutcome) -> bool:
        return self._confirm and outcome is not TransactionOutcome.UNKNOWN  # which nobody answers

    async def _report_once(self, broker: str, call: EndTransaction, seconds: float) -> None:
        address = self.master_address(broker)
        if address is None:
            raise NoRoute(f"broker {broker} has no master that is up")
        if self._confirmed(call.ending):
            await self._core.ask_leader(broker, address, call, seconds)
        else:
            await self._core.send_oneway(address, call, seconds)

    def _unreported(
        self, receipt: SendReceipt, call: EndTransaction, told: Told, failure: MetaqError
    ) -> tuple[Told, str]:
        what = f"could not {call.ending.value}" if call.ending is not TransactionOutcome.UNKNOWN else "could not leave"
        then = (
            "the broker will not do it, perhaps because it has settled the transaction before"
            if told is Told.REFUSED
            else f"the broker will ask a producer of group {self.group}, whose check settles it"
        )
        log.warning(
            "%s transaction %s at broker %s: %s; %s", what, call.half.message_id, receipt.queue.broker, failure, then
        )
        return told, str(failure)

    async def _close(self) -> None:
        try:
            # First, while there are connections: the checks that run send their answers.
            await self._pool.close()
            for ending in list(self._endings):  # Whoever waits for it gets its result, also when we wait no longer.
                await asyncio.shield(asyncio.wrap_future(ending))
        finally:
            await super()._close()


class Transaction(TransactionBase):
    """One transaction of a `TransactionProducer`. Use it with `with`."""

    _producer: TransactionProducer

    def begin(self) -> Self:
        """Store the message unseen, as entering `with` does. Raises as `TransactionProducer.transaction` says."""
        self._producer._check_open()  # noqa: SLF001  a part of the producer
        self._check_new()
        self._stored(self._producer._send_half(self._wanted))  # noqa: SLF001  a part of the producer
        if (error := self._not_safe()) is not None:
            self.rollback()
            raise error
        return self

    def commit(self) -> TransactionResult:
        """End it: consumers get the message. Raises TransactionEnded: it ended otherwise before."""
        return self._wait(self._decide(TransactionOutcome.COMMIT))

    def rollback(self) -> TransactionResult:
        """End it: nobody gets the message. Raises TransactionEnded: it ended otherwise before."""
        return self._wait(self._decide(TransactionOutcome.ROLLBACK))

    def unknown(self) -> TransactionResult:
        """End it here without an outcome: the broker will ask, and `check` settles it. Raises TransactionEnded."""
        return self._wait(self._decide(TransactionOutcome.UNKNOWN))

    def _wait(self, ending: concurrent.futures.Future[TransactionResult]) -> TransactionResult:
        return ending.result()

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._left(error))


Execute = Callable[[Transaction], Answer]


class TransactionProducer(TransactionProducerBase[Transaction, Sent_contra], Producer[Sent_contra]):
    """A `Producer` that also sends messages in transactions.

    def was_paid(message):                      # asked after a crash
        return database.has_order(message.message_id)

    with metaq.TransactionProducer("localhost:9876", group="payments", check=was_paid) as producer:
        with producer.transaction("orders", body) as tx:
            database.insert_order(tx.id, ...)   # and commit
    """

    _pool: ThreadedChecks

    def _check_kind(self, check: Callable[..., Any]) -> None:
        check_function(check, "check", awaited=False)

    def _new_pool(self, check: Check, limits: PoolLimits) -> CheckPool:
        return ThreadedChecks(self._core, self.group, limits, check)

    def _new_transaction(self, wanted: HalfSend) -> Transaction:
        return Transaction(self, wanted)

    def _send_half(self, wanted: HalfSend) -> SendReceipt:
        stream = self._stream(wanted.message.topic, wanted.ordering_key, wanted.selector, wanted.queue)
        return self._hand_in_half(wanted, stream).result()

    def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> TransactionResult:
        """The same by callback, as RocketMQ's listener: store `message` unseen, call `execute(tx)`, end as it says.

        `execute` returns True or COMMIT, False or ROLLBACK, None or UNKNOWN: the broker asks later. If it raises, nobody
        knows what it has done: that is logged, counts as UNKNOWN, and is the result's `error`. It is not called if the half
        message is stored with another status than SEND_OK: that is rolled back.

        Raises: as `transaction` and `send`; then `execute` was not called.
        """
        check_function(execute, "execute", awaited=False)
        wanted = self._wanted(message, ordering_key, selector, queue, timeout=timeout, check_after=check_after)
        self._check_open()
        tx = self._new_transaction(wanted)
        tx._stored(self._send_half(wanted))  # noqa: SLF001  a part of the producer
        if tx._not_safe() is not None:  # noqa: SLF001
            return tx.rollback()
        try:
            return tx._executed(outcome_of(execute(tx))).result()  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  whatever the application's own code raises
            return tx._execute_failed(error).result()  # noqa: SLF001
        except BaseException as error:
            # Without waiting for the report: an interrupt is to end the program.
            tx._left(error)  # noqa: SLF001
            raise
