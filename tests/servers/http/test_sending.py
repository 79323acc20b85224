"""Messages that come by HTTP are stored as producers' are, and what cannot be is told."""

from __future__ import annotations

import base64
import json

import pytest

from metaq.model import properties as props
from tests.servers.http.running import running
from tests.servers.http.support import in_loop
from tests.servers.support import Doubtful

MESSAGES = "/topics/orders/messages"


@in_loop
async def test_each_kind_of_body_is_stored(tmp_path):
    async with running(tmp_path) as served:
        post = served.client.post
        told = await post(MESSAGES, json={"body": {"id": 42}, "tag": "paid", "keys": ["4711"], "queue": 0})
        assert told.status_code == 200 and told.headers["content-type"] == "application/json"
        place = told.json()
        assert (place["topic"], place["queue"], place["offset"], place["warning"]) == ("orders", 0, 0, "")
        await post(MESSAGES, json={"body": "text", "queue": 0, "properties": {"shop": "8"}})
        await post(MESSAGES, json={"bodyBase64": base64.b64encode(b"\xff\x00").decode(), "queue": 0})
        fields = {"content-type": "image/png", "metaq-queue": "0", "metaq-tag": "x", "metaq-property-shop": "9"}
        await post(MESSAGES, content=b"\x89PNG", headers=fields)
        lines = b'{"body": "one", "queue": 0}\n\n{"body": [2], "queue": 0}\n'
        told = await post(MESSAGES, content=lines, headers={"content-type": "application/x-ndjson"})
        assert [one["offset"] for one in told.json()["messages"]] == [4, 5]
        told = await post(MESSAGES, json={"messages": [{"body": "three", "queue": 0}]})
        assert [one["offset"] for one in told.json()["messages"]] == [6]
        found = served.messages("orders")
        assert [one.body for one in found] == [
            b'{"id":42}', b"text", b"\xff\x00", b"\x89PNG", b"one", b"[2]", b"three",
        ]  # fmt: skip
        assert (found[0].tag, found[0].properties[props.KEYS]) == ("paid", "4711")
        assert [found[number].properties["shop"] for number in (1, 3)] == ["8", "9"]
        assert found[3].tag == "x"


@in_loop
async def test_a_broker_that_has_stepped_down_says_when_to_come_again(tmp_path):
    """Nothing is stored. Whoever asks again soon finds the one that leads by then."""
    async with running(tmp_path) as served:
        served.broker.roles.leader_address = "10.0.0.2:10911"
        served.broker.step_down("b has stepped down")
        together = {"messages": [{"topic": "orders", "body": "x"}]}
        for told in (
            await served.client.post(MESSAGES, json={"body": "x"}),
            await served.client.post("/messages", json=together),
        ):
            assert (told.status_code, told.headers["retry-after"]) == (503, "1")
            assert "10.0.0.2:10911" in told.json()["detail"]
        assert served.broker.store.log.end == 0


@in_loop
async def test_events_are_messages_with_their_attributes(tmp_path):
    async with running(tmp_path) as served:
        post = served.client.post
        event = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "paid", "tenant": "a", "data": {"n": 1}}
        structured = {"content-type": "application/cloudevents+json"}
        assert (await post(MESSAGES, content=json.dumps(event), headers=structured)).status_code == 200
        batch = {"content-type": "application/cloudevents-batch+json"}
        told = await post(MESSAGES, content=json.dumps([event, {**event, "id": "8"}]), headers=batch)
        assert len(told.json()["messages"]) == 2
        fields = {
            "ce-specversion": "1.0",
            "ce-id": "9",
            "ce-source": "/s%20hop",
            "ce-type": "t",
            "content-type": "text/plain",
        }
        await post(MESSAGES, content=b"abc", headers=fields)
        found = {one.properties["CE_id"]: one for one in served.messages("orders")}
        assert sorted(found) == ["7", "8", "9"]
        assert (found["7"].body, found["7"].properties["tenant"]) == (b'{"n": 1}', "a")
        assert found["7"].properties["CE_contenttype"] == "application/json"
        assert (found["9"].body, found["9"].properties["CE_source"]) == (b"abc", "/s hop")
        refused = await post(MESSAGES, content=json.dumps({**event, "id": ""}), headers=structured)
        assert refused.status_code == 400 and "`id`" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("content", "kind", "status", "says"),
    [
        (b"", "text/plain", 400, "empty"),
        (b"{", "application/json", 400, "no message as JSON"),
        (b'{"body": "a", "bodyBase64": "YQ=="}', "application/json", 400, "either"),
        (b'{"bodyBase64": "!"}', "application/json", 400, "Base64"),
        (b'{"body": "a", "tags": "b"}', "application/json", 400, "tags"),
        (b'{"body": "a", "tag": "b||c"}', "application/json", 400, "tag"),
        (b'{"body": "a", "properties": {"KEYS": "b"}}', "application/json", 400, "reserved"),
        (b'{"body": "a", "queue": 70000}', "application/json", 400, "queueId"),
        (b'{"messages": []}', "application/json", 400, "empty"),
        (b'{"body": "a"}\n{"body": 1', "application/x-ndjson", 400, "line 2"),
        (b"\n", "application/x-ndjson", 400, "no message"),
        (b"a", "application/cloudevents+avro", 415, "cloudevents"),
        (b"[" * 5000, "application/json", 400, "no message as JSON"),
        (b"x" * (5 << 20), "text/plain", 422, "the limit"),
        (b"x" * (17 << 20), "text/plain", 413, "the limit"),
    ],
)
@in_loop
async def test_what_is_no_message_is_refused_and_nothing_is_stored(tmp_path, content, kind, status, says):
    async with running(tmp_path) as served:
        told = await served.client.post(MESSAGES, content=content, headers={"content-type": kind})
        assert told.status_code == status and told.headers["content-type"] == "application/problem+json"
        assert says in told.json()["title"] + told.json().get("detail", "")
        assert served.bodies("orders") == []
        assert (await served.client.post(MESSAGES, content=b"good")).status_code == 200


@in_loop
async def test_a_synced_send_waits_for_the_disk(tmp_path):
    """With SYNC_FLUSH the answer comes when the message is durable."""
    async with running(tmp_path, "SYNC_FLUSH") as served:
        told = await served.client.post(MESSAGES, content=b"a")
        assert told.json()["warning"] == ""
        store = served.broker.store
        assert store.state.flushed == store.log.end > 0


@in_loop
async def test_topics_that_are_no_topics_and_those_of_the_system_are_refused(tmp_path):
    async with running(tmp_path) as served:
        for name in ("a%2Fb", "%3Cscript%3E", "SCHEDULE_TOPIC_XXXX", "rmq_sys_METAQ_STAGE", "a" * 300):
            told = await served.client.post(f"/topics/{name}/messages", content=b"x")
            assert told.status_code in {400, 403, 404}, (name, told.text)


@pytest.mark.parametrize(
    "fields", [{"origin": "https://elsewhere.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
@in_loop
async def test_a_page_of_another_site_sends_nothing(tmp_path, fields):
    """A browser sends a form of any site to this port, without asking whether it may."""
    async with running(tmp_path) as served:
        assert (await served.client.post(MESSAGES, content=b"mine")).status_code == 200
        for method, path in (
            ("POST", MESSAGES),
            ("PUT", "/groups/g/topics/orders/queues/0/offset"),
            ("POST", "/groups/g/ack"),
        ):
            told = await served.client.request(
                method, path, content=b"theirs", headers={"content-type": "text/plain", **fields}
            )
            assert told.status_code == 403 and "another site" in told.json()["title"] + told.json()["detail"]
        assert served.bodies("orders") == [b"mine"]
        own = {"origin": str(served.client.base_url).rstrip("/")}
        assert (await served.client.post(MESSAGES, content=b"own", headers=own)).status_code == 200


@in_loop
async def test_what_is_stored_in_doubt_is_answered_with_an_error(tmp_path):
    """And not with a warning: who leads next may not have it."""
    async with running(tmp_path, slave_timeout=50) as served:
        served.broker.acks.wait_for(Doubtful())
        several = {"messages": [{"body": "a"}, {"body": "b"}], "atomic": True}
        for content in ({"body": "one"}, {"messages": [{"body": "a"}, {"body": "b"}]}, several):
            told = await served.client.post(MESSAGES, json=content)
            problem = told.json()
            assert (told.status_code, problem["reason"], problem["detail"]) == (
                504, "in-doubt", "this broker may not lead any more: whether the message is kept is not known",
            )  # fmt: skip
