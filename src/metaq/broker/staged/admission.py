"""Admission and storage of chunks, and a short cut for transactions that come as one request.

The short cut (`AtOnce`) takes requests with one chunk per part and the commit of exactly these parts, at this broker alone: what
`Producer.atomic()` sends for small transactions. Records, results and guarantees are the same as on the general path
(`metaq.broker.staged.service`). Whatever does not qualify takes the general path, which also reports errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.admit import GateTable
from metaq.broker.log.appender import Appender
from metaq.broker.requests import Decide, Stage
from metaq.broker.staged.apply import AT_ONCE_BYTES
from metaq.broker.staged.parts import NewChunks, Part, Staged, Transaction, check_seal, is_next
from metaq.broker.staged.records import (
    FORBIDDEN_BYTES,
    FORBIDDEN_RETRIES,
    RECORD_BYTES_MORE,
    check_entry,
    chunk_record,
    decide_record,
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
from metaq.model.transactions.staging import (
    CHUNK_BYTES_MAX,
    Chunk,
    DecisionOutcome,
    TransactionDecision,
    check_part,
    chunk_crc,
    part_crc,
)
from metaq.saved import Pending, Saving
from metaq.store.log.writer import PutRecord
from metaq.wire.hot import AppendOutcome, TopicGate, check_batch
from metaq.wire.record import record_bytes

RUN_BYTES: Final = 2 << 20
"""Bytes per append: chunks of one request are stored in runs, none of them split."""
_BLANK_BYTES: Final = 8
COPY_BYTES_MORE: Final = 512
"""Upper bound of a message's bytes in the log beside its entry in a batch."""

_ANY_SIZE: Final = 0x7FFFFFFF

WRITE: Final = int(Perm.WRITE)

Added = Callable[[Transaction, int], None]


def _where(chunk: Chunk) -> str:
    return f"queue {chunk.queue_id} of topic {chunk.topic}"


class ChunkAdmission:
    """Checks and stores chunks."""

    def __init__(
        self, environment: Environment, tables: Tables, appender: Appender, table: Staged, gatekeeper: Gatekeeper
    ) -> None:
        self._environment, self._store = environment, environment.store
        self._topics, self._groups = tables.topics, tables.groups
        self._appender, self._table, self._gatekeeper = appender, table, gatekeeper
        self._judge = TopicGate(b"-", (), _ANY_SIZE, FORBIDDEN_BYTES)
        """Gate with which the compiled extension looks for forbidden properties. Sizes are checked separately."""
        self._judge_retries = TopicGate(b"-", (), _ANY_SIZE, FORBIDDEN_RETRIES)
        self._open: dict[str, int] = {}
        """Cache: topics that have passed all checks but permissions → number of queues. Dropped when the topic changes."""
        tables.topics.watch(self._forget)
        self._closed_partitions = tables.closed_partitions
        self._closed_partitions.when_changed(self._forget)

    def _forget(self, topic: str) -> None:
        self._open.pop(topic, None)

    def admit(self, stage: Stage, transaction: Transaction | None, caller: Caller, peer: str) -> list[NewChunks]:
        """Check a request's chunks. Returns those to be stored, by part, without those stored already.

        Raises Refused; Saving: topics are being created or deleted. Nothing has changed then.
        """
        parts = transaction.parts if transaction is not None else {}
        news: dict[str, NewChunks] = {}
        for chunk in stage.chunks:
            # One destination that is not cached: all are checked, with errors and creation of topics.
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
                new = news[chunk.part] = NewChunks(base, *place)
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
            # Before the limits are checked: they count for this peer now.
            self._table.adopt(transaction, peer)
        self._table.check_room(transaction, peer, sum(new.base is None for new in fresh), chunks, size)
        return fresh

    def _is_open(self, chunk: Chunk, caller: Caller) -> bool:
        """Return whether the caller may put a chunk there, by the cache."""
        return 0 <= chunk.queue_id < self._open.get(chunk.topic, 0) and (
            self._gatekeeper.unguarded or self._gatekeeper.allows(caller, Action.PUBLISH, chunk.topic)
        )

    def judged(self, chunk: Chunk, caller: Caller) -> int:
        """Return the number of messages in a plain first chunk; -1: it has to take the general path."""
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
        """Check size and messages of a chunk. Raises Refused ILLEGAL_MESSAGE: it can never be stored."""
        self._check_size(chunk)
        self._check_batch(chunk)

    def _check_size(self, chunk: Chunk) -> None:
        """Check the size: a single message may have maxMessageSize, several together CHUNK_BYTES_MAX."""
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

    def _take(self, new: NewChunks, chunk: Chunk) -> None:
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
        """Return the number of messages. Raises Refused ILLEGAL_MESSAGE: not a batch, or one that could not be applied."""
        more = len(self._environment.options.broker_cluster_name.encode()) + len(props.CLUSTER) + 2
        retries = chunk.topic.startswith(RETRY_PREFIX)
        rows = check_batch(chunk.body, self._judge_retries if retries else self._judge, self._store.log.tail)
        if rows < 0:  # the compiled extension found something: Python finds out what, and raises
            rows = self._judge_entries(chunk, more)
        size = len(chunk.body) + rows * (RECORD_BYTES_MORE + len(chunk.topic) + more)
        # A chunk is applied in one append, which must fit into one log file.
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
        """Check all destinations. Raises Refused: messages are not allowed there; Saving: topics are being created or deleted."""
        waiting = list[Pending]()
        for topic, queue_id, of_partition in sorted(places):
            try:
                config = self._topic(topic, queue_id, caller, of_partition=of_partition)
            except Saving as saving:
                # All topics that are missing are created at once, instead of one per repetition of the request.
                waiting += saving.pending
                continue
            count = max(config.read_queues, config.write_queues)
            self._closed_partitions.check(topic, queue_id)
            # A retry topic is not cached: its group may be deleted while the topic stays, so it is checked each time.
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
        """Whether brokerPermission allows writes."""
        return bool(self._environment.options.broker_permission & WRITE)

    def _topic(self, name: str, queue_id: int, caller: Caller, *, of_partition: bool) -> TopicConfig:
        if not of_partition:
            check_client_topic(name)
        # Dead letters are written by the broker only.
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
            self._groups.require(name.removeprefix(RETRY_PREFIX), caller.client)
            config = config or self._topics.ensure(name)
        if config is None:
            config = self._topics.auto_create(
                name, AUTO_CREATE_TOPIC, options.default_topic_queue_nums, queue_id=queue_id, client=caller.client
            )
        if not config.writable or not self.takes:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the topic {name} has permission {config.perm}, the broker {options.broker_permission}: no message may be "
                "written",
            )
        return config

    # ------------------------------------------------------------------ storing

    def store(self, stage: Stage, transaction: Transaction, fresh: Sequence[NewChunks], added: Added) -> None:
        """Store chunks and add each to its part. `added` is called with the LogOffset of each.

        Raises Refused, as `Appender.put`: chunks that were added to their parts are stored.
        """
        life = life_text(transaction.lifetime, transaction.seconds)
        run: list[tuple[NewChunks, int, PutRecord]] = []
        # A run is one append, which has to fit into a log file.
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

    def _put(self, transaction: Transaction, run: Sequence[tuple[NewChunks, int, PutRecord]], added: Added) -> None:
        records = [record for _, _, record in run]
        put = self._appender.put(records)
        place = put.log_offset
        for new, index, record in run:
            chunk = new.chunks[index]
            # Before the part exists: retention must not delete the chunk's file between the append and this.
            added(transaction, place)
            part = transaction.parts.get(chunk.part)
            if part is None:
                part = Part(chunk.part, chunk.topic, chunk.queue_id, since_ms=put.store_ms)
                self._table.add_part(transaction, part)
            part.add(place, new.crcs[index], len(chunk.body), new.counts[index])
            part.seal = chunk.seal
            self._table.grew(transaction, len(chunk.body))
            place += record_bytes(record.sys_flag, len(record.body), len(record.topic), len(record.properties))


Facts = list[tuple[int, int]]
"""(number of messages, CRC) of each chunk."""


class AtOnce:
    """Stages, commits and applies in one request.

    Args: added: called with the LogOffset of the first record needed of a transaction, and its id.
    """

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        gates: GateTable,
        admission: ChunkAdmission,
        table: Staged,
        added: Callable[[int, str], None],
    ) -> None:
        self._environment, self._clock, self._name = environment, environment.clock, environment.name
        self._appender, self._gates, self._admission, self._table = appender, gates, admission, table
        self._added = added
        self._outcome = AppendOutcome()

    def judge(self, stage: Stage, decide: Decide, caller: Caller) -> Facts | None:
        """Return the chunks' facts if a request qualifies and is allowed; None: it does not, or something is wrong with it."""
        manifest, name, judged = decide.parts, self._name, self._admission.judged
        if (
            decide.outcome is not DecisionOutcome.COMMIT
            or manifest is None
            or decide.row
            or len(manifest) != len(stage.chunks)
            or not self._admission.takes
        ):
            # Anything else takes the general path, which also reports errors.
            return None
        facts, seen, size = Facts(), set[str](), 0
        for chunk, named in zip(stage.chunks, manifest, strict=True):
            seal, part, body = chunk.seal, chunk.part, chunk.body
            if (
                seal is None
                or seal != named.seal
                or chunk.number
                or part != named.part
                or part in seen
                or named.broker != name
                or chunk.topic != named.topic
                or chunk.queue_id != named.queue_id
            ):
                return None
            crc, rows = chunk_crc(body), judged(chunk, caller)
            if seal.chunks != 1 or seal.rows != rows or seal.bytes != len(body) or seal.crc != part_crc(0, crc):
                return None
            seen.add(part)
            size += len(body)
            facts.append((rows, crc))
        return facts if size <= min(AT_ONCE_BYTES, RUN_BYTES, self._environment.store.log.file_bytes // 2) else None

    def run(self, stage: Stage, transaction: Transaction, facts: Facts) -> None:
        """Store, decide and apply a request that `judge` accepted. `transaction`: a new one, which is added to the table.

        Raises Refused, as `Appender.put`: nothing is stored, or all chunks are and the transaction is undecided.
        After the decision nothing is raised; the parts have their progress.
        """
        life = life_text(transaction.lifetime, transaction.seconds)
        records = [chunk_record(stage, chunk, rows, life) for chunk, (rows, _) in zip(stage.chunks, facts, strict=True)]
        count, size = len(records), sum([len(chunk.body) for chunk in stage.chunks])
        # Before anything is stored: the general path refuses with the same error.
        self._table.check_room(None, transaction.peer, count, count, size)
        put = self._appender.put(records)
        place, since_ms = put.log_offset, put.store_ms
        self._added(place, transaction.id)
        for chunk, record, (rows, crc) in zip(stage.chunks, records, facts, strict=True):
            size = len(chunk.body)
            assert chunk.seal is not None, "`judge` has seen it"
            transaction.parts[chunk.part] = Part(
                chunk.part, chunk.topic, chunk.queue_id, array("q", (place,)), array("I", (crc,)), array("I", (size,)),
                array("I", (rows,)), rows, size, chunk.seal.crc, chunk.seal, since_ms=since_ms,
                oldest=place,
            )  # fmt: skip
            transaction.bytes += size
            place += record_bytes(record.sys_flag, size, len(record.topic), len(record.properties))
        self._table.add(transaction)
        self._decide(stage, transaction)
        # Three appends in this order: chunks, decision, messages. After a crash between two, recovery goes on from the log.
        self._apply(transaction)

    def _decide(self, stage: Stage, transaction: Transaction) -> None:
        assert stage.decide is not None
        assert stage.decide.parts is not None
        now_ms = self._clock.now_ms()
        decision = TransactionDecision(transaction.id, DecisionOutcome.COMMIT, stage.decide.parts, decided_ms=now_ms)
        record = decide_record(decision, now_ms, self._environment.store_host)
        self._table.decided(transaction, decision, self._appender.put([record]).log_offset)

    def _apply(self, transaction: Transaction) -> None:
        """Apply as far as possible. The `Applier` applies the rest, and logs what holds it up."""
        gates, parts = self._gates, list(transaction.parts.values())
        for part in parts:
            topic = part.topic.encode()
            if topic not in gates.table and not gates.open(topic):
                return
        try:
            done = self._appender.expand_all(self._outcome, [part.places[0] for part in parts], gates.table)
        except Refused:
            return
        for part in parts[:done]:
            part.applied = 1
        for part in parts[done : done + 1]:
            part.entries = self._outcome.row


def check_settling(gatekeeper: Gatekeeper, caller: Caller | None, transaction: Transaction | None) -> None:
    """Check that a caller may settle a transaction: administrators, as brokers' accounts are, and who may send to its topics.

    Args:
        caller: None for the broker itself.
        transaction: what its coordinator knows of it.

    Raises Refused NO_PERMISSION or DENIED.
    """
    if caller is None or gatekeeper.allows(caller, Action.ADMINISTER, "DECIDE"):
        return
    topics = {part.topic for part in transaction.parts.values()} if transaction is not None else set()
    if not topics:
        gatekeeper.check(caller, Action.ADMINISTER, "DECIDE")
    for topic in sorted(topics):
        gatekeeper.check(caller, Action.PUBLISH, topic)
