"""Read one slice of a queue into Arrow: every message of [start, end), once, in order, or a report of lost messages.

The sequence of requests is in `metaq.client.conversation.reading.slices`; this module adds connections, retries, decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaq.client.arrow.records import Decoded, decode
from metaq.client.conversation.reading.pulling import EVERYTHING, Pull, PullResult, PullStatus
from metaq.client.conversation.reading.slices import Gone, Post, Receive, Records, Sifted, SliceReading
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.identity.access import AS_ENVIRONMENT, Access
from metaq.errors import MessagesLost, MetaqError, NoRoute, OffsetOutOfRange, RemoteProtocolError, RequestTimeout
from metaq.model import SubscriptionData
from metaq.model.offsets import Slice, is_another
from metaq.model.queue import MessageQueue
from metaq.model.topics.route import MASTER_ID
from metaq.spark.cluster.client import ClusterClient, Retries, may_be_away
from metaq.spark.cluster.link import Link
from metaq.spark.cluster.replicas import AUTO, ReplicaChoice

_LOG = logging.getLogger(__name__)

GROUP = "metaq-spark"
"""Consumer group of pulls without `progressGroup`."""
MIB = 1024 * 1024
PULL_BYTES = 2 * MIB
"""Bytes of one pull: the cost of a request is noise at this size, and its pages still fit into the cache."""
BATCH_ROWS = 1000
BATCH_BYTES = 8 * MIB
"""An Arrow batch is handed on with this many rows or bytes (pulls are never cut, so it may hold one pull more)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSettings:
    """Settings of reading slices. Plain values: pickled and sent to the executors' workers."""

    group: str = GROUP
    fail_on_data_loss: bool = True
    retry_seconds: float = 30.0
    pull_bytes: int = PULL_BYTES
    subscription: SubscriptionData = EVERYTHING
    """Filter that brokers apply."""
    waits: bool = False
    """Whether to wait without limit for a broker that is away."""
    read_from: str = AUTO
    """Replica to read from, one of `replicas.READ_FROM`; used by callers that make their own ClusterClient."""
    access: Access = AS_ENVIRONMENT
    """What requests are signed with; for the same callers."""


def read_slice(client: ClusterClient, wanted: Slice, settings: FetchSettings) -> Iterator[Decoded]:
    """Yield the messages of `wanted`, decoded, about BATCH_ROWS at a time.

    Raises: MessagesLost: some have left the log, or their topic was made anew since the slice was planned, and
        `fail_on_data_loss` is set. Otherwise what `ClusterClient` raises, when trying again for `retry_seconds` did not help.
    """
    if not settings.fail_on_data_loss and _is_made_anew(client, wanted, fail=False):
        return
    reader = _SliceReader(client, wanted, settings)
    waiting: list[Records] = []
    for records in reader.records():
        # Filtered by the broker: its offsets have gaps, so it joins no run of pulls.
        if isinstance(records, Sifted):
            yield reader.decode_sifted(records)
            continue
        # A gap: lost messages, reported when it was found.
        if waiting and records.start != waiting[-1].stop:
            yield reader.decode(waiting)
            waiting = []
        waiting.append(records)
        rows, size = records.stop - waiting[0].start, sum(len(part.body) for part in waiting)
        # A RocketMQ gives 32 messages a pull, and each Arrow batch has a fixed price in the pipe to the JVM: join pulls.
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield reader.decode(waiting)
            waiting = []
    if waiting:
        yield reader.decode(waiting)
    # Behind the last message: what was read before the topic was made anew is of the one that was planned.
    if settings.fail_on_data_loss:
        _is_made_anew(client, wanted, fail=True)


def _is_made_anew(client: ClusterClient, wanted: Slice, *, fail: bool) -> bool:
    """Return whether a slice's topic was made anew since it was planned. Raises MessagesLost, or logs it."""
    queue = wanted.queue
    if wanted.generation is None or not client.asks_master(queue):
        return False
    try:
        client.starts([queue], 0.0)
    except MetaqError as fault:
        if not may_be_away(fault):
            raise
        return False
    now = client.generations.get((queue.topic, queue.broker))
    if now is None or not is_another(now, wanted.generation):
        return False
    report_made_anew(queue, wanted.start, fail=fail)
    return True


def report_loss(queue: MessageQueue, lost: range, *, fail: bool) -> None:
    """Report lost messages. Raises MessagesLost, or logs it."""
    if fail:
        raise MessagesLost(queue, lost, "Set failOnDataLoss=false to go on without them.")
    _LOG.warning("%s", MessagesLost(queue, lost))


def report_short_queue(queue: MessageQueue, wanted: int, kept: range, *, fail: bool) -> None:
    """Report a queue that ends before an offset that it once reached: it was made anew, so nothing is known to be lost.

    Raises OffsetOutOfRange, or logs it.
    """
    why = "The queue once reached that offset: its topic was made anew, or the broker lost its newest messages."
    if fail:
        ways = "Begin with a new checkpoint, or set failOnDataLoss=false to go on at the queue's end."
        raise OffsetOutOfRange(queue, wanted, kept, f"{why} {ways}")
    _LOG.warning("%s Going on at its end.", OffsetOutOfRange(queue, wanted, kept, why))


class MadeAnew(MessagesLost):
    """A queue's topic was deleted and made anew since its messages were read to `lost.start`: what was behind is gone."""

    def __str__(self) -> str:
        what = f"the topic of {self.queue}, which was read to offset {self.lost.start}, was deleted and made anew"
        return f"{what}: what had not been read of it is gone. {self.remedy}"


def report_made_anew(queue: MessageQueue, reached: int, *, fail: bool) -> None:
    """Report a topic that was made anew. Raises MessagesLost, or logs it."""
    lost = range(reached, reached)
    if fail:
        ways = "Begin with a new checkpoint, or set failOnDataLoss=false to go on at its first message."
        raise MadeAnew(queue, lost, ways)
    _LOG.warning("%s", MadeAnew(queue, lost, "Going on at its first message."))


class _NotReached(RequestTimeout):
    """The queue ends before the slice does. `kept`: offsets that the broker has."""

    def __init__(self, text: str, kept: range) -> None:
        super().__init__(text)
        self.kept = kept


class _Lacking(RequestTimeout):
    """A slave does not have the offset that was asked for. `kept`: offsets that it has."""

    def __init__(self, text: str, kept: range) -> None:
        super().__init__(text)
        self.kept = kept


class _SliceReader:
    def __init__(self, client: ClusterClient, wanted: Slice, settings: FetchSettings) -> None:
        self._client, self._queue, self._settings = client, wanted.queue, settings
        self._slice = SliceReading(
            wanted.queue, wanted.start, wanted.end,
            group=settings.group, pull_bytes=settings.pull_bytes, subscription=settings.subscription,
        )  # fmt: skip
        replicas = client.replicas
        self._choice = ReplicaChoice(replicas.read_from, wanted.queue, old=replicas.is_old(wanted.queue, wanted.start))
        self._here = MASTER_ID
        """Broker id of the machine that is asked: 0 is the master."""
        self._masters_fault: MetaqError | None = None
        """Fault of the master since the last records: raised in preference to one of a slave."""
        self._failed_at = wanted.start
        """Offset reached at the last fault."""

    def records(self) -> Iterator[Records | Sifted]:
        """Yield the records up to the slice's end, across broken connections and restarts of the broker."""
        tries = Retries(self._settings.retry_seconds)
        try:
            while not self._slice.done:
                try:
                    usable = self._client.usable(self._queue)
                except MetaqError as fault:
                    self._renew(tries)
                    self._pause(tries, fault)
                    continue
                self._here = self._choice.choose(usable, self._slice.next_offset)
                try:
                    for records in self._over(self._client.link_at(self._queue, self._here)):
                        self._masters_fault = None
                        yield records
                except _Lacking as fault:
                    _LOG.info("%s: asking the master", fault)
                    self._choice.lacks(self._slice.next_offset, fault.kept)
                except MetaqError as fault:
                    self._renew(tries)
                    if not self._goes_on(tries, fault):
                        return
        finally:
            # Left early, for instance by a query with limit(n): Spark closes the generator. Answers to pulls that are under
            # way would still arrive on this connection, and the worker reuses it for its next task.
            if not self._slice.done:
                self._client.forget(self._queue, self._here)

    def _renew(self, tries: Retries) -> None:
        """Note a fault; progress since the last one restarts the retry time. Progress is judged here and not as messages
        come, because the consumer may be slow, and a filter may let nothing through for long.
        """
        if self._slice.next_offset != self._failed_at:
            self._failed_at = self._slice.next_offset
            tries.renew()

    def _goes_on(self, tries: Retries, fault: MetaqError) -> bool:
        """Prepare the next try: at another replica at once, or after a pause. False: the queue has stayed too short."""
        queue, here, replicas = self._queue, self._here, self._client.replicas
        # A broker that has just started may have its newest messages a moment later.
        if isinstance(fault, _NotReached):
            self._client.forget(queue, here)
            try:
                tries.pause(fault)
            except _NotReached as short:
                report_short_queue(queue, self._slice.end, short.kept, fail=self._settings.fail_on_data_loss)
                return False
            return True
        if here == MASTER_ID:
            self._masters_fault = fault
        # A slave's refusal may be its alone (slaveReadEnable is off there); a master's is final, unless a retry can help.
        if here != MASTER_ID or judge(fault, Purpose.SLICE).again:
            replicas.failed(queue.broker, here)
            if self._choice.failed(here) and replicas.another(queue):
                # The connection only: the broker's addresses serve the next try.
                self._client.drop(replicas.address(queue.broker, here))
                _LOG.warning("%s; asking another machine of broker %s", fault, queue.broker)
                return True
        self._client.forget(queue, here)
        self._pause(tries, self._masters_fault or fault)
        return True

    def _pause(self, tries: Retries, fault: MetaqError) -> None:
        """Wait before a retry. Raises `fault`: the time is over, and the query does not wait for brokers."""
        try:
            tries.pause(fault)
        except MetaqError:
            if not self._settings.waits or not self._is_away(fault):
                raise
            tries.rest(f"waiting for the broker {self._queue.broker}, which {self._queue} is read from: {fault}")

    def _is_away(self, fault: MetaqError) -> bool:
        """Whether the fault means that the broker is down, not that its topic is gone."""
        try:
            return may_be_away(fault) and (
                not isinstance(fault, NoRoute) or self._queue.broker not in self._client.masters()
            )
        except MetaqError:
            return True

    def _heeded(self, result: PullResult, pull: Pull) -> PullResult:
        """Note the replica that a master suggests in its answer (suggestWhichBrokerId). Returns `result`."""
        if self._here == MASTER_ID and result.status is PullStatus.FOUND:
            self._choice.suggested(result.suggested_broker_id)
            if result.suggested_broker_id != MASTER_ID:
                self._client.replicas.call_old(self._queue, pull.offset + 1)
        return result

    def _over(self, link: Link) -> Iterator[Records | Sifted]:
        """Pull over one connection until the slice ends, another replica should be asked, or a fault is raised."""
        of_slave = self._here != MASTER_ID
        steps = self._slice.pulls(of_slave=of_slave)
        outcome: object = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, Post):
                outcome = link.post(step.pull)
            elif isinstance(step, Receive):
                outcome = self._heeded(link.outcome(step.number, step.pull), step.pull)
                # Asked after each answer: a master that suggests a slave is left in the middle of a slice.
                if self._choice.choose(self._client.usable(self._queue), self._slice.next_offset) != self._here:
                    self._slice.leave()
            elif isinstance(step, Records | Sifted):
                yield step
            elif isinstance(step, Gone):
                self._report_loss(step.start, step.stop)
            elif of_slave:
                keeps = f"[{step.kept.start}, {step.kept.stop})"
                text = f"the slave {link.address} keeps {keeps} of {self._queue}, wanted {self._slice.next_offset}"
                raise _Lacking(text, step.kept)
            else:
                text = f"{self._queue} ends at {step.kept.stop}, though it once reached {self._slice.end}"
                raise _NotReached(text, step.kept)

    def decode(self, parts: list[Records]) -> Decoded:
        """Decode a run of consecutive pulls. Missing offsets are reported as lost.

        Raises RemoteProtocolError: an offset comes twice, goes back, or was not asked for.
        """
        # A single part stays a view of the receive buffer; joining copies.
        body: Any = parts[0].body if len(parts) == 1 else b"".join(part.body for part in parts)
        decoded = decode(body, self._queue, parts[-1].max_offset)
        offsets = decoded.queue_offsets
        start, stop = parts[0].start, parts[-1].stop
        wanted = np.arange(start, stop)
        if len(offsets) != len(wanted) or not np.array_equal(offsets, wanted):
            if np.any(np.diff(offsets) <= 0) or (len(offsets) and not start <= offsets[0] <= offsets[-1] < stop):
                raise RemoteProtocolError(f"asked for {self._queue} [{start}, {stop}), the answer holds other offsets")
            missing = np.setdiff1d(wanted, offsets)
            # One report per hole: a single range from first to last would also name messages that are there.
            for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
                self._report_loss(int(run[0]), int(run[-1]) + 1)
        return decoded

    def decode_sifted(self, part: Sifted) -> Decoded:
        """Decode one answer to a pull with a filter; drop records beyond the slice, and those with another tag.

        Brokers choose by the hash of the tag alone, as RocketMQ does, and leave the comparison of texts to the client.
        """
        decoded = decode(part.body, self._queue, part.max_offset)
        offsets = decoded.queue_offsets
        if np.any(np.diff(offsets) <= 0) or (len(offsets) and offsets[0] < part.start):
            raise RemoteProtocolError(f"asked for {self._queue} from {part.start} on, the answer holds other offsets")
        return decoded.sifted(part.stop, self._settings.subscription.tags)

    def _report_loss(self, start: int, stop: int) -> None:
        report_loss(self._queue, range(start, stop), fail=self._settings.fail_on_data_loss)
