"""Staged transactions in a life: chunks, seals and decisions, repeated, late or left out, and what must come of them.

What is expected is read from the records in the ledger, by other code than the broker's: which chunks are there, which
decision was the first, and so which messages have to be in which queue, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from metaq.broker.requests import Apply, Decide, SealPart, Stage
from metaq.errors import Reason, Refused
from metaq.model import properties as props
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    Phase,
    TransactionDecision,
    chunk_crc,
    part_crc,
)
from metaq.saved import Saving
from metaq.wire.record import encode_batch
from tests.crash.simulation.bare import BareRecord
from tests.crash.simulation.ledger import DECISIONS_TOPIC, STAGE_TOPIC, Broken
from tests.crash.simulation.life import BODY_BYTES_MAX, BORN, QUEUES, SOMEBODY, TOPICS, Life

Value = TypeVar("Value")

HERE: Final = "broker-a"
ELSEWHERE: Final = "broker-b"
"""A coordinator that never answers: its decision comes with an APPLY."""
ROWS: Final = "w1", "w2"
LARGE_EVERY: Final = 5
"""Among so many messages one that is alone in its chunk is as large as a message may be: more than several may have."""
ROUNDS: Final = 50
"""In which everything that was decided is surely where it belongs."""


@dataclass(slots=True)
class PlannedPart:
    """A part as its writer means it."""

    part: str
    topic: str
    queue_id: int
    chunks: list[list[bytes]] = field(default_factory=list)
    """The bodies of each chunk's messages."""

    def batch(self, number: int) -> bytes:
        return encode_batch((0, body, b"") for body in self.chunks[number])

    @property
    def seal(self) -> PartSeal:
        crc = size = 0
        for number in range(len(self.chunks)):
            body = self.batch(number)
            crc, size = part_crc(crc, chunk_crc(body)), size + len(body)
        return PartSeal(len(self.chunks), sum(map(len, self.chunks)), size, crc)

    @property
    def manifest(self) -> ManifestPart:
        return ManifestPart(HERE, self.part, self.topic, self.queue_id, self.seal)


@dataclass(slots=True)
class Planned:
    """A transaction as its writer means it."""

    transaction: str
    coordinator: str
    lifetime: PartLifetime
    commit: bool
    """What the writer says whenever it decides."""
    row: str = ""
    sequence: int = -1
    parts: list[PlannedPart] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """What the records say of a transaction."""

    chunks: dict[str, set[int]] = field(default_factory=dict)
    """Part → numbers."""
    sealed: set[str] = field(default_factory=set)
    outcome: str = ""
    """commit or rollback, of the first final decision; prepared; empty for none."""
    named: set[str] = field(default_factory=set)
    """Parts in that decision."""
    place: int = -1
    """LogOffset of the newest record of a decision."""

    def count(self, part: str) -> int:
        """Chunks from the first one on without a gap."""
        there, number = self.chunks.get(part, set()), 0
        while number in there:
            number += 1
        return number


class StagedTransactions:
    """A writer of staged transactions that always says the same about one."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._planned: dict[str, Planned] = {}
        self._numbers = 0
        self._sequences: dict[str, int] = {}

    # ------------------------------------------------------------------ steps

    def stage(self) -> None:
        """One chunk more of some transaction, or one that is there already, with its part's seal or without."""
        planned = self._some() if self._life.chance.random() < 0.8 else None
        planned = planned or self._begin()
        found = self._found(planned.transaction)
        if found.outcome:
            return
        part = self._part(planned, found)
        there = found.count(part.part)
        del part.chunks[max(there, 0) :]  # what was not stored, or lost with the power, is said anew
        number = there
        if number and self._life.chance.random() < 0.2:
            number = self._life.chance.randrange(there)
        if number == there:
            if part.part in found.sealed:
                return
            part.chunks.append(self._bodies())
        seal = part.seal if number == len(part.chunks) - 1 and self._life.chance.random() < 0.4 else None
        chunk = Chunk(
            part=part.part, number=number, topic=part.topic, queue_id=part.queue_id, body=part.batch(number), seal=seal
        )
        stage = Stage(
            transaction=planned.transaction, chunks=(chunk,), born_ms=self._life.clock.now_ms(), born_host=BORN,
            lifetime=planned.lifetime, seconds=self._life.chance.choice((0, 30)),
        )  # fmt: skip
        sealed = " and the part's end" if seal else ""
        self._life.tell(
            f"stage chunk {number} of {planned.transaction}/{part.part} for {part.topic}:{part.queue_id}{sealed}"
        )
        if not self._life.ledger.topics.get(part.topic):
            self._life.ledger.topics[part.topic] = None
        self._ask(planned, lambda: self._life.broker.staging.stage(stage, SOMEBODY, self._life.producer))

    def seal(self) -> None:
        """End a part by a request of its own."""
        planned = self._some()
        if planned is None or not planned.parts:
            return
        found, part = self._found(planned.transaction), self._life.chance.choice(planned.parts)
        if found.outcome or not found.count(part.part):
            return
        del part.chunks[found.count(part.part) :]
        self._life.tell(f"seal {planned.transaction}/{part.part}")
        request = SealPart(transaction=planned.transaction, part=part.part, seal=part.seal)
        self._ask(planned, lambda: self._life.broker.staging.seal(request, SOMEBODY))

    def decide(self) -> None:
        """End a transaction, or prepare it; also one that is ended, which changes nothing."""
        planned = self._some()
        if planned is None:
            return
        found = self._found(planned.transaction)
        whole = [part for part in planned.parts if part.part in found.sealed]
        if planned.coordinator != HERE:
            self._learn(planned, whole)
            return
        outcome = DecisionOutcome.COMMIT if planned.commit else DecisionOutcome.ROLLBACK
        if planned.lifetime is PartLifetime.PREPARED and not found.outcome:
            outcome = DecisionOutcome.PREPARED
        parts: tuple[ManifestPart, ...] | None = tuple(part.manifest for part in whole)
        if found.outcome == "prepared" or (outcome is DecisionOutcome.ROLLBACK and self._life.chance.random() < 0.5):
            parts = None
        self._life.tell(f"{outcome.value} {planned.transaction} with {len(whole)} parts")
        request = Decide(
            transaction=planned.transaction, outcome=outcome, parts=parts, row=planned.row, sequence=planned.sequence
        )
        decided = self._ask(planned, lambda: self._life.broker.staging.decide(request, SOMEBODY))
        if decided is not None:
            made = decided.decision  # that of its row's last transaction, if that had the same number
            if made.outcome.value != (now := self._found(made.transaction)).outcome:
                raise Broken(f"{made.transaction}: {made.outcome} was answered, and {now.outcome} stored")
            if made.transaction != planned.transaction and (made.row, made.sequence) != (planned.row, planned.sequence):
                raise Broken(f"{planned.transaction} is answered with the decision of {made.transaction}")

    def _learn(self, planned: Planned, whole: Sequence[PlannedPart]) -> None:
        """The coordinator has decided elsewhere."""
        outcome = DecisionOutcome.COMMIT if planned.commit else DecisionOutcome.ROLLBACK
        self._life.tell(f"its coordinator has decided {planned.transaction}: {outcome.value}")
        decision = TransactionDecision(
            planned.transaction, outcome, tuple(part.manifest for part in whole), decided_ms=1
        )
        request = Apply(transaction=planned.transaction, decision=decision)
        self._ask(planned, lambda: self._life.broker.staging.apply(request, SOMEBODY))

    def deliver(self) -> None:
        """Time passes, and what waits is taken up."""
        self._life.clock.advance(self._life.chance.choice((0.1, 2, 15)))
        self._life.tell("staged transactions go on")
        self._go_on()

    def hang_up(self) -> None:
        """The connection ends over which everything was staged."""
        self._life.tell("the writer's connection ends")
        self._life.ledger.in_flight = allowed = self._allowed()
        with self._life.refusals():
            self._life.broker.staging.closed(self._life.producer)
        self._took(allowed)

    def go_on_to_the_end(self) -> None:
        """Time passes until nothing is left to take up: a queue that is being written to holds up the ends of other transactions."""
        for _ in range(ROUNDS):
            self._life.clock.advance(1)
            self._life.save()
            self._life.answer()
            self._go_on()

    # ------------------------------------------------------------------ how

    def _begin(self) -> Planned:
        chance = self._life.chance
        self._numbers += 1
        coordinator = HERE if chance.random() < 0.75 else ELSEWHERE
        lifetime = chance.choice((PartLifetime.AGE, PartLifetime.AGE, PartLifetime.PREPARED, PartLifetime.CONNECTION))
        transaction = f"s{self._numbers}@{coordinator}"
        planned = self._planned[transaction] = Planned(transaction, coordinator, lifetime, chance.random() < 0.7)
        if coordinator == HERE and chance.random() < 0.4:
            planned.row = chance.choice(ROWS)
            before = self._sequences.get(planned.row, 0)
            planned.sequence = self._sequences[planned.row] = before + chance.choice((0, 1, 1, 1))
        return planned

    def _some(self) -> Planned | None:
        newest = list(self._planned.values())[-6:]
        return self._life.chance.choice(newest) if newest else None

    def _part(self, planned: Planned, found: Found) -> PlannedPart:
        chance = self._life.chance
        open_ones = [part for part in planned.parts if part.part not in found.sealed]
        if open_ones and (len(planned.parts) == 3 or chance.random() < 0.7):
            return chance.choice(open_ones)
        if len(planned.parts) == 3:
            return chance.choice(planned.parts)
        part = PlannedPart(f"p{len(planned.parts)}", chance.choice(TOPICS), chance.randrange(QUEUES))
        planned.parts.append(part)
        return part

    def _bodies(self) -> list[bytes]:
        bodies = []
        for _ in range(self._life.chance.choice((1, 2, 5))):
            self._numbers += 1
            bodies.append(b"s%d:" % self._numbers + b"x" * self._life.chance.choice((0, 60, 3000)))
        if len(bodies) == 1 and not self._numbers % LARGE_EVERY:
            return [bodies[0].ljust(BODY_BYTES_MAX, b"x")]
        return bodies

    def _ask(self, planned: Planned, what: Callable[[], Value]) -> Value | None:
        """Ask the broker, once more when it had to wait for a file. None: it refused, for a reason."""
        life, answer = self._life, None
        life.ledger.staged |= self._bodies_of(planned)
        self._may_make_topics(planned)
        life.ledger.in_flight = allowed = self._allowed()
        with life.refusals():
            try:
                answer = what()
            except Saving as saving:
                for pending in saving.pending:
                    life.change(pending, lambda: None)
                if all(pending.done for pending in saving.pending):
                    for part in planned.parts:
                        if not life.ledger.topics.get(part.topic):
                            life.ledger.topics[part.topic] = None
                    answer = self._once_more(planned, what)
            except Refused as error:
                self._judge(planned, error)
        self._took(allowed)
        return answer

    def _may_make_topics(self, planned: Planned) -> None:
        """A deleted topic is made again for what is staged or committed: before its message, and whatever happens in between."""
        topics = self._life.ledger.topics
        for part in planned.parts:
            if not topics.get(part.topic):
                topics[part.topic] = None

    def _once_more(self, planned: Planned, what: Callable[[], Value]) -> Value | None:
        try:
            return what()
        except Refused as error:
            self._judge(planned, error)
            return None

    def _judge(self, planned: Planned, error: Refused) -> None:
        """A refusal is right for a transaction that is over, and when the disk is in trouble."""
        self._took(self._allowed())
        of_its_row = planned.row != "" and error.reason in {Reason.BUSY, Reason.STALE}
        over = self._found(planned.transaction).outcome != ""
        if self._life.is_troubled or self._life.had_error or over or of_its_row:
            self._life.tell(f"... refused: {error}")
        else:
            raise Broken(f"{planned.transaction} was refused: {error}") from error

    def _bodies_of(self, planned: Planned) -> set[bytes]:
        batches = {part.batch(number) for part in planned.parts for number in range(len(part.chunks))}
        return batches | {body for part in planned.parts for chunk in part.chunks for body in chunk}

    def _allowed(self) -> list[bytes]:
        return [*self._life.ledger.delayed, *self._life.ledger.of_transactions()]

    def _took(self, allowed: list[bytes]) -> None:
        for record in self._life.absorb(allowed):
            if record.topic in TOPICS and not self._life.ledger.topics.get(record.topic):
                self._life.ledger.topics[record.topic] = None  # made again for what was committed
        self._life.ledger.in_flight = []
        self.once()

    def _go_on(self) -> None:
        life = self._life
        for planned in self._planned.values():
            if self._found(planned.transaction).outcome == DecisionOutcome.COMMIT.value:
                self._may_make_topics(planned)
        life.ledger.in_flight = allowed = self._allowed()
        with life.refusals():
            life.broker.tick()
            for _ in range(3):
                life.broker.deliver()
        self._took(allowed)

    # ------------------------------------------------------------------ what holds

    def _found(self, transaction: str) -> Found:
        return self._all_found().get(transaction, Found())

    def _all_found(self) -> dict[str, Found]:
        """What the records in the ledger say, transaction by transaction."""
        everything: dict[str, Found] = {}
        for record in self._life.ledger.log:
            if record.topic == STAGE_TOPIC:
                pairs = props.parse(record.properties.decode())
                if record.properties.endswith(b"\0") or not {"METAQ_TX", "METAQ_PART", "TAGS"} <= pairs.keys():
                    continue  # a power cut has taken the end of its properties
                found = everything.setdefault(pairs["METAQ_TX"], Found())
                if pairs["TAGS"] == "chunk":
                    found.chunks.setdefault(pairs["METAQ_PART"], set()).add(int(pairs["METAQ_CHUNK"]))
                if "METAQ_SEAL" in pairs:
                    found.sealed.add(pairs["METAQ_PART"])
            elif record.topic == DECISIONS_TOPIC:
                self._take_decision(record, everything)
        return everything

    def _take_decision(self, record: BareRecord, everything: dict[str, Found]) -> None:
        if props.parse(record.properties.decode())["TAGS"] != "decide":
            return
        decision = json.loads(record.body)
        found = everything.setdefault(decision["transaction"], Found())
        # A decision stands as long as the log holds it. Who asks again after that gets another one.
        forgotten, found.place = found.place < self._life.ledger.log_min, record.log_offset
        if forgotten or found.outcome in {"", "prepared"}:
            found.outcome = decision["outcome"]
            found.named = {part["part"] for part in decision["parts"]}

    def copies(self, part: PlannedPart, body: bytes) -> list[BareRecord]:
        return [record for record in self._life.ledger.log if record.topic == part.topic and record.body == body]

    def once(self) -> None:
        """No message is there twice, and none that nobody committed."""
        everything = self._all_found()
        at: dict[bytes, list[BareRecord]] = {}
        for record in self._life.ledger.log:
            if record.topic in TOPICS:
                at.setdefault(record.body, []).append(record)
        for planned in self._planned.values():
            found = everything.get(planned.transaction, Found())
            for part in planned.parts:
                wanted = found.outcome == "commit" and part.part in found.named
                for body in (body for chunk in part.chunks for body in chunk):
                    copies = at.get(body, [])
                    if len(copies) > wanted:
                        raise Broken(
                            f"{body[:8]!r} of {planned.transaction}/{part.part} ({found.outcome or 'undecided'}) is there "
                            f"{len(copies)} times"
                        )
                    if copies and (copies[0].topic, copies[0].queue_id) != (part.topic, part.queue_id):
                        raise Broken(
                            f"{body[:8]!r} belongs into {part.topic}:{part.queue_id}, and is in {copies[0].topic}"
                        )

    def _rows(self) -> dict[str, tuple[int, str]]:
        """Row → (sequence, transaction) of its last commit, as the records say."""
        rows: dict[str, tuple[int, str]] = {}
        for record in self._life.ledger.log:
            if record.topic == DECISIONS_TOPIC and props.parse(record.properties.decode())["TAGS"] == "decide":
                made = json.loads(record.body)
                if made["row"] and made["outcome"] == "commit" and made["sequence"] > rows.get(made["row"], (-1,))[0]:
                    rows[made["row"]] = made["sequence"], made["transaction"]
        return rows

    def same(self) -> None:
        """The broker knows of each transaction and row what the records say."""
        rows = {key: row for key in ROWS if (row := self._life.broker.staging.row(key)) is not None}
        if (known := {key: (row.sequence, row.transaction) for key, row in rows.items()}) != self._rows():
            raise Broken(f"the rows are {known}, and their records say {self._rows()}")
        everything = self._all_found()
        for planned in self._planned.values():
            found = everything.get(planned.transaction, Found())
            state = self._life.broker.staging.state(planned.transaction)
            if found.outcome in {"", "prepared"}:
                here = {part.part: (part.chunks, part.sealed) for part in state.parts}
                wanted = {part: (found.count(part), part in found.sealed) for part in found.chunks}
                phase = Phase.PREPARED if found.outcome else Phase.OPEN if wanted else Phase.UNKNOWN
                if here != wanted or state.phase is not phase:
                    raise Broken(
                        f"{planned.transaction} is {state.phase} with {here}, its records say {phase} with {wanted}"
                    )
            elif found.place < self._life.store.log.min and state.phase is Phase.UNKNOWN:
                continue  # it was over, and its file has gone
            elif found.outcome == "commit":
                if state.phase not in {Phase.COMMITTING, Phase.COMMITTED}:
                    raise Broken(f"{planned.transaction} is {state.phase}, and its records say commit")
            elif state.phase is not Phase.ROLLED_BACK:
                raise Broken(f"{planned.transaction} is {state.phase}, and its records say {found.outcome}")

    def end_all(self) -> None:
        """What was committed comes, whole, in its order and together."""
        life = self._life
        life.tell("all staged transactions come to their end")
        self.go_on_to_the_end()
        everything = self._all_found()
        for planned in self._planned.values():
            found = everything.get(planned.transaction, Found())
            for part in planned.parts:
                if found.outcome == "commit" and part.part in found.named:
                    self._check_part(planned, part, found)
            state = life.broker.staging.state(planned.transaction)
            gone = found.place < life.store.log.min and state.phase is Phase.UNKNOWN
            if found.outcome == "commit" and (state.phase is not Phase.COMMITTED or state.remaining) and not gone:
                raise Broken(f"{planned.transaction} is {state.phase} with {state.remaining} chunks left")

    def _check_part(self, planned: Planned, part: PlannedPart, found: Found) -> None:
        bodies = [body for chunk in part.chunks[: found.count(part.part)] for body in chunk]
        offsets = []
        for body in bodies:
            copies = self.copies(part, body)
            if len(copies) != 1:
                raise Broken(f"{body[:8]!r} of {planned.transaction}/{part.part} is there {len(copies)} times")
            offsets.append(copies[0].queue_offset)
        again = part.topic in self._life.ledger.deleted_at or part.topic in self._life.ledger.limbo
        if not again and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            raise Broken(f"{planned.transaction}/{part.part} lies at the queue offsets {offsets}")
