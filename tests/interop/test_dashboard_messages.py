"""The dashboard's pages about messages at our broker and at RocketMQ's: what a RocketMQ does not know is said so, and the rest works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import metaq
from metaq.admin import Admin
from tests.dashboard.messages.conftest import change, values
from tests.dashboard.running import browsing, dashboard, looping
from tests.interop.servers import RocketmqServer, Server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

TOPIC, GROUP, PAYERS = "dashboard-messages", "dashboard-messages-group", "dashboard-payers"


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    """A browser of a dashboard of a cluster with ten messages, one of which is a dead letter."""
    with Admin(server.namesrv) as admin, metaq.Producer(server.namesrv, trace=True) as producer:
        admin.create_topic(TOPIC, queues=1)
        eventually(lambda: producer.send(TOPIC, b"first", keys="k0"))
        for number in range(1, 10):
            producer.send(TOPIC, b'{"number": %d}' % number, keys=[f"k{number}"], tag="t")
    with looping() as loop, dashboard(loop, server.namesrv, allow_changes=True) as running, browsing(running) as client:
        yield client


def test_messages_are_found_and_told_of(server: Server, client: httpx.Client) -> None:
    rows = values(client, "/messages", topic=TOPIC)["rows"]
    assert [row["offset"] for row in rows] == list(range(9, -1, -1))
    (row,) = eventually(lambda: values(client, "/messages", topic=TOPIC, key="k7")["rows"], what="it is in the index")
    found = values(client, f"/messages/{row['id']}", topic=TOPIC, place=row["place"])
    assert (found["body"]["kind"], found["tag"], found["keys"]) == ("json", "t", ["k7"])
    assert found["notes"] == []
    assert values(client, "/messages", id=found["offset_id"])["rows"] == [row]
    assert values(client, "/messages", topic=TOPIC, id=row["id"])["rows"] == [row]
    queue = f"{row['broker']}:{row['queue']}"
    assert [
        one["offset"] for one in values(client, "/messages", topic=TOPIC, queue=queue, offset="3", rows=2)["rows"]
    ] == [3, 4]
    assert values(client, "/messages", topic=TOPIC, start="2020-01-01", end="2020-01-02")["rows"] == []


def test_a_message_is_sent_at_once_and_with_a_delay(server: Server, client: httpx.Client) -> None:
    page = change(client, f"/send?topic={TOPIC}", "send", body="from the dashboard", tag="x", keys="a b")
    found = values(client, str(page.url))
    assert (found["tag"], found["keys"], found["body"]["text"]) == ("x", ["a", "b"], "from the dashboard")

    def sent_and_seen() -> dict[str, Any] | None:
        """Levels of these servers are short: a message may be delivered before it is looked at."""
        change(client, f"/send?topic={TOPIC}", "send", body="later", delay="2")
        return next((one for one in values(client, "/delays")["rows"] if one["level"] == 2 and one["due_ms"]), None)

    row = eventually(sent_and_seen, what="it waits at its level")
    assert (row["seconds"], row["waiting"] > 0, row["due_in_seconds"] <= 2) == (2, True, True)
    eventually(lambda: values(client, "/messages", topic=TOPIC)["rows"][0]["body"] == "later", what="it is delivered")


def test_dead_letters_are_sent_again_and_a_group_is_moved(server: Server, client: httpx.Client) -> None:
    with metaq.Consumer(server.namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer:
        consumer.receive(PATIENCE).reject()
        path = f"/dead-letters/{GROUP}"
        (letter,) = eventually(lambda: values(client, path)["rows"], what="it is a dead letter")
        assert letter["origin"] == TOPIC
        message = letter["message"]
        page = f"{path}/{message['id']}?place={message['place']}"
        assert GROUP in values(client, page)["readers"]
        sent = change(client, page, "resend", to="topic", body="mended")
        assert values(client, str(sent.url))["body"]["text"] == "mended"
        assert f"%RETRY%{GROUP}" in change(client, page, "resend", to="group", body="alone").text
        bodies = set[bytes]()
        while not bodies >= {b"mended", b"alone"}:
            one = consumer.receive(PATIENCE)
            assert one.topic == TOPIC
            bodies.add(one.body)
            one.ack()
    preview = values(client, f"/groups/{GROUP}/reset?topic={TOPIC}&to=earliest")["preview"]
    assert preview["repeated"] > 0
    assert "come again" in change(client, f"/groups/{GROUP}/reset?topic={TOPIC}&to=earliest", "reset").text


def test_an_open_half_message_is_listed(server: Server, client: httpx.Client) -> None:
    foreign = isinstance(server, RocketmqServer)
    with metaq.TransactionProducer(server.namesrv, group=PAYERS, check=lambda _message: None) as producer:
        tx = producer.transaction(TOPIC, b"half").begin()
        found = eventually(
            lambda: (one := values(client, "/transactions")) and any(row["id"] == tx.id for row in one["halves"]) and one,
            what="it is listed",
        )  # fmt: skip
        tx.rollback()
    (row,) = [row for row in found["halves"] if row["id"] == tx.id]
    assert (row["topic"], row["group"]) == (TOPIC, PAYERS)
    assert (found["staged"] is None) == foreign
    assert (found["counts"][0]["open"] is None) == foreign
    text = client.get("/transactions").text
    assert ("a RocketMQ knows only half messages" in text) == foreign
    assert ("this broker does not tell how many are open" in text) == foreign
