"""Prometheus' own engine, built from its Go module, over scrapes of a cluster at work: every rule and every query of the dashboard."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest

from tests.interop.golang import evaluator
from tests.metrics.rules import ALERTS, alerts, dashboard_queries, rules
from tests.servers.http.support import in_loop
from tests.servers.http.test_all_metrics import lacking
from tests.servers.http.workload import Workload, cluster
from tests.support import PATIENCE, WHOLE_PATIENCE

pytestmark = [pytest.mark.all, pytest.mark.interop, pytest.mark.xdist_group("prometheus")]

STEP_MS = 15_000
BEGIN_MS = 1_700_000_000_000
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def evaluate(scrapes: list[dict[str, Any]], expressions: list[str]) -> list[dict[str, Any]]:
    """Return a result for each expression, at the time of the last scrape. Raises AssertionError: a scrape or a rule is none."""
    asked = {
        "scrapes": scrapes, "time": scrapes[-1]["time"], "expressions": expressions, "rules": [ALERTS.read_text()],
    }  # fmt: skip
    done = subprocess.run(
        [str(evaluator())], input=json.dumps(asked), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["rules"] == []
    results: list[dict[str, Any]] = answer["results"]
    return results


def scrape(number: int, job: str, text: str, kind: str = OPEN_METRICS) -> dict[str, Any]:
    return {"time": BEGIN_MS + number * STEP_MS, "job": job, "instance": f"{job}:1", "type": kind, "text": text}


PUSHED = """\
# TYPE metaq_pipeline_rows_total counter
metaq_pipeline_rows_total{query="archive"} %d
# TYPE metaq_pipeline_behind_messages gauge
metaq_pipeline_behind_messages{query="archive"} 5
# TYPE metaq_pipeline_last_batch_timestamp_seconds gauge
metaq_pipeline_last_batch_timestamp_seconds{query="archive"} %d
"""
"""As tests/pipelines/test_pushing.py sees it."""


GROUP = """\
# TYPE metaq_failover_leads gauge
metaq_failover_leads{cluster="DefaultCluster",broker="broker-a"} 1
# TYPE metaq_failover_in_doubt gauge
metaq_failover_in_doubt{cluster="DefaultCluster",broker="broker-a"} 0
# TYPE metaq_failover_in_sync_members gauge
metaq_failover_in_sync_members{cluster="DefaultCluster",broker="broker-a"} 2
# TYPE metaq_failover_in_sync_minimum gauge
metaq_failover_in_sync_minimum{cluster="DefaultCluster",broker="broker-a"} 1
"""
"""As tests/servers/http/test_failover_metrics.py sees it: the brokers of this cluster have no failover."""


def expanded(expression: str) -> str:
    """Return an expression with the recorded ones written out: nothing records them here."""
    for rule in rules():
        if "record" in rule:
            expression = expression.replace(rule["record"], f"({rule['expr']})")
    return expression


@in_loop
async def test_every_rule_and_every_query_over_a_cluster_at_work(tmp_path):
    async with cluster(tmp_path) as running, (workload := Workload(running)).working():
        await workload.http()
        await running.namesrv.get("/health/ready")
        async with asyncio.timeout(PATIENCE):
            while lacking(await running.text()):
                await asyncio.sleep(0.05)
        scrapes = []
        for number in range(20):
            scrapes += [
                scrape(number, "metaq", await running.text()),
                scrape(number, "metaq-namesrv", await running.namesrv_text()),
                scrape(number, "metaq-group", GROUP, "text/plain; version=0.0.4"),
                scrape(number, "metaq-pipelines", PUSHED % (number, BEGIN_MS / 1000), "text/plain; version=0.0.4"),
            ]
            await asyncio.sleep(0.2)
    named = [(rule.get("alert", rule.get("record")), expanded(rule["expr"])) for rule in rules()]
    named += dashboard_queries()
    results = await asyncio.to_thread(evaluate, scrapes, [expression for _, expression in named])
    wrong = list[str]()
    alerting = {rule["alert"] for rule in alerts()}
    for (name, expression), result in zip(named, results, strict=True):
        if result["error"]:
            wrong.append(f"{name}: {result['error']}")
        wrong += [f"{name}: nothing has {selector}" for selector, found in result["selectors"].items() if not found]
        if name not in alerting and not result["series"]:
            wrong.append(f"{name}: {expression} has no value")
    assert not wrong, "\n".join(wrong)


FIRES = {
    "MetaqNoLeader": ('metaq_failover_leads{cluster="c",broker="PLACE"} %d', [0]),
    "MetaqInSyncAtMinimum": (
        'metaq_failover_in_sync_members{cluster="c",broker="b"} %d\nmetaq_failover_in_sync_minimum{cluster="c",broker="b"} 1\nmetaq_failover_leads{cluster="c",broker="b"} 1', [1],
    ),
    "MetaqLeaderInDoubt": ('metaq_failover_in_doubt{cluster="c",broker="b"} %d', [1]),
    "MetaqRestarts": ("metaq_start_time_seconds %d", [1, 1, 2, 3, 4]),
    "MetaqLoopLate": ('metaq_loop_lag_seconds_bucket{le="0.5"} 0\nmetaq_loop_lag_seconds_bucket{le="1.0"} %d\nmetaq_loop_lag_seconds_bucket{le="+Inf"} %d', [0, 10, 20]),
    "MetaqErrorsLogged": ('metaq_log_lines_total{level="error"} %d', [0, 0, 1]),
    "MetaqFaults": ('metaq_failed_requests_total{reason="fault"} %d', [0, 0, 1]),
    "MetaqConnectionsRefused": ('metaq_connections_refused_total{server="remoting"} %d', [0, 3]),
    "MetaqQuotaRefusals": ('metaq_quota_refusals_total{kind="client"} %d', [0, 10_000]),
    "MetaqStoreTrouble": ("metaq_store_trouble %d", [1]),
    "MetaqPutFailures": ("metaq_put_failures_total %d", [0, 1]),
    "MetaqDiskFull": ('metaq_disk_step{step="clean"} %d', [1]),
    "MetaqDiskFullSoon": ("metaq_disk_free_bytes %d", [1000, 500, 100]),
    "MetaqTablesUnsaved": ("metaq_unsaved_tables %d", [1]),
    "MetaqFlushSlow": ('metaq_flush_seconds_bucket{le="1.0"} 0\nmetaq_flush_seconds_bucket{le="2.5"} %d\nmetaq_flush_seconds_bucket{le="+Inf"} %d', [0, 5]),
    "MetaqPutSlow": ('metaq_put_seconds_bucket{le="0.5"} 0\nmetaq_put_seconds_bucket{le="1.0"} %d\nmetaq_put_seconds_bucket{le="+Inf"} %d', [0, 5]),
    "MetaqGroupLate": ('metaq_group_lag_seconds{topic="t",group="g"} %d', [301]),
    "MetaqGroupWithoutMembers": ('metaq_group_lag_messages{topic="t",group="g"} %d', [1]),
    "MetaqMessagesComeBack": (
        'metaq_messages_sent_back_total{topic="t",group="g"} %d\nmetaq_messages_got_total{topic="t",group="g"} %d', [0, 500, 1000],
    ),
    "MetaqPredicatesFail": ('metaq_predicate_messages_total{outcome="raised"} %d', [0, 1]),
    "MetaqTransactionsGivenUp": ("metaq_transactions_given_up_total %d", [0, 1]),
    "MetaqDelaysLate": ('metaq_delay_late_seconds_bucket{le="5.0"} 0\nmetaq_delay_late_seconds_bucket{le="10.0"} %d\nmetaq_delay_late_seconds_bucket{le="+Inf"} %d', [0, 5]),
    "MetaqReplicaLate": ('metaq_replica_lag_seconds{slave="s"} %d', [31]),
    "MetaqNoBrokers": ("metaq_namesrv_brokers %d", [0]),
    "MetaqBrokersLost": ('metaq_namesrv_brokers_removed_total{why="expired"} %d', [0, 1]),
    "MetaqPipelineStuck": (
        'metaq_pipeline_last_batch_timestamp_seconds{query="q"} %d\nmetaq_pipeline_behind_messages{query="q"} 1', [1_600_000_000],
    ),
}  # fmt: skip
"""Alert → series with which it fires, and their values over time. `MetaqServerDown` needs a scrape that fails. PLACE: of an alert about a
group of brokers, what it is told by in place of an instance."""


def test_each_alert_fires_when_it_should_and_not_before():
    named = {rule["alert"]: expanded(rule["expr"]) for rule in alerts()}
    assert set(FIRES) | {"MetaqServerDown"} == set(named)
    names, expressions, scrapes = list(named), list(named.values()), []
    for place, (series_text, told) in enumerate(FIRES.values()):
        text = series_text.replace("PLACE", f"of-{place}")
        for number, value in enumerate(told):
            lines = "\n".join(line % value if "%d" in line else line for line in text.split("\n"))
            one = scrape(100 - len(told) + number, "metaq", lines + "\n", "text/plain; version=0.0.4")
            scrapes.append((one["time"], {**one, "instance": f"of-{place}"}))
    ordered = [one for _, one in sorted(scrapes, key=lambda entry: entry[0])]
    results = evaluate(ordered, expressions)
    for name, result in zip(names, results, strict=True):
        assert not result["error"], (name, result)
        fired = {series["labels"].get("instance") or series["labels"]["broker"] for series in result["series"]}
        wanted = {f"of-{place}" for place, other in enumerate(FIRES) if other == name}
        assert fired == wanted, name
