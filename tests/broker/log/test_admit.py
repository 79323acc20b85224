"""Gates of the fast path: for whom, for which topics, and until when."""

from __future__ import annotations

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.admit import Gates
from metaq.errors import Reason, Refused
from metaq.model.access import Action, Caller
from tests.broker.support import open_broker

ANNA, BERT = Caller("10.0.0.1", False, "anna"), Caller("10.0.0.2", False, "bert")


def only_anna(asked: list[tuple[Caller, Action, str]]):
    def authorise(who: Caller, action: Action, resource: str) -> None:
        asked.append((who, action, resource))
        if who.identity != "anna":
            raise Refused(Reason.NO_PERMISSION, f"{who.identity} may not")

    return authorise


def gates(broker: Broker, asked: list[tuple[Caller, Action, str]]) -> Gates:
    return Gates(
        broker.environment,
        broker.topics,
        broker.held_pulls,
        broker.acks,
        broker.transactions.gate,
        broker.appender.closed_queues,
        Gatekeeper(only_anna(asked)),
        closed_partitions=broker.closed_partitions,
    )


def test_a_gate_opens_for_who_may_publish_and_is_asked_about_once(tmp_path) -> None:
    """The slow path tells the other why not. Who goes by the same name has the same gates."""
    with open_broker(tmp_path) as broker:
        broker.topics.ensure("orders")
        asked = []
        made = gates(broker, asked)
        anna = made.of(ANNA)  # kept as a session keeps it: tables that nobody uses are dropped
        assert anna.open(b"orders")
        assert not made.of(BERT).open(b"orders")
        assert asked == [(ANNA, Action.PUBLISH, "orders"), (BERT, Action.PUBLISH, "orders")]
        assert made.of(structs.replace(ANNA, address="10.9.9.9")).table.keys() == {b"orders"}
        assert not made.of(BERT).table


def test_a_topic_that_changes_closes_its_gates_for_everybody(tmp_path) -> None:
    """Deliveries included."""
    with open_broker(tmp_path) as broker:
        broker.topics.ensure("orders")
        broker.topics.ensure("bills")
        made = gates(broker, [])
        tables = made.of(ANNA), made.deliveries
        for table in tables:
            assert table.open(b"orders")
            assert table.open(b"bills")
        made.close("orders")
        assert [table.table.keys() for table in tables] == [{b"bills"}] * 2


def test_some_topics_have_no_gate(tmp_path) -> None:
    """Retry topics and those of the broker are judged message by message; unknown ones are made by the slow path."""
    with open_broker(tmp_path) as broker:
        broker.topics.ensure("%RETRY%G")
        made = gates(broker, [])
        for topic in (b"%RETRY%G", b"SCHEDULE_TOPIC_XXXX", b"nobody", b"\xff"):
            assert not made.of(ANNA).open(topic)
        assert made.deliveries.open(b"%RETRY%G")
