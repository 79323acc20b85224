"""RocketMQ's transactions: half messages, invisible to consumers until END_TRANSACTION (37) commits or rolls them back.

END_TRANSACTION comes from the producer on its own or after a check (`metaq.broker.transactions.checks`). The first one counts: a
commit stores the message in its queue, and both outcomes write an op record. Repeated ones change nothing, also after a crash in
between (`metaq.broker.transactions.progress`); RocketMQ would store a second copy.

Nearly all half messages and ends take the fast path, which writes the same bytes (`hot.append`, TransactionService.gate). What it
leaves comes here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, MutableMapping

from metaq.broker.channel import carry_out
from metaq.broker.environment import Environment, ReadCold, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import sent_record
from metaq.broker.part import BrokerPart
from metaq.broker.requests import EndTransaction, Send
from metaq.broker.transactions.checks import TransactionChecks
from metaq.broker.transactions.progress import TransactionProgress
from metaq.broker.transactions.records import (
    OP_PROPERTIES_TEXT,
    OP_TAGS_CODE,
    committed,
    destination,
    half_properties,
    op,
    origin_of,
    resumed,
)
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage, TransactionOutcome
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.message import TRANSACTION_MASK, SysFlag
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from metaq.store.log.writer import Put
from metaq.wire.hot import TopicGate, TransactionGate
from metaq.wire.record import copied_from, decode_record

log = logging.getLogger(__name__)

_FOREVER_MS = 1 << 62
ENDED_MAX = 10_000
"""Cached transactions at most that were ended repeatedly, so that a further repetition needs no query of the index."""


class TransactionService(BrokerPart):
    """Stores half messages and ends transactions."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        appender: Appender,
        read_cold: ReadCold,
        gatekeeper: Gatekeeper,
    ) -> None:
        self._environment, self._store, self._topics = environment, environment.store, tables.topics
        self._appender, self._gatekeeper = appender, gatekeeper
        self.progress = TransactionProgress(environment.store, tables.offsets)
        self.checks = TransactionChecks(environment, tables, appender, self.progress, read_cold, gatekeeper)
        self.gate = TransactionGate(OP_PROPERTIES_TEXT, OP_TAGS_CODE, self.progress.may_end, self.progress.ended)
        """The fast path's view of transactions."""
        self._log = RateLimitedLog(log, environment.clock)
        self._ended = dict[tuple[int, str | None], None]()
        """(LogOffset, unique id) of half messages whose transactions have ended."""

    # ------------------------------------------------------------------ the fast path

    def open(self) -> None:
        """Recover open half messages, and open the fast path."""
        self.progress.open()
        self.checks.open()
        self.options_changed(())
        self._open_gate()
        self._store.keeper.owes(self)

    def options_changed(self, _names: Collection[str]) -> None:
        """Take over rejectTransactionMessage."""
        self.gate.takes_halves = not self._environment.options.reject_transaction_message

    def _open_gate(self) -> None:
        """Open the fast path for half messages and ends if their queues exist; the slow path creates them."""
        self.gate.half, self.gate.op = self._gate_of(HALF_TOPIC), self._gate_of(OP_TOPIC)

    def _gate_of(self, topic: str) -> TopicGate | None:
        queue = self._store.reader.existing_queue(topic, 0)
        return TopicGate(topic.encode(), [queue.tail], 1) if queue is not None else None

    # ------------------------------------------------------------------ half messages

    def prepare(self, send: Send, topic: str, queue_id: int, pairs: MutableMapping[str, str]) -> Put:
        """Store a half message for this topic and queue. `pairs`: its properties, changed in place.

        Raises Refused: NO_PERMISSION (`rejectTransactionMessage`), ILLEGAL_MESSAGE, or as `Appender.put`.
        """
        options = self._environment.options
        if options.reject_transaction_message:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the broker[{self._environment.name}] sending transaction message is forbidden (rejectTransactionMessage)",
            )
        half_properties(pairs, topic, queue_id, send.producer_group)
        record = sent_record(send, HALF_TOPIC, 0, pairs)
        put = self._appender.put([record])
        if self.gate.half is None:
            self._open_gate()
        return put

    # ------------------------------------------------------------------ ends

    def end(self, end: EndTransaction, caller: Caller) -> str:
        """End a transaction, if it is still open. Returns a remark for the response: that it had ended before, for example.

        Raises Refused: INVALID (no such half message, or another group's), NO_TOPIC, NO_PERMISSION, or as `Appender.put`;
        Saving while its topic is being created or deleted, or its queue is closed. The transaction stays open then.
        """
        # RocketMQ does not answer UNKNOWN at all; ours is answered, and nothing changes.
        if end.outcome is TransactionOutcome.UNKNOWN:
            return f"the transaction of the half message at queue offset {end.slot} stays open"
        try:
            return self._end(end, caller)
        except Refused as error:  # logged here: Java and Go send END_TRANSACTION one-way and see no response
            self._log.warning(
                (error.reason, caller.address), "a %s by producer group %.100s from %s is refused: %s",
                end.outcome.name.lower(), end.producer_group, caller.address, error,
            )  # fmt: skip
            raise

    def _end(self, end: EndTransaction, caller: Caller) -> str:
        named = self._named(end)
        topic, queue_id = destination(named)
        self._gatekeeper.check_uncovered(caller, Action.PUBLISH, topic)
        half = named if self.progress.is_open(named.queue_offset) else self._open_generation_of(named)
        if half is None:
            return (
                f"the transaction of the half message at queue offset {end.slot} has ended before: nothing was changed"
            )
        if end.outcome is not TransactionOutcome.COMMIT:
            slot = half.queue_offset
            # Rollback of one that was given up: a new generation with an op record, so that `resume` cannot bring it back.
            if not self.progress.is_open(slot):
                slot = self._appender.put([resumed(half, half)]).queue_offset
            self._store_op(slot)
            self.progress.finish(slot)
            return ""
        remark = self._commit(half, topic, queue_id)
        # The message first, then the op record: a crash in between must not lose the message. See `progress` for the start.
        self.progress.finish(half.queue_offset)
        self.progress.owed.append(half.queue_offset)
        self.store_ops()
        return remark

    def _named(self, end: EndTransaction) -> StoredMessage:
        """Return the half message that an end names. Raises Refused INVALID: there is none, or it is another group's."""
        if 0 <= end.log_offset < self._store.log.min and (moved := self._moved(end)) is not None:
            return moved
        # RocketMQ's checks (group, queue offset, log offset), with its texts, and the unique id, which RocketMQ does not compare.
        data = self._store.reader.record_at(end.log_offset) if end.log_offset >= 0 else None
        try:
            half = decode_record(data) if data is not None else None
        except RemoteProtocolError:
            half = None
        queue = self._store.reader.existing_queue(HALF_TOPIC, 0)
        if half is None or queue is None or half.topic != HALF_TOPIC:
            raise Refused(
                Reason.INVALID,
                f"Find prepared transaction message failed: there is no half message at log offset {end.log_offset}",
            )
        if half.properties.get(props.PRODUCER_GROUP) != end.producer_group:
            raise Refused(
                Reason.INVALID,
                f"The producer group wrong: the half message at log offset {end.log_offset} is not of {end.producer_group[:100]}",
            )
        if half.queue_offset != end.slot:
            raise Refused(
                Reason.INVALID,
                f"The transaction state table offset wrong: the half message at log offset {end.log_offset} does not have "
                f"queue offset {end.slot}",
            )
        unique_id = half.properties.get(props.UNIQUE_ID)
        if end.message_id and unique_id and end.message_id not in {unique_id, half.offset_id}:
            raise Refused(
                Reason.INVALID,
                f"The message id wrong: the half message at log offset {end.log_offset} is not {end.message_id[:80]}, which a "
                "power cut may have taken before it was on the disk",
            )
        units = queue.units(end.slot, 1)  # bytes that only look like a record, in somebody's body, have no unit
        if not units or units[0].log_offset != end.log_offset:
            raise Refused(
                Reason.INVALID,
                f"The commit log offset wrong: queue offset {end.slot} is not the half message at log offset {end.log_offset}",
            )
        return half

    def _moved(self, end: EndTransaction) -> StoredMessage | None:
        """Return a later generation of a half message whose log file is gone, by the message's unique id; None: unknown."""
        # Retention's rewriting has moved it: producers know only the place of the first generation.
        for half in self._by_key(HALF_TOPIC, end.message_id) if end.message_id else ():
            if origin_of(half) == end.slot and half.properties.get(props.PRODUCER_GROUP) == end.producer_group:
                return half
        return None

    def _open_generation_of(self, named: StoredMessage) -> StoredMessage | None:
        """Return the open generation, as `_open_generation`.

        A None is cached, too: a client may repeat an end a thousand times a second.
        """
        place = named.log_offset, named.properties.get(props.UNIQUE_ID)
        if place in self._ended:
            return None
        half = self._open_generation(named)
        if half is None:
            self._ended[place] = None
            if len(self._ended) > ENDED_MAX:
                del self._ended[next(iter(self._ended))]
        return half

    def _open_generation(self, named: StoredMessage) -> StoredMessage | None:
        """Return the newest generation of a half message that is done, if a check wrote it again or gave it up.

        None: its transaction has ended.

        Raises Refused INVALID: unknown, because there is no index or no unique id.
        """
        unique_id, origin = named.properties.get(props.UNIQUE_ID), origin_of(named)
        if not unique_id or self._store.index is None:
            raise Refused(
                Reason.INVALID,
                f"the half message at queue offset {named.queue_offset} is done: its transaction has ended, or a check has written "
                f"it anew, which cannot be found without {props.UNIQUE_ID} and messageIndexEnable. Nothing was changed; a "
                "transaction that is open is asked about again",
            )
        generations = {
            half.log_offset: half for half in self._by_key(HALF_TOPIC, unique_id) if origin_of(half) == origin
        }
        newest = max(generations.values(), key=lambda half: half.queue_offset, default=named)
        if self.progress.is_open(newest.queue_offset):
            return newest
        given_up = any(  # copies made by a RocketMQ broker do not name their half message
            copied_from(copy.prepared_offset) in {newest.log_offset, None}
            for copy in self._by_key(CHECK_MAX_TOPIC, unique_id)
        )
        topic, _ = destination(named)
        # The producer may have committed it after it was given up: then a message in the destination names a generation.
        if not given_up or any(
            copy.prepared_offset in generations and copy.sys_flag & TRANSACTION_MASK == SysFlag.COMMITTED
            for copy in self._by_key(topic, unique_id)
        ):
            return None
        return newest

    def _by_key(self, topic: str, unique_id: str) -> list[StoredMessage]:
        options = self._environment.store_options
        found = self._store.reader.query(topic, unique_id, options.max_msgs_num_batch, 0, _FOREVER_MS)
        messages = [decode_record(data) for data in found]
        return [message for message in messages if message.properties.get(props.UNIQUE_ID) == unique_id]

    def _commit(self, half: StoredMessage, topic: str, queue_id: int) -> str:
        """Store the message in its destination. Returns a remark for the response."""
        config = self._topics.taking(topic)
        if config is None:
            raise Refused(
                Reason.NO_TOPIC,
                f"topic[{topic}] not exist, so the half message at queue offset {half.queue_offset} cannot be committed: it "
                f"stays as it is, and can be once the topic is there (metaq topic create {topic})",
            )
        self._appender.closed_queues.pass_by(topic, queue_id)
        # The queue may have been removed since the half message was sent: stored nevertheless, and reported.
        self._appender.put([committed(half, topic, queue_id)])
        if queue_id < max(config.read_queues, config.write_queues):
            return ""
        remark = (
            f"a message was committed to queue {queue_id} of topic {topic}, which has no such queue now: it can be read "
            "once the queue is there again"
        )
        self._log.warning(("no queue", topic), "%s", remark)
        return remark

    def store_ops(self) -> None:
        """Write the op records that are owed. What cannot be stored now (full disk) is retried with the next tick."""
        owed = self.progress.owed
        try:
            while owed:
                self._store_op(owed[0])
                owed.popleft()
        except Refused as error:  # the commit itself was acknowledged, and no caller can act on this
            self._log.warning("op", "%d transactions have ended, and are to be marked so: %s", len(owed), error)

    def _store_op(self, slot: int) -> None:
        """Write the op record of this slot. Raises Refused, as `Appender.put`."""
        record = op(slot, self._environment.clock.now_ms(), self._environment.store_host)
        self.progress.op_stored(self._appender.put([record]).queue_offset, slot)
        if self.gate.op is None:
            self._open_gate()

    # ------------------------------------------------------------------ what was given up

    def resume(self, log_offset: int) -> str:
        """Put a given-up half message back (RESUME_CHECK_HALF_MESSAGE, 323): written again, with no checks counted.

        Returns the response's remark. Raises Refused: INVALID (no such record, or its transaction is open or has ended), or as
        `Appender.put`.
        """
        data = self._store.reader.record_at(log_offset) if log_offset >= 0 else None
        try:
            kept = decode_record(data) if data is not None else None
        except RemoteProtocolError:
            kept = None
        if kept is None or kept.topic != CHECK_MAX_TOPIC:
            raise Refused(
                Reason.INVALID,
                f"there is no message of topic {CHECK_MAX_TOPIC} at log offset {log_offset}: nothing was resumed",
            )
        topic, queue_id = destination(kept)
        again = self._newest(kept)
        if again is not None and self.progress.is_open(again.queue_offset):
            raise Refused(
                Reason.INVALID, f"the transaction of message {kept.message_id} is open: it is being asked about"
            )
        if again is not None and self._open_generation(again) is None:
            raise Refused(
                Reason.INVALID, f"the transaction of message {kept.message_id} has ended: nothing was resumed"
            )
        put = self._appender.put([resumed(kept, again)])
        return f"Put message back to {HALF_TOPIC}. real topic={topic}, real queue={queue_id}: queue offset {put.queue_offset}"

    def _newest(self, kept: StoredMessage) -> StoredMessage | None:
        """Return the newest generation of a given-up half message; None: not found by its unique id."""
        unique_id, before = kept.properties.get(props.UNIQUE_ID, ""), copied_from(kept.prepared_offset)
        halves = self._by_key(HALF_TOPIC, unique_id) if unique_id else []
        origins = {origin_of(half) for half in halves if half.log_offset == before}
        return max(
            (half for half in halves if not origins or origin_of(half) in origins),
            key=lambda half: half.queue_offset,
            default=None,
        )

    # ------------------------------------------------------------------ what is owed

    what = "half messages"

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest open half message, which retention must keep; None: none. From any thread."""
        return self.progress.oldest()

    def carry(self, before: int) -> None:
        """Have open half messages below this LogOffset written again, so that retention can delete the file. From any thread."""
        self.checks.carry(before)

    # ------------------------------------------------------------------ time

    def step(self) -> float:
        """Run transaction checks. Returns the seconds until the next call; 0: soon."""
        asked, pause = self.checks.step()
        carry_out(asked)
        return pause

    def tick(self) -> None:
        """Write owed op records, and pass on durable offsets."""
        self.store_ops()
        self.progress.settle()
        self._log.tick()
        self.checks.tick()

    def close(self) -> None:
        """Write owed op records, flush, and pass the offsets to `Offsets`, which is saved after this part."""
        self.store_ops()
        self.progress.close()
