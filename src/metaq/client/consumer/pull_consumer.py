"""Pulling by hand: the group shares out the queues, or the program assigns them; it polls, or says what is pulled from where.

`PullConsumer` and `metaq.aio.PullConsumer` differ in how one waits.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Self

from metaq.client.consumer.arguments import Patterns, Topics
from metaq.client.consumer.base import CALL_SECONDS, CLOSE_SECONDS, warn_of_busy
from metaq.client.consumer.closing import EXIT_SECONDS
from metaq.client.consumer.handling.running import WorkerThread
from metaq.client.consumer.options import OnShare
from metaq.client.consumer.pull_base import POLL_COUNT, POLL_SECONDS, PullConsumerBase, PulledBatch
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.consumer.schedule import PAUSE_AFTER_ERROR, Schedule, pause_of
from metaq.client.shared.loop import LOOK_SECONDS
from metaq.client.shared.values import Received_co
from metaq.client.transactions.checks import check_function
from metaq.errors import ConfigError
from metaq.model import MessageQueue, StoredMessage
from metaq.model.filters.subscription import Expression

log = logging.getLogger("metaq.client")


class PullConsumer(PullConsumerBase[Received_co]):
    """Pulls what the program says, from queues that its group shares out, or from any other. Use it with `with`.

    RocketMQ's DefaultMQPullConsumer, DefaultLitePullConsumer (`poll`, `seek`, `assign`) and MQPullConsumerScheduleService (`run`):
    docs/groups.md.
    """

    _workers: frozenset[WorkerThread] = frozenset()
    """The threads of `run`, all started, for `close`."""

    def register_topics(self, topics: Topics | Patterns, listener: OnShare | None = None) -> None:
        """Take part in sharing out these topics as well; `topics` as of `metaq.Consumer`.

        `listener` is called, in a thread, with (topic, all its queues, ours) when our share changes.
        Raises ConfigError, RequestTimeout, ClientClosed.
        """
        self._check_open()
        self._calls.run(self._register(topics, listener), CALL_SECONDS)

    def pull(
        self, queue: MessageQueue, offset: int, count: int = 32, *, tags: Expression | None = None, wait: bool = False
    ) -> PulledBatch[Received_co]:
        """Up to `count` messages of any queue, ours or not, from `offset` on.

        Returns: `messages`, a list of `metaq.ReadMessage` that may be empty; `next_offset`, where to go on; `min_offset` and
        `max_offset`, what the queue keeps, [min, max); `broken`, offsets of messages whose bodies cannot be decompressed: they are not
        among `messages`, and the log says why.
        `tags`: another expression than the registered one. `wait`: the broker holds a pull that finds nothing, `hold`
        seconds long, or until `stop`. Raises OffsetOutOfRange: the queue does not keep that offset; `kept` is what it keeps. NoRoute,
        BrokerError, RequestTimeout, ConfigError, ClientClosed.
        """
        self._check_open()
        return self._calls.run(self._pull_by_hand(queue, offset, count, tags, wait=wait))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """These queues are this member's, and no others, whatever other members of the group have; none: `assign([])`.

        For a member that registers no topics. Raises ConfigError: there is no such queue, or topics are registered; nothing
        has changed. NoRoute, BrokerError, RequestTimeout, ClientClosed.
        """
        self._check_open()
        self._calls.run(self._assign(queues), CALL_SECONDS)

    def poll(self, timeout: float = POLL_SECONDS, count: int = POLL_COUNT) -> list[ReadMessage[Received_co]]:
        """Up to `count` (500) messages of this member's queues, in the order of each queue; none after `timeout` (1) seconds, or
        once `stopped`.

        What a poll handed out counts as consumed when the next one begins, or with `commit`: the progress is kept every few
        seconds. What the last poll before `close` handed out comes again unless it was committed. Raises ConfigError: two
        polls at a time. ClientClosed.
        """
        self._check_open()
        return self._core.thread.run(self._poll(timeout, count))

    def seek(self, queue: MessageQueue, offset: int | None = None, *, time: float | dt.datetime | None = None) -> None:
        """`poll` goes on at that offset, or at the first message stored at a moment or later.

        `time`: a datetime, without a zone local time; or seconds since the epoch.

        The progress is there, too, and kept with the next commit. Raises ConfigError: the queue is not this member's. And as `position`.
        """
        self._check_open()
        self._calls.run(self._seek(queue, offset, time), CALL_SECONDS)

    def seek_to_beginning(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """`seek` to the first message that is kept, in these queues or in all of ours. Raises as `seek`."""
        self._check_open()
        self._calls.run(self._seek_to_end(queues, end=False), CALL_SECONDS)

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """`seek` behind the last message, in these queues or in all of ours. Raises as `seek`."""
        self._check_open()
        self._calls.run(self._seek_to_end(queues, end=True), CALL_SECONDS)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """`poll` hands out nothing of these queues until `resume`. Raises ConfigError: one is not this member's."""
        self._check_open()
        self._calls.run(self._pause(queues), CALL_SECONDS)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Undo `pause` of these queues; of one that is not paused, nothing happens. Raises ClientClosed."""
        self._check_open()
        self._calls.run(self._resume(queues), CALL_SECONDS)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress as it is kept: the offset that is next; None: there is none. Raises as `position`."""
        self._check_open()
        return self._calls.run(self._committed(queue), CALL_SECONDS)

    def position(self, queue: MessageQueue) -> int:
        """The offset that is next: of the next message that `poll` hands out, else what `update` set last, else what
        the group has committed, else its `start`.

        Raises NoRoute, BrokerError, RequestTimeout, ClientClosed; what the offset store raised.
        """
        self._check_open()
        return self._calls.run(self._position(queue), CALL_SECONDS)

    def kept(self, queue: MessageQueue) -> range:
        """What the queue keeps: [min, max) offsets. Raises as `position`."""
        self._check_open()
        return self._calls.run(self._kept(queue), CALL_SECONDS)

    def search(self, queue: MessageQueue, time: float | dt.datetime) -> int:
        """The offset of the first message stored then or later; where there is none, the end of the queue.

        `time`: a datetime, without a zone local time; or seconds since the epoch. Raises as `position`; TypeError, ConfigError: no
        moment.
        """
        self._check_open()
        return self._calls.run(self._search(queue, time), CALL_SECONDS)

    def all_queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of a topic, whichever member has it. Raises NoRoute, ClientClosed."""
        self._check_open()
        return self._calls.run(self._all_queues(topic), CALL_SECONDS)

    def send_back(self, message: StoredMessage, delay_level: int = 0) -> None:
        """Deliver a message again later, by the group's retry topic; below 0: to the dead letters.

        The retry topic is `%RETRY%group`: register it to pull from it. Raises as `position`.
        """
        self._check_open()
        self._calls.run(self._send_back(message, delay_level), CALL_SECONDS)

    def run(self, function: Callable[[MessageQueue], float | None], threads: int = 20) -> None:
        """Call `function(queue)` for each queue of ours again and again, in `threads` threads, until `stop` or `close`.

        Never twice at a time for one queue. It returns the seconds until the queue's next call, None: 0.2. What it
        raises is logged, and it is called again after a second; what is no `Exception` ends `run` and is raised here,
        after the calls in hand; so does Ctrl-C. Raises TypeError: it cannot be called with a queue, or is asynchronous.
        ConfigError: `threads` is below 1, or `run` runs already. ClientClosed.
        """
        if threads < 1:
            raise ConfigError(f"threads={threads}: need at least 1")
        check_function(function, "the function", awaited=False)
        schedule, changed, failures = Schedule(), threading.Condition(), list[BaseException]()

        def look() -> None:
            with changed:
                schedule.set(self._member.queues, self._core.clock.monotonic())
                changed.notify_all()

        def work() -> None:
            try:
                while (queue := self._next_due(schedule, changed)) is not None:
                    pause = PAUSE_AFTER_ERROR
                    try:
                        pause = pause_of(function(queue), queue)
                    except Exception:
                        log.exception("the function for %s failed, it is called again in %s s", queue, pause)
                    with changed:
                        schedule.done(queue, self._core.clock.monotonic() + pause)
                        # One waiter: only this queue has become due.
                        changed.notify()
            except BaseException as error:  # noqa: BLE001  raised by `run`
                failures.append(error)
                self.stop()

        workers = [WorkerThread(work, f"metaq-{self.group}-{number}") for number in range(threads)]
        self._begin_run()
        self._member.on_change = look
        try:
            look()
            # `close` waits for these threads: under its lock, so that it finds all of them started.
            with self._beginning:
                self._workers = frozenset(workers)
                for worker in workers:
                    worker.start()
            for worker in workers:
                worker.wait()
        except BaseException:
            self.stop()
            for worker in workers:
                worker.wait()
            raise
        finally:
            self._member.on_change = lambda: None
            self._running = False
            if self._open:  # `close` commits by itself.
                self._core.thread.run(self._persist(), CLOSE_SECONDS)
        if failures:
            raise failures[0]

    def _next_due(self, schedule: Schedule, changed: threading.Condition) -> MessageQueue | None:
        """A queue that is due; None once stopped."""
        with changed:
            while not self._stopped:
                now = self._core.clock.monotonic()
                if (queue := schedule.take(now)) is not None:
                    return queue
                changed.wait(min(LOOK_SECONDS, schedule.pause(now) or LOOK_SECONDS))
            return None

    def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now; it is kept every few seconds and by `close` anyway.

        Raises RequestTimeout: it was not kept within `timeout` (30) seconds, for which brokers that are away or
        do not answer are asked again. BrokerError: refused. ClientError: the file, or the offset store of yours, failed with
        its `__cause__`. ClientClosed.
        """
        self._check_open()
        self._calls.run(self._commit(timeout))

    def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the registered topics are shared out.

        Raises RequestTimeout: not within `timeout` seconds; None waits for ever. ClientClosed: it was closed or stopped.
        """
        self._check_open()
        self._until_stopped.run(self._member.assigned(), timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, let the functions of `run` end, commit, leave the group, disconnect. Raises RequestTimeout after `timeout` (30) seconds."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self.stop()
        deadline = self._core.clock.monotonic() + timeout
        with self._beginning:
            workers = self._workers
        if threading.current_thread() not in workers:  # A function that closes cannot wait for itself.
            for worker in workers:
                worker.wait(max(0.0, deadline - self._core.clock.monotonic()))
            warn_of_busy(self.group, sum(not worker.wait(0) for worker in workers))
        # Not before: the functions in hand still pull and commit, which needs an open consumer.
        with self._beginning:
            self._open = False
        self._core.thread.run(self._close(), max(EXIT_SECONDS, deadline - self._core.clock.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
