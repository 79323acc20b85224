"""Write the rows of one task attempt: choose queues, encode batches, send them to the brokers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from metaq.client.arrow.rows import MessageRows, Numbers, bodies_of, rows_of
from metaq.client.conversation.retry import Purpose
from metaq.client.conversation.sending.sending import Outgoing, Send, Template
from metaq.client.conversation.staged.parts import Parts
from metaq.client.conversation.staged.staging import SealPart, Stage
from metaq.clock import SYSTEM
from metaq.errors import InvalidMessage, TransactionEnded
from metaq.model import MessageQueue
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.message_ids import IdPrefixes
from metaq.model.transactions.staging import Chunk, ManifestPart, Staged
from metaq.net.address import local_address
from metaq.spark.cluster.client import MADE_QUEUES
from metaq.spark.cluster.courier import Courier
from metaq.spark.cluster.pipelining import PipelinedRequests
from metaq.spark.sink.settings import AT_LEAST_ONCE, SinkOptions
from metaq.wire import hot

GROUP: Final = "metaq-spark"
"""Producer group of messages that are sent without a transaction."""
FIRST_ROUTE_SECONDS: Final = 5.0
"""Retry time for a topic's first route: a misspelt topic should fail soon."""
BATCH_BYTES: Final = 256 * 1024
"""Bytes of a batch of sends."""
STAGED_MAX: Final = 4 * 1024 * 1024
"""Bytes buffered in a task before some are staged."""


class _Outgoing:
    """Base of both kinds of delivery. For one task attempt; not thread-safe."""

    def __init__(
        self, courier: Courier, options: SinkOptions, purpose: Purpose, id_prefix: Callable[[], bytes] | None
    ) -> None:
        self._courier, self._options, self._purpose = courier, options, purpose
        self._id_prefix = id_prefix or IdPrefixes(local_address(), SYSTEM).next
        self._queues: dict[str, list[MessageQueue]] = {}
        # Tasks begin at random queues, else all would begin at the first.
        self._turn = SYSTEM.random_below(1 << 16)
        self._requests: dict[str, PipelinedRequests] = {}
        self.rows = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all rows of the batches.

        Raises: InvalidMessage: a row cannot be a message. BrokerError: a broker refused. The last fault, after the retry time.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                self._write(batch, self._rows(batch))
            except InvalidMessage as fault:
                raise InvalidMessage(f"{fault} (counted from the task's row {self.rows} on)") from None
            self.rows += batch.num_rows

    def _rows(self, batch: pa.RecordBatch) -> MessageRows:
        options = self._options
        return rows_of(batch, options.topic, empty=options.empty_bodies, only_group=options.only_group)

    def put(self, queue: MessageQueue, columns: hot.RowColumns) -> None:
        """Write encoded messages, in order, into one queue. Raises as `write`."""
        self._add(queue, columns, np.arange(columns.count, dtype=np.int32))
        self.rows += columns.count

    def _write(self, batch: pa.RecordBatch, rows: MessageRows) -> None:
        for topic, numbers in rows.topics:
            queues = self._queues_of(topic)
            at_once, delayed = rows.delayed(numbers)
            if len(delayed):
                self._delay(batch, rows, topic, delayed)
            if not len(at_once):
                continue
            # Rows without key or queue go to one queue per Arrow batch: whole batches of sends, and turns over the queues.
            self._turn += 1
            anywhere = queues[self._turn % len(queues)]
            for queue, some in rows.by_queue(at_once, queues, anywhere):
                self._add(queue, rows.columns, some)

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        if topic not in self._queues:
            self._queues[topic] = self._courier.writable(topic, FIRST_ROUTE_SECONDS)
        return self._queues[topic]

    def _requests_to(self, broker: str) -> PipelinedRequests:
        if broker not in self._requests:
            self._requests[broker] = PipelinedRequests(
                self._courier, broker, self._purpose, self._options.retry_seconds
            )
        return self._requests[broker]

    def _finish_requests(self) -> None:
        for requests in self._requests.values():
            requests.finish()

    @abstractmethod
    def _add(self, queue: MessageQueue, columns: hot.RowColumns, rows: Numbers) -> None: ...

    @abstractmethod
    def _delay(self, batch: pa.RecordBatch, rows: MessageRows, topic: str, numbers: Numbers) -> None: ...


class StagedRows(_Outgoing):
    """Stages rows at their brokers as parts of one transaction, unseen by consumers until it is committed."""

    def __init__(
        self,
        courier: Courier,
        options: SinkOptions,
        transaction: str,
        name: str,
        id_prefix: Callable[[], bytes] | None = None,
    ) -> None:
        """
        Args:
            courier: connections of this process.
            options: of the write.
            transaction: id of the batch's transaction.
            name: prefix of this attempt's part ids, of no other attempt.
            id_prefix: makes prefixes of unique ids; None: new ids. One that returns b"": messages bring their own ids.
        """
        super().__init__(courier, options, Purpose.STAGED, id_prefix)
        self._transaction = transaction
        self._parts = Parts(
            self._id_prefix, name=name, body_bytes_max=courier.body_bytes_max, empty=options.empty_bodies
        )

    def finish(self) -> tuple[ManifestPart, ...]:
        """Stage the rest, seal the parts, and wait for all answers. Returns the parts. Raises as `write`."""
        for broker in self._parts.brokers:
            requests = self._parts.rest(broker)
            # A part's last chunk carries its seal; one whose last chunk was sent before needs a request of its own.
            for part in self._parts.unsealed(broker):
                self._requests_to(broker).post(SealPart(self._transaction, part.part, part.seal, broker), 0)
            for chunks in requests:
                self._stage(broker, chunks)
        self._finish_requests()
        return self._parts.manifest()

    def _add(self, queue: MessageQueue, columns: hot.RowColumns, rows: Numbers) -> None:
        self._parts.add_rows(queue, columns, rows.data)
        while self._parts.waits > STAGED_MAX:
            broker = self._parts.fullest()
            self._stage(broker, self._parts.take(broker))

    def _stage(self, broker: str, chunks: tuple[Chunk, ...]) -> None:
        call = Stage(
            transaction=self._transaction, chunks=chunks, born_ms=SYSTEM.now_ms(),
            expire_after=self._options.stage_seconds, broker=broker,
        )  # fmt: skip
        self._requests_to(broker).post(call, sum(len(chunk.body) for chunk in chunks), self._check_open)

    def _check_open(self, staged: Staged) -> None:
        # An attempt may outlive its batch: the slower one of two speculative attempts, or one that Spark lost sight of.
        if staged.decision is not None:
            raise TransactionEnded(
                f"the transaction {self._transaction} is over ({staged.decision.outcome.value}): Spark has given this attempt of "
                "the task up, or it took longer than stageSeconds"
            )

    def _delay(self, batch: pa.RecordBatch, rows: MessageRows, topic: str, numbers: Numbers) -> None:
        del batch, rows, topic
        raise InvalidMessage(
            f"row {int(numbers[0])}: delay_level is set, and what a transaction delivers is not delayed: leave it out, or "
            f"write with delivery={AT_LEAST_ONCE}"
        )


class SentRows(_Outgoing):
    """Sends rows at once (delivery=at-least-once). A task that is retried sends them again."""

    def __init__(self, courier: Courier, options: SinkOptions, id_prefix: Callable[[], bytes] | None = None) -> None:
        """Args: id_prefix: as of `StagedRows`."""
        super().__init__(courier, options, Purpose.SEND, id_prefix)
        self._template = Template(queues=MADE_QUEUES)

    def finish(self) -> None:
        """Wait for all answers. Raises as `write`."""
        self._finish_requests()

    def _add(self, queue: MessageQueue, columns: hot.RowColumns, rows: Numbers) -> None:
        done, chosen = 0, rows.data
        while done < len(rows):
            batch = hot.Batch(self._id_prefix(), BATCH_BYTES)
            after = batch.add_rows(columns, done, chosen)
            if after == done:  # A row larger than BATCH_BYTES: a batch of its own.
                batch = hot.Batch(self._id_prefix(), BODY_BYTES_MAX)
                after = done + batch.add_rows(columns, 0, chosen[done : done + 1])
            if after == done:
                raise InvalidMessage(
                    f"row {int(rows[done])}: a message of more than {BODY_BYTES_MAX} bytes for {queue}; send a reference to the data"
                )
            body, done = batch.take(), after
            self._post(queue, Outgoing(queue.topic, body, batch=True))

    def _delay(self, batch: pa.RecordBatch, rows: MessageRows, topic: str, numbers: Numbers) -> None:
        # One send per message: RocketMQ's batches have no delay levels.
        assert rows.texts is not None
        bodies, queues = bodies_of(batch), self._queues_of(topic)
        for row in numbers.tolist():
            self._turn += 1
            text = f"{rows.texts[row].as_py()}UNIQ_KEY\x01{self._id_prefix().decode()}0000"
            outgoing = Outgoing(topic, bodies[row].as_py(), flag=rows.flag(row), properties=text)
            self._post(queues[self._turn % len(queues)], outgoing)

    def _post(self, queue: MessageQueue, outgoing: Outgoing) -> None:
        call = Send(GROUP, outgoing, queue, SYSTEM.now_ms(), self._template)
        self._requests_to(queue.broker).post(call, len(outgoing.body))
