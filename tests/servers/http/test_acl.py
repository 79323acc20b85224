"""Accounts by HTTP: each operation asks for its right, and what an account takes is charged to it over all its connections."""

from __future__ import annotations

import httpx

from metaq.model.quota import QuotaKind, QuotaLimits
from tests.servers.http.running import running
from tests.servers.http.support import eventually, in_loop
from tests.support import PATIENCE

ACCOUNTS = """accounts:
- {accessKey: reader-account, secretKey: "12345678r", defaultTopicPerm: DENY, defaultGroupPerm: DENY, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
- {accessKey: writer-account, secretKey: "12345678w", defaultTopicPerm: DENY, defaultGroupPerm: DENY, topicPerms: [orders=PUB, stock=PUB]}
- {accessKey: admin-account, secretKey: "12345678a", admin: true}
"""
READER, WRITER, ADMIN = ("reader-account", "12345678r"), ("writer-account", "12345678w"), ("admin-account", "12345678a")
RECEIVE = "/groups/billing/topics/orders/messages"


def guarded(folder):
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    return running(folder, acl_enable=True, acl_path=str(folder / "plain_acl.yml"))


@in_loop
async def test_each_operation_asks_for_its_right(tmp_path):
    async with guarded(tmp_path) as served:
        ask = served.client.request
        both = {"messages": [{"topic": "orders", "body": "a"}, {"topic": "stock", "body": "b"}]}
        assert (await ask("POST", "/messages", json=both, auth=WRITER)).status_code == 200
        other = {"messages": [{"topic": "orders", "body": "a"}, {"topic": "others", "body": "b"}]}
        for auth, status in ((READER, 403), (WRITER, 403), (None, 401), (("nobody", "x"), 403)):
            told = await ask("POST", "/messages", json=other, auth=auth)
            assert told.status_code == status, (auth, told.text)
        received = await ask("POST", RECEIVE, params={"start": "earliest"}, auth=READER)
        assert received.status_code == 200, received.text
        [one] = received.json()["messages"]
        assert (await ask("POST", RECEIVE, auth=WRITER)).status_code == 403
        acks = {"ackIds": [one["ackId"]]}
        assert (await ask("POST", "/groups/billing/ack", json=acks, auth=WRITER)).status_code == 403
        assert (await ask("POST", "/groups/billing/ack", json=acks, auth=READER)).status_code == 200
        # A retry delivers a message to the group: of a topic that the account may not read there is none.
        [stock] = served.messages("stock")
        retry = f"/groups/billing/messages/{stock.offset_id}/retry"
        assert (await ask("POST", retry, auth=READER)).status_code == 403
        assert (
            await ask("POST", f"/groups/billing/messages/{one['message']['offsetId']}/retry", auth=READER)
        ).status_code == 204
        for path in (
            "/admin/topics",
            "/admin/topics/orders",
            "/admin/groups",
            "/admin/groups/billing",
            "/admin/groups/billing/progress",
            "/admin/broker",
        ):
            assert (await ask("GET", path)).status_code == 401, path
            assert (await ask("GET", path, auth=ADMIN)).status_code == 200, path


@in_loop
async def test_an_account_is_charged_over_all_its_connections(tmp_path):
    async with guarded(tmp_path) as served:
        served.broker.quotas.set((QuotaKind.ACCOUNT, WRITER[0]), QuotaLimits(requests_per_second=2))
        await eventually(lambda: served.broker.quotas.active)
        statuses = list[int]()
        for _ in range(12):
            async with httpx.AsyncClient(base_url=str(served.client.base_url), timeout=PATIENCE, auth=WRITER) as client:
                statuses.append((await client.post("/topics/orders/messages", content=b"a")).status_code)
        assert statuses[0] == 200 and 429 in statuses
        assert (await served.client.get("/admin/topics", auth=ADMIN)).status_code == 200
