"""`python -m tools.grafana > deploy/grafana/metaq.json`: the Grafana dashboard, from a list of its panels."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 8, 7


class Panel(NamedTuple):
    """A panel with a line for each series of its queries: (PromQL, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def quantiles(metric: str, by: str = "instance") -> tuple[tuple[str, str], ...]:
    """Return queries of a histogram's median and 99th percentile."""
    legend = "{{" + by + "}}"
    return tuple(
        (
            f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket{BROKER}[$__rate_interval])))",
            f"p{round(100 * q)} {legend}",
        )
        for q in (0.5, 0.99)
    )


BROKER: Final = '{instance=~"$instance"}'
ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    ("Now", (
        Panel("Messages stored", "cps", ((f"sum by (topic) (rate(metaq_messages_put_total{BROKER}[$__rate_interval]))", "{{topic}}"),)),
        Panel("Messages given to groups", "cps", ((f"sum by (group, topic) (rate(metaq_messages_got_total{BROKER}[$__rate_interval]))", "{{group}} {{topic}}"),)),
        Panel("Lag of groups", "s", ((f"max by (group, topic) (metaq_group_lag_seconds{BROKER})", "{{group}} {{topic}}"),)),
        Panel("Lag of groups, messages", "short", ((f"sum by (group, topic) (metaq_group_lag_messages{BROKER})", "{{group}} {{topic}}"),)),
        Panel("Bytes in and out", "Bps", (
            (f"sum by (instance) (rate(metaq_put_bytes_total{BROKER}[$__rate_interval]))", "in {{instance}}"),
            (f"sum by (instance) (rate(metaq_got_bytes_total{BROKER}[$__rate_interval]))", "out {{instance}}"),
        )),
        Panel("Needs attention", "short", (
            (f"metaq_store_trouble{BROKER}", "store {{instance}}"),
            (f"metaq_unsaved_tables{BROKER}", "unsaved tables {{instance}}"),
            ('metaq_disk_step{instance=~"$instance",step!="ok"}', "disk: {{step}} {{instance}}"),
            (f"increase(metaq_put_failures_total{BROKER}[$__rate_interval])", "put failures {{instance}}"),
        )),
    )),
    ("Latency", (
        Panel("Sends in the broker", "s", quantiles("metaq_put_seconds")),
        Panel("From the store to a consumer", "s", quantiles("metaq_stored_to_given_seconds")),
        Panel("From the producer to the store", "s", quantiles("metaq_born_to_stored_seconds")),
        Panel("Pulls", "s", quantiles("metaq_pull_seconds")),
        Panel("Pulls that wait for a message", "s", quantiles("metaq_held_pull_seconds")),
        Panel("Lateness of the event loop", "s", quantiles("metaq_loop_lag_seconds")),
    )),
    ("Requests", (
        Panel("Requests of remoting", "reqps", ((f"sum by (request) (rate(metaq_requests_total{BROKER}[$__rate_interval]))", "{{request}}"),)),
        Panel("Requests of HTTP", "reqps", ((f"sum by (operation, status) (rate(metaq_http_requests_total{BROKER}[$__rate_interval]))", "{{operation}} {{status}}"),)),
        Panel("Errors, by reason", "reqps", ((f"sum by (reason) (rate(metaq_failed_requests_total{BROKER}[$__rate_interval]))", "{{reason}}"),)),
        Panel("Pulls answered and held", "short", (
            (f"sum by (outcome) (rate(metaq_pulls_total{BROKER}[$__rate_interval]))", "{{outcome}} a second"),
            (f"sum by (instance) (metaq_held_pulls{BROKER})", "held {{instance}}"),
        )),
        Panel("Connections", "short", (
            (f"sum by (server, instance) (metaq_connections{BROKER})", "{{server}} {{instance}}"),
            (f"sum by (server) (increase(metaq_connections_refused_total{BROKER}[$__rate_interval]))", "refused {{server}}"),
        )),
        Panel("Refused by quotas", "reqps", ((f"sum by (kind) (rate(metaq_quota_refusals_total{BROKER}[$__rate_interval]))", "{{kind}}"),)),
    )),
    ("Store", (
        Panel("Disk", "bytes", (
            (f"metaq_disk_free_bytes{BROKER}", "free {{instance}}"),
            (f"metaq_log_bytes{BROKER}", "log {{instance}}"),
        )),
        Panel("Syncs", "s", quantiles("metaq_flush_seconds")),
        Panel("Bytes not synced", "bytes", ((f"metaq_log_unflushed_bytes{BROKER}", "{{instance}}"),)),
        Panel("Age of the oldest message", "s", ((f"time() - metaq_log_oldest_message_timestamp_seconds{BROKER}", "{{instance}}"),)),
        Panel("Topics, queues, groups", "short", (
            (f"metaq_topics{BROKER}", "topics {{instance}}"),
            (f"metaq_queues{BROKER}", "queues {{instance}}"),
            (f"metaq_groups{BROKER}", "groups {{instance}}"),
        )),
        Panel("Replicas behind", "s", ((f"metaq_replica_lag_seconds{BROKER}", "{{slave}} of {{instance}}"),)),
    )),
    ("What is owed", (
        Panel("Delayed messages", "short", ((f"sum by (level) (metaq_delayed_messages{BROKER})", "level {{level}}"),)),
        Panel("Delayed messages come late", "s", quantiles("metaq_delay_late_seconds")),
        Panel("Transactions", "short", (
            (f"sum by (instance) (metaq_half_messages{BROKER})", "undecided {{instance}}"),
            (f"sum by (instance) (rate(metaq_half_messages_put_total{BROKER}[$__rate_interval]))", "begun a second {{instance}}"),
            (f"sum by (instance) (rate(metaq_transactions_ended_total{BROKER}[$__rate_interval]))", "ended a second {{instance}}"),
            (f"sum by (instance) (rate(metaq_transaction_checks_total{BROKER}[$__rate_interval]))", "checked a second {{instance}}"),
        )),
        Panel("Predicates", "cps", ((f"sum by (outcome) (rate(metaq_predicate_messages_total{BROKER}[$__rate_interval]))", "{{outcome}}"),)),
        Panel("Messages given back", "cps", ((f"sum by (group, topic) (rate(metaq_messages_sent_back_total{BROKER}[$__rate_interval]))", "{{group}} {{topic}}"),)),
        Panel("Processor", "percentunit", ((f"rate(metaq_cpu_seconds_total{BROKER}[$__rate_interval])", "{{instance}}"),)),
    )),
    ("Name servers and pipelines", (
        Panel("Registered", "short", (("metaq_namesrv_brokers", "brokers {{instance}}"), ("metaq_namesrv_topics", "topics {{instance}}"))),
        Panel("Routes asked for", "reqps", (("sum by (outcome) (rate(metaq_namesrv_route_requests_total[$__rate_interval]))", "{{outcome}}"),)),
        Panel("Rows of pipelines and queries", "cps", (("sum by (query) (rate(metaq_pipeline_rows_total[$__rate_interval]))", "{{query}}"),)),
        Panel("Pipelines behind", "short", (("sum by (query) (metaq_pipeline_behind_messages)", "{{query}}"),)),
    )),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "type": "row",
                "id": len(panels) + 1,
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
            }
        )
        top += 1
        for place, panel in enumerate(row):
            where = {"x": place % 3 * WIDTH, "y": top + place // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, where))
        top += -(-len(row) // 3) * HEIGHT
    return {
        "title": "MetaQ", "uid": "metaq", "tags": ["metaq"], "schemaVersion": 39, "version": 1, "refresh": "30s", "editable": True,
        "time": {"from": "now-1h", "to": "now"}, "panels": panels, "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
            {
                "name": "instance", "type": "query", "label": "Broker", "datasource": SOURCE, "query": "label_values(metaq_leads, instance)",
                "refresh": 2, "includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"},
            },
        ]},
    }  # fmt: skip


def _panel(panel: Panel, number: int, where: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries", "id": number, "title": panel.title, "datasource": SOURCE, "gridPos": where,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    print(text(), end="")
