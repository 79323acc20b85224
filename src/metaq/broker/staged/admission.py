"""Chunks on their way into the log: whether they may be staged, and their records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.appender import Appender
from metaq.broker.requests import Stage
from metaq.broker.staged.parts import New, Part, Staged, Transaction, check_seal, is_next
from metaq.broker.staged.records import (
    FORBIDDEN_BYTES,
    FORBIDDEN_RETRIES,
    RECORD_BYTES_MORE,
    check_entry,
    chunk_record,
    entries_of,
    life_text,
    single_body_bytes,
)
from metaq.broker.tables.topics import check_client_topic
from metaq.errors import Reason, Refused
from metaq.model import Perm, TopicConfig
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.topics.system import AUTO_CREATE_TOPIC, SEND_FORBIDDEN
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.model.transactions.staging import CHUNK_BYTES_MAX, Chunk, check_part, chunk_crc
from metaq.saved import Pending, Saving
from metaq.store.log.writer import PutRecord
from metaq.wire.hot import TopicGate, check_batch
from metaq.wire.record import record_bytes

RUN_BYTES: Final = 2 << 20
"""Chunks of one request are stored in runs of about so many bytes, each of them whole."""
_BLANK_BYTES: Final = 8
COPY_BYTES_MORE: Final = 512
"""More than a message takes in the log beside its entry in a batch."""

_ANY_SIZE: Final = 0x7FFFFFFF

WRITE: Final = int(Perm.WRITE)

Added = Callable[[Transaction, int], None]


def _where(chunk: Chunk) -> str:
    return f"queue {chunk.queue_id} of topic {chunk.topic}"


class Admission:
    """Judges and stores chunks."""

    def __init__(
        self, environment: Environment, tables: Tables, appender: Appender, table: Staged, gatekeeper: Gatekeeper
    ) -> None:
        self._environment, self._store = environment, environment.store
        self._topics, self._groups = tables.topics, tables.groups
        self._appender, self._table, self._gatekeeper = appender, table, gatekeeper
        self._judge = TopicGate(b"-", (), _ANY_SIZE, FORBIDDEN_BYTES)
        """What staged messages may not have. Their sizes are looked at before."""
        self._judge_retries = TopicGate(b"-", (), _ANY_SIZE, FORBIDDEN_RETRIES)
        self._open: dict[str, int] = {}
        """Topics that whoever the gatekeeper allows may send to, and how many queues each has; as long as nothing changes."""
        tables.topics.watch(self._forget)
        self._closed_partitions = tables.closed_partitions
        self._closed_partitions.when_changed(self._forget)

    def _forget(self, topic: str) -> None:
        self._open.pop(topic, None)

    def admit(self, stage: Stage, transaction: Transaction | None, caller: Caller, peer: str) -> list[New]:
        """The chunks that are to be stored, by part. Those that are there already are left out.

        Raises Refused, or Saving while topics are being made or deleted: nothing has changed.
        """
        parts = transaction.parts if transaction is not None else {}
        news: dict[str, New] = {}
        for chunk in stage.chunks:
            if not self.takes or not self._is_open(chunk, caller):
                self._check_destinations(
                    {(chunk.topic, chunk.queue_id, chunk.of_partition) for chunk in stage.chunks}, caller
                )
                break
        for chunk in stage.chunks:
            new = news.get(chunk.part)
            if new is None:
                base = parts.get(check_part(chunk.part))
                place = (base.topic, base.queue_id) if base is not None else (chunk.topic, chunk.queue_id)
                new = news[chunk.part] = New(base, *place)
            self._take(new, chunk)
        fresh = [new for new in news.values() if new.chunks]
        options = self._environment.options
        for new in fresh:
            if new.count > options.staged_chunks_per_part_max:
                raise Refused(
                    Reason.INVALID,
                    f"part {new.chunks[0].part} would have {new.count} chunks, the limit is "
                    f"{options.staged_chunks_per_part_max} (stagedChunksPerPartMax): make larger chunks, or several parts",
                )
        size = sum(len(chunk.body) for new in fresh for chunk in new.chunks)
        chunks = sum(len(new.chunks) for new in fresh)
        if not fresh:
            return fresh
        if transaction is not None:
            self._table.adopt(transaction, peer)
        self._table.check_room(transaction, peer, sum(new.base is None for new in fresh), chunks, size)
        return fresh

    def _is_open(self, chunk: Chunk, caller: Caller) -> bool:
        """Whether the caller may put a chunk there, by what has been found out before."""
        return 0 <= chunk.queue_id < self._open.get(chunk.topic, 0) and (
            self._gatekeeper.unguarded or self._gatekeeper.allows(caller, Action.PUBLISH, chunk.topic)
        )

    def judged(self, chunk: Chunk, caller: Caller) -> int:
        """Messages in a first chunk that is as plain as most; -1: look at it more closely."""
        size = len(chunk.body)
        if (
            not self._is_open(chunk, caller)
            or not 0 < size <= CHUNK_BYTES_MAX
            or size > self._environment.store_options.max_message_size
        ):
            return -1
        try:
            check_part(chunk.part)
        except Refused:
            return -1
        rows = check_batch(chunk.body, self._judge, self._store.log.tail)
        return rows if size + rows * COPY_BYTES_MORE < self._store.log.file_bytes else -1

    def check(self, chunk: Chunk) -> None:
        """Raises Refused ILLEGAL_MESSAGE: its messages can never be stored as a chunk."""
        self._check_size(chunk)
        self._check_batch(chunk)

    def _check_size(self, chunk: Chunk) -> None:
        """A message may be as large as one that is sent by itself; several together are to be little."""
        size, most = len(chunk.body), self._environment.store_options.max_message_size
        limit = min(CHUNK_BYTES_MAX, most)
        if 0 < size <= limit:
            return
        body_bytes = single_body_bytes(chunk.body)
        if body_bytes is None:
            raise Refused(
                Reason.ILLEGAL_MESSAGE,
                f"a chunk for {_where(chunk)} has {size} bytes, it may have 1 to {limit}, and more only if it is one message",
            )
        if body_bytes > most:
            raise Refused(
                Reason.ILLEGAL_MESSAGE,
                f"the message of a chunk for {_where(chunk)} has a body of {body_bytes} bytes, the limit is {most} "
                "(maxMessageSize)",
            )

    def _take(self, new: New, chunk: Chunk) -> None:
        self._check_size(chunk)
        crc = chunk_crc(chunk.body)
        if not is_next(new, chunk, crc):
            if chunk.seal is not None and new.base is not None and not new.chunks:
                check_seal(chunk.part, chunk.seal, new.base.holds)
            return
        new.counts.append(self._check_batch(chunk))
        new.chunks.append(chunk)
        new.crcs.append(crc)
        if chunk.seal is not None:
            check_seal(chunk.part, chunk.seal, new.holds())

    def _check_batch(self, chunk: Chunk) -> int:
        """How many messages there are. Raises Refused ILLEGAL_MESSAGE: not a batch, or one that could not be applied."""
        more = len(self._environment.options.broker_cluster_name.encode()) + len(props.CLUSTER) + 2
        retries = chunk.topic.startswith(RETRY_PREFIX)
        rows = check_batch(chunk.body, self._judge_retries if retries else self._judge, self._store.log.tail)
        if rows < 0:  # there is something to tell, or to look at singly
            rows = self._judge_entries(chunk, more)
        size = len(chunk.body) + rows * (RECORD_BYTES_MORE + len(chunk.topic) + more)
        if size + _BLANK_BYTES > self._store.log.file_bytes:
            raise Refused(
                Reason.ILLEGAL_MESSAGE,
                f"the {rows} messages of a chunk for {_where(chunk)} take {size} bytes, and a log file has "
                f"{self._store.log.file_bytes} (mappedFileSizeCommitLog): make smaller chunks",
            )
        return rows

    def _judge_entries(self, chunk: Chunk, more: int) -> int:
        entries, where = entries_of(chunk.body), _where(chunk)
        forbidden = FORBIDDEN_RETRIES if chunk.topic.startswith(RETRY_PREFIX) else FORBIDDEN_BYTES
        for number, (_, _, text) in enumerate(entries):
            check_entry(where, number, text, more, forbidden)
        return len(entries)

    # ------------------------------------------------------------------ where to

    def _check_destinations(self, places: set[tuple[str, int, bool]], caller: Caller) -> None:
        """Raises Refused: no message may be put there; Saving: topics are being made or deleted."""
        waiting = list[Pending]()
        for topic, queue_id, of_partition in sorted(places):
            try:
                config = self._topic(topic, queue_id, caller, of_partition=of_partition)
            except Saving as saving:
                waiting += saving.pending
                continue
            count = max(config.read_queues, config.write_queues)
            self._closed_partitions.check(topic, queue_id)
            # Of a retry topic's group is asked each time: it may go, and its topic stay.
            if not (self._closed_partitions.of(topic) or topic.startswith(RETRY_PREFIX)):
                self._open[topic] = count
            if not 0 <= queue_id < count:
                raise Refused(
                    Reason.INVALID, f"request queueId[{queue_id}] is illegal: topic {topic} has {count} queues"
                )
        if waiting:
            raise Saving(*waiting)

    @property
    def takes(self) -> bool:
        """Whether the broker takes messages at all."""
        return bool(self._environment.options.broker_permission & WRITE)

    def _topic(self, name: str, queue_id: int, caller: Caller, *, of_partition: bool) -> TopicConfig:
        if not of_partition:
            check_client_topic(name)
        if name in SEND_FORBIDDEN or name.startswith(DEAD_LETTER_PREFIX):
            raise Refused(Reason.NO_PERMISSION, f"staging messages for the topic {name} is forbidden")
        self._gatekeeper.check(caller, Action.PUBLISH, name)
        config = self._topics.taking(name)
        options = self._environment.options
        if config is None and of_partition:
            raise Refused(Reason.NO_TOPIC, f"the topic {name} is not there any more")
        if name.startswith(
            RETRY_PREFIX
        ):  # As a send to it, by which consumers give back what brokers would not take back.
            self._groups.require(name.removeprefix(RETRY_PREFIX))
            config = config or self._topics.ensure(name)
        if config is None:
            config = self._topics.auto_create(
                name, AUTO_CREATE_TOPIC, options.default_topic_queue_nums, queue_id=queue_id
            )
        if not config.writable or not self.takes:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the topic {name} has permission {config.perm}, the broker {options.broker_permission}: no message may be "
                "written",
            )
        return config

    # ------------------------------------------------------------------ storing

    def store(self, stage: Stage, transaction: Transaction, fresh: Sequence[New], added: Added) -> None:
        """Store the chunks and enter each in its part. `added` is called with the place of each.

        Raises Refused, as `Appender.put`: those that were entered are stored.
        """
        life = life_text(transaction.lifetime, transaction.seconds)
        run: list[tuple[New, int, PutRecord]] = []
        size, run_max = 0, min(RUN_BYTES, self._store.log.file_bytes // 2)
        for new in fresh:
            for index, chunk in enumerate(new.chunks):
                record = chunk_record(stage, chunk, new.counts[index], life)
                if run and size + len(chunk.body) > run_max:
                    self._put(transaction, run, added)
                    run, size = [], 0
                run.append((new, index, record))
                size += len(chunk.body)
        if run:
            self._put(transaction, run, added)

    def _put(self, transaction: Transaction, run: Sequence[tuple[New, int, PutRecord]], added: Added) -> None:
        records = [record for _, _, record in run]
        put = self._appender.put(records)
        place = put.log_offset
        for new, index, record in run:
            chunk = new.chunks[index]
            added(transaction, place)
            part = transaction.parts.get(chunk.part)
            if part is None:
                part = Part(chunk.part, chunk.topic, chunk.queue_id, since_ms=put.store_ms)
                self._table.add_part(transaction, part)
            part.add(place, new.crcs[index], len(chunk.body), new.counts[index])
            part.seal = chunk.seal
            self._table.grew(transaction, len(chunk.body))
            place += record_bytes(record.sys_flag, len(record.body), len(record.topic), len(record.properties))
