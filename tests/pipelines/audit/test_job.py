"""The pipeline `audit` against a real broker: stored messages, traces, ledgers and offsets."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import msgspec
import pyarrow.parquet as pq
import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import ConfigError
from metaq.model.topics.system import TRACE_TOPIC
from metaq.model.trace import Begun, Handled, Kind, Sent, Settled
from metaq.pipelines.audit.figures import AuditFigures
from metaq.pipelines.job import RunStopped, stoppable
from metaq.pipelines.run import Run, ask_to_stop
from metaq.spark.pipelines import audit
from metaq.wire.trace import encode
from tests.scripted import ScriptedCluster
from tests.support import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.spark]
T0 = 1_700_006_400_000  # 2023-11-15, 00:00 UTC
TRACES = "traces"
SINCE, UNTIL = "2023-11-15T00:00:00Z", "2023-11-15T00:01:00Z"


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        yield running


def put(cluster, topic, number, key, store_ms, queue_id=0):
    cluster.put(topic, queue_id, [b"x"], store_ms, f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01{key}\x02TAGS\x01t")


def trace(cluster, *records, store_ms=T0 + 50_000):
    cluster.put(TRACES, 0, [encode(records)], store_ms)


def ident(number):
    return f"{number:032X}"


def delivered(group, number, time_ms, *, attempt=0, success=True, ended=True):
    """The two records of a delivery."""
    request = f"{group}-{number}-{time_ms}"
    begun = Begun(time_ms=time_ms - 3, group=group, request_id=request, message_id=ident(number), retry_times=attempt)
    if not ended:
        return (begun,)
    return begun, Handled(
        request_id=request, message_id=ident(number), success=success, time_ms=time_ms, group=group, cost_ms=3
    )


def audited(spark, cluster, folder, **options):
    """(Outcome, the figures of audit.json, the findings in Parquet)."""
    given = {
        "nameServers": cluster.namesrv,
        "folder": str(folder),
        "since": SINCE,
        "until": UNTIL,
        "traceTopic": TRACES,
    }
    given |= options
    outcome = audit(spark, given)
    found = msgspec.json.decode((folder / "audit.json").read_bytes(), type=AuditFigures)
    assert outcome.figures["groups"] == json.loads((folder / "audit.json").read_text())["groups"]
    return outcome, found, pq.read_table(folder / "findings").to_pylist()


def kinds(findings, group):
    return {(row["kind"], int(row["id"], 16)) for row in findings if row["group"] == group}


def test_stored_messages_against_traces(spark, cluster, tmp_path):
    """Each kind of finding, by group; both groups are judged apart, and what nobody sent is stray."""
    put(cluster, "orders", 98, "k", T0 - 1000)  # Before the audited time: known, and not judged.
    for number in range(10):
        put(cluster, "orders", number, "<script>" if number == 4 else "k", T0 + 1000 * number)
    put(cluster, "orders", 99, "k", T0 + 60_000)  # Behind it.
    records = []
    for number in (*range(9), 98, 99):
        failed = number == 4
        when = {3: T0 + 15_000, 5: T0 + 65_001}.get(number, T0 + 1000 * number + 40)
        records += delivered("billing", number, when, success=not failed)
    records += delivered("billing", 6, T0 + 20_000, attempt=1)
    records += delivered("billing", 77, T0 + 21_000)
    records += delivered("billing", 9, T0 + 22_000, ended=False)
    for number in range(10):
        records += delivered("search", number, T0 + 1000 * number + 5)
    trace(cluster, *records)
    trace(cluster, *records[:6])  # Traces come at least once.
    outcome, found, findings = audited(
        spark, cluster, tmp_path / "audit", topics="orders", lateSeconds=10, graceSeconds=60, windowSeconds=5
    )
    assert kinds(findings, "billing") == {
        ("missing", 4), ("missing", 9), ("repeated", 6), ("late", 3), ("late", 5), ("out_of_order", 3), ("out_of_order", 5),
        ("stray", 77),
    }  # fmt: skip
    assert kinds(findings, "search") == set()
    why = {(row["kind"], int(row["id"], 16)): row["why"] for row in findings}
    assert (why["missing", 4], why["missing", 9]) == ("failed 1 times", "its handling has not ended")
    assert outcome.exit_status == 1
    assert found.breaches == [
        "group billing: 2 messages are missing, and allowMissing is 0",
        "group billing: 2 messages are out of order, and allowOutOfOrder is 0",
    ]
    billing, search = found.groups
    assert (billing.counts.sent, billing.counts.consumed, billing.counts.extra, billing.stray) == (10, 8, 1, 1)
    assert (search.counts.latency_p50, search.counts.latency_max) == (5, 5)
    windows = pq.read_table(tmp_path / "audit" / "windows").to_pylist()
    assert Counter({(row["group"], (row["window_ms"] - T0) // 1000): row["missing"] for row in windows}) == Counter(
        {("billing", 0): 1, ("billing", 5): 1, ("search", 0): 0, ("search", 5): 0}
    )
    keys = {row["key"]: row["missing"] for row in pq.read_table(tmp_path / "audit" / "keys").to_pylist()}
    assert keys == {"k": 1, "<script>": 1}
    html = (tmp_path / "audit" / "report.html").read_text()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "NOT CLEAN: group billing: 2 messages are missing" in outcome.text
    assert not (tmp_path / "audit" / "_making").exists()


@pytest.mark.all
@pytest.mark.spark_all
def test_traces_alone_and_what_they_do_not_tell(spark, cluster, tmp_path):
    """Sends that are not traced are told as such and not as missing; open transactions and delayed messages neither."""
    for number in range(6):
        put(cluster, "orders", number, "k", T0 + 1000 * number)
    sends = [
        Sent(time_ms=T0 + 1000 * number, topic="orders", message_id=ident(number), keys="k") for number in range(4)
    ]
    half = [Sent(time_ms=T0 + 5000, topic="orders", message_id=ident(number), kind=Kind.HALF) for number in (10, 11)]
    later = Sent(time_ms=T0 + 5000, topic="orders", message_id=ident(12), kind=Kind.DELAYED)
    failed = Sent(time_ms=T0 + 5000, topic="orders", message_id=ident(13), success=False)
    other = Sent(time_ms=T0 + 5000, topic="payments", message_id=ident(14))
    commit = Settled(time_ms=T0 + 6000, topic="orders", message_id=ident(10), state="COMMIT_MESSAGE")
    got = [record for number in (0, 1, 2, 5, 14) for record in delivered("g", number, T0 + 9000 + number)]
    trace(cluster, *sends, *half, later, failed, other, commit, *got)
    cluster.put(TRACES, 0, [b"nonsense\x02"], T0 + 50_000)
    outcome, found, findings = audited(spark, cluster, tmp_path / "a", topics="orders", sent="trace")
    assert kinds(findings, "g") == {("missing", 3), ("missing", 10), ("stray", 5)}
    assert (found.sent, found.not_traced, found.groups[0].counts.unjudged) == (5, 1, 3)
    notes = " ".join(found.notes)
    for said in (
        "Not traced: 1 message. In this time 6 are stored and 5 sends are traced", "Not judged: 3 messages",
        "could not be read, and were passed over: 1.",
    ):  # fmt: skip
        assert said in notes, notes
    assert outcome.exit_status == 1


@pytest.mark.all
@pytest.mark.spark_all
def test_ledgers(spark, cluster, tmp_path):
    """What applications wrote down, in their own ids; times in ms or ISO 8601, failures, and what cannot be read."""

    def write(topic, *entries):
        bodies = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries]
        cluster.put(topic, 0, bodies, T0 + 30_000)

    write("ledger-sent", *({"id": f"o{n}", "key": "k", "topic": "orders", "time": T0 + n} for n in range(5)))
    write("ledger-sent", {"id": "elsewhere", "topic": "payments", "time": T0}, b"{", {"id": "o9", "time": "soon"})
    write(
        "ledger-consumed",
        {"id": "o0", "group": "g", "time": "2023-11-15T00:00:02Z"}, {"id": "o1", "group": "g", "time": T0 + 1000},
        {"id": "o2", "group": "g", "time": T0 + 3000, "success": False}, {"id": "o3", "group": "g"},
        {"id": "o3", "group": "g"}, {"id": "o7", "group": "g", "time": T0 + 7000},
    )  # fmt: skip
    options = {"sent": "ledger", "sentLedger": "ledger-sent", "consumed": "ledger", "consumedLedger": "ledger-consumed"}
    _, found, findings = audited(spark, cluster, tmp_path / "a", topics="orders", lateSeconds=20, **options)
    assert {(row["kind"], row["id"]) for row in findings} == {
        ("missing", "o2"), ("missing", "o4"), ("repeated", "o3"), ("late", "o3"), ("out_of_order", "o0"), ("stray", "o7"),
    }  # fmt: skip
    assert any("passed over: 2." in note for note in found.notes)
    outcome, found, _ = audited(spark, cluster, tmp_path / "a", topics="payments", groups="g,never", **options)
    assert [(one.group, one.counts.missing) for one in found.groups] == [("g", 1), ("never", 1)]
    assert "Nobody tells of any delivery to the group never" in " ".join(found.notes)
    assert outcome.exit_status == 1


@pytest.mark.all
@pytest.mark.spark_all
def test_a_real_producer_and_real_consumers(spark, metaq_broker, tmp_path):
    """Traced clients: what one handler refuses is missing, and a group that does not trace is judged by its offsets."""
    namesrv, folder = metaq_broker.namesrv, tmp_path / "audit"
    with metaq.Producer(namesrv, trace=True) as producer:
        sent = [producer.send("audited-whole", b"%d" % number, keys=[f"k{number}"]).message_id for number in range(20)]
    seen = set()
    for group, traced in (("careful", True), ("silent", False)):
        with metaq.Consumer(namesrv, group=group, topics="audited-whole", start="earliest", trace=traced) as consumer:
            while len(seen) < 20:
                with contextlib.suppress(metaq.Later), consumer.receive(PATIENCE) as message:
                    seen.add(message.message_id)
                    if group == "careful" and message.message_id == sent[7]:
                        raise metaq.Later(16)
        seen.clear()
    with Admin(namesrv) as admin:
        eventually(lambda: admin.group_progress("silent").lag == 0)
    given = {"nameServers": namesrv, "folder": str(folder), "topics": "audited-whole", "groups": ["careful", "silent"]}
    outcome = audit(spark, {**given, "graceSeconds": 0})
    figures = {one["group"]: one for one in outcome.figures["groups"]}
    assert (figures["careful"]["evidence"], figures["silent"]["evidence"]) == ("trace", "progress")
    assert figures["silent"]["counts"]["consumed"] == 20
    assert figures["careful"]["counts"]["consumed"] == 19
    (missing,) = pq.read_table(folder / "findings").to_pylist()
    assert (missing["kind"], missing["id"], missing["key"], missing["why"]) == (
        "missing",
        sent[7],
        "k7",
        "failed 1 times",
    )
    assert outcome.exit_status == 1, outcome.text
    assert figures["careful"]["counts"]["latency_p50"] >= 0
    outcome = audit(spark, {**given, "graceSeconds": 0, "allowMissing": 1})
    assert outcome.exit_status == 0, outcome.text


@pytest.mark.all
@pytest.mark.spark_all
def test_an_audit_of_nothing_is_not_clean(spark, cluster, tmp_path):
    """Unless it may be: `sentMin`. Offsets cannot tell of repeats, and a dash says so."""
    put(cluster, "orders", 1, "k", T0 - 5000)
    options = {"topics": "orders", "consumed": "progress", "groups": "g", "graceSeconds": 0}
    outcome, found, _ = audited(spark, cluster, tmp_path / "a", **options)
    assert found.breaches == ["0 messages were sent in this time, and sentMin is 1"]
    assert "has never consumed of them" in " ".join(found.notes)
    assert outcome.exit_status == 1
    put(cluster, "orders", 2, "k", T0 + 5000)
    outcome, found, findings = audited(spark, cluster, tmp_path / "a", **options)  # In the place of the first.
    assert (found.groups[0].counts.missing, [row["why"] for row in findings]) == (1, ["not reached by the group"])
    assert "–" in outcome.text.splitlines()[3]


def test_it_ends_when_it_is_asked_to(spark, cluster, tmp_path):
    """While it waits for the grace, and while Spark works; nothing is written then, and the exit status is no success."""
    put(cluster, "orders", 1, "k", T0)
    folder = tmp_path / "audit"
    given = {"nameServers": cluster.namesrv, "folder": str(folder), "topics": "orders", "consumed": "progress"}
    lines = []

    def stop(line, _figures):
        lines.append(line)
        ask_to_stop(folder)

    outcome = audit(spark, {**given, "groups": "g", "graceSeconds": PATIENCE}, stop)
    assert outcome.exit_status == 1
    assert "waiting" in lines[0]
    outcome = audit(spark, {**given, "groups": "g", "graceSeconds": 0, "since": SINCE}, stop)
    assert (outcome.exit_status, lines[1:]) == (1, ["1 message sent"])
    assert not (folder / "audit.json").exists()


def test_spark_s_work_is_cancelled(spark, tmp_path):
    """A job that has begun ends at once when the run is asked to end; the next one in the session works."""
    with Run("audit", tmp_path).begin() as run:

        def forever(batches):
            import threading

            for batch in batches:
                threading.Event().wait(3600)
                yield batch

        run.stop()
        with pytest.raises(RunStopped), stoppable(spark, run, interrupt=False):
            spark.range(1).mapInArrow(forever, "id bigint").collect()
    assert spark.range(3).count() == 3


def test_wrong_options_are_refused():
    """Each with what to do."""
    from metaq.pipelines.configuration import configure

    for given, why in (
        ({}, "topics is missing"),
        ({"topics": "a", "sent": "ledger"}, "needs sentLedger"),
        ({"topics": "a", "consumedLedger": "x"}, "is not read, for consumed=trace"),
        ({"topics": "a", "consumed": "progress", "sent": "trace", "groups": "g"}, "needs sent=topic"),
        ({"topics": "a", "consumed": "progress"}, "needs groups"),
        ({"topics": "a", "sent": "trace", "order": "queue"}, "order=queue needs sent=topic"),
        ({"topics": "a", "groups": "g@b"}, "names a topic that is not audited"),
        ({"topics": "a", "since": "yesterday"}, "since='yesterday': need a time"),
        ({"topics": "a", "since": "1h", "until": "2h"}, "until=2h is not behind since=1h"),
        ({"topics": "a", "sent": "ledger", "sentLedger": "s", "tags": "t"}, "tags cannot choose from a ledger"),
    ):
        with pytest.raises(ConfigError, match=why):
            configure("audit", {"folder": "f", **given})
    options = configure("audit", {"folder": "f", "topics": "a", "from": "2h", "to": "now", "grace_seconds": 5}).options
    assert options.span(T0) == (T0 - 7_200_000, T0, T0 + 5000)
    assert options.topics_read == ["a", TRACE_TOPIC]
