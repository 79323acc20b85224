"""A folder with staged transactions under RocketMQ's own broker, and back under ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.client.conversation.staged.staging import Apply, Decide, GetTransaction
from metaq.model.transactions.staging import Decided, DecisionOutcome, PartLifetime, Phase, transaction_id
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import DECISIONS_TOPIC, STAGE_TOPIC, StagedSurvey
from metaq.wire.codes import RequestCode
from metaq.wire.headers import CreateTopicHeader
from metaq.wire.staging import DecideBody
from tests.interop import maven
from tests.interop.driver import ForeignClient
from tests.interop.remoting_client import RemotingClient
from tests.interop.servers import CLUSTER, MetaqServer, RocketmqServer, end, mqadmin
from tests.staged import PlannedPart, ask, stage

pytestmark = pytest.mark.interop

BROKER, TOPIC = "broker-a", "orders"
NAMES = ("undecided", "committed", "rolled-back", "prepared", "late")


def part_of(name: str) -> PlannedPart:
    return PlannedPart(BROKER, name, TOPIC, 0, ((f"{name}-0".encode(), f"{name}-1".encode()), (f"{name}-2".encode(),)))


def bodies_of(*names: str) -> list[str]:
    return [body.decode() for name in names for body in part_of(name).bodies]


def decide(broker: str, name: str, outcome: DecisionOutcome, *, named: bool = True) -> Decided:
    body = DecideBody(outcome, (part_of(name).manifest,) if named else None)
    decided = ask(broker, Decide(transaction_id(name, BROKER), body))
    while ask(broker, Apply(transaction_id(name, BROKER))).remaining:
        pass
    return decided


@pytest.mark.parametrize("ending", ["kill", pytest.param("stop", marks=pytest.mark.all)])
def test_rocketmq_delivers_no_undecided_message_and_hands_the_folder_back(
    java: ForeignClient, tmp_path: Path, ending: str
) -> None:
    """Its consumers see what was committed, its administrators two system topics; here the rest is decided afterwards."""
    maven.jars(*maven.SERVER)
    data = tmp_path / "store"
    for part in ("ours", "theirs", "again"):
        (tmp_path / part).mkdir()
    options = (f"brokerName={BROKER}",)
    first = MetaqServer(tmp_path / "ours", data, options=options)
    first.start()
    try:
        java.producer("p", first.namesrv)
        java.call("create_topic", producer="p", cluster=CLUSTER, topic=TOPIC, queues=1)
        java.send("p", TOPIC, ["plain"])
        for name in NAMES:
            lifetime = PartLifetime.PREPARED if name == "prepared" else PartLifetime.AGE
            ask(first.broker, stage(transaction_id(name, BROKER), [part_of(name)], lifetime=lifetime))
        decide(first.broker, "prepared", DecisionOutcome.PREPARED)
        decide(first.broker, "rolled-back", DecisionOutcome.ROLLBACK)
        assert decide(first.broker, "committed", DecisionOutcome.COMMIT).first
        java.shutdown_all()
    finally:
        end(first, data, ending)

    second = RocketmqServer(tmp_path / "theirs", data)
    second.start()
    try:
        java.producer("p", second.namesrv)
        java.send("p", TOPIC, ["theirs"])
        java.consumer("c", second.namesrv, "readers", {TOPIC: "*"})
        wanted = ["plain", *bodies_of("committed"), "theirs"]
        events = java.wait("c", len(wanted))
        assert sorted(event["body"] for event in events) == sorted(wanted)
        (row,) = java.call("queues", producer="p", topic=TOPIC)
        assert row["max_offset"] == len(wanted)
        listed = mqadmin(tmp_path, second, "topicList").split()
        assert TOPIC in listed
        assert "success" in mqadmin(tmp_path, second, "cleanUnusedTopic", "-b", second.broker)
        with RemotingClient(second.broker) as client:
            assert client.bodies(TOPIC) == wanted
            for topic in (STAGE_TOPIC, DECISIONS_TOPIC):
                made = CreateTopicHeader(topic=topic, read_queues=1, write_queues=1, perm=6)
                refused = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, made)
                assert refused.code != 0
                assert "conflict with system topic" in refused.remark
        java.shutdown_all()
    finally:
        getattr(second, ending)()

    third = MetaqServer(tmp_path / "again", data, options=options)
    third.start()
    try:
        phases = {name: ask(third.broker, GetTransaction(transaction_id(name, BROKER))).phase for name in NAMES}
        assert phases == {
            "undecided": Phase.OPEN, "committed": Phase.COMMITTED, "rolled-back": Phase.ROLLED_BACK,
            "prepared": Phase.PREPARED, "late": Phase.OPEN,
        }  # fmt: skip
        assert decide(third.broker, "prepared", DecisionOutcome.COMMIT, named=False).first
        assert decide(third.broker, "late", DecisionOutcome.COMMIT).first
        assert decide(third.broker, "undecided", DecisionOutcome.ROLLBACK, named=False).first
        again = decide(third.broker, "committed", DecisionOutcome.ROLLBACK, named=False)
        assert (again.first, again.decision.outcome) == (False, DecisionOutcome.COMMIT)
        wanted += bodies_of("prepared", "late")
        with RemotingClient(third.broker) as client:
            assert client.bodies(TOPIC) == wanted
    finally:
        third.stop()
    survey = StagedSurvey(StoreReader(data))
    assert survey.problems == [problem for one in survey.transactions.values() for problem in one.problems] == []
    assert {one.transaction: one.phase for one in survey.transactions.values()} == {
        transaction_id(name, BROKER): phase
        for name, phase in zip(
            NAMES, ("rolled back", "committed", "rolled back", "committed", "committed"), strict=True
        )
    }
