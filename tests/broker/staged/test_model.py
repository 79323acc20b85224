"""Staged transactions against a model of them: two brokers on disks whose power can be cut, and the way between them.

Whatever is staged, sealed, decided, applied, cut, lost, expired or retained: what consumers see is what was committed,
whole, once, each part's messages together, and nothing else.
"""

from __future__ import annotations

import itertools
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Struct, field

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.requests import Apply, Decide, SealPart, Send, Stage
from metaq.broker.staged import service as staging
from metaq.broker.staged.peers import Finish, NoAnswer, PeerAnswer, Question, Settle
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import TopicConfig
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    Phase,
    TransactionDecision,
)
from metaq.options import BrokerOptions, StoreOptions
from metaq.saved import Saving
from metaq.store.config_file import ConfigFile
from metaq.store.message_store import MessageStore
from metaq.testing.power import PowerLossDisk
from tests.broker.staged.support import SOMEBODY, batch, seal_of, stored
from tests.broker.support import BORN_HOST, STORE_HOST, FakeChannel
from tests.effort import repeats

START_MS = 1_700_000_000_000
NAMES = ("broker-a", "broker-b")
QUEUES = (("orders", 0), ("orders", 1), ("stock", 0))
SECONDS = 600
"""What transactions with an age have."""


class ModelPart(Struct):
    """What was staged of a part."""

    broker: str
    part: str
    topic: str
    queue_id: int
    chunks: list[tuple[bytes, ...]] = field(default_factory=list)
    """The messages of each chunk that was asked to be staged; those from `acked` on may be there, or not."""
    acked: int = 0
    sealed: bool = False

    @property
    def data(self) -> list[bytes]:
        return [batch(*chunk) for chunk in self.chunks]

    def named(self) -> ManifestPart:
        whole = seal_of(*self.data, rows=sum(map(len, self.chunks)))
        return ManifestPart(self.broker, self.part, self.topic, self.queue_id, whole)


class ModelTransaction(Struct, eq=False):
    """What is known of a transaction."""

    id: str
    coordinator: str
    lifetime: PartLifetime
    parts: dict[tuple[str, str], ModelPart] = field(default_factory=dict)
    asked: set[DecisionOutcome] = field(default_factory=set)
    """What clients have asked for."""
    outcome: DecisionOutcome | None = None
    """What a client was told, or the coordinator has said."""
    manifest: tuple[ManifestPart, ...] = ()
    first_ms: int = -1
    may_end: bool = False
    """Its age, or its connection's end, may have rolled it back."""
    unsure: bool = False
    """What its manifest names may not be staged: the disk was full."""


class Node:
    """A broker on its disk."""

    def __init__(self, name: str, disk: PowerLossDisk, world: StagingModel) -> None:
        self.name, self.disk, self._world = name, disk, world
        disk.used = 10.0  # whatever the disk of the machine says
        self.open()

    def open(self) -> None:
        options = StoreOptions(
            store_path_root_dir=str(self.disk.root),
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 50,
            max_hash_slot_num=13,
            max_index_num=400,
            max_message_size=20_000,
            file_reserved_time=1,
            hot_bytes=100_000,
        )
        self.store = MessageStore(
            options, self._world.clock, STORE_HOST, "DefaultCluster", disk=self.disk, threads=False
        )
        table = BrokerOptions(broker_name=self.name, broker_cluster_name="DefaultCluster")
        environment = Environment(table, options, self._world.clock, self.store, self.name, STORE_HOST)
        config = self.disk.root / "config"
        self.broker = Broker(
            environment, broker_files(lambda name: ConfigFile(config / name, self.disk)), peers=Link(self._world)
        )
        self.broker.lead()
        turns = itertools.count()
        self.broker.staging.stopwatch = lambda: float(next(turns))  # a chunk a turn
        for topic in ("orders", "stock"):
            self.broker.topics.update(TopicConfig(topic, 2, 2))
        self.store.flusher.flush()

    def leave(self) -> None:
        self.store.folder.close()


class Link:
    """The way between brokers."""

    def __init__(self, world: StagingModel) -> None:
        self._world = world

    def ask(self, broker: str, question: Question, done: Callable[[PeerAnswer], None]) -> None:
        node, mode = self._world.nodes[broker], self._world.link
        if mode == "down":
            done(NoAnswer("the link is down"))
            return
        try:
            service = node.broker.staging
            told: PeerAnswer
            if isinstance(question, Finish):
                told = service.apply(
                    Apply(transaction=question.decision.transaction, decision=question.decision), SOMEBODY
                )
            elif isinstance(question, Settle):
                told = service.settle(question.transaction)
            else:
                told = service.state(question.transaction)
            node.store.flusher.flush()
        except Refused as error:
            told = NoAnswer(str(error))
        done(NoAnswer("the answer was lost") if mode == "lost" else told)


class StagingModel(RuleBasedStateMachine):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = mock.patch.object(staging, "AT_ONCE_BYTES", 4000)  # so that commits take several steps
        self.patch.start()
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="metaq-staging-"))
        self.folders = (self.base / str(number) for number in itertools.count())
        self.clock = FakeClock(START_MS)
        self.link = "up"
        self.serial = itertools.count()
        self.transactions: dict[str, ModelTransaction] = {}
        self.plain: dict[str, set[bytes]] = {name: set() for name in NAMES}
        self.maybe: dict[str, set[bytes]] = {name: set() for name in NAMES}
        """Sent, but the answer was lost with the power."""
        self.seen: dict[str, dict[tuple[str, int], list[tuple[int, bytes]]]] = {
            name: {queue: [] for queue in QUEUES} for name in NAMES
        }
        """What consumers have seen, and retention may have taken since: (queue offset, body)."""
        self.channels = {name: FakeChannel() for name in NAMES}
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(NAMES):
            self.nodes[name] = Node(name, PowerLossDisk(next(self.folders), number), self)

    def teardown(self) -> None:
        self.settle_all()
        for node in self.nodes.values():
            node.broker.close()
            node.store.close()
            node.disk.close()
        shutil.rmtree(self.base)
        self.patch.stop()

    # ------------------------------------------------------------------ requests

    def body(self) -> bytes:
        return f"{next(self.serial):06}".encode()

    def pick(self, which: int) -> ModelTransaction | None:
        """One of the newest, open or over, by chance."""
        found = list(self.transactions.values())
        return found[-1 - which % min(3, len(found))] if found else None

    def do(self, name: str, act: Callable[[], object]) -> bool:
        """Ask a broker; whether it was done, and is durable. Refusals are right while the disk is full."""
        node = self.nodes[name]
        try:
            act()
        except (Refused, Saving) as error:
            if node.disk.room is None:
                raise
            assert isinstance(error, Saving) or error.retriable or error.reason is Reason.NOT_FOUND, error
            return False
        node.store.flusher.flush()
        return True

    def begin(self, coordinator: str, lifetime: PartLifetime) -> None:
        name = f"t{next(self.serial)}@{coordinator}"
        self.transactions[name] = ModelTransaction(name, coordinator, lifetime)

    @rule(coordinator=st.sampled_from(NAMES), lifetime=st.sampled_from(PartLifetime), parts=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(QUEUES), st.integers(1, 4), st.booleans()), min_size=1, max_size=3
    ))  # fmt: skip
    def begin_with_parts(
        self, coordinator: str, lifetime: PartLifetime, parts: list[tuple[str, tuple[str, int], int, bool]]
    ) -> None:
        """What most clients do: whole parts, all sealed."""
        self.begin(coordinator, lifetime)
        for number, (broker, queue, chunks, large) in enumerate(parts):
            for place in range(chunks):
                self.stage(0, broker, number, queue, 2, True, large, place == chunks - 1)

    @rule(which=st.integers(0, 99), broker=st.sampled_from(NAMES), part=st.integers(0, 2), queue=st.sampled_from(QUEUES),
          rows=st.integers(1, 4), answered=st.booleans(), large=st.booleans(), seal=st.booleans())  # fmt: skip
    def stage(
        self,
        which: int,
        broker: str,
        part: int,
        queue: tuple[str, int],
        rows: int,
        answered: bool,
        large: bool,
        seal: bool,
    ) -> None:
        """The next chunk of a part; its answer is lost with the broker if it is not `answered`."""
        transaction = self.pick(which)
        if transaction is None or transaction.asked or transaction.may_end:
            return
        self.look_for_the_end(transaction)
        if transaction.outcome is not None:
            return
        model = transaction.parts.setdefault((broker, f"p{part}"), ModelPart(broker, f"p{part}", *queue))
        if model.sealed:
            return
        if model.acked == len(model.chunks):
            size = 3000 if large else 1
            model.chunks.append(tuple(self.body().ljust(size, b".") for _ in range(rows)))
        number = model.acked
        sealed = seal and number + 1 == len(model.chunks)
        chunk = Chunk(
            part=model.part, number=number, topic=model.topic, queue_id=model.queue_id, body=model.data[number],
            seal=model.named().seal if sealed else None,
        )  # fmt: skip
        request = Stage(
            transaction=transaction.id, chunks=(chunk,), born_ms=self.clock.now_ms(), born_host=BORN_HOST,
            lifetime=transaction.lifetime, seconds=SECONDS,
        )  # fmt: skip
        if transaction.first_ms < 0:
            transaction.first_ms = self.clock.now_ms()
        service = self.nodes[broker].broker.staging
        if not answered:
            self.ask_and_crash(broker, lambda: service.stage(request, SOMEBODY, self.channels[broker]))
            return
        told = []
        if self.do(broker, lambda: told.append(service.stage(request, SOMEBODY, self.channels[broker]))):
            if told[0].decision is not None:
                self.look_for_the_end(transaction)
                assert transaction.outcome is told[0].decision.outcome
                return
            model.acked += 1
            model.sealed = model.sealed or sealed

    @rule(which=st.integers(0, 99))
    def stage_again(self, which: int) -> None:
        """All that was answered, as after a lost answer; then other content under a number that is there."""
        transaction = self.pick(which)
        if transaction is None or transaction.may_end:
            return
        for model in transaction.parts.values():
            if not model.acked:
                continue
            for body in (model.data[0], batch(b"other")):
                chunk = Chunk(part=model.part, number=0, topic=model.topic, queue_id=model.queue_id, body=body)
                request = Stage(
                    transaction=transaction.id, chunks=(chunk,), born_ms=self.clock.now_ms(), born_host=BORN_HOST,
                    lifetime=transaction.lifetime, seconds=SECONDS,
                )  # fmt: skip
                state = self.nodes[model.broker].broker.staging.state(transaction.id)
                if state.phase not in {Phase.OPEN, Phase.PREPARED}:
                    break
                try:
                    self.nodes[model.broker].broker.staging.stage(request, SOMEBODY, self.channels[model.broker])
                except Refused as error:
                    assert "other content" in error.text, error
                    assert body != model.data[0]
                else:
                    assert body == model.data[0]

    @rule(which=st.integers(0, 99))
    def seal(self, which: int) -> None:
        transaction = self.pick(which)
        if transaction is None or transaction.asked:
            return
        for model in transaction.parts.values():
            if model.acked and model.acked == len(model.chunks) and not model.sealed:
                if self.nodes[model.broker].broker.staging.state(transaction.id).phase is not Phase.OPEN:
                    continue
                request = SealPart(transaction=transaction.id, part=model.part, seal=model.named().seal)
                if self.do(model.broker, lambda: self.nodes[model.broker].broker.staging.seal(request, SOMEBODY)):  # noqa: B023
                    model.sealed = True

    @rule(
        which=st.integers(0, 99),
        outcome=st.sampled_from(DecisionOutcome),
        answered=st.booleans(),
        leave_out=st.booleans(),
    )
    def decide(self, which: int, outcome: DecisionOutcome, *, answered: bool, leave_out: bool) -> None:
        transaction = self.pick(which)
        if transaction is None:
            return
        self.look_for_the_end(transaction)
        parts = tuple(model.named() for model in transaction.parts.values() if model.sealed)
        if transaction.outcome is DecisionOutcome.PREPARED:
            parts = transaction.manifest
        elif leave_out:
            parts = parts[1:]
        if DecisionOutcome.COMMIT in transaction.asked or DecisionOutcome.PREPARED in transaction.asked:
            parts = transaction.manifest
        if outcome is not DecisionOutcome.ROLLBACK:
            transaction.manifest = parts
        transaction.asked.add(outcome)
        request = Decide(
            transaction=transaction.id, outcome=outcome, parts=None if outcome is DecisionOutcome.ROLLBACK else parts
        )
        node = self.nodes[transaction.coordinator]
        if not answered:
            forgotten = transaction.unsure or self.is_retained(transaction)
            self.ask_and_crash(node.name, lambda: node.broker.staging.decide(request, SOMEBODY), may_refuse=forgotten)
            return
        told = []
        try:
            done = self.do(node.name, lambda: told.append(node.broker.staging.decide(request, SOMEBODY)))
        except Refused:  # what is over is forgotten when the log is, and its parts are not there any more
            assert transaction.unsure or self.is_retained(transaction), "a right manifest was refused"
            return
        if done:
            decision: TransactionDecision = told[0].decision
            assert decision.transaction == transaction.id
            if transaction.outcome in {DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK}:
                right = decision.outcome is transaction.outcome and not told[0].first
                assert right or self.is_retained(transaction), (transaction, told)
            self.learn(transaction, decision.outcome)

    def is_retained(self, transaction: ModelTransaction) -> bool:
        """Whether the log's beginning may have taken what was decided."""
        return self.nodes[transaction.coordinator].store.log.min > 0 and transaction.outcome is not None

    @rule(broker=st.sampled_from(NAMES), queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3),
          answered=st.booleans(), large=st.booleans())  # fmt: skip
    def commit_at_once(self, broker: str, queues: list[tuple[str, int]], answered: bool, large: bool) -> None:
        """A small transaction of one broker, in one request; sent once more if there was no answer."""
        self.begin(broker, PartLifetime.AGE)
        transaction = self.pick(0)
        assert transaction is not None
        for number, queue in enumerate(queues):
            rows = tuple(self.body().ljust(3000 if large else 1, b".") for _ in range(2))
            transaction.parts[broker, f"p{number}"] = ModelPart(broker, f"p{number}", *queue, [rows], 1, sealed=True)
        models = list(transaction.parts.values())
        transaction.manifest = tuple(model.named() for model in models)
        transaction.asked.add(DecisionOutcome.COMMIT)
        transaction.first_ms = self.clock.now_ms()
        chunks = tuple(
            Chunk(part=model.part, number=0, topic=model.topic, queue_id=model.queue_id, body=model.data[0],
                  seal=model.named().seal)
            for model in models
        )  # fmt: skip
        request = Stage(
            transaction=transaction.id, chunks=chunks, born_ms=self.clock.now_ms(), born_host=BORN_HOST, seconds=SECONDS,
            decide=Decide(transaction=transaction.id, outcome=DecisionOutcome.COMMIT, parts=transaction.manifest),
        )  # fmt: skip
        told = []
        if not answered:
            self.ask_and_crash(broker, lambda: self.nodes[broker].broker.staging.stage(request, SOMEBODY))
        if self.do(broker, lambda: told.append(self.nodes[broker].broker.staging.stage(request, SOMEBODY))):
            assert told[0].decision.outcome is DecisionOutcome.COMMIT
            self.learn(transaction, DecisionOutcome.COMMIT)
        else:
            transaction.unsure = True

    @rule(which=st.integers(0, 99))
    def commit(self, which: int) -> None:
        self.decide(which, DecisionOutcome.COMMIT, answered=True, leave_out=False)

    @rule(which=st.integers(0, 99), broker=st.sampled_from(NAMES))
    def apply(self, which: int, broker: str) -> None:
        """A client brings a participant the decision."""
        transaction = self.pick(which)
        if transaction is None:
            return
        decision = self.nodes[transaction.coordinator].broker.staging.state(transaction.id).decision
        if decision is None:
            return
        request = Apply(transaction=transaction.id, decision=decision)
        self.do(broker, lambda: self.nodes[broker].broker.staging.apply(request, SOMEBODY))

    @rule(broker=st.sampled_from(NAMES), queue=st.sampled_from(QUEUES), size=st.sampled_from((6, 15_000)))
    def send(self, broker: str, queue: tuple[str, int], size: int) -> None:
        body = self.body().ljust(size, b".")
        send = Send(topic=queue[0], queue_id=queue[1], body=body, born_ms=self.clock.now_ms(), born_host=BORN_HOST)
        node, done = self.nodes[broker], False
        try:
            done = self.do(broker, lambda: node.broker.sends.send(send))
        except Saving:
            assert node.broker.appender.closed_queues.has(*queue)
        if done:
            self.plain[broker].add(body)

    @rule(broker=st.sampled_from(NAMES))
    def fill_a_log_file(self, broker: str) -> None:
        for _ in range(5):
            self.send(broker, ("orders", 1), 15_000)

    # ------------------------------------------------------------------ what goes on by itself

    @rule(broker=st.sampled_from(NAMES))
    def turn(self, broker: str) -> None:
        node = self.nodes[broker]
        node.broker.tick()
        node.broker.deliver()
        node.store.flusher.flush()

    @rule(seconds=st.sampled_from((1, 20, 400)))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.grow_old()
        for name in NAMES:
            self.turn(name)

    def grow_old(self) -> None:
        for transaction in self.transactions.values():
            if transaction.lifetime is PartLifetime.AGE and transaction.first_ms >= 0:
                age_ms = self.clock.now_ms() - transaction.first_ms
                transaction.may_end = transaction.may_end or age_ms >= SECONDS * 1000

    @rule(broker=st.sampled_from(NAMES))
    def close_connection(self, broker: str) -> None:
        channel, self.channels[broker] = self.channels[broker], FakeChannel()
        self.connections_end(broker)
        self.nodes[broker].broker.closed(channel)
        self.nodes[broker].store.flusher.flush()

    def connections_end(self, broker: str) -> None:
        for transaction in self.transactions.values():
            if transaction.lifetime is PartLifetime.CONNECTION and any(name == broker for name, _ in transaction.parts):
                transaction.may_end = True

    @rule(mode=st.sampled_from(("up", "down", "lost")))
    def change_link(self, mode: str) -> None:
        self.link = mode

    @rule(broker=st.sampled_from(NAMES), full=st.booleans())
    def fill_disk(self, broker: str, full: bool) -> None:
        self.nodes[broker].disk.room = 0 if full else None

    @rule(broker=st.sampled_from(NAMES))
    def retain(self, broker: str) -> None:
        """The log's old files are to go: what is needed of them is written anew first."""
        node = self.nodes[broker]
        self.look()
        self.clock.advance(2 * 3600)
        self.grow_old()
        for _ in range(40):
            node.store.keeper.retain(self.clock.now_ms(), at_once=True)
            node.broker.tick()
            node.broker.staging.step()
            node.store.flusher.flush()
        node.store.keeper.checkpoint()

    # ------------------------------------------------------------------ ends

    def ask_and_crash(self, name: str, act: Callable[[], object], *, may_refuse: bool = False) -> None:
        """The answer is lost: the power goes, or the process, before or behind the disk."""
        try:
            act()
        except (Refused, Saving):
            if self.nodes[name].disk.room is None and not may_refuse:
                raise
        self.crash(name, power=True)

    @rule(broker=st.sampled_from(NAMES), power=st.booleans())
    def crash(self, broker: str, power: bool) -> None:
        node = self.nodes[broker]
        room = node.disk.room
        disk = node.disk.cut(next(self.folders)) if power else node.disk.kill(next(self.folders))
        node.leave()
        node.disk.close()
        disk.room = None
        self.connections_end(broker)
        self.nodes[broker] = Node(broker, disk, self)
        disk.room = room
        self.channels[broker] = FakeChannel()

    @rule(broker=st.sampled_from(NAMES))
    def restart(self, broker: str) -> None:
        node = self.nodes[broker]
        node.disk.room = None
        node.broker.close()
        node.store.close()
        node.disk.restart()
        self.connections_end(broker)
        node.open()
        self.channels[broker] = FakeChannel()

    # ------------------------------------------------------------------ what must hold

    def learn(self, transaction: ModelTransaction, outcome: DecisionOutcome) -> None:
        if transaction.outcome in {None, DecisionOutcome.PREPARED}:
            transaction.outcome = outcome

    def look_for_the_end(self, transaction: ModelTransaction) -> None:
        """What the coordinator says must be what was asked for, or what time has brought; and stay."""
        state = self.nodes[transaction.coordinator].broker.staging.state(transaction.id)
        found = state.decision.outcome if state.decision is not None else None
        if transaction.outcome in {DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK}:
            # What is over everywhere that the manifest names is forgotten with the log; parts that it did not name are
            # rolled back then, which says so of the transaction.
            assert found is transaction.outcome or self.is_retained(transaction), transaction
            return
        if transaction.outcome is DecisionOutcome.PREPARED:
            assert found is not None, transaction
        if found is not None:
            assert found in transaction.asked or (found is DecisionOutcome.ROLLBACK and transaction.may_end), (
                transaction
            )
            assert found is not DecisionOutcome.PREPARED or state.decision.parts == transaction.manifest
            self.learn(transaction, found)

    @invariant()
    def consumers_see_what_is_committed(self) -> None:
        self.look()
        for transaction in self.transactions.values():
            self.look_for_the_end(transaction)
        for name in NAMES:
            self.check(name)

    def look(self) -> None:
        """Take up what consumers can see now. What they have seen stays as it is until retention takes it."""
        for name, node in self.nodes.items():
            for queue in QUEUES:
                found = [(message.queue_offset, message.body) for message in stored(node.broker, *queue)]
                before = self.seen[name][queue]
                first = found[0][0] if found else len(before)
                kept = [entry for entry in before if entry[0] < first]
                if found or node.store.reader.existing_queue(*queue) is None:
                    self.seen[name][queue] = kept + found
                offsets = [offset for offset, _ in self.seen[name][queue]]
                assert offsets == list(range(len(offsets))), (name, queue, offsets)

    def check(self, name: str) -> None:
        node = self.nodes[name]
        visible = {queue: [body for _, body in self.seen[name][queue]] for queue in QUEUES}
        everything = [body for bodies in visible.values() for body in bodies]
        assert len(everything) == len(set(everything)), "a message is there twice"
        left = set(everything)
        assert self.plain[name] <= left
        left -= self.plain[name]
        for transaction in self.transactions.values():
            state = node.broker.staging.state(transaction.id)
            for (broker, part_id), model in transaction.parts.items():
                if broker != name:
                    continue
                rows = [body for chunk in model.chunks for body in chunk]
                queue = visible[model.topic, model.queue_id]
                there = [body for body in queue if body in set(rows)]
                left -= set(there)
                named = any((part.broker, part.part) == (name, part_id) for part in transaction.manifest)
                if transaction.outcome is not DecisionOutcome.COMMIT or not named:
                    assert not there, (transaction, part_id, state)
                    continue
                assert there == rows[: len(there)], "the order is another"
                if there:
                    begin = queue.index(there[0])
                    assert queue[begin : begin + len(there)] == there, "something lies between the messages of a part"
                if state.phase is Phase.COMMITTED:
                    assert there == rows, (transaction, part_id, state)
                elif state.phase is not Phase.COMMITTING:
                    assert not there or node.store.log.min > 0, (transaction, state)
        assert not left, "something is there that nobody has sent or committed"

    @rule()
    def settle_all(self) -> None:
        """All faults are over: what is committed comes, to the last message."""
        self.link = "up"
        for node in self.nodes.values():
            node.disk.room = None
        for _ in range(12):
            for node in self.nodes.values():
                for _ in range(20):
                    node.broker.deliver()
                node.broker.tick()
                node.store.flusher.flush()
            self.clock.advance(30)
            self.grow_old()
        self.look()
        for transaction in self.transactions.values():
            self.look_for_the_end(transaction)
        for name in NAMES:
            self.check(name)
        for transaction in self.transactions.values():
            if transaction.outcome is DecisionOutcome.COMMIT:
                for part in transaction.manifest:
                    model = transaction.parts[part.broker, part.part]
                    there = {body for _, body in self.seen[part.broker][part.topic, part.queue_id]}
                    assert there >= {body for chunk in model.chunks for body in chunk}, (transaction, part)


class LongStagingModel(StagingModel):
    """The same, for longer."""


StagingModel.TestCase.settings = settings(
    max_examples=repeats(25), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
LongStagingModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStagedTransactionsHoldWhatTheyPromise = StagingModel.TestCase


@pytest.mark.all
class TestStagedTransactionsHoldItForLong(LongStagingModel.TestCase):
    """In `make test-all`."""
