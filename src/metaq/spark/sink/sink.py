"""Writing to `format("metaq")`: each micro-batch, or batch write, delivered whole and once.

Every *attempt* of a task stages parts of its own in one transaction of the batch and names them in its commit message; `commit`,
on the driver, decides with the manifest of the attempts that Spark chose. A batch is identified by the query's id and the
batch id, as a row at the coordinator, never by a partition or a row number: a retried task of a shuffled plan gets its rows
in another order, and a replayed batch may be sliced differently.

What runs where: a writer is made in a process beside the driver and pickled; `write` runs on copies in the executors.
`commit` of a batch write runs on a copy too, that of a stream on a new instance for each batch: so commit messages carry all
that it needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from metaq.client.arrow.rows import check_columns
from metaq.client.conversation.staged import numbered
from metaq.client.conversation.staged.numbered import Committed
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ConfigError, MetaqError, NotSupported
from metaq.model.transactions.staging import ManifestPart, coordinator_of, transaction_id
from metaq.spark.cluster.courier import Courier, courier_of
from metaq.spark.sink.settings import AT_LEAST_ONCE, SinkOptions
from metaq.spark.sink.task import SentRows, StagedRows

_LOG = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a streaming query's tasks: query id and batch id."""


_known: dict[tuple[str, str], str] = {}
"""(name servers, row) → broker that has the row. Cached per process: a row never moves."""


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """Commit message of one task attempt, pickled on its way to the driver."""

    rows: int
    """Rows written."""
    transaction: str = ""
    """Id of the batch's transaction; empty: rows were sent at once (delivery=at-least-once)."""
    row: str = ""
    """Name of the coordinator's row; empty: the write is not numbered."""
    sequence: int = -1
    """Batch id, or txnVersion."""
    parts: tuple[ManifestPart, ...] = ()
    """Parts that this attempt has staged."""


class Delivery:
    """Base of writers: finds the coordinator, stages in tasks, decides on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        """Args: options: of the write."""
        self.options = options
        self.token = SYSTEM.token()
        """Token of one run of a batch: pickled with the writer, so the same in all its tasks; a replay has another."""

    @property
    def courier(self) -> Courier:
        return courier_of(self.options.name_servers, self.options.retry_seconds, self.options.access)

    def coordinator(self, row: str) -> str:
        """Return the name of the broker that has the row, or will have it. Raises NotSupported, ConfigError, as `find_row`."""
        options, courier = self.options, self.courier
        if (options.name_servers, row) in _known:
            return _known[options.name_servers, row]
        brokers = courier.brokers()
        if options.coordinator is not None and options.coordinator not in brokers:
            raise ConfigError(
                f"there is no broker {options.coordinator} (coordinator); those that are up: {', '.join(brokers)}"
            )
        asked = [options.coordinator] if options.coordinator is not None else brokers
        try:
            found = courier.drive(numbered.find_row(row or self.token, asked, options.retry_seconds, courier.now))
        except NotSupported as fault:
            raise NotSupported(
                f"{fault}; to write to it use .option('delivery', '{AT_LEAST_ONCE}'), which may write rows of a repeated task twice"
            ) from None
        if not found:
            # Not noted in `_known`: the row is there only once its first batch is committed.
            return numbered.choose_coordinator(row or self.token, asked)
        # All tasks of a batch must choose the same broker: the row with the newest batch, or a choice by the row's name.
        name = max(found, key=lambda broker: (found[broker].sequence, broker))
        _known[options.name_servers, row] = name
        return name

    def stage(self, batches: Iterator[pa.RecordBatch], transaction: str, row: str, sequence: int) -> Written:
        """Stage the rows of a task attempt. Returns its commit message. Raises as `StagedRows`."""
        rows = StagedRows(self.courier, self.options, transaction, attempt())
        rows.write(batches)
        return Written(rows.rows, transaction, row, sequence, rows.finish())

    def send(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rows = SentRows(self.courier, self.options)
        rows.write(batches)
        rows.finish()
        return Written(rows.rows)

    def decide(self, messages: Sequence[Written | None], what: str) -> Committed | None:
        """Commit the parts that the messages name. Returns None if rows were sent at once.

        Args:
            messages: of the attempts that Spark chose; None for a task that failed. what: the write, for logs and errors.

        Raises: ConfigError: tasks chose different coordinators, or no broker knows the query. StaleBatch: a newer batch is
            committed. TransactionFailed, or the last fault.
        """
        written = [message for message in messages if message is not None and message.transaction]
        if not written:
            return None
        first = written[0]
        others = {message.transaction for message in written} - {first.transaction}
        if others:
            raise ConfigError(
                f"the tasks of {what} chose different brokers to decide ({first.transaction}, {', '.join(sorted(others))}): brokers came "
                "or went meanwhile. Nothing was delivered; start the query again, or name a coordinator"
            )
        parts = tuple(part for message in written for part in message.parts)
        courier, seconds = self.courier, self.options.retry_seconds
        # Only a stream's later batches prove that there were earlier ones: batch writes may begin with any number.
        if first.row and first.sequence > 0 and not self.options.adopt_batch and first.row.startswith("spark:"):
            self._check_known(first, what)
        # Spark repeats a batch that was committed here but not in its own commit log (a driver that died in between): the
        # row's sequence makes the second commit return the first one's decision.
        done = courier.drive(numbered.commit(first.transaction, parts, first.row, first.sequence, seconds, courier.now))
        if done.again:
            _LOG.warning(
                "%s was committed before, by %s: that counts, and what was written now is dropped",
                what,
                done.decision.transaction,
            )
        if done.missing:
            _LOG.error("%s is committed, and brokers have lost these parts of it: %s", what, ", ".join(done.missing))
        elif not done.delivered:
            _LOG.warning("%s is committed; a broker is away and delivers its messages when it is back", what)
        return done

    def _check_known(self, first: Written, what: str) -> None:
        """Roll back and raise ConfigError if a query is beyond its first batch and no broker has a row of it."""
        courier, coordinator = self.courier, coordinator_of(first.transaction)
        if courier.drive(numbered.row_of(first.row, coordinator, self.options.retry_seconds, courier.now)) is None:
            self.roll_back([first])
            raise ConfigError(
                f"{what}: no broker remembers earlier batches of this query ({first.row}). If the broker that does is away, start it. If "
                "this checkpoint was used with another sink before, or the row was forgotten, say so once with "
                ".option('adoptBatch', 'true'). Nothing was delivered"
            )

    def roll_back(self, messages: Sequence[Written | None]) -> None:
        """Roll back, as far as brokers can be reached; parts at the others expire after stageSeconds."""
        for transaction in sorted(
            {message.transaction for message in messages if message is not None and message.transaction}
        ):
            try:
                self.courier.drive(numbered.roll_back(transaction))
            except (MetaqError, BrokerError) as fault:
                _LOG.warning("the transaction %s could not be rolled back, it expires: %s", transaction, fault)


class MetaqWriter(Delivery, DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write: all rows or none. With txnAppId and txnVersion it is done once, however often it is repeated."""

    def __init__(self, options: SinkOptions, struct: Any) -> None:
        """
        Args:
            options: of the write.
            struct: the DataFrame's StructType.

        Raises ConfigError: its columns do not fit.
        """
        super().__init__(options)
        check_columns(to_arrow_schema(struct), options.topic)
        self.row, self.sequence = options.row_of_app, options.txn_version if options.txn_version is not None else -1
        self.transaction = ""
        # Chosen here, once: tasks get it with the pickled writer, and have no batch id to make it from.
        if options.exact:
            self.transaction = transaction_id(f"spark-write-{self.token}", self.coordinator(self.row))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if not self.transaction:
            return self.send(iterator)
        return self.stage(iterator, self.transaction, self.row, self.sequence)

    def commit(self, messages: Sequence[Written | None]) -> None:
        self.decide(messages, f"version {self.sequence} of {self.row}" if self.row else "the write")

    def abort(self, messages: Sequence[Written | None]) -> None:
        del messages
        # Spark passes None for tasks that failed; a batch write knows its transaction without them.
        if self.transaction:
            self.roll_back([Written(0, self.transaction)])


class MetaqStreamWriter(Delivery, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A streaming write: each micro-batch whole and once."""

    def __init__(self, options: SinkOptions, struct: Any) -> None:
        """
        Args:
            options: of the write.
            struct: the DataFrame's StructType.

        Raises ConfigError: its columns do not fit.
        """
        super().__init__(options)
        check_columns(to_arrow_schema(struct), options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if not self.options.exact:
            return self.send(iterator)
        # Only tasks have query id and batch id: `commit` gets them by the messages.
        context = TaskContext.get()
        query, batch = context.getLocalProperty(QUERY_ID), int(context.getLocalProperty(BATCH_ID))
        row = self.options.row_of_query(query)
        transaction = transaction_id(f"spark-{query}-{batch}-{self.token}", self.coordinator(row))
        return self.stage(iterator, transaction, row, batch)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: N803  Spark's name
        self.decide(messages, f"batch {batchId}")

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: N803  Spark's name
        del batchId
        # A new instance, which knows no transaction but by the messages. If no task has sent one, parts expire after
        # stageSeconds.
        self.roll_back(messages)


def attempt() -> str:
    """Return the prefix of this attempt's part ids. By attempt: retries and speculative tasks stage beside each other."""
    context = TaskContext.get()
    return f"{context.partitionId()}.{context.attemptNumber()}.{context.taskAttemptId()}."
