"""Transactions that come as one request: whole parts of one chunk each, and the commit of just these, for this broker alone.

That is what `Producer.atomic()` sends when little is sent. What is done, what the log holds afterwards and what is promised is the
same as request by request (`metaq.broker.staged.service`); here it is done without the steps between that nobody sees. Whatever is
not as plain as that is left to the long way, which also tells what is wrong with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from metaq.broker.environment import Environment
from metaq.broker.log.admit import GateTable
from metaq.broker.log.appender import Appender
from metaq.broker.requests import Decide, Stage
from metaq.broker.staged.admission import RUN_BYTES, Admission
from metaq.broker.staged.apply import AT_ONCE_BYTES
from metaq.broker.staged.parts import Part, Staged, Transaction
from metaq.broker.staged.records import chunk_record, decide_record, life_text
from metaq.errors import Refused
from metaq.model.access import Caller
from metaq.model.transactions.staging import Decision, Outcome, chunk_crc, part_crc
from metaq.wire.hot import AppendOutcome
from metaq.wire.record import record_bytes

Facts = list[tuple[int, int]]
"""(messages, CRC) of each chunk."""


class AtOnce:
    """Stages, commits and applies in one go.

    Args: added: told of the LogOffset from which on something is needed from now on, and of which transaction.
    """

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        gates: GateTable,
        admission: Admission,
        table: Staged,
        added: Callable[[int, str], None],
    ) -> None:
        self._environment, self._clock, self._name = environment, environment.clock, environment.name
        self._appender, self._gates, self._admission, self._table = appender, gates, admission, table
        self._added = added
        self._outcome = AppendOutcome()

    def judge(self, stage: Stage, decide: Decide, caller: Caller) -> Facts | None:
        """Whether a request is one of these, and allowed. None: it is not, or something is wrong with it."""
        manifest, name, judged = decide.parts, self._name, self._admission.judged
        if (
            decide.outcome is not Outcome.COMMIT
            or manifest is None
            or decide.row
            or len(manifest) != len(stage.chunks)
            or not self._admission.takes
        ):
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
        """Store what `judge` took, decide it and apply it. `transaction`: a new one, which is entered.

        Raises Refused, as `Appender.put`: nothing is stored, or all chunks are, and the transaction is undecided. Of what is decided
        the parts say how far they are applied.
        """
        life = life_text(transaction.lifetime, transaction.seconds)
        records = [chunk_record(stage, chunk, rows, life) for chunk, (rows, _) in zip(stage.chunks, facts, strict=True)]
        count, size = len(records), sum([len(chunk.body) for chunk in stage.chunks])
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
        self._apply(transaction)

    def _decide(self, stage: Stage, transaction: Transaction) -> None:
        assert stage.decide is not None
        assert stage.decide.parts is not None
        now_ms = self._clock.now_ms()
        decision = Decision(transaction.id, Outcome.COMMIT, stage.decide.parts, decided_ms=now_ms)
        record = decide_record(decision, now_ms, self._environment.store_host)
        self._table.decided(transaction, decision, self._appender.put([record]).log_offset)

    def _apply(self, transaction: Transaction) -> None:
        """As far as it goes: the long way applies the rest, and tells what holds it up."""
        gates, parts = self._gates, list(transaction.parts.values())
        for part in parts:
            topic = part.topic.encode()
            if topic not in gates.table and not gates.open(topic):
                return
        try:
            done = self._appender.expand_all([part.places[0] for part in parts], gates.table, self._outcome)
        except Refused:
            return
        for part in parts[:done]:
            part.applied = 1
        for part in parts[done : done + 1]:
            part.entries = self._outcome.row
