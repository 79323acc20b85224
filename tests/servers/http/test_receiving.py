"""Groups without a session: what they get, what an acknowledgement does, and what two consumers of one group get."""

from __future__ import annotations

import asyncio

import pytest

from metaq.model import ConsumerView, Heartbeat
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.servers.http.requests import when_ready
from tests.broker.support import FakeChannel
from tests.servers.http.running import running
from tests.servers.http.support import eventually, in_loop

RECEIVE = "/groups/billing/topics/orders/messages"


async def put(served, *bodies, queue=0, topic="orders", tag=None):
    messages = [{"body": body, "queue": queue, **({"tag": tag} if tag else {})} for body in bodies]
    told = await served.client.post(f"/topics/{topic}/messages", json={"messages": messages})
    assert told.status_code == 200, told.text


async def receive(served, path=RECEIVE, **query):
    told = await served.client.post(path, params={"start": "earliest", **query})
    assert told.status_code == 200, told.text
    return told.json()


def bodies(received):
    return [one["message"]["body"] for one in received["messages"]]


async def ack(served, *received, status=200, group="billing"):
    ids = [one["ackId"] for each in received for one in each["messages"]]
    told = await served.client.post(f"/groups/{group}/ack", json={"ackIds": ids})
    assert told.status_code == status, told.text
    return told.json()


@in_loop
async def test_what_is_acknowledged_does_not_come_again(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", "b", "c")
        await put(served, "d", queue=2)
        first = await receive(served, max=2, consumer="one")
        assert len(first["messages"]) == 2 and first["consumer"] == "one"
        assert (await receive(served, max=2, consumer="one"))["messages"] != []
        seen = list[str]()
        while found := await receive(served, max=2, consumer="one"):
            if not found["messages"]:
                break
            told = await ack(served, found)
            assert all(
                served.broker.offsets.get("billing", "orders", one["queue"]) == one["offset"] for one in told["offsets"]
            )
            seen += bodies(found)
        assert sorted(seen) == ["a", "b", "c", "d"]
        assert [one for one in seen if one != "d"] == ["a", "b", "c"]
        assert await ack(served, found if found["messages"] else first, status=200)  # once more does nothing
        assert served.broker.locks.holder("billing", "orders", 0) is None


@in_loop
async def test_two_consumers_get_no_message_both(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", "b")
        await put(served, "c", queue=1)
        first = await receive(served)
        assert sorted(bodies(first)) == ["a", "b", "c"]
        assert bodies(await receive(served)) == []  # a request without a name is a consumer of its own
        await ack(served, first)
        await put(served, "d")
        await put(served, "e", queue=1)
        one, other = await receive(served, max=1), await receive(served)
        assert sorted(bodies(one) + bodies(other)) == ["d", "e"]


@in_loop
async def test_what_nobody_acknowledges_comes_again_when_the_lock_is_over(tmp_path):
    async with running(tmp_path, rebalance_lock_max_live_time=1000) as served:
        await put(served, "a")
        assert bodies(await receive(served)) == ["a"]
        assert bodies(await receive(served)) == []
        assert bodies(await receive(served, wait=60)) == ["a"]


@in_loop
async def test_a_group_waits_for_messages_of_all_queues(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a")
        await ack(served, await receive(served))
        waiting = asyncio.ensure_future(receive(served, wait=60))
        await eventually(lambda: len(served.broker.held_pulls) >= 4)
        await put(served, "b", queue=3)
        assert bodies(await waiting) == ["b"]
        await eventually(lambda: len(served.broker.held_pulls) == 0)
        assert bodies(await receive(served, wait=0.05)) == []


@in_loop
async def test_a_group_begins_at_the_end_and_misses_nothing_from_then_on(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "before")
        assert bodies(await receive(served, start="latest")) == [
            "before"
        ]  # of a young queue a group gets all, as always
        await served.client.put("/groups/late/topics/orders/queues/0/offset", json={"offset": 1})
        await put(served, "after")
        assert bodies(await receive(served, path="/groups/late/topics/orders/messages", start="latest")) == ["after"]


@in_loop
async def test_messages_that_are_retried_come_back_as_their_own(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", "b")
        first = await receive(served, consumer="one")
        failed = first["messages"][0]["message"]
        told = await served.client.post(f"/groups/billing/messages/{failed['offsetId']}/retry", json={"delayLevel": 1})
        assert told.status_code == 204
        await ack(served, first)
        again = await receive(served, consumer="one", wait=60)
        assert bodies(again) == ["a"]
        message = again["messages"][0]["message"]
        assert (message["topic"], message["reconsumeTimes"]) == ("orders", 1)
        await ack(served, again)
        assert served.broker.offsets.get("billing", RETRY_PREFIX + "billing", 0) == 1
        assert bodies(await receive(served, consumer="one")) == []


@in_loop
async def test_what_the_filter_passes_over_is_passed_over_for_good(tmp_path):
    async with running(tmp_path) as served:
        await put(served, *["x"] * 50, tag="other")
        assert bodies(await receive(served, filter="paid")) == []
        assert served.broker.offsets.get("billing", "orders", 0) == 50
        await put(served, "y", tag="other")
        await put(served, "a", tag="paid")
        found = await receive(served, filter="paid")
        assert bodies(found) == ["a"]
        await ack(served, found)
        assert served.broker.offsets.get("billing", "orders", 0) == 52


@in_loop
async def test_acknowledgements_in_no_order_are_told(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", "b", "c")
        found = await receive(served, consumer="one")
        last = {"messages": found["messages"][2:]}
        problem = await ack(served, last, status=409)
        assert problem["reason"] == "not-in-order" and "offset 0" in problem["detail"]
        assert served.broker.offsets.get("billing", "orders", 0) == 0
        await ack(served, {"messages": found["messages"][:1]})
        assert served.broker.locks.holder("billing", "orders", 0) == "one"  # it still has two
        await ack(served, found)
        assert served.broker.offsets.get("billing", "orders", 0) == 3
        await ack(served, {"messages": found["messages"][:1]})  # late: it does not go back
        assert served.broker.offsets.get("billing", "orders", 0) == 3


@in_loop
async def test_a_group_with_members_is_left_to_them(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a")
        found = await receive(served)
        channel = FakeChannel()
        beat = Heartbeat("client@1", (ConsumerView("billing"),), ())

        await when_ready(lambda: served.broker.beat(channel, "JAVA", 1, beat))
        offset = "/groups/billing/topics/orders/queues/0/offset"
        for told in (
            await served.client.post(RECEIVE), await served.client.put(offset, json={"offset": 1}),
            await served.client.post("/groups/billing/ack", json={"ackIds": [found["messages"][0]["ackId"]]}),
        ):  # fmt: skip
            assert (told.status_code, told.json()["reason"]) == (409, "group-online"), told.text
            assert "client@1" in told.json()["detail"]
        served.broker.closed(channel)
        await ack(served, found)


@in_loop
async def test_messages_that_are_gone_are_told(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", "b", "c")
        await served.client.put("/groups/billing/topics/orders/queues/0/offset", json={"offset": 99})
        assert bodies(await receive(served)) == []  # behind the end: the group goes on there
        assert served.broker.offsets.get("billing", "orders", 0) == 3
        await served.client.put("/groups/billing/topics/orders/queues/0/offset", json={"offset": 0})
        served.broker.store.reader.existing_queue("orders", 0).min_offset = 2
        found = await receive(served)
        assert bodies(found) == ["c"]
        assert found["gone"] == [{"topic": "orders", "queue": 0, "start": 0, "stop": 2}]
        await ack(served, found)


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/groups/billing/topics/nobody/messages", {}, 404), ("/groups/a%2Fb/topics/orders/messages", {}, 404),
        ("/groups/a b/topics/orders/messages", {}, 400), (RECEIVE, {"max": 0}, 400), (RECEIVE, {"consumer": "a b"}, 400),
        (RECEIVE, {"start": "0"}, 400), (RECEIVE, {"filter": "a AND", "filterType": "SQL92"}, 400),
    ],
)  # fmt: skip
@in_loop
async def test_what_cannot_be_received_is_told(tmp_path, path, query, status):
    async with running(tmp_path) as served:
        await put(served, "a")
        told = await served.client.post(path, params=query)
        assert told.status_code == status and told.headers["content-type"] == "application/problem+json", told.text


@pytest.mark.parametrize(
    ("ids", "status"),
    [
        ([], 400), ([5], 400), (["x"], 400), (["other:orders:0:0:1:1:c"], 400), (["billing:nobody:0:0:1:1:c"], 404),
        (["billing:orders:9:0:1:1:c"], 400), (["billing:orders:0:0:99:99:c"], 409), (["billing:orders:0:7:9:9:c"], 409),
        (["billing:%RETRY%other:0:0:1:1:c"], 404), (["billing:orders:0:0:1:1:c", "billing:orders:1:5:6:6:c"], 409),
    ],
)  # fmt: skip
@in_loop
async def test_ids_of_others_and_of_nothing_change_nothing(tmp_path, ids, status):
    async with running(tmp_path) as served:
        await put(served, "a")
        await receive(served)
        told = await served.client.post("/groups/billing/ack", json={"ackIds": ids})
        assert told.status_code == status and told.headers["content-type"] == "application/problem+json", told.text
        assert served.broker.offsets.get("billing", "orders", 0) == 0
