"""The consumer of threads: what users receive with. `metaq.aio.Consumer` is the other."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Self

from metaq.client.arrow.columns import ARROW_ROWS
from metaq.client.consumer.base import CALL_SECONDS, CLOSE_SECONDS, ConsumerBase, warn_of_busy
from metaq.client.consumer.closing import EXIT_SECONDS
from metaq.client.consumer.delivery.orderly import Turn
from metaq.client.consumer.handling.handlers import Handles, handle, handle_batch, settle_all
from metaq.client.consumer.handling.running import Job, WorkerThread
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received_batch import ReceivedBatch, records_of
from metaq.client.shared.values import Received_co
from metaq.model import MessageQueue

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout

log = logging.getLogger("metaq.client")


class Consumer(ConsumerBase[Received_co]):
    """Receives a group's messages in any number of threads. Iterate over it, or give `run` a handler.

    Iteration gives messages until `stop` or `close`; each must be finished: use `with message:`. Several threads may iterate, each
    with an iterator of its own. Raises ClientClosed: it is closed already. Use the consumer itself with `with`.

    RocketMQ's DefaultMQPushConsumer; docs/client.md has the options by RocketMQ's names.
    """

    _workers: frozenset[WorkerThread] = frozenset()
    """The threads of `run`, all started, for `close`."""

    def __iter__(self) -> Iterator[ReceivedMessage[Received_co]]:
        """Messages as they come, until `stop` or `close`. Each must be finished: use `with message:`.

        Several threads may iterate, each with an iterator of its own; a chunk of messages then goes to one of them.
        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return self._messages()

    def _messages(self) -> Iterator[ReceivedMessage]:
        while (chunk := self._handover.take(None)) is not None:
            yield from self._of(chunk)

    def receive(self, timeout: float | None = None) -> ReceivedMessage[Received_co] | None:
        """The next message; None after `timeout` seconds, or once `stopped`. `timeout=None` waits for one. Safe from many threads.

        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return self._next(timeout)

    def _next(self, timeout: float | None) -> ReceivedMessage | None:
        deadline = None if timeout is None else self._core.clock.monotonic() + timeout
        # The wait for another thread's turn counts for the time-out, too.
        if not self._one_by_one.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return None
        try:
            return self._first(deadline)
        finally:
            self._one_by_one.release()

    def _first(self, deadline: float | None) -> ReceivedMessage | None:
        """The next message of the shared chunk. Called under `_one_by_one`."""
        # One chunk after the other, shared by all workers: so no worker hoards messages that others could take.
        while (message := next(self._current, None)) is None:
            left = None if deadline is None else max(0.0, deadline - self._core.clock.monotonic())
            try:
                chunk = self._handover.take(left)
            except TimeoutError:
                return None
            if chunk is None:
                return None
            self._current = self._of(chunk)
        return message

    def run(
        self, handler: Handles[Received_co], threads: int = 1, *, batch: int | None = None, processes: int = 0
    ) -> None:
        """Call `handler(message)` for each message in `threads` threads, until `stop`, `close`, SIGTERM or Ctrl-C.

        The handler's result decides: None finishes the message; `Later(level)`, returned or raised, and any exception
        deliver it again later; `Pause(seconds)` stops its queue for so long and then delivers it again, without counting
        it as a failure; `Reject` files it with the dead letters. Any other result counts as a failure and is logged
        (Java's listeners fail by returning null: here None is what a function without `return` gives).

        With `batch=32` it is called with a list of 1 to 32 messages of one queue. The result is for all of them that it
        has not settled itself, by `message.ack()`, `retry`, `reject` or `pause`.

        With `processes=8` it runs in so many processes, for handlers that need cores. It must be importable there: a
        function at the top level of a module. It gets copies of the messages and settles them by its result alone. A
        process that dies is replaced, and the message that it had in hand is delivered again.

        SIGTERM drains: the messages in hand are finished, the progress is committed, and `run` returns. So it is only
        in the main thread and where SIGTERM has its default meaning; a handler of the program's own stays, and has to
        call `stop`.

        Raises: TypeError: the handler cannot be called with one message, or returns an awaitable, or cannot go to another
        process. ConfigError: wrong numbers, or no process can be started. ClientClosed. What is no `Exception`
        (SystemExit, Ctrl-C) and comes out of a handler ends `run`, after the messages in hand.
        """
        job = Job.of(handler, threads, batch, processes, awaited=False)
        failures: list[BaseException] = []
        direct = self._member.direct
        workers = [
            WorkerThread(functools.partial(self._work, job, failures), f"metaq-{self.group}-{number}")
            for number in range(job.workers)
        ]
        with self._drain_on_sigterm():
            # `close` in another thread either finds these workers and waits for them, or has closed before this
            # check.
            with self._beginning:
                self._check_open()
                self._workers |= frozenset(workers)
            way = direct.enter(job)
            try:
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.wait()
            # Ctrl-C comes here: the messages in hand are finished before it goes on.
            except BaseException:
                self.stop()
                for worker in workers:
                    worker.wait()
                raise
            finally:
                direct.leave(way)
                with self._beginning:
                    self._workers -= frozenset(workers)
                if self._open:  # `close` commits by itself.
                    self._core.thread.run(self._member.persist(), CLOSE_SECONDS)
        if failures:
            # The first: others came while the workers were being stopped.
            raise failures[0]

    def _work(self, job: Job, failures: list[BaseException]) -> None:
        slot, monotonic = self._watch.enter(job.name), self._core.clock.monotonic
        try:
            if job.pickled is not None:
                with job.worker() as process:
                    for hand in self._hands(lambda: job.hand_size(process, orderly=self._orderly)):
                        slot.hand = hand
                        began = slot.timing and monotonic()
                        process.handle(hand, batched=job.batch is not None)
                        if began:
                            self._timed(slot, hand[0].topic, began)
                        slot.hand = None
            elif job.batch is not None:
                for hand in self._hands(lambda: job.batch or 1):
                    slot.hand = hand
                    began = slot.timing and monotonic()
                    handle_batch(hand, job.handler)
                    if began:
                        self._timed(slot, hand[0].topic, began)
                    slot.hand = None
            else:
                for message in self._each():
                    slot.hand = message
                    began = slot.timing and monotonic()
                    handle(message, job.handler)
                    if began:
                        self._timed(slot, message.topic, began)
                    slot.hand = None
        except BaseException as error:  # noqa: BLE001  raised by `run`
            failures.append(error)
            self.stop()
        finally:
            self._watch.leave(slot)

    def _each(self) -> Iterator[ReceivedMessage]:
        """For one worker: messages that it shares with the others, or those of queues that are its own meanwhile."""
        if self._orderly:
            yield from self._messages()
        else:
            while (message := self._next(None)) is not None:
                yield message

    def _hands(self, size: Callable[[], int]) -> Iterator[list[ReceivedMessage]]:
        """For one worker: as `_each`, so many at a time, each time of one queue."""
        if self._orderly:
            while (chunk := self._handover.take(None)) is not None:
                assert isinstance(chunk, Turn)
                yield from self._batches_of(chunk, size())
        else:
            while hand := self._next_hand(size()):
                yield hand

    def _next_hand(self, size: int) -> list[ReceivedMessage]:
        """The next messages of one chunk; none once `stopped`."""
        with self._one_by_one:
            message = self._first(None)
            return [] if message is None else [message, *itertools.islice(self._current, size - 1)]

    def arrow_batches(self, columns: Sequence[str] | None = None, rows: int = ARROW_ROWS) -> Iterator[ReceivedBatch]:
        """What comes, as record batches of pyarrow that are acknowledged as a whole (docs/arrow.md), until `stop` or `close`.

        Use `with batch:`: leaving acknowledges, raising delivers its messages again later. Going on to the next acknowledges,
        too. One that is in hand when the loop is left otherwise is not finished: its messages come again.

        A batch holds messages of one queue and of one pull, at most `rows`, and never waits to be full: `pull_count` and
        `queue_messages_max` decide how large they get. Several threads may iterate, each with an iterator of its own.

        Args:
            columns: names of columns; None: `topic string, broker string, queue_id int32, queue_offset int64, message_id string,
                tag string, keys list<string>, body binary, born_time timestamp, store_time timestamp`, those of the Spark
                source. docs/arrow.md lists the others.
            rows: rows per batch at most, 10 000 by default.
        Raises: ConfigError: a column that does not exist, or pyarrow is missing. TypeError. ClientClosed.
        """
        return self._arrow_batches(self._batch_layout(columns, rows))

    def _arrow_batches(self, wanted: BatchLayout) -> Iterator[ReceivedBatch]:
        for hand in self._hands(lambda: wanted.rows):
            try:
                batch = ReceivedBatch(wanted.batch([(hand, records_of(hand))]), hand)
                yield batch
            except BaseException as error:  # No columns can be made of them, or the loop was left.
                if not settle_all(hand, error):
                    raise
            else:
                batch.ack()

    @contextlib.contextmanager
    def _drain_on_sigterm(self) -> Iterator[None]:
        # Python sets signal handlers in the main thread only.
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            yield
            return

        def drain(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  the interpreter's signature
            log.info("SIGTERM: finishing the messages in hand")
            self.stop()

        signal.signal(signal.SIGTERM, drain)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) is drain:  # The program may have set its own since.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset, or at the first message stored at a moment or later: in one queue or (None) in all of ours.

        `time`: a datetime, without a zone local time; or seconds since the epoch.

        The progress is kept there at once. Messages in hand can be finished, which counts no more for the progress.
        Raises ConfigError: the queue is not this member's now. NoRoute, ConnectionFailed, BrokerError, RequestTimeout,
        ClientClosed; also those of `commit`, if it goes on there but the progress could not be kept.
        """
        self._check_open()
        self._calls.run(self._seek(queue, offset, time), CALL_SECONDS)

    def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now; it is kept every 5 s and by `close` anyway.

        Raises RequestTimeout: it was not kept within `timeout` (30) seconds, for which brokers that are away or
        do not answer are asked again. BrokerError: refused. ClientError: the file, or the offset store of yours, failed with
        its `__cause__`. ClientClosed.
        """
        self._check_open()
        self._calls.run(self._member.commit(timeout))

    def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the group has given this member its queues for the first time.

        Raises RequestTimeout: not within `timeout` seconds; None waits for ever. ClientClosed: it was closed or stopped.
        """
        self._check_open()
        self._until_stopped.run(self._assigned(), timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, let the handlers of `run` finish, commit, leave the group, disconnect.

        Raises RequestTimeout after `timeout` (30) seconds; handlers that take longer are left behind, with a warning.
        """
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        with self._beginning:
            self._open, workers = False, self._workers
        self.stop()
        deadline = self._core.clock.monotonic() + timeout
        if threading.current_thread() not in workers:  # A handler that closes cannot wait for itself.
            for worker in workers:
                worker.wait(max(0.0, deadline - self._core.clock.monotonic()))
            warn_of_busy(self.group, sum(not worker.wait(0) for worker in workers))
        # Even if handlers have used up the time-out: the progress still has to be kept.
        self._core.thread.run(self._close(), max(EXIT_SECONDS, deadline - self._core.clock.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
