"""Messages that a transaction puts into a group's retry topic: what a Java consumer of the group sees, and one of another group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import metaq
from metaq.client.conversation.staged.staging import Decide
from metaq.model.transactions.staging import DecisionOutcome, transaction_id
from metaq.wire.staging import DecideBody
from tests.interop.driver import ForeignClient
from tests.interop.servers import MetaqServer
from tests.staged import PlannedPart, ask, stage

pytestmark = pytest.mark.interop
TOPIC, GROUP = "orders", "billing"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaqServer]:
    running = MetaqServer(tmp_path_factory.mktemp("metaq"))
    running.start()
    yield running
    running.stop()


def test_only_the_group_gets_them_and_as_messages_of_their_topic(java: ForeignClient, server: MetaqServer) -> None:
    """With retries of their own: one that fails comes back with the count 1, and goes to the dead letters in the end."""
    with metaq.admin.Admin(server.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
        (queue,) = admin.describe_topic(TOPIC).queues
    options = {"fail_tag": "bad", "max_reconsume_times": 1}
    for name, group in (("c", GROUP), ("other", "mailer")):
        java.consumer(
            name, server.namesrv, group, {TOPIC: "*"}
        )  # makes the retry topic, which its next start knows at once
        java.shutdown(name)
        java.consumer(name, server.namesrv, group, {TOPIC: "*"}, **options)
    retry = f"%RETRY%{GROUP}"
    for name, tag in (("good", "x"), ("bad", "bad")):
        part = PlannedPart(
            queue.broker, "p", retry, 0, ((name.encode(),),), f"RETRY_TOPIC\x01{TOPIC}\x02TAGS\x01{tag}".encode()
        )
        transaction = transaction_id(name, queue.broker)
        ask(server.broker, stage(transaction, [part]))
        ask(server.broker, Decide(transaction, DecideBody(DecisionOutcome.COMMIT, (part.manifest,))))
    java.producer("p", server.namesrv)
    java.send("p", TOPIC, ["all"])
    got = java.wait("c", 4)
    assert {(event["body"], event["topic"], event["reconsume_times"]) for event in got} == {
        ("good", TOPIC, 0), ("bad", TOPIC, 0), ("bad", TOPIC, 1), ("all", TOPIC, 0),
    }  # fmt: skip
    java.consumer("d", server.namesrv, "undertaker", {f"%DLQ%{GROUP}": "*"})
    (dead,) = java.wait("d", 1)
    assert (dead["body"], dead["properties"]["RETRY_TOPIC"]) == ("bad", TOPIC)
    assert [event["body"] for event in java.wait("other", 1)] == ["all"]
