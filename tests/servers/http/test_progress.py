"""Groups by HTTP: what is acknowledged is what the group's offset says, and messages that come back."""

from __future__ import annotations

import pytest

from tests.servers.http.running import running
from tests.servers.http.support import in_loop

OFFSET = "/groups/billing/topics/orders/queues/0/offset"


async def put(served, *bodies):
    return [
        (await served.client.post("/topics/orders/messages", json={"body": body, "queue": 0})).json() for body in bodies
    ]


@in_loop
async def test_an_offset_is_what_the_broker_has(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", "b")
        assert (await served.client.get(OFFSET)).json() == {"offset": None}
        assert (await served.client.put(OFFSET, json={"offset": 1})).json() == {"offset": 1}
        assert served.broker.offsets.get("billing", "orders", 0) == 1
        assert (await served.client.get(OFFSET)).json() == {"offset": 1}
    async with running(tmp_path) as served:
        assert (await served.client.get(OFFSET)).json() == {"offset": 1}


@in_loop
async def test_a_message_comes_back_by_the_retry_topic_and_then_is_a_dead_letter(tmp_path):
    async with running(tmp_path) as served:
        [first] = await put(served, "a")
        await served.client.put(OFFSET, json={"offset": 1})
        retry = f"/groups/billing/messages/{first['messageId']}/retry"
        assert (await served.client.post(retry)).status_code == 204
        assert served.broker.topics.get("%RETRY%billing") is not None
        assert (await served.client.post(retry, json={"delayLevel": -1})).status_code == 204
        assert [one.body for one in served.messages("%DLQ%billing")] == [b"a"]


@pytest.mark.parametrize(
    ("method", "path", "json", "status"),
    [
        ("PUT", OFFSET, {"offset": -1}, 400), ("PUT", OFFSET, {"offset": None}, 400), ("PUT", OFFSET, {"at": 1}, 400),
        ("PUT", OFFSET.replace("/0/", "/9/"), {"offset": 1}, 400), ("GET", OFFSET.replace("orders", "nobody"), None, 404),
        ("POST", "/groups/billing/messages/xyz/retry", None, 400),
        ("POST", f"/groups/billing/messages/{'F' * 32}/retry", None, 400),
        ("POST", f"/groups/billing/messages/{'0' * 32}/retry", {"delayLevel": 99}, 400),
    ],
)  # fmt: skip
@in_loop
async def test_what_is_no_progress_is_refused(tmp_path, method, path, json, status):
    async with running(tmp_path) as served:
        await put(served, "a")
        told = await served.client.request(method, path, json=json)
        assert told.status_code == status, told.text
        assert told.headers["content-type"] == "application/problem+json"
