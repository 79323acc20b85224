"""A message of 3 MiB in a transaction, between small ones, and its broker dies around it."""

from __future__ import annotations

import pathlib

import pytest

import metaq
from metaq.client.conversation.staged.staging import Decide, GetTransaction
from metaq.errors import BrokerError
from metaq.model.transactions.staging import DecisionOutcome, Phase, transaction_id
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import StagedSurvey
from metaq.testing import Cluster
from metaq.testing.cluster import ClusterServer
from metaq.wire.staging import DecideBody
from tests.crash.mortal_broker import PROGRAM, die_behind, spare
from tests.staged import PlannedPart, ask, stage
from tests.support import eventually

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
TOPIC = "orders"
LARGE_BYTES = 3 << 20
PLACES = range(1, 12)
"""Chunks, decision and copies are ten records or so."""


def planned(name: str, broker: str) -> PlannedPart:
    small = tuple(b"%b %d" % (name.encode(), number) for number in range(4))
    large = name.encode().ljust(LARGE_BYTES, b".")
    return PlannedPart(broker, "p", TOPIC, 0, (small[:2], (large,), small[2:]))


def test_a_large_message_is_there_once_and_in_its_place_wherever_the_broker_dies() -> None:
    """Killed behind each record of its transaction, the chunk of the large message and its copy among them."""
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with Cluster(brokers=1, program=PROGRAM, environment=environment) as cluster:
        (broker,) = cluster.brokers
        with metaq.admin.Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=1)
        parts = [planned(f"t{place}", broker.name) for place in PLACES]
        died = [deliver(broker, f"t{place}", part, place) for place, part in zip(PLACES, parts, strict=True)]
        assert sum(died) >= 8
        with metaq.Reader(cluster.namesrv, TOPIC, stop_at_end=True) as reader:
            found = [message.body for message in reader]
        wanted = [body for part in parts for body in part.bodies]
        assert len(found) == len(wanted)
        assert found == wanted
        survey = StagedSurvey(StoreReader(broker.data))
        assert [problem for one in survey.transactions.values() for problem in one.problems] == []


def deliver(broker: ClusterServer, name: str, part: PlannedPart, place: int) -> bool:
    """Stage and commit it, each request until it is answered, and let the broker die behind so many records. Returns whether it did."""
    transaction = transaction_id(name, broker.name)
    die_behind(broker, place)
    decide = Decide(transaction, DecideBody(DecisionOutcome.COMMIT, (part.manifest,)))
    steps = [stage(transaction, [part], only=(section,)) for section in part.sections()] + [decide]
    died = False

    def all_is_answered() -> bool:
        nonlocal died
        if broker.death:
            died = True
            assert broker.wait_ended() == -9, broker.log_tail()
        if not broker.launched:
            broker.start()
        try:
            for step in steps:
                ask(broker.listens, step)
            return ask(broker.listens, GetTransaction(transaction)).phase is Phase.COMMITTED
        except BrokerError as error:
            assert error.retriable, error
            return False

    eventually(all_is_answered, what=f"{name} is delivered")
    if not spare(broker):
        died = True
        eventually(all_is_answered, what=f"{name} is delivered after all")
    return died
