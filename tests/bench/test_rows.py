"""The benchmarks of brokers and clients run with small counts, so that they cannot rot."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.running import BENCH, bench_modules, run_rows
from tests.interop import maven, metaq1
from tests.support import WHOLE_PATIENCE, environment


@pytest.mark.slow
def test_broker_rows(tmp_path: Path) -> None:
    """Every row of the broker is measured: the generator's checks hold for single sends, batches and pulls."""
    keys = "start,memory,send-100,send-1000,send-100-fallback,send-1x1,send-64x1,send-odd,send-delayed,send-retry,send-back,batch,pull"
    rows = run_rows(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for row in rows.values())


BESIDE_PEERS = (
    "send-1x1-awake,send-64x1,push-1k,push-1k-p99,push-50k,push-50k-p99,push-50k-rate,sync-64,sync-256,pull-cpu,batch-cpu,"
    "cold,cold-producers,spread-1000,spread-10000,push-wide,push-wide-50k,topics-1x1,topics-8x64,backlog"
)


@pytest.mark.slow
def test_rows_of_single_requests(tmp_path: Path) -> None:
    """A waiting consumer takes what is sent, all of a backlog is read, and topics are made: every row of ours has its figure."""
    rows = run_rows(tmp_path, BESIDE_PEERS, "--alone", "--backlog", "50k")
    assert list(rows) == BESIDE_PEERS.split(",")
    assert all(row["median"] > 0 for key, row in rows.items() if key != "cold-producers")
    assert rows["push-50k-rate"]["median"] > 1
    # ours are compared with ourselves here, and nobody else's rows are judged without their peer
    assert rows["send-64x1"]["verdict"] == "–"
    assert rows["spread-1000"]["verdict"] != "–"


@pytest.mark.slow
def test_rows_of_replication(tmp_path: Path) -> None:
    """Every send is at the slave before it is answered, who waits there gets it, and an empty slave takes over a log. What a reader
    at the slave costs is measured; so little input says nothing of it.
    """
    keys = (
        "replica-64,replica-256,replica-1024,replica-sync-64,replica-lag,replica-lag-p99,replica-cold-sends,replica-cold-waiting,"
        "replica-cold-cpu,replica-catch-up"
    )
    rows = run_rows(tmp_path, keys, "--alone")
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for key, row in rows.items() if not key.startswith("replica-cold"))


@pytest.mark.slow
def test_rows_of_tls(tmp_path: Path) -> None:
    """With TLS and without, by the same generator; handshakes are really made meanwhile."""
    keys = "tls-100,tls-1000,tls-1x1,tls-handshakes"
    rows = run_rows(tmp_path, keys, "--alone")
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.interop
def test_row_of_tls_beside_rocketmq(tmp_path: Path) -> None:
    """With TLS and without, too, by the same generator; the report says whose TLS it was, which here is OpenSSL's."""
    maven.jars(*maven.SERVER)  # or skip
    maven.jars(*maven.TCNATIVE)
    row = run_rows(tmp_path, "tls-100")["tls-100"]
    assert row["rocketmq"] > 0
    assert row["rocketmq_without_tls"] > 0
    assert row["rocketmq_tcnative"] == 1
    assert row["verdict"] != "–"  # by our own sends without TLS, and not by RocketMQ's
    assert "RocketMQ with TLS by netty's tcnative" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.all  # it fetches them the first time
@pytest.mark.interop
def test_rows_beside_peers(tmp_path: Path) -> None:
    """Redis, NATS and Kafka are measured under the same generators, those that can be had."""
    with bench_modules():
        import peers

        missing = peers.missing()
    keys = "send-64x1,push-1k,sync-64,batch-cpu,cold"
    rows = run_rows(tmp_path, keys)
    for peer, of_it in (("redis", ("send-64x1", "push-1k", "sync-64")), ("kafka", ("batch-cpu", "cold"))):
        for key in of_it:
            assert (rows[key].get("beside", 0) > 0) is (peer not in missing), missing
    assert ("nats" in rows["push-1k"]) is ("nats" not in missing)
    if len(missing) == 4:
        pytest.skip("; ".join(missing.values()))


@pytest.mark.slow
def test_transactions_row(tmp_path: Path) -> None:
    """Half messages and their commits: the generator checks that all have become readable."""
    rows = run_rows(tmp_path, "tx-64", "--alone")
    assert rows["tx-64"]["median"] > 0


@pytest.mark.slow
def test_rows_of_staged_transactions(tmp_path: Path) -> None:
    """Every answer is a commit, the queues grow by what was acknowledged, and a start knows the open parts."""
    rows = run_rows(tmp_path, "atomic,atomic-commit,atomic-open,client-atomic")
    assert rows["atomic"]["median"] > 0
    assert rows["client-atomic"]["median"] > 0


@pytest.mark.slow
@pytest.mark.interop
def test_rows_of_metaq_1(tmp_path: Path) -> None:
    """Puts and gets of the MetaQ 1.x server beside the original server, and topics in ZooKeeper; the generator checks that partitions grow."""
    maven.jars(*metaq1.SERVER)  # or skip
    keys = "metaq1-put-100,metaq1-put-1x1,metaq1-get-1000,metaq1-topics"
    rows = run_rows(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for row in rows.values())
    assert "beside" in rows["metaq1-put-100"]


@pytest.mark.slow
@pytest.mark.interop
def test_rows_of_rebalance_of_metaq_1(tmp_path: Path) -> None:
    """Partitions are owned as the strategy says, beside the Java client."""
    maven.jars(*metaq1.CLIENT)  # or skip
    rows = run_rows(tmp_path, "metaq1-join,metaq1-second")
    assert all(row["median"] > 0 and "beside" in row for row in rows.values())


@pytest.mark.slow
@pytest.mark.interop
def test_rows_of_clients_of_metaq_1(tmp_path: Path) -> None:
    """Sends and a listener at the original server, beside the Java client; each way of ours at a broker of ours."""
    maven.jars(*metaq1.CLIENT)  # or skip
    keys = "metaq1-send-100,metaq1-send-1000,metaq1-send-64,metaq1-send-64-1000,metaq1-consume"
    rows = run_rows(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 and row["beside"] > 0 and row["verdict"] != "–" for row in rows.values())
    command = [
        sys.executable,
        str(BENCH / "metaq1_send_bench.py"),
        "--part",
        "64-100",
        "--runs",
        "1",
        "--scale",
        "0.01",
    ]
    done = subprocess.run(
        [*command, "--server", "ours", "--alone", "--disk", str(tmp_path / "disk")],
        env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["64-100"]
    assert found["ours"] == max(found[f"ours {way}"] for way in ("futures", "tasks", "threads"))


@pytest.mark.slow
def test_row_of_positions(tmp_path: Path) -> None:
    """Byte positions are computed anew; the bench checks that all are there."""
    assert run_rows(tmp_path, "metaq1-positions")["metaq1-positions"]["median"] > 0


@pytest.mark.slow
def test_row_of_a_search_by_time(tmp_path: Path) -> None:
    """Each outcome is checked by the bench."""
    assert run_rows(tmp_path, "time-search")["time-search"]["median"] > 0


@pytest.mark.slow
def test_client_rows(tmp_path: Path) -> None:
    """The Python client's rows are measured."""
    keys = "client-submit,client-consume,client-send,client-aio,filter-half,filter-few,predicate,trace,request,orderly"
    assert list(run_rows(tmp_path, keys)) == keys.split(",")


@pytest.mark.slow
def test_rows_of_metrics(tmp_path: Path) -> None:
    """A broker is scraped while it works, and one with many topics; so little input says nothing of the ratios."""
    keys = "metrics-send,metrics-pull,metrics-scrape,metrics-hold"
    rows = run_rows(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for key, row in rows.items() if key in {"metrics-scrape", "metrics-hold"})


def test_rebalance(tmp_path: Path) -> None:
    """Members tell their shares, one is killed, and the others have all queues."""
    command = [sys.executable, str(BENCH / "rebalance_bench.py"), "--queues", "30", "--members", "3"]
    done = subprocess.run(
        [*command, "--disk", str(tmp_path)], env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["queues_of_the_dead"] == 10


def test_topics_by_use(tmp_path: Path) -> None:
    """Topics are made over eight connections, over one, and one after the other, beside a sender that goes on."""
    command = [sys.executable, str(BENCH / "topics_bench.py"), "--quick", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("200 topics by use") == 3


def test_capacity(tmp_path: Path) -> None:
    """What docs/capacity.md reckons with: what lies on the disk is so by the formats, and every descriptor is counted."""
    command = [sys.executable, str(BENCH / "capacity.py"), "--quick", "--json", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["entry of a consume queue, B"] == 20
    for topic, more in (("body-100", 0), ("body-1000", 0), ("tag-and-key-1000", 29)):
        assert found[f"overhead of a record, topic {topic}, B"] == 155 + len(topic) + more
    for what in (
        "descriptors of a connection",
        "descriptors of a queue",
        "files of a queue",
        "mapped files of a queue",
    ):
        assert round(found[what]) == 1, what
    assert 10 < found["memory at rest, MB"] < 100
    assert not list(tmp_path.glob("capacity-*")), "its store is removed"


def test_hot_module_rows() -> None:
    """The compiled extension's paths are measured for each build of it that there is."""
    command = [sys.executable, str(BENCH / "hot_bench.py"), "--quick"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.endswith("plain"))
    rows = lines[head + 1 :]
    assert len(rows) >= 15
    assert all(float(line.split()[-1].replace(",", "")) > 0 for line in rows)


@pytest.mark.slow
@pytest.mark.parametrize("hot", ["1", "0"])
def test_threads(tmp_path: Path, hot: str) -> None:
    """Rates of one and two threads, and which Python and modules they are of; the script compares ids and counts messages."""
    command = [
        sys.executable,
        str(BENCH / "threads_bench.py"),
        "--quick",
        "--threads",
        "1",
        "2",
        "--disk",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, env=environment(METAQ_HOT=hot), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    compiled_there = importlib.util.find_spec("metaq.wire.hot._native") is not None
    assert found["compiled"] == (hot == "1" and compiled_there)
    assert found["free_threaded"] or found["lock"]
    for name in ("codec_per_s", "send_per_s", "submit_per_s", "consume_per_s"):
        assert set(found[name]) == {"1", "2"}
        assert min(found[name].values()) > 0


@pytest.mark.slow
def test_delayed_delivery(tmp_path: Path) -> None:
    """Deliveries and their lateness are measured; the script checks that every message comes once."""
    command = [sys.executable, str(BENCH / "delay_bench.py"), "--quick", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    if "no C compiler" in done.stderr:
        pytest.skip("no C compiler for the load generator")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("deliveries: ") == 2
    assert done.stdout.count("  level ") == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon from Linux's /proc")
def test_pull_flood(tmp_path: Path) -> None:
    """Memory and a bystander's wait are measured for each way in which a long pull is read, and all answers are whole."""
    command = [sys.executable, str(BENCH / "pull_flood.py"), "--quick", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["kind"] for result in results] == ["gathered", "runs", "old"]
    assert all(result["smallest"] > 0.9 and result["unread_mb"][0] > 0 for result in results)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from Linux's /proc")
def test_what_a_dashboard_costs_a_broker(tmp_path: Path) -> None:
    """Each way of running one is measured beside none."""
    pytest.importorskip("jinja2", reason="the dashboard needs pymetaq[dashboard]")
    command = [sys.executable, str(BENCH / "dashboard_cost.py"), "--quick", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    if "no C compiler" in done.stderr:
        pytest.skip("no C compiler for the load generator")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(found["send_k_s"][way] > 0 for way in ("none", "apart", "within"))
    done = subprocess.run(
        [*command, "--pairs=2"], env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["push_p50_us"]["ratio"] > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from Linux's /proc")
def test_connect_flood(tmp_path: Path) -> None:
    """A bystander is measured with and without others that connect all the time."""
    command = [sys.executable, str(BENCH / "connect_flood.py"), "--quick", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["connects_per_s"] > 10
    assert result["ratio"] > 0


@pytest.mark.slow
def test_pages_of_the_dashboard() -> None:
    """Every page is measured, at a cluster that has what the pages list."""
    command = [sys.executable, str(BENCH / "dashboard_bench.py"), "--topics=60", "--groups=60", "--rounds=2", "--json"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 14
    assert all(row["median"] > 0 and row["kib"] > 2 for row in rows.values())


@pytest.mark.slow
def test_pages_about_messages() -> None:
    """Every page is measured, with messages on it."""
    command = [sys.executable, str(BENCH / "dashboard_messages_bench.py"), "--messages=500", "--rounds=2", "--json"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 8
    assert all(row["median"] > 0 and row["kib"] > 2 for row in rows.values())
