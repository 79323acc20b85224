"""Administrators read topics, groups and the broker by HTTP: in pages, and without secrets."""

from __future__ import annotations

import pytest

from metaq.in_pieces import finish
from metaq.model import ConsumerView, Heartbeat
from metaq.model.filters.subscription import SubscriptionData
from metaq.servers.http.inspection import page_of
from metaq.servers.http.requests import when_ready
from tests.broker.support import FakeChannel
from tests.servers.http.running import running
from tests.servers.http.support import in_loop


async def get(served, path, **query):
    told = await served.client.get(path, params=query)
    assert told.status_code == 200, told.text
    return told.json()


@in_loop
async def test_topics_and_their_queues(tmp_path):
    async with running(tmp_path) as served:
        for topic in ("a1", "a3", "a2"):
            messages = [{"body": "x", "queue": 1}] * 3
            await served.client.post(f"/topics/{topic}/messages", json={"messages": messages})
        await served.client.put("/groups/billing/topics/a1/queues/1/offset", json={"offset": 1})
        names, after, pages = list[str](), "", 0
        while True:
            page = await get(served, "/admin/topics", after=after, count=2)
            names += [one["name"] for one in page["topics"]]
            pages += 1
            if not (after := page["next"]):
                break
        assert names == sorted(served.broker.topics.table) and pages > 1
        found = await get(served, "/admin/topics/a1", count=3)
        assert found["topic"] == {"name": "a1", "permission": 6, "readQueues": 4, "writeQueues": 4, "ordered": False}
        assert found["groups"] == ["billing"]
        assert [(one["queue"], one["start"], one["end"]) for one in found["queues"]] == [
            (0, 0, 0),
            (1, 0, 3),
            (2, 0, 0),
        ]
        assert found["queues"][1]["lastStoreTime"] > 0
        rest = await get(served, "/admin/topics/a1", first=found["next"], count=3)
        assert ([one["queue"] for one in rest["queues"]], rest["next"]) == ([3], -1)


@in_loop
async def test_groups_their_members_and_their_progress(tmp_path):
    async with running(tmp_path) as served:
        await served.client.post("/topics/a1/messages", json={"messages": [{"body": "x", "queue": 1}] * 3})
        await served.client.put("/groups/billing/topics/a1/queues/1/offset", json={"offset": 1})
        progress = await get(served, "/admin/groups/billing/progress")
        assert (progress["lag"], progress["next"]) == (2, -1)
        mine = next(one for one in progress["queues"] if one["queue"] == 1)
        assert (mine["topic"], mine["offset"], mine["end"], mine["lag"]) == ("a1", 1, 3, 2) and mine["consumedTime"] > 0
        assert len((await get(served, "/admin/groups/billing/progress", first=1, count=1, topic="a1"))["queues"]) == 1
        view = ConsumerView("billing", {"a1": SubscriptionData("a1", "x || y")})
        channel = FakeChannel()
        await when_ready(lambda: served.broker.beat(channel, "JAVA", 7, Heartbeat("client@1", (view,), ())))
        found = await get(served, "/admin/groups/billing")
        assert found["group"] == {"name": "billing", "consumes": True, "retriesMax": 16, "members": 1}
        assert found["subscriptions"] == [{"topic": "a1", "filter": "x || y", "filterType": "TAG"}]
        [member] = found["members"]
        assert (member["client"], member["address"], member["language"]) == ("client@1", channel.remote, "JAVA")
        listed = await get(served, "/admin/groups", count=1000)
        assert "billing" in [one["name"] for one in listed["groups"]]


@in_loop
async def test_the_broker(tmp_path):
    async with running(tmp_path, broker_cluster_name="here") as served:
        await served.client.post("/topics/a1/messages", content=b"x")
        found = await get(served, "/admin/broker")
        assert (found["cluster"], found["messagesPut"], found["trouble"]) == ("here", 1, "")
        options = {one["key"]: one for one in found["options"]}
        assert options["brokerClusterName"]["value"] == "here"
        assert not [key for key in options if "secret" in key.lower() or "password" in key.lower()]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/admin/topics/nobody", 404), ("/admin/groups/nobody", 404), ("/admin/groups/nobody/progress", 404), ("/admin/topics?count=0", 400),
        ("/admin/topics?count=1001", 400), ("/admin/groups?before=a", 400), ("/admin/broker?x=1", 400), ("/admin/topics/a%2Fb", 404),
    ],
)  # fmt: skip
@in_loop
async def test_what_is_not_there_is_told(tmp_path, path, status):
    async with running(tmp_path) as served:
        told = await served.client.get(path)
        assert told.status_code == status and told.headers["content-type"] == "application/problem+json", told.text


def test_pages_of_many_names_come_in_pieces():
    names = [f"t{number:05}" for number in range(10_000)]
    pieces = page_of(reversed(names), "t00099", 100)
    assert sum(1 for _ in pieces) == 10
    assert finish(page_of(reversed(names), "t00099", 100)) == (names[100:200], names[199])
    assert finish(page_of(names, names[-2], 100)) == (names[-1:], "")
