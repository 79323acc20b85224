"""The table of metrics is whole: a broker and a name server that work have all that it says, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from metaq.metrics import table
from metaq.metrics.metric import Kind, Of
from metaq.metrics.reference import PREFIX
from tests.servers.http.support import in_loop
from tests.servers.http.workload import GROUP, Workload, cluster, families_of, samples_of
from tests.support import PATIENCE

ZERO = {"put_failures", "peer_bytes", "log_unflushed_bytes", "store_trouble", "unsaved_tables", "staged_parts", "staged_bytes",
    "transactions_given_up", "connections_refused", "quota_refusals", "held_pulls", "log_lines", "predicate_messages", "namesrv_brokers_removed", "half_messages", "group_lag_messages",
    "group_lag_seconds", "replica_lag_seconds", "disk_step", "messages_sent_back"}  # fmt: skip
"""May be 0, or have a label that is."""


GROUPS = {PREFIX + metric.name for metric in table.of(Of.BROKER) if metric.name.startswith("failover_")}
"""Only a broker with failover has these: test_failover_metrics.py, and on a real group tests/system/test_rolling_restart.py."""


def names(of: Of) -> set[str]:
    return {PREFIX + metric.name for metric in table.of(of)} - GROUPS


def lacking(text: str) -> set[str]:
    """Return the metrics of a broker that a scrape has not, or of which nothing was counted."""
    found, told = families_of(text), samples_of(text)
    sums = dict[str, float]()
    for (name, _), value in told.items():
        sums[name] = sums.get(name, 0.0) + value
    empty = {
        PREFIX + metric.name
        for metric in table.of(Of.BROKER)
        if metric.name not in ZERO and PREFIX + metric.name not in GROUPS
        and not sums.get(PREFIX + metric.name + {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_count", Kind.INFO: "_info"}.get(metric.kind, ""))
    }  # fmt: skip
    return (names(Of.BROKER) - found) | empty


@pytest.mark.xdist_group("all metrics")
@in_loop
async def test_a_broker_under_load_has_every_metric_of_the_table_and_no_other(tmp_path):
    async with cluster(tmp_path) as running, (workload := Workload(running)).working():
        await workload.http()
        text = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while lacking(text := await running.text()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"a broker at work has not counted {sorted(lacking(text))}")
        assert families_of(text) == names(Of.BROKER)
        told = samples_of(text)
        assert told[("metaq_http_requests_total", ("pull", "404"))] == 1
        assert told[("metaq_failed_requests_total", ("no-topic",))] >= 1
        assert told[("metaq_requests_total", ("HEART_BEAT",))] >= 1
        assert told[("metaq_transaction_checks_total", ())] >= 1
        assert told[("metaq_predicate_messages_total", ("no",))] >= 1
        assert told[("metaq_messages_got_total", (GROUP, "orders"))] >= 1
        assert told[("metaq_replica_lag_bytes", (_slave(told),))] > 0
        assert (await running.namesrv.get("/health/live")).json()["status"] == "ok"
        ready = await running.namesrv.get("/health/ready")
        assert (ready.status_code, ready.json()["status"], ready.json()["notes"]) == (200, "ready", [])
        assert (await running.namesrv.get("/topics/orders/events")).status_code == 404
        of_namesrv = await running.namesrv_text()
        assert families_of(of_namesrv) == names(Of.NAMESRV)
        found = samples_of(of_namesrv)
        assert found[("metaq_namesrv_brokers", ())] == 1
        assert found[("metaq_namesrv_topics", ())] >= 3
        assert found[("metaq_namesrv_registrations_total", ())] >= 1
        assert found[("metaq_namesrv_route_requests_total", ("found",))] >= 1
        assert found[("metaq_requests_total", ("GET_ROUTEINFO_BY_TOPIC",))] >= 1


def _slave(told) -> str:
    [(_, labels)] = [key for key in told if key[0] == "metaq_replica_lag_bytes"]
    return labels[0]
