"""Transactions in a life: half messages, ends that are repeated or late or left out, checks, and what must come of it all."""

from __future__ import annotations

from metaq.broker.channel import carry_out
from metaq.broker.requests import EndTransaction, Send
from metaq.errors import Reason, Refused
from metaq.model import Heartbeat, SysFlag, TransactionOutcome
from metaq.model import properties as props
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC
from metaq.saved import Saving
from metaq.wire import hot
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request
from metaq.wire.headers import EndTransactionHeader, Header, SendHeader
from tests.crash.simulation.ledger import Broken, Transaction, short
from tests.crash.simulation.life import BORN, QUEUES, SOMEBODY, TOPICS, Life

GROUP = "payers"
ROUNDS = 12
"""In which the last check of a half message is surely over."""


class Transactions:
    """What a producer does with transactions: it always tells the same about one, whenever it tells anything."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._number = 0
        self._answers = life.chance.choice((0.2, 0.6, 1.0))
        """The share of the checks that it answers."""

    # ------------------------------------------------------------------ steps

    def begin(self) -> None:
        """Send a half message."""
        life, ledger = self._life, self._life.ledger
        self._number += 1
        topic, queue_id = life.chance.choice(TOPICS), life.chance.randrange(QUEUES)
        body = b"t%d:" % self._number + b"x" * life.chance.choice((0, 60, 3000))
        pairs = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: GROUP, props.UNIQUE_ID: f"u{self._number}"}
        if life.chance.random() < 0.2:
            pairs[props.CHECK_IMMUNITY] = "10"
        send = Send(
            topic=topic, body=body, queue_id=queue_id, born_ms=life.clock.now_ms(), born_host=BORN,
            properties=props.join(pairs), sys_flag=int(SysFlag.PREPARED), template_queues=QUEUES,
        )  # fmt: skip
        life.tell(f"begin {body[:6]!r} for {topic}:{queue_id}")
        if not ledger.topics.get(topic):
            ledger.topics[topic] = None
        transaction = ledger.transactions[body] = Transaction(topic, life.chance.random() < 0.7, f"u{self._number}")
        ledger.in_flight = [body]
        with life.refusals():
            try:
                self._send(send, transaction)
            except Saving as saving:
                for pending in saving.pending:
                    life.change(pending, lambda: None)
                if all(pending.done for pending in saving.pending):
                    if not ledger.topics.get(topic):  # it was being deleted, and is made again
                        ledger.topics[topic] = None
                    self._send(send, transaction)
        stored = life.absorb([body])
        if stored and transaction.slot >= 0:
            # Where the queue could not be read for want of a descriptor, `_send` knows the slot alone.
            transaction.log_offset = stored[-1].log_offset
        if [record.body for record in stored] != [body] * (transaction.slot >= 0):
            raise Broken(
                f"the half message {body[:6]!r} was acknowledged and is not in the log, or the other way round"
            )
        ledger.in_flight = []

    def _send(self, send: Send, transaction: Transaction) -> None:
        life = self._life
        header = SendHeader(
            producer_group=GROUP, topic=send.topic, queue_id=send.queue_id, sys_flag=send.sys_flag, born_ms=send.born_ms,
            properties=send.properties,
        )  # fmt: skip
        if life.chance.random() < 0.5 and self._fast(RequestCode.SEND_MESSAGE_V2, header, send.body, send.topic):
            transaction.slot = life.store.reader.queue(HALF_TOPIC, 0).max_offset - 1
            (unit,) = life.store.reader.queue(HALF_TOPIC, 0).units(transaction.slot, 1)
            transaction.log_offset = unit.log_offset
        else:
            put = life.broker.sends.send(send).put
            transaction.slot, transaction.log_offset = put.queue_offset, put.log_offset
        if send.topic not in self._life.ledger.limbo:
            self._life.ledger.topics[send.topic] = True

    def _fast(self, code: int, header: Header, body: bytes, topic: str) -> bool:
        """Whether the fast path has taken this request, which it need not."""
        data = encode(request(code, header, body))
        table, outcome, replies = hot.FrameTable(1 << 24), hot.AppendOutcome(), hot.Replies(b"DefaultRegion", True)
        table.scan(data, 0, len(data))
        gates = self._life.broker.gates.of(SOMEBODY)
        gates.open(topic.encode())
        self._life.broker.appender.rows(table, 0, 1, gates.table, BORN, replies, outcome)
        self._life.tell(f"... the fast path {'takes it' if outcome.row else 'leaves it'}")
        return outcome.row == 1

    def end(self) -> None:
        """End one, for the first time or once more, by the offsets of its send."""
        ledger = self._life.ledger
        known = [body for body, transaction in ledger.transactions.items() if transaction.slot >= 0]
        if known:
            body = self._life.chance.choice(known[-12:])
            self._end(body, ledger.transactions[body])

    def _end(self, body: bytes, transaction: Transaction) -> None:
        life = self._life
        log_min = max(life.store.log.min, life.ledger.log_min)  # a power cut may bring a file back, without its queue
        there: bool | None = life.ledger.knows_half(body, transaction, log_min)
        if not there and transaction.log_offset < log_min:
            there = None  # it is found by its unique id, if it was written anew
        where = ", which is lost" if there is False else "" if there else ", whose file has gone"
        life.tell(f"{'commit' if transaction.commit else 'roll back'} {body[:6]!r}{where}")
        self._end_at(body, transaction, transaction.slot, transaction.log_offset, there=there)

    def _end_at(self, body: bytes, transaction: Transaction, slot: int, log_offset: int, *, there: bool | None) -> None:
        life = self._life
        outcome = TransactionOutcome.COMMIT if transaction.commit else TransactionOutcome.ROLLBACK
        end = EndTransaction(
            producer_group=GROUP, slot=slot, log_offset=log_offset, outcome=outcome, message_id=transaction.message_id
        )
        life.ledger.in_flight = allowed = [body, *life.ledger.of_transactions()]
        header = EndTransactionHeader(
            producer_group=GROUP, half_queue_offset=slot, log_offset=log_offset, message_id=transaction.message_id,
            outcome=int(SysFlag.COMMITTED if transaction.commit else SysFlag.ROLLED_BACK),
        )  # fmt: skip
        fast = life.chance.random() < 0.5
        with life.refusals():
            try:
                if not (fast and self._fast(RequestCode.END_TRANSACTION, header, b"", transaction.topic)):
                    life.broker.transactions.end(end, SOMEBODY)
            except Refused as error:
                if not (error.reason is Reason.INVALID and not there) and not (
                    error.reason is Reason.NO_TOPIC and life.ledger.topics.get(transaction.topic) is not True
                ):
                    raise
                life.tell(f"... refused: {error}")
            else:
                if there is False:
                    raise Broken(f"the half message {body[:6]!r} is lost, and its end was taken")
        self._took(allowed)

    def check(self) -> None:
        """Let rounds of checks pass; the producer answers some."""
        life = self._life
        life.clock.advance(life.chance.choice((1.0, 3.5, 8.0)))
        life.tell("checks")
        self._ask()
        while life.producer.checks:
            check = life.producer.checks.pop(0)
            if life.chance.random() < self._answers:
                self._answer(check.half.body, check.half.queue_offset, check.half.log_offset)

    def _ask(self) -> None:
        life = self._life
        life.ledger.in_flight = allowed = [*life.ledger.delayed, *life.ledger.of_transactions()]
        with life.refusals():
            life.broker.beat(life.producer, "PYTHON", 409, Heartbeat("producer", (), (GROUP,)))
            life.broker.transactions.tick()
            for _ in range(3):
                asked, _ = life.broker.transactions.checks.step()
                carry_out(asked)
        self._took(allowed)

    def _answer(self, body: bytes, slot: int, log_offset: int) -> None:
        transaction = self._life.ledger.transactions.get(body)
        if transaction is not None:  # else its record was torn by a power cut
            self._life.tell(f"it answers the check of {body[:6]!r} at {slot}")
            there = (
                any(record.log_offset == log_offset and record.body == body for record in self._life.ledger.log)
                and log_offset >= self._life.store.log.min
            )
            self._end_at(body, transaction, slot, log_offset, there=there)

    def _took(self, allowed: list[bytes]) -> None:
        self._life.absorb(allowed)
        self._life.ledger.in_flight = []
        self.once()

    # ------------------------------------------------------------------ what holds

    def once(self) -> None:
        """No message is there twice, and none that was rolled back."""
        ledger = self._life.ledger
        for body, transaction in ledger.transactions.items():
            copies = ledger.copies(body, transaction)
            if len(copies) > transaction.commit:
                what = "committed" if transaction.commit else "rolled back"
                raise Broken(f"{short(copies[-1])} was {what} and is there {len(copies)} times")

    def owed(self) -> dict[bytes, int]:
        """Body → log offset of the half messages that are open, as the broker sees it."""
        progress, found = self._life.broker.transactions.progress, dict[bytes, int]()
        for body in self._life.ledger.transactions:
            half = self._life.ledger.newest_half(body)
            if (
                half is not None
                and half.log_offset >= self._life.ledger.log_min
                and progress.is_open(half.queue_offset)
            ):
                found[body] = half.log_offset
        return found

    def end_all(self) -> None:
        """The producer tells all that it knows, and answers every check: each transaction ends as it should."""
        life, ledger = self._life, self._life.ledger
        life.tell("end all transactions")
        for body, transaction in list(ledger.transactions.items()):
            if transaction.slot >= 0:
                self._end(body, transaction)
        for _ in range(ROUNDS):
            life.clock.advance(4)
            self._ask()
            while life.producer.checks:
                check = life.producer.checks.pop(0)
                self._answer(check.half.body, check.half.queue_offset, check.half.log_offset)
        for body, transaction in ledger.transactions.items():
            half = ledger.newest_half(body)
            gone = half is None or half.log_offset < ledger.log_min
            topic_gone = transaction.topic in ledger.deleted_at or ledger.topics.get(transaction.topic) is not True
            if transaction.commit and not gone and not topic_gone and not ledger.copies(body, transaction):
                raise Broken(
                    f"the transaction of {short(half)} was committed, and its message never came" if half else ""
                )
        for topic in (HALF_TOPIC, CHECK_MAX_TOPIC):
            life.tell(f"{topic}: {sum(record.topic == topic for record in ledger.log)} records")
        left = self.owed()
        if any(ledger.topics.get(ledger.transactions[body].topic) is True for body in left):
            raise Broken(f"these transactions are still open: {left}")
