"""kill -9 of each of three brokers at every record of a transaction over all of them: all of it comes, or nothing.

The broker dies at a fault point (tests/crash/mortal_broker.py), not by luck: behind its first record of the transaction,
its second, ..., without an answer for that one and with it.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import pytest

import metaq
from metaq.client.conversation.call import Call
from metaq.client.conversation.staged.staging import Apply, Decide, GetTransaction, SealPart, Stage
from metaq.errors import BrokerError
from metaq.model.transactions.staging import DecisionOutcome, Phase, TransactionDecision, coordinator_of, transaction_id
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import DECISIONS_TOPIC, StagedSurvey, staged_record
from metaq.testing import Cluster, ServerDied
from metaq.testing.cluster import ClusterServer
from metaq.wire.staging import DecideBody
from tests.crash.mortal_broker import PROGRAM, die_behind, is_armed, spare
from tests.staged import BORN_MS, PlannedPart, ask
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
BROKERS, QUEUES = 3, 2
TOPIC = "orders"
Value = TypeVar("Value")


class Place(NamedTuple):
    """Where a broker dies."""

    broker: int
    records: int
    """Behind so many of the transaction."""
    answered: bool

    @property
    def again(self) -> bool:
        """Whether it dies once more, behind the first record that it writes when it lives again."""
        return not self.answered and self.records % 3 == 0

    def __str__(self) -> str:
        return f"broker {self.broker} behind {self.records} records, {'' if self.answered else 'not '}answered"


class Gone(Exception):
    """The client has given up at the first broker that did not answer, or refused."""


class Run:
    """One transaction after the other over three brokers, and what must come of each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._numbers = cluster, itertools.count()
        self.coordinators = itertools.cycle(range(BROKERS))
        self.committed: dict[str, list[PlannedPart]] = {}
        """Those that must be there."""
        self._deaths = self._points = 0
        """After which a broker was started again; and at which one was to die."""
        self._again = False
        self.open: dict[str, list[PlannedPart]] = {}
        """Of which all or nothing must be there."""
        with metaq.admin.Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)

    @property
    def brokers(self) -> tuple[ClusterServer, ...]:
        return self._cluster.brokers

    def transact(self, coordinator: int, *, stays: bool = True, seconds: int = 0) -> str:
        """A transaction with two parts of several chunks at each broker, from its first chunk to the end. Returns its id.

        stays: whether the client starts a dead broker again and repeats what it asked. Raises Gone otherwise.
        """
        transaction = transaction_id(f"t{next(self._numbers)}", self.brokers[coordinator].name)
        parts = [part for broker in self.brokers for part in planned(transaction, broker.name)]
        self.open[transaction] = parts
        try:
            self._stage(transaction, parts, stays=stays, seconds=seconds)
            at = self.brokers[coordinator]
            body = DecideBody(DecisionOutcome.COMMIT, tuple(part.manifest for part in parts))
            decided = self._ask(at, Decide(transaction, body), stays=stays)
            if decided.decision.outcome is not DecisionOutcome.COMMIT:
                assert not stays
                raise Gone
            for broker in self.brokers:
                self._apply(broker, transaction, decided.decision if broker is not at else None, stays=stays)
        finally:
            for broker in self.brokers:  # whoever has not come to its fault point is to live on
                if stays:
                    self._revive(broker)
        self.committed[transaction] = self.open.pop(transaction)
        return transaction

    def _stage(self, transaction: str, parts: Sequence[PlannedPart], *, stays: bool, seconds: int) -> None:
        """Chunk by chunk; the last one of a part brings the seal along, or is followed by it."""
        for part in parts:
            at = next(broker for broker in self.brokers if broker.name == part.broker)
            last = len(part.chunks) - 1
            apart = part.queue_id == 1
            for number in range(last + 1):
                section = part.section(number, seal=number == last and not apart)
                call = Stage(transaction=transaction, chunks=(section,), born_ms=BORN_MS, expire_after=seconds)
                self._ask(at, call, stays=stays)
            if apart:
                self._ask(at, SealPart(transaction, part.part, part.seal), stays=stays)

    def _apply(
        self, broker: ClusterServer, transaction: str, decision: TransactionDecision | None, *, stays: bool
    ) -> None:
        while (state := self._ask(broker, Apply(transaction, decision), stays=stays)).remaining:
            assert state.phase is Phase.COMMITTING
        assert state.phase in {Phase.COMMITTING, Phase.COMMITTED}, "the coordinator waits for the others' word"
        assert not state.missing

    def _ask(self, broker: ClusterServer, call: Call[Value], *, stays: bool) -> Value:
        def answered() -> tuple[Value] | None:
            self._revive(broker)
            try:
                return (ask(broker.listens, call),)
            except BrokerError as error:
                if error.retriable:
                    return None
                raise RuntimeError(f"{broker.name}: {error}") from error

        if stays:
            return eventually(answered, PATIENCE, what=call.action)[0]
        try:
            return ask(broker.listens, call)
        except BrokerError:  # it lives, and has rolled back what took too long
            raise Gone from None
        except (OSError, metaq.MetaqError):
            assert broker.wait_ended() == -9, broker.log_tail()
            raise Gone from None

    def _revive(self, broker: ClusterServer) -> None:
        """Start the broker if it has died at its fault point; it may be about to."""
        if is_armed(broker):
            return
        if broker.death:
            assert broker.wait_ended() == -9, broker.log_tail()
        if not broker.launched:
            self._deaths += 1
            if self._again:
                self._again = False
                self._arm(broker, 1, answered=False)
            try:
                broker.start()
            except ServerDied:
                assert not is_armed(broker), broker.log_tail()
                self._deaths += 1
                broker.start()

    def _arm(self, broker: ClusterServer, records: int, *, answered: bool) -> None:
        self._points += 1
        die_behind(broker, records, answered=answered)

    # ------------------------------------------------------------------ places

    def places(self) -> list[Place]:
        """All places of one transaction: how many records each broker writes for it is counted."""
        found = []
        self.transact(0)  # after which queues and files are there
        for number, broker in enumerate(self.brokers):
            start = StoreReader(broker.data)
            list(start.records())
            self._settled(broker, self.transact(0))
            records = sum(1 for _ in StoreReader(broker.data).records(start=start.end))
            found += [Place(number, count, answered) for count in range(1, records + 1) for answered in (False, True)]
        return found

    def _settled(self, broker: ClusterServer, transaction: str) -> None:
        """The broker has written down that nothing is left to do, here or anywhere, if it lives; or has died before."""
        last = "finished" if coordinator_of(transaction) == broker.name else "done"

        def is_so() -> bool:
            reader = StoreReader(broker.data)
            return broker.death != "" or any(
                transaction in record.value
                for record in map(staged_record, reader.records(topics=[DECISIONS_TOPIC]))
                if record and record.kind == last
            )

        eventually(is_so, what=f"{broker.name} is done with {transaction}")
        if broker.death:
            self._revive(broker)

    def die_at(self, place: Place, *, stays: bool) -> bool:
        """Live one transaction with a broker that dies. Returns whether it did."""
        broker = self.brokers[place.broker]
        coordinator, self._deaths, self._points = next(self.coordinators), 0, 0
        self._arm(broker, place.records, answered=place.answered)
        self._again = place.again
        try:
            transaction = self.transact(coordinator, stays=stays, seconds=0 if stays else 1)
        except Gone:
            pass
        else:
            if is_armed(broker):
                self._settled(broker, transaction)
        self._again = False
        to_come = self._points - spare(broker)

        def lives() -> bool:
            self._revive(broker)
            return self._deaths == to_come

        eventually(lives, what=f"{broker.name} has died where it was to, and lives again")
        return to_come > 0

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        """All or nothing at all three, no copy twice, queues without holes, in files and for consumers."""
        for broker in self.brokers:
            survey = StagedSurvey(StoreReader(broker.data))
            problems = [problem for one in survey.transactions.values() for problem in one.problems]
            assert survey.problems + problems == []
        there = {queue: bodies for broker in self.brokers for queue, bodies in self._read(broker)}
        expected: dict[tuple[str, int], int] = dict.fromkeys(there, 0)
        for transaction, parts in self.committed.items():
            for part in parts:
                assert run_of(there[part.broker, part.queue_id], part.bodies), (transaction, part.part)
                expected[part.broker, part.queue_id] += len(part.bodies)
        for transaction, parts in self.open.items():
            found = {part.part: run_of(there[part.broker, part.queue_id], part.bodies) for part in parts}
            assert len(set(found.values())) == 1, f"{transaction} is there in part: {found}"
            for part in parts:
                expected[part.broker, part.queue_id] += len(part.bodies) if found[part.part] else 0
        assert {queue: len(bodies) for queue, bodies in there.items()} == expected, "nothing else, and nothing twice"

    def _read(self, broker: ClusterServer) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
        with metaq.Reader(self._cluster.namesrv, TOPIC, stop_at_end=True) as reader:
            messages = [message for message in reader if message.queue.broker == broker.name]
        for queue_id in range(QUEUES):
            mine = [message for message in messages if message.queue_id == queue_id]
            assert [message.queue_offset for message in mine] == list(range(len(mine)))
            yield (broker.name, queue_id), [message.body for message in mine]


def planned(transaction: str, broker: str) -> list[PlannedPart]:
    """A part of three chunks for one queue, and one of two for the other."""
    return [
        PlannedPart(
            broker, f"{broker}.{queue_id}", TOPIC, queue_id,
            tuple(
                tuple(f"{transaction} {broker} {queue_id} {chunk} {row}".encode() for row in range(6))
                for chunk in range(3 - queue_id)
            ),
        )
        for queue_id in range(QUEUES)
    ]  # fmt: skip


def run_of(bodies: list[bytes], wanted: list[bytes]) -> bool:
    """Whether these messages lie together in the queue; False if none is there. Raises AssertionError: only some are."""
    if wanted[0] not in bodies:
        assert not set(wanted) & set(bodies)
        return False
    start = bodies.index(wanted[0])
    assert bodies[start : start + len(wanted)] == wanted
    return True


@pytest.fixture
def run() -> Iterator[Run]:
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with Cluster(brokers=BROKERS, program=PROGRAM, environment=environment) as cluster:
        yield Run(cluster)


def live(run: Run, every: int, *, stays: bool) -> int:
    """Die at every so-manieth place. Returns at how many."""
    died = 0
    for place in run.places()[::every]:
        try:
            died += run.die_at(place, stays=stays)
        except Exception as error:
            error.add_note(str(place))
            raise
    return died


def test_a_broker_that_dies_at_some_places_of_a_transaction_neither_loses_nor_doubles(run: Run) -> None:
    """The client goes on: everything comes."""
    assert live(run, 17, stays=True) >= 8
    assert not run.open
    run.check()


def test_a_client_that_is_lost_with_a_broker_leaves_all_or_nothing(run: Run) -> None:
    """The brokers settle by themselves what it has left behind."""
    assert live(run, 23, stays=False) >= 5
    wait_settled(run)
    run.check()


@pytest.mark.all
@pytest.mark.timeout(3600)
def test_a_broker_that_dies_at_any_place_of_a_transaction_neither_loses_nor_doubles(run: Run) -> None:
    """All places, 200 at least."""
    assert live(run, 1, stays=True) >= 200
    assert not run.open
    run.check()


@pytest.mark.all
@pytest.mark.timeout(3600)
def test_a_client_that_is_lost_with_a_broker_at_any_place_leaves_all_or_nothing(run: Run) -> None:
    """All places, 150 at least: what is only found out when the next record is written, no client waits for."""
    assert live(run, 1, stays=False) >= 150
    wait_settled(run)
    run.check()


def wait_settled(run: Run) -> None:
    """Every broker knows how each transaction has ended."""

    def phases(transaction: str) -> set[Phase]:
        return {ask(broker.listens, GetTransaction(transaction)).phase for broker in run.brokers}

    for transaction in run.open:
        eventually(
            lambda transaction=transaction: (
                phases(transaction) <= {Phase.UNKNOWN, Phase.ROLLED_BACK} or phases(transaction) == {Phase.COMMITTED}
            ),
            what=f"{transaction} is settled",
        )
