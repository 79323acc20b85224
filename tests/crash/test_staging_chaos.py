"""Transactions over three brokers that are killed, stopped and halted for a while at random: each is seen whole, once, or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq.admin import Admin
from metaq.model.transactions.staging import Phase
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

WRITERS = 4
TOPICS = ("bills", "orders", "stock")
QUEUES = 2
MESSAGES = 9
BRIEF = 3.0
"""Before a writer gives up a request: brokers are away for longer."""
STEP_SECONDS = 20.0
"""Of a transaction's steps: longer than any fault lasts."""


class Writer(threading.Thread):
    """Writes transactions whose messages go to queues of any broker, and ends them one way or the other."""

    def __init__(self, cluster, number, seed, stop):
        super().__init__(name=f"writer {number}")
        self._brokers = [broker.name for broker in cluster.brokers]
        self._namesrv, self._number, self._chance, self._stopped = cluster.namesrv, number, random.Random(seed), stop
        self.committed: set[str] = set()
        self.given_up: set[str] = set()
        self.failure: Exception | None = None

    def run(self):
        try:
            with metaq.Producer(self._namesrv, timeout=BRIEF) as producer:
                for n in range(1_000_000):
                    if self._stopped.is_set():
                        return
                    self._write(producer, f"{self._number}-{n}")
        except Exception as error:
            self.failure = error

    def _write(self, producer, name):
        """Commit four of five, and roll one back."""
        try:
            with producer.atomic(timeout=STEP_SECONDS) as transaction:
                self._fill(transaction, name)
                if self._chance.random() < 0.2:
                    give_up()
        except GivenUp:
            self.given_up.add(name)
        except metaq.MetaqError:
            pass  # nobody was told what became of it
        else:
            self.committed.add(name)

    def _fill(self, transaction, name):
        for n in range(MESSAGES):
            topic = TOPICS[n % len(TOPICS)]
            queue = metaq.MessageQueue(topic, self._chance.choice(self._brokers), self._chance.randrange(QUEUES))
            body = b"%s/%d" % (name.encode(), n)
            transaction.send(topic, body + b" " * self._chance.choice([0, 0, 100, 20_000]), queue=queue)


class GivenUp(Exception):
    """The transaction is to be rolled back."""


def give_up():
    raise GivenUp


def interrupt():
    """The block ends, and nobody knows how far it has come: what is prepared stays so."""
    raise KeyboardInterrupt


class Settler(Writer):
    """Prepares each transaction; two threads, which may not be of one mind, end it at once."""

    def _write(self, producer, name):
        try:
            with producer.atomic(timeout=STEP_SECONDS) as transaction:
                self._fill(transaction, name)
                transaction.prepare()
                interrupt()
        except KeyboardInterrupt:
            pass
        except metaq.MetaqError:
            return

        def settle(*, commit):
            return producer.settle(transaction.id, commit=commit, timeout=PATIENCE)

        with ThreadPoolExecutor(2) as pool:
            wishes = [pool.submit(settle, commit=self._chance.random() < 0.7) for _ in range(2)]
            outcomes = {wish.result() for wish in wishes}
        assert len(outcomes) == 1, f"{name} ended as {outcomes}"
        (self.committed if outcomes == {metaq.TransactionOutcome.COMMIT} else self.given_up).add(name)


@pytest.mark.parametrize("kind", [Writer, Settler])
@pytest.mark.parametrize(
    ("seed", "faults"),
    [(1, 2), *(pytest.param(seed, 12, marks=pytest.mark.all) for seed in range(2, 5))],
)
def test_transactions_over_three_brokers_are_whole_or_not_there(tmp_path, kind, seed, faults):
    """What was acknowledged is there, what was given up is not, and of the rest nothing is there by half or twice."""
    chance, stop = random.Random(seed), threading.Event()
    with Cluster(brokers=3, folder=tmp_path) as cluster:
        with Admin(cluster.namesrv) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=QUEUES)
        writers = [kind(cluster, number, seed * WRITERS + number, stop) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(faults):
                time.sleep(chance.uniform(0.2, 1.5))  # the faults come at any moment; nothing waits for one
                fail(chance, chance.choice(cluster.brokers))
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        end_what_is_open(cluster)
        seen = read(cluster)
    committed = set().union(*(writer.committed for writer in writers))
    given_up = set().union(*(writer.given_up for writer in writers))
    whole = Counter(str(n) for n in range(MESSAGES))
    assert [writer.failure for writer in writers if writer.failure] == []
    assert committed
    assert given_up
    assert {name: found for name, found in seen.items() if found != whole} == {}
    assert committed - seen.keys() == set()
    assert given_up & seen.keys() == set()


def fail(chance, broker):
    """A broker is away for a while, or does not answer."""
    kind = chance.random()
    if kind < 0.7:
        if kind < 0.5:
            broker.kill()
        else:
            broker.stop()
        time.sleep(chance.uniform(0.0, 1.0))
        broker.start()
    else:
        broker.pause()
        time.sleep(chance.uniform(0.0, 4.0))  # some longer than a client or a broker waits for an answer
        broker.resume()


def end_what_is_open(cluster):
    """Roll back what no writer has decided, and wait until everything is where it belongs, at every broker."""

    def ended():
        found = admin.list_transactions()
        for one in found.transactions:
            if one.phase in {Phase.OPEN, Phase.PREPARED, Phase.ROLLED_BACK}:  # the last: not at every broker yet
                admin.end_transaction(one.transaction, commit=False)
        return not found.transactions and not found.unreached

    with Admin(cluster.namesrv) as admin:
        eventually(ended, what="all transactions are over")


def read(cluster):
    """Name of a transaction → how often each of its messages is there."""
    seen = defaultdict(Counter)
    for topic in TOPICS:
        with metaq.Reader(cluster.namesrv, topic, start="earliest", stop_at_end=True) as reader:
            for message in reader:
                name, _, number = message.body.decode().strip().partition("/")
                seen[name][number] += 1
    return seen
