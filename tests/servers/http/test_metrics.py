"""`/metrics`: what Prometheus reads, with bounded names, and at most a slice of the loop at a time."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from metaq.metrics import table
from metaq.metrics.metric import Kind
from metaq.metrics.top import OTHERS
from tests.servers.http.running import running
from tests.servers.http.support import in_loop


async def put(served, topic, *bodies):
    for body in bodies:
        assert (await served.client.post(f"/topics/{topic}/messages", content=body)).status_code == 200


def values(text, name):
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@in_loop
async def test_messages_are_counted_as_they_are_now(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "orders", b"a", b"b")
        text = (await served.client.get("/metrics")).text
        assert values(text, "metaq_messages_put_total") == {("orders",): 2}
        await put(served, "orders", b"c")
        await served.client.get("/topics/orders/queues/0/messages", params={"group": "readers"})
        text = (await served.client.get("/metrics")).text
        assert values(text, "metaq_messages_put_total") == {("orders",): 3}
        assert values(text, "metaq_connections")[("http",)] == 1
        assert values(text, "metaq_leads") == {(): 1}


@in_loop
async def test_lag_of_groups(tmp_path):
    async with running(tmp_path) as served:
        for body in (b"a", b"b", b"c"):
            await served.client.post("/topics/orders/messages", content=body, headers={"metaq-queue": "0"})
        await served.client.put("/groups/billing/topics/orders/queues/0/offset", json={"offset": 1})
        text = (await served.client.get("/metrics")).text
        assert values(text, "metaq_group_lag_messages") == {("billing", "orders"): 2}
        assert values(text, "metaq_group_lag_seconds")[("billing", "orders")] >= 0


@in_loop
async def test_names_are_bounded_and_the_others_only_grow(tmp_path):
    async with running(tmp_path, metrics_names_max=2) as served:
        await put(served, "a", b"1", b"2", b"3")
        await put(served, "b", b"1", b"2")
        await put(served, "c", b"1")
        first = values((await served.client.get("/metrics")).text, "metaq_messages_put_total")
        assert first == {("a",): 3, ("b",): 2, (OTHERS,): 1}
        await put(served, "c", *[b"x"] * 40)  # now it is one of the busiest
        await put(served, "b", b"3")
        second = values((await served.client.get("/metrics")).text, "metaq_messages_put_total")
        assert len(second) == 3 and ("c",) in second
        assert second[("c",)] == 41 and second[(OTHERS,)] >= first[(OTHERS,)]


@in_loop
async def test_both_formats_can_be_read_and_have_what_the_table_says(tmp_path):
    async with running(tmp_path) as served:
        await put(served, "a", b"1")
        accept = {"accept": "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"}
        told = await served.client.get("/metrics", headers=accept)
        assert told.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name: family for family in open_metrics(told.text)}
        known = {f"metaq_{metric.name}": metric for metric in table.ALL}
        assert set(families) <= set(known)
        for name, family in families.items():
            assert family.type == known[name].kind.value, name
            assert family.documentation == known[name].help
            if known[name].kind is not Kind.INFO:
                assert all(set(known[name].labels) <= set(sample.labels) for sample in family.samples)
