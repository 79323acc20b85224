"""What a broker has acknowledged, and what of it must be there after its end."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC
from tests.crash.simulation.bare import BareRecord

Key = tuple[str, int]
STAGE_TOPIC, DECISIONS_TOPIC = "rmq_sys_METAQ_STAGE", "rmq_sys_METAQ_TXN"


class Broken(AssertionError):
    """A promise was not kept. The text says which, and how to repeat it."""


@dataclass(slots=True)
class Transaction:
    """A half message that was sent, and what its producer knows of it."""

    topic: str
    commit: bool
    """How the local transaction ended: what the producer says whenever it says anything."""
    message_id: str
    slot: int = -1
    """QueueOffset as the send was answered; -1: it was not."""
    log_offset: int = -1


@dataclass(slots=True)
class Ledger:
    """All records in the order of the log, as far as the broker said that they are stored."""

    log: list[BareRecord] = field(default_factory=list)
    log_end: int = 0
    durable_end: int = 0
    """LogOffset below which nothing may be lost, not even by a power cut."""
    log_min: int = 0
    """What begins below was given up, its time was over. It may come back with a file whose deletion was not synced."""
    in_flight: list[bytes] = field(default_factory=list)
    """Bodies of a call that was interrupted: they may be stored or not."""
    keys: dict[bytes, str] = field(default_factory=dict)
    """Body → the key under which it must be found."""
    topics: dict[str, bool | None] = field(default_factory=dict)
    """Topic → whether it must be there; None: whichever."""
    groups: dict[str, bool | None] = field(default_factory=dict)
    deleted_at: dict[str, int] = field(default_factory=dict)
    """Topic → LogOffset below which its records must never be served again."""
    limbo: dict[str, int] = field(default_factory=dict)
    """Topics whose deletion was asked for and not answered → LogOffset below which their records are gone if it happens."""
    positions: dict[tuple[str, str, int], set[int | None]] = field(default_factory=dict)
    """(group, topic, queue id) → what its position may be after a restart; the last one saved, and those since."""
    delayed: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Body of a delayed message → where it is to be delivered."""
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    """By the body of the half message."""
    torn: set[bytes] = field(default_factory=set)
    """Bodies of half messages and delayed ones whose properties a power cut may have torn: they are checked, delivered, written
    anew or given up, and nobody knows which."""
    staged: set[bytes] = field(default_factory=set)
    """Bodies of chunks of staged transactions, and of the messages in them."""

    def added(self, records: Iterable[BareRecord], log_end: int) -> None:
        """The broker has said that these are stored."""
        self.log.extend(records)
        self.log_end = log_end

    def wanted(self) -> dict[Key, list[BareRecord]]:
        """Queue → records that must be served, oldest first."""
        found: dict[Key, list[BareRecord]] = {}
        for record in self.log:
            if record.log_offset >= max(self.log_min, self.deleted_at.get(record.topic, 0)):
                found.setdefault((record.topic, record.queue_id), []).append(record)
        return found

    def still_to_deliver(self) -> list[BareRecord]:
        """Delayed messages without a copy where they belong, unless their topic was deleted."""
        copied = {record.body for record in self.log if record.topic != SCHEDULE_TOPIC}
        gone = self.deleted_at.keys() | self.limbo.keys()
        newest = {record.body: record for record in self.log if record.topic == SCHEDULE_TOPIC}  # written anew since
        return [
            record
            for record in newest.values()
            if record.log_offset >= self.log_min
            and record.body not in copied
            and record.body in self.delayed
            and self.delayed[record.body][0] not in gone
        ]

    # ------------------------------------------------------------------ transactions

    def of_transactions(self) -> list[bytes]:
        """What may be stored whenever transactions go on: their messages, and marks that half messages are done."""
        slots = 1 + max((record.queue_offset for record in self.log if record.topic == HALF_TOPIC), default=-1)
        slots_done = (b"%d" % slot for slot in range(slots + len(self.transactions) + 1))
        return [*self.transactions, *self.torn, *slots_done, *self.staged]

    def may_be_new(self, record: BareRecord, bodies: Container[bytes]) -> bool:
        """Whether a record may have been stored now, with what was sent, and what the broker writes by itself."""
        by_itself = record.topic == DECISIONS_TOPIC or (record.topic == STAGE_TOPIC and record.body == b"{}")
        return by_itself or record.body in bodies

    def knows_half(self, body: bytes, transaction: Transaction, log_min: int) -> bool:
        """Whether the half message is where its send was answered."""
        return transaction.log_offset >= log_min and any(
            record.log_offset == transaction.log_offset and record.body == body and record.topic == HALF_TOPIC
            for record in self.log
        )

    def copies(self, body: bytes, transaction: Transaction) -> list[BareRecord]:
        """What consumers have got of a transaction since its topic was deleted last."""
        since = self.deleted_at.get(transaction.topic, 0)
        return [
            record
            for record in self.log
            if record.topic == transaction.topic and record.body == body and record.log_offset >= since
        ]

    def newest_half(self, body: bytes) -> BareRecord | None:
        """The newest generation of a half message; None: it is lost, or with the administrator."""
        halves = [record for record in self.log if record.body == body and record.topic == HALF_TOPIC]
        kept = any(record.body == body and record.topic == CHECK_MAX_TOPIC for record in self.log)
        return None if kept or not halves else max(halves, key=lambda record: record.log_offset)

    def given_up(self, key: Key) -> set[tuple[int, bytes]]:
        """(queue offset, body) of what a queue may serve though nobody expects it any more."""
        topic, queue_id = key
        deleted_at = self.deleted_at.get(topic, 0)
        return {
            (record.queue_offset, record.body)
            for record in self.log
            if record.topic == topic and record.queue_id == queue_id and deleted_at <= record.log_offset < self.log_min
        }

    # ------------------------------------------------------------------ after an end

    def hold_against(self, found: list[BareRecord], log_min: int, *, power_was_cut: bool) -> int:
        """Compare with what an independent reader finds in the files of the recovered log. Returns how many were lost.

        Raises Broken. Afterwards the ledger knows what is left.
        """
        if log_min > self.log_min:
            raise Broken(f"the log begins at {log_min}, and nothing above {self.log_min} was given up")
        known = [record for record in self.log if record.log_offset >= log_min]
        for wanted, there in zip(known, found, strict=False):
            if wanted == there:
                continue
            if not (power_was_cut and self._may_be_torn(wanted, there)):
                raise Broken(f"the log holds {short(there)} in place of {short(wanted)}")
            self.keys.pop(there.body, None)
            if self.transactions.pop(there.body, None) is not None:
                self.torn.add(there.body)
            if there.topic == SCHEDULE_TOPIC:
                self.delayed.pop(there.body, None)
                self.torn.add(there.body)
        lost = known[len(found) :]
        for record in lost:
            if record.log_end <= self.durable_end:
                raise Broken(f"{short(record)} is lost, though the log was durable up to {self.durable_end}")
            if not power_was_cut:
                raise Broken(f"{short(record)} is lost, though it was stored and the power was on")
        more = found[len(known) :]
        allowed = list(self.in_flight)
        for record in more:
            if not self.may_be_new(record, allowed):
                raise Broken(f"{short(record)} is in the log, and nobody has just sent it")
        if lost:
            gone = {record.body for record in lost if record.topic == SCHEDULE_TOPIC}  # else a copy, which comes again
            gone -= {record.body for record in found if record.topic == SCHEDULE_TOPIC}  # written anew, that was lost
            self.delayed = {body: place for body, place in self.delayed.items() if body not in gone}
        self.log = [record for record in self.log if record.log_offset < log_min] + found[: len(known)] + more
        self.log_end = found[-1].log_end if found else log_min
        for places in (self.deleted_at, self.limbo):  # what is stored from here on is of a later time
            places |= {topic: min(place, self.log_end) for topic, place in places.items()}
        self.in_flight.clear()
        return len(lost)

    def _may_be_torn(self, wanted: BareRecord, there: BareRecord) -> bool:
        """Whether only properties differ, of a record that was not durable: they have no checksum.

        A start cuts most such records off; where zeros are in the middle of them, or no tails say what was durable, it
        cannot know.
        """
        same = wanted._replace(properties=b"") == there._replace(properties=b"")
        return same and wanted.log_end > self.durable_end


def short(record: BareRecord) -> str:
    return (
        f"the message {record.body[:12]!r} of {record.topic}:{record.queue_id} (queue offset {record.queue_offset}, "
        f"log offset {record.log_offset})"
    )
