"""A large part is applied step by step beside plain sends to its queue, and its broker dies on the way."""

from __future__ import annotations

import itertools
import pathlib
import threading
from collections import deque
from concurrent.futures import Future

import metaq
from metaq.client.conversation.staged.staging import Apply, Decide, GetTransaction
from metaq.model.transactions.staging import DecisionOutcome, Phase, transaction_id
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import StagedSurvey
from metaq.testing import Cluster
from metaq.wire.staging import DecideBody
from tests.crash.mortal_broker import PROGRAM, die_behind, is_armed, spare
from tests.staged import PlannedPart, ask, stage
from tests.support import PATIENCE, eventually

ROOT = pathlib.Path(__file__).parents[2]
TOPIC = "orders"
CHUNKS, ROWS, AT_ONCE = 500, 2, 50
"""Many small chunks take longer than one turn of the broker's loop. So many are staged by one request."""
PLACES = 40, 500, 900, 990


class Sender(threading.Thread):
    """Sends plain messages to the queue, always some at a time, until it is told to stop."""

    def __init__(self, namesrv: str, queue: metaq.MessageQueue) -> None:
        super().__init__(name="sender")
        self._namesrv, self._queue = namesrv, queue
        self.stop = threading.Event()
        self.sent: list[bytes] = []
        """That were acknowledged."""

    def run(self) -> None:
        under_way = deque[tuple[bytes, Future[metaq.SendReceipt]]]()
        with metaq.Producer(self._namesrv, timeout=PATIENCE, retries=100_000) as producer:
            for number in itertools.count():
                if self.stop.is_set():
                    break
                body = b"plain %d" % number
                under_way.append((body, producer.submit(TOPIC, body, queue=self._queue)))
                if len(under_way) == 100:
                    self._wait(*under_way.popleft())
            while under_way:
                self._wait(*under_way.popleft())

    def _wait(self, body: bytes, receipt: Future[metaq.SendReceipt]) -> None:
        receipt.result(PATIENCE)
        self.sent.append(body)


def planned(name: str, broker: str) -> PlannedPart:
    rows = (f"{name} {n}".encode().ljust(1500) for n in range(CHUNKS * ROWS))
    return PlannedPart(broker, "p", TOPIC, 0, tuple(tuple(next(rows) for _ in range(ROWS)) for _ in range(CHUNKS)))


def test_the_messages_of_a_part_lie_together_though_others_send_and_the_broker_dies() -> None:
    """Killed behind so many records of the log, some of them plain messages; whatever was acknowledged is there."""
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with Cluster(brokers=1, program=PROGRAM, environment=environment) as cluster:
        (broker,) = cluster.brokers
        with metaq.admin.Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=1)
        sender = Sender(cluster.namesrv, metaq.MessageQueue(TOPIC, broker.name, 0))
        sender.start()
        try:
            parts = [planned(f"t{place}", broker.name) for place in PLACES]
            died = [commit(broker, f"t{place}", part, place) for place, part in zip(PLACES, parts, strict=True)]
            assert any(died)
            count = len(sender.sent)
            eventually(lambda: len(sender.sent) > count, what="plain messages are taken again")
        finally:
            sender.stop.set()
            sender.join(PATIENCE)
        with metaq.Reader(cluster.namesrv, TOPIC, stop_at_end=True) as reader:
            messages = list(reader)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        bodies = [message.body for message in messages]
        for part in parts:
            start = bodies.index(part.bodies[0])
            assert bodies[start : start + CHUNKS * ROWS] == part.bodies
        plain = [body for body in bodies if body.startswith(b"plain")]
        assert set(plain) == set(sender.sent), "some twice: their answer was lost"
        assert len(bodies) == len(plain) + CHUNKS * ROWS * len(parts)
        survey = StagedSurvey(StoreReader(broker.data))
        assert [problem for one in survey.transactions.values() for problem in one.problems] == []


def commit(broker, name: str, part: PlannedPart, place: int) -> bool:
    """Stage it chunk by chunk, commit it, and let the broker die behind so many records from then on. Returns whether it did."""
    transaction = transaction_id(name, broker.name)
    sections = part.sections()
    for first in range(0, CHUNKS, AT_ONCE):
        ask(broker.listens, stage(transaction, [part], only=sections[first : first + AT_ONCE]))
    die_behind(broker, place)
    decide = Decide(transaction, DecideBody(DecisionOutcome.COMMIT, (part.manifest,)))

    def is_there() -> bool:
        if broker.death:
            assert broker.wait_ended() == -9, broker.log_tail()
        if not broker.launched:
            broker.start()
        ask(broker.listens, decide)
        return ask(broker.listens, GetTransaction(transaction)).phase is Phase.COMMITTED

    eventually(is_there, what=f"{name} is applied")
    died = not is_armed(broker)
    if not spare(broker):
        eventually(lambda: is_there() and not ask(broker.listens, Apply(transaction)).remaining)
    return died
