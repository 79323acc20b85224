"""The metrics pipeline against a real broker. The oracles: the broker's own counters, and pyarrow's reading of the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from metaq.admin import Admin
from metaq.pipelines.metrics.folder import MetricsFolder
from metaq.pipelines.metrics.reading import MetricFigures, read_metrics
from metaq.pipelines.metrics.state import STATE, decode
from metaq.pipelines.metrics.windows import MetricWindow
from metaq.pipelines.run import RUNNING, status_of
from metaq.spark.pipelines import metrics
from tests.spark.running import finished
from tests.support import eventually

pytestmark = pytest.mark.spark
COUNTERS = ("msgPutTotalTodayNow", "putMessageSizeTotal", "msgGetTotalTodayNow")


def counters(broker) -> list[int]:
    """Messages and bytes put, and messages got, as `mqadmin brokerStatus` shows them."""
    with Admin(broker.namesrv) as admin:
        (status,) = admin.list_brokers()
    return [int(status.runtime[name]) for name in COUNTERS]


def options(broker, folder: Path, **more) -> dict:
    return {
        "nameServers": broker.namesrv, "folder": str(folder), "topics": "lagging", "windowSeconds": 1, "graceSeconds": 0,
        "sampleSeconds": 0.2, "triggerSeconds": 0.2, "traceTopic": "off", **more,
    }  # fmt: skip


def run_once(spark, given: dict) -> list[dict]:
    """Returns what each batch told."""
    told: list = []
    finished(lambda: metrics(spark, {**given, "once": True}, lambda _line, figures: told.append(figures)))
    folder = Path(given["folder"])
    eventually(lambda: status_of(folder).state != RUNNING, what="the run's end")
    assert status_of(folder).fault == ""
    return told


def published(folder: Path, metric: str) -> list[dict]:
    """What any reader of Parquet sees."""
    place = folder / f"metric={metric}"
    return ds.dataset(place, partitioning="hive").to_table().to_pylist() if place.exists() else []


def summed(figures: MetricFigures, metric: str, name: str) -> int:
    return sum(window.sums[name] for windows in figures.of(metric).values() for window in windows.values())


def test_figures_agree_with_the_brokers_counters_and_a_killed_step_counts_once(
    spark, metaq_broker, tmp_path, monkeypatch
):
    """Messages and bytes of the windows are what the broker has counted as put, and traces become latencies; a run that is cut
    between the save and Spark's commit goes on with the same sums."""
    folder = tmp_path / "m"
    given = options(
        metaq_broker, folder, topics="measured-orders,measured-pay*", traceTopic="RMQ_SYS_TRACE_TOPIC", windowSeconds=2
    )
    sent = 120
    with metaq.Producer(metaq_broker.namesrv) as producer:
        before = counters(metaq_broker)
        for number in range(sent):
            producer.send(
                "measured-orders" if number % 3 else "measured-payments", b"x" * (number + 1), keys=[str(number)]
            )
        after = counters(metaq_broker)
    with metaq.Consumer(
        metaq_broker.namesrv, group="billing", topics="measured-orders", start="earliest", trace=True
    ) as consumer:
        for _ in range(sent * 2 // 3):
            with consumer.receive() as message:
                assert message is not None

    def cut_off(self, state, batch, tables, save=MetricsFolder.save):
        save(self, state, batch, tables)
        if batch == 1:  # The first is empty: where Spark begins.
            raise RuntimeError("cut off")  # As by kill -9: the step is saved, and Spark does not know it.

    with monkeypatch.context() as patch:
        patch.setattr(MetricsFolder, "save", cut_off)
        with pytest.raises(Exception, match="cut off"):
            run_once(spark, given)
        eventually(lambda: status_of(folder).state != RUNNING, what="the end of the run that was cut")
    assert decode((folder / STATE).read_bytes()).batch == 1
    assert [batch["messages"] for batch in run_once(spark, given)] == [0]  # Batch 1 again: it is in the state.

    found = read_metrics(folder)
    assert (summed(found, "messages", "messages"), summed(found, "messages", "bytes")) == (
        after[0] - before[0], after[1] - before[1],
    )  # fmt: skip
    rows = published(folder, "messages")
    assert sum(row["messages"] for row in rows) == sent  # Their windows are over: the run's last sample saw that.
    assert not any(row["late"] for row in rows)
    (delivered,) = found.of("deliveries")
    assert (delivered.topic, delivered.group) == ("measured-orders", "billing")
    windows = found.windows[delivered].values()
    assert sum(window.sums["deliveries"] for window in windows) == sent * 2 // 3
    assert sum(window.spreads["stored_consumed"].count for window in windows) == sent * 2 // 3
    assert {series.group: series.topic for series in found.of("groups")} == {"billing": "measured-orders"}
    assert summed(found, "groups", "consumed") == 0  # It had come so far when it was seen first.


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_lag_alerts_go_to_a_topic_and_to_a_command_and_windows_agree_with_the_counters(spark, metaq_broker, tmp_path):
    """While messages come: the broker's counters and ours per window differ by no more than what one window holds. An alert begins
    with the lag and ends with it; a command that fails does no harm."""
    folder, heard = tmp_path / "m", tmp_path / "heard"
    command = [
        sys.executable,
        "-c",
        f"import sys; open({str(heard)!r}, 'ab').write(sys.stdin.buffer.read() + b'\\n'); sys.exit(3)",
    ]
    given = options(
        metaq_broker, folder, groups="billing", alertTopic="lag-alerts", alertCommand=command,
        rules=["lag_messages{group=billing} > 50 for 2"],
    )  # fmt: skip
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send("lag-alerts", b"{}")  # Makes the topic.
        producer.send("lagging", b"first")
        sent = [1]
        consumer = metaq.Consumer(metaq_broker.namesrv, group="billing", topics="lagging", start="earliest")
        with consumer, consumer.receive() as message:
            assert message is not None
        query = metrics(spark, given)
        try:

            def alerts() -> list[dict]:
                return [json.loads(line) for line in heard.read_bytes().splitlines()] if heard.exists() else []

            def begun() -> bool:
                for _ in range(5):
                    producer.send("lagging", b"y" * 100)
                    sent.append(1)
                return bool(alerts())

            eventually(begun, what="the begin of the alert")
            with metaq.Consumer(metaq_broker.namesrv, group="billing", topics="lagging", start="earliest") as consumer:

                def ended() -> bool:
                    found = consumer.receive(timeout=0.05)
                    if found is not None:
                        with found:
                            pass
                    return len(alerts()) > 1

                eventually(ended, what="the end of the alert")
            eventually(
                lambda: summed(read_metrics(folder), "messages", "messages") == len(sent), what="all messages counted"
            )
        finally:
            query.stop()
            eventually(lambda: status_of(folder).state != RUNNING, what="the run's end")
    begin, end = alerts()
    assert (begin["state"], end["state"], begin["id"], begin["group"]) == ("begin", "end", end["id"], "billing")
    assert begin["value"] > 50 >= end["value"]
    with metaq.Reader(metaq_broker.namesrv, "lag-alerts", start="earliest", stop_at_end=True) as reader:
        mails = [json.loads(message.body) for message in reader]
    assert [mail["state"] for mail in mails if mail] == ["begin", "end"]
    assert [row["state"] for row in published(folder, "alerts")] == ["begin", "end"]

    found = read_metrics(folder)
    assert 0 < summed(found, "groups", "consumed_bytes") <= summed(found, "messages", "bytes")
    (put,) = found.of("brokers").values()
    (counted,) = found.of("messages").values()
    for start in sorted(put)[1:]:  # The first sample has nothing to be compared with.
        theirs = behind(put, "put_messages", start)
        assert behind(counted, "messages", start + 1000) <= theirs <= behind(counted, "messages", start - 1000) + MAILS


MAILS = 2
"""Messages that the broker counts and that are in no topic which is measured."""


def behind(windows: dict[int, MetricWindow], name: str, start: int) -> int:
    """What came in all windows behind one."""
    return sum(window.sums.get(name, 0) for at, window in windows.items() if at > start)
