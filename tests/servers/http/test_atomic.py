"""Several messages by one request, all or none."""

from __future__ import annotations

import pytest

from metaq.model import properties as props
from tests.servers.http.running import running
from tests.servers.http.support import in_loop

ORDERS = "/topics/orders/messages"


@in_loop
async def test_messages_of_several_topics_are_stored_together(tmp_path):
    async with running(tmp_path, "SYNC_FLUSH") as served:
        messages = [
            {"topic": "orders", "body": {"id": 42}, "tag": "paid", "keys": ["42"], "queue": 1, "properties": {"shop": "8"}},
            {"topic": "stock", "body": "a"}, {"topic": "stock", "body": "b"}, {"topic": "orders", "body": "c", "queue": 1},
        ]  # fmt: skip
        told = await served.client.post("/messages", json={"messages": messages})
        assert told.status_code == 200, told.text
        answer = told.json()
        assert answer["delivered"] and not answer["repeated"] and answer["warning"] == ""
        assert [one["topic"] for one in answer["messages"]] == ["orders", "stock", "stock", "orders"]
        found = served.messages("orders")
        assert [one.body for one in found] == [b'{"id":42}', b"c"]  # fmt: skip
        assert (found[0].tag, found[0].properties[props.KEYS], found[0].properties["shop"]) == ("paid", "42", "8")
        assert [one.message_id for one in found] == [
            answer["messages"][0]["messageId"],
            answer["messages"][3]["messageId"],
        ]
        assert served.bodies("stock") == [b"a", b"b"]
        store = served.broker.store
        assert store.state.flushed > max(one.log_offset for one in found)


@in_loop
async def test_a_list_for_one_topic_and_lines(tmp_path):
    async with running(tmp_path) as served:
        body = {"atomic": True, "messages": [{"body": "a", "queue": 0}, {"body": "b", "queue": 3}]}
        assert (await served.client.post(ORDERS, json=body)).json()["delivered"]
        lines = {"content-type": "application/x-ndjson"}
        told = await served.client.post(f"{ORDERS}?atomic=true", content=b'{"body": "c"}\n{"body": "d"}', headers=lines)
        assert told.json()["delivered"], told.text
        assert sorted(served.bodies("orders")) == [b"a", b"b", b"c", b"d"]


@in_loop
async def test_one_that_cannot_be_stored_keeps_all_others_out(tmp_path):
    async with running(tmp_path) as served:
        refused = [
            ({"topic": "orders", "body": "x", "queue": 99}, 400), ({"topic": "SCHEDULE_TOPIC_XXXX", "body": "x"}, 403),
            ({"topic": "orders", "body": "x", "delayLevel": 3}, 400), ({"topic": "orders", "body": "x" * (5 << 20)}, 422),
            ({"topic": "a/b", "body": "x"}, 400), ({"topic": "orders", "body": "x", "properties": {"a": "b" * 40_000}}, 422),
        ]  # fmt: skip
        for bad, status in refused:
            told = await served.client.post("/messages", json={"messages": [{"topic": "orders", "body": "good"}, bad]})
            assert told.status_code == status, told.text
            assert told.headers["content-type"] == "application/problem+json"
        assert served.bodies("orders") == []
        assert served.broker.staging.held == (0, 0)


@in_loop
async def test_a_request_that_is_repeated_stores_nothing_twice(tmp_path):
    body = {"transaction": "order-42", "messages": [{"topic": "orders", "body": "a"}]}
    async with running(tmp_path) as served:
        first = (await served.client.post("/messages", json=body)).json()
        second = (await served.client.post("/messages", json=body)).json()
        assert (first["repeated"], second["repeated"]) == (False, True)
        assert first["transaction"] == second["transaction"] == f"http-order-42@{served.broker.environment.name}"
    async with running(tmp_path) as served:
        assert (await served.client.post("/messages", json=body)).json()["repeated"]
        assert served.bodies("orders") == [b"a"]
        named = await served.client.post(
            f"{ORDERS}?atomic=true&transaction=order-42", json={"messages": [{"body": "b"}]}
        )
        assert named.json()["repeated"] and served.bodies("orders") == [b"a"]


@in_loop
async def test_many_megabytes_come_together_and_in_their_order(tmp_path):
    async with running(tmp_path) as served:
        bodies = [f"{number}:".ljust(3000, "x") for number in range(3000)] + ["y" * (2 << 20)]
        messages = [{"topic": "orders", "body": body} for body in bodies]
        told = await served.client.post("/messages", json={"messages": messages})
        assert told.status_code == 200 and told.json()["delivered"], told.text
        assert served.bodies("orders") == [body.encode() for body in bodies]
        ids = [one["messageId"] for one in told.json()["messages"]]
        assert ids == [one.message_id for one in served.messages("orders")] and len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/messages", {"messages": []}, "empty"), ("/messages", {"messages": [{"body": "a"}]}, "topic"),
        ("/messages", {"messages": [{"topic": "a", "body": "b"}], "atomic": True}, "atomic"),
        ("/messages", {"messages": [{"topic": "a", "body": "b"}], "transaction": "a b"}, "transaction"),
        (f"{ORDERS}?transaction=a", {"body": "b"}, "atomic"), (f"{ORDERS}?atomic=perhaps", {"body": "b"}, "parameter"),
    ],
)  # fmt: skip
@in_loop
async def test_what_is_no_such_request_is_told(tmp_path, path, body, says):
    async with running(tmp_path) as served:
        told = await served.client.post(path, json=body)
        assert told.status_code == 400 and says in told.text, told.text
