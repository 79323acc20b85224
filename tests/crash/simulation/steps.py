"""What happens in a life: messages, topics, groups, positions, time, and troubles of the disk."""

from __future__ import annotations

import errno

from metaq.broker.requests import OffsetCommit, Send
from metaq.model import TopicConfig
from metaq.model import properties as props
from metaq.saved import Saving
from metaq.wire import hot
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request
from metaq.wire.headers import SendHeader
from tests.crash.simulation.bare import log_files
from tests.crash.simulation.checks import Checks
from tests.crash.simulation.ledger import Broken, short
from tests.crash.simulation.life import BORN, GROUPS, HINTS, QUEUES, SOMEBODY, TOPICS, Life
from tests.crash.simulation.staging import StagedTransactions
from tests.crash.simulation.transactions import Transactions


class Steps:
    """One step at a time, drawn by chance. What the broker acknowledges goes into the ledger."""

    def __init__(self, life: Life, checks: Checks) -> None:
        self._life, self._checks = life, checks
        self.transactions = Transactions(life)
        self.staged = StagedTransactions(life)
        self._much = life.chance.choice((1, 1, 10))
        """Times as many steps are about transactions as otherwise."""
        self._staged = life.chance.choice((0, 1, 1, 8))
        """The same for staged ones."""
        self._number = self._sent = 0

    def step(self) -> None:
        steps = (
            (self._send, 30), (self._send_run, 4), (self._send_batch, 6), (self._send_later, 5), (self._make_topic, 3),
            (self._delete_topic, 2), (self._make_group, 2), (self._commit, 4), (self._tick, 6), (self._flush_now, 8),
            (self._checkpoint, 6), (self._populate, 2), (self._retain, 1), (self._squeeze, 2 + self._much), (self._trouble, 2), (self._pull, 3),
            (self._note_hints, 1), (self.transactions.begin, 6 * self._much),
            (self.transactions.end, 4 * self._much), (self.transactions.check, 5 * self._much),
            (self.staged.stage, 8 * self._staged), (self.staged.seal, 2 * self._staged),
            (self.staged.decide, 5 * self._staged), (self.staged.deliver, 3 * self._staged),
            (self.staged.hang_up, self._staged),
        )  # fmt: skip
        (step,) = self._life.chance.choices([step for step, _ in steps], [weight for _, weight in steps])
        step()
        if self._life.chance.random() < 0.3:
            self._life.save()
        self.answer()

    def answer(self) -> None:
        """What was promised by now counts."""
        self._life.answer()
        self._life.ledger.durable_end = max(
            self._life.ledger.durable_end, min(self._life.store.state.flushed, self._life.ledger.log_end)
        )

    def _body(self) -> bytes:
        self._number += 1
        size = self._life.chance.choice((0, 60, 400, 3000, 12_000))
        return b"%d:" % self._number + self._life.chance.choice((b"x", b"\0")) * size

    def _request(self, topic: str, queue_id: int, pairs: dict[str, str], body: bytes, *, batch: bool = False) -> Send:
        return Send(
            topic=topic, body=body, queue_id=queue_id, born_ms=self._life.clock.now_ms(), born_host=BORN,
            properties=props.join(pairs), batch=batch, template_queues=QUEUES,
        )  # fmt: skip

    def _frame(self, topic: str, queue_id: int, pairs: dict[str, str], body: bytes) -> bytes:
        header = SendHeader(
            producer_group="p", topic=topic, default_topic="TBW102", default_topic_queues=QUEUES, queue_id=queue_id, sys_flag=0,
            born_ms=self._life.clock.now_ms(), flag=0, properties=props.join(pairs),
        )  # fmt: skip
        return encode(request(RequestCode.SEND_MESSAGE_V2, header, body))

    def _send(self, *, delay: int = 0) -> None:
        ledger = self._life.ledger
        topic, queue_id, body = self._life.chance.choice(TOPICS), self._life.chance.randrange(QUEUES), self._body()
        pairs = {}
        if self._life.chance.random() < 0.6:
            pairs[props.KEYS] = f"k{self._number}"
        if self._life.chance.random() < 0.3:
            pairs["last"] = "ends in NULs\0" + "\0" * self._life.chance.choice((0, 600))
        if delay:
            pairs[props.DELAY] = str(delay)
        self._life.tell(
            f"send {body[:6]!r} ({len(body)}) to {topic}:{queue_id}" + (f", delay level {delay}" if delay else "")
        )
        if ledger.topics.get(topic) is False or topic not in ledger.topics:
            ledger.topics[topic] = None
        ledger.in_flight = [body]
        if props.KEYS in pairs:
            ledger.keys[body] = pairs[props.KEYS]
        before = self._sent
        with self._life.refusals():
            try:
                self._send_now(topic, queue_id, pairs, body)
            except Saving as saving:  # the topic is being made: as a server does, once more after that
                for pending in saving.pending:
                    self._life.change(pending, lambda: None)
                if all(pending.done for pending in saving.pending):
                    if not ledger.topics.get(topic):
                        ledger.topics[topic] = None
                    self._send_now(topic, queue_id, pairs, body)
        self._stored([body], self._sent - before)

    def _send_now(self, topic: str, queue_id: int, pairs: dict[str, str], body: bytes) -> None:
        self._life.broker.sends.send(self._request(topic, queue_id, pairs, body))
        self._sent += 1
        self._is_there(topic)
        if props.DELAY in pairs:
            self._life.ledger.delayed[body] = topic, queue_id

    def _stored(self, bodies: list[bytes], acknowledged: int) -> None:
        """So many of these messages were acknowledged, in their order, and the others refused."""
        found = self._life.absorb(bodies)
        if [record.body for record in found] != bodies[:acknowledged]:
            raise Broken(f"{acknowledged} messages were acknowledged, and {len(found)} are in the log")
        self._life.ledger.in_flight = []
        if found and self._life.flush_type == "SYNC_FLUSH":
            store = self._life.store
            store.flusher.when_flushed(
                found[-1].log_end,
                # Of a pair, another broker may lead by then: its log is held against the ledger.
                lambda good: self._answered(found[-1].log_end, good=good and store is self._life.process.store),
            )
            if self._life.chance.random() < 0.3:
                self._flush_now()

    def _answered(self, log_end: int, *, good: bool) -> None:
        if good:
            self._life.ledger.durable_end = max(self._life.ledger.durable_end, log_end)

    def _send_batch(self) -> None:
        topic, queue_id = self._life.chance.choice(TOPICS), self._life.chance.randrange(QUEUES)
        if not self._life.ledger.topics.get(topic):
            return
        bodies = [self._body()[:500] for _ in range(self._life.chance.randint(2, 12))]
        self._life.tell(f"send a batch of {len(bodies)}, {bodies[0][:6]!r} and so on, to {topic}:{queue_id}")
        entries = b"".join(_batch_entry(body) for body in bodies)
        self._life.ledger.in_flight = bodies
        acknowledged = 0
        with self._life.refusals():
            self._life.broker.sends.send(self._request(topic, queue_id, {}, entries, batch=True))
            acknowledged = len(bodies)
        self._stored(bodies, acknowledged)

    def _send_run(self) -> None:
        """Many sends in one read event: the fast path."""
        topic, rows = self._life.chance.choice(TOPICS), self._life.chance.randint(1, 30)
        if not self._life.ledger.topics.get(topic):
            return
        bodies = [self._body() for _ in range(rows)]
        self._life.tell(f"send a run of {rows}, {bodies[0][:6]!r} and so on, to {topic}")
        frames = list[bytes]()
        for body in bodies:
            key = f"k{body.partition(b':')[0].decode()}"
            frames.append(self._frame(topic, self._life.chance.randrange(QUEUES), {props.KEYS: key}, body))
            self._life.ledger.keys[body] = key
        data = b"".join(frames)
        table, outcome = hot.FrameTable(1 << 24), hot.AppendOutcome()
        table.scan(data, 0, len(data))
        replies = hot.Replies(b"DefaultRegion", True)
        self._life.ledger.in_flight = bodies
        with self._life.refusals():
            gates = self._life.broker.gates.of(SOMEBODY)
            gates.open(topic.encode())
            self._life.broker.appender.rows(table, 0, rows, gates.table, BORN, replies, outcome)
        self._stored(bodies, outcome.row)

    def _send_later(self) -> None:
        self._send(delay=self._life.chance.randint(1, 2))

    def _make_topic(self) -> None:
        name = self._life.chance.choice(TOPICS)
        queues = self._life.chance.randint(QUEUES, QUEUES + 4)
        self._life.tell(f"make the topic {name} with {queues} queues")
        if not self._life.ledger.topics.get(name):
            self._life.ledger.topics[name] = None
        with self._life.refusals():
            self._life.change(
                self._life.broker.topics.update(TopicConfig(name, queues, queues)), lambda: self._is_there(name)
            )

    def _delete_topic(self) -> None:
        name = self._life.chance.choice(TOPICS)
        if self._life.ledger.topics.get(name) is not True:
            return
        self._life.tell(f"delete the topic {name}")
        self._life.ledger.topics[name] = None
        self._life.ledger.limbo[name] = self._life.store.log.end
        with self._life.refusals():
            self._life.change(self._life.broker.delete_topic(name), lambda: self._is_gone(name))

    def _is_there(self, name: str) -> None:
        if name not in self._life.ledger.limbo:
            self._life.ledger.topics[name] = True

    def _is_gone(self, name: str) -> None:
        self._life.tell(f"the topic {name} is deleted")
        ledger = self._life.ledger
        ledger.topics[name] = False
        ledger.deleted_at[name] = ledger.limbo.pop(name)
        for place in [place for place in ledger.positions if place[1] == name]:
            ledger.positions[place] = {None}

    def _make_group(self) -> None:
        name = self._life.chance.choice(GROUPS)
        self._life.tell(f"make the group {name}")
        if not self._life.ledger.groups.get(name):
            self._life.ledger.groups[name] = None
        with self._life.refusals():
            try:
                self._life.broker.groups.require(name)
                self._life.ledger.groups[name] = True
            except Saving as saving:
                for pending in saving.pending:
                    self._life.change(pending, lambda: self._life.ledger.groups.__setitem__(name, True))

    def _commit(self) -> None:
        group, topic = self._life.chance.choice(GROUPS), self._life.chance.choice(TOPICS)
        if not (self._life.ledger.groups.get(group) and self._life.ledger.topics.get(topic)):
            return
        offset = self._life.chance.randrange(50)
        self._life.tell(f"{group} commits {offset} in {topic}:0")
        with self._life.refusals():
            self._life.broker.commit_offset(OffsetCommit(group=group, topic=topic, queue_id=0, offset=offset))
            self._life.ledger.positions.setdefault((group, topic, 0), {None}).add(offset)

    def _tick(self) -> None:
        seconds = self._life.chance.choice((0.1, 1.0, 6.0, 11.0))
        self._life.tell(f"{seconds} s pass")
        self._life.clock.advance(seconds)
        waiting = [*self._life.ledger.delayed, *self._life.ledger.of_transactions()]
        self._life.ledger.in_flight = waiting
        with self._life.refusals():
            self._life.broker.tick()
        for record in self._life.absorb(waiting):
            if record.topic in TOPICS and not self._life.ledger.topics.get(
                record.topic
            ):  # deleted since: the next start may bring it back for this
                self._life.ledger.topics[record.topic] = None
        self._life.ledger.in_flight = []

    def _flush_now(self) -> None:
        self._life.tell("flush")
        self._life.store.flusher.flush()

    def _checkpoint(self) -> None:
        self._life.tell("checkpoint")
        with self._life.refusals():
            self._life.store.keeper.checkpoint()

    def _populate(self) -> None:
        self._life.tell("populate")
        with self._life.refusals():
            self._life.store.writer.populate()

    def _retain(self) -> None:
        self._life.tell("an hour passes, what is over goes")
        self._life.clock.advance(3600 * self._life.chance.choice((0.5, 1.01)))
        self.let_go()

    def _squeeze(self) -> None:
        """The disk is rather full: files go before their time, as soon as what is owed in them was written anew."""
        self._life.tell("the disk is rather full for a while")
        used = self._life.chance.choice((88.0, 88.0, 91.0))
        self._life.disk.used = (
            min(used, 88.0) if self._life.disk_is_bad else used
        )  # at 91, what cannot be copied is given up
        for _ in range(3):
            self.let_go()
            waiting = [*self._life.ledger.delayed, *self._life.ledger.of_transactions()]
            self._life.ledger.in_flight = waiting
            with self._life.refusals():
                self._life.broker.deliver()
                self._life.broker.deliver()
            self._life.absorb(waiting)
        self._life.disk.used = None
        self.let_go()

    def let_go(self) -> None:
        """Retention at work: nothing that is still needed goes."""
        self._life.ledger.in_flight = []
        files = [int(path.name) for path in log_files(self._life.disk.root)]
        owed, open_halves = self._life.ledger.still_to_deliver(), self.transactions.owed()
        before, self._life.ledger.log_min = self._life.ledger.log_min, max([self._life.ledger.log_min, *files])
        with self._life.refusals():
            self._life.store.keeper.retain(self._life.clock.now_ms(), at_once=True)
        self._life.ledger.log_min = max(before, self._life.store.log.min)
        for record in owed:
            if record.log_offset < self._life.store.log.min:
                raise Broken(f"{short(record)} was still to be delivered, and its log file went")
        for body, place in open_halves.items():
            if place < self._life.store.log.min:
                raise Broken(f"the half message {body[:6]!r} at log offset {place} was open, and its log file went")

    def _trouble(self) -> None:
        """Begin or end a time of faults."""
        disk = self._life.disk
        if self._life.disk_is_bad:
            self._life.tell("the trouble is over")
            disk.room, disk.open_error, disk.make_error = None, 0, 0
            return
        what = self._life.chance.choice(("full", "files", "error"))
        self._life.tell(f"trouble: {what}")
        self._life.report.faults += 1
        if what == "full":
            disk.room = self._life.chance.randrange(0, 80_000)
            disk.make_error = self._life.chance.choice((0, errno.ENOSPC))
        elif what == "files":
            disk.open_error = errno.EMFILE
        elif disk.on_call is None:
            self._life.one_error(disk, self._life.chance.randint(1, 5))

    def _pull(self) -> None:
        if self._life.disk.open_error == 0:
            self._checks.queues(self._life.ledger.wanted())

    def _note_hints(self) -> None:
        for name in HINTS:
            path = self._life.disk.root / name
            if path.exists():
                self._life.hints[name] = path.read_bytes()


def _batch_entry(body: bytes) -> bytes:
    """One message of a batch's body: total size, magic, CRC, flag, body, properties."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2
    return b"".join((
        size.to_bytes(4, "big"), bytes(12), len(body).to_bytes(4, "big"), body, (0).to_bytes(2, "big"),
    ))  # fmt: skip
