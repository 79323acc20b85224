"""The benchmarks run with small counts, so that they cannot rot."""

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.spark.engine.slow_start import run_through
from tests.interop import maven, metaq1
from tests.support import ROOT, WHOLE_PATIENCE, environment

BENCH = ROOT / "bench"


@contextlib.contextmanager
def bench_modules() -> Iterator[None]:
    """The modules of bench/ can be imported inside."""
    sys.path.insert(0, str(BENCH))
    try:
        yield
    finally:
        sys.path.pop(0)


def _run(tmp_path: Path, rows: str, *options: str) -> dict[str, dict[str, object]]:
    command = [sys.executable, str(BENCH / "run.py"), "--quick", "--rows", rows, *options]
    command += ["--disk", str(tmp_path / "disk"), "--output", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    if "no C compiler" in done.stderr:
        pytest.skip("no C compiler for the load generator")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (tmp_path / "report.md").read_text().count("\n| ") > len(rows.split(","))
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    return {row["key"]: row for row in report["rows"]}


@pytest.mark.slow
def test_broker_rows(tmp_path: Path) -> None:
    """Every row of the broker is measured: the generator's checks hold for single sends, batches and pulls."""
    keys = "start,memory,send-100,send-1000,send-100-fallback,send-1x1,send-64x1,send-odd,send-delayed,send-retry,send-back,batch,pull"
    rows = _run(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for row in rows.values())


BESIDE_PEERS = (
    "send-1x1-awake,send-64x1,push-1k,push-1k-p99,push-50k,push-50k-p99,push-50k-rate,sync-64,sync-256,pull-cpu,batch-cpu,"
    "cold,cold-producers,spread-1000,spread-10000,topics-1x1,topics-8x64,backlog"
)


@pytest.mark.slow
def test_rows_of_single_requests(tmp_path: Path) -> None:
    """A waiting consumer takes what is sent, all of a backlog is read, and topics are made: every row of ours has its figure."""
    rows = _run(tmp_path, BESIDE_PEERS, "--alone", "--backlog", "50k")
    assert list(rows) == BESIDE_PEERS.split(",")
    assert all(row["median"] > 0 for key, row in rows.items() if key != "cold-producers")
    assert rows["push-50k-rate"]["median"] > 1
    # ours are compared with ourselves here, and nobody else's rows are judged without their peer
    assert rows["send-64x1"]["verdict"] == "–"
    assert rows["spread-1000"]["verdict"] != "–"


@pytest.mark.slow
@pytest.mark.all  # it fetches them the first time
@pytest.mark.interop
def test_rows_beside_peers(tmp_path: Path) -> None:
    """Redis, NATS and Kafka are measured under the same generators, those that can be had."""
    with bench_modules():
        import peers

        missing = peers.missing()
    keys = "send-64x1,push-1k,sync-64,batch-cpu,cold"
    rows = _run(tmp_path, keys)
    for peer, of_it in (("redis", ("send-64x1", "push-1k", "sync-64")), ("kafka", ("batch-cpu", "cold"))):
        for key in of_it:
            assert (rows[key].get("beside", 0) > 0) is (peer not in missing), missing
    assert ("nats" in rows["push-1k"]) is ("nats" not in missing)
    if len(missing) == 3:
        pytest.skip("; ".join(missing.values()))


@pytest.mark.slow
def test_transactions_row(tmp_path: Path) -> None:
    """Half messages and their commits: the generator checks that all have become readable."""
    rows = _run(tmp_path, "tx-64", "--alone")
    assert rows["tx-64"]["median"] > 0


@pytest.mark.slow
def test_rows_of_staged_transactions(tmp_path: Path) -> None:
    """Every answer is a commit, the queues grow by what was acknowledged, and a start knows the open parts."""
    rows = _run(tmp_path, "atomic,atomic-commit,atomic-open,client-atomic")
    assert rows["atomic"]["median"] > 0
    assert rows["client-atomic"]["median"] > 0


@pytest.mark.slow
@pytest.mark.interop
def test_rows_of_metaq_1(tmp_path: Path) -> None:
    """Puts and gets of the MetaQ 1.x server beside the original server, and topics in ZooKeeper; the generator checks that partitions grow."""
    maven.jars(*metaq1.SERVER)  # or skip
    keys = "metaq1-put-100,metaq1-put-1x1,metaq1-get-1000,metaq1-topics"
    rows = _run(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for row in rows.values())
    assert "beside" in rows["metaq1-put-100"]


@pytest.mark.slow
def test_row_of_positions(tmp_path: Path) -> None:
    """Byte positions are computed anew; the bench checks that all are there."""
    assert _run(tmp_path, "metaq1-positions")["metaq1-positions"]["median"] > 0


@pytest.mark.slow
def test_client_rows(tmp_path: Path) -> None:
    """The Python client's rows are measured."""
    keys = "client-submit,client-consume,client-send,client-aio,filter-half,filter-few,predicate,trace,request,orderly"
    assert list(_run(tmp_path, keys)) == keys.split(",")


def test_rebalance(tmp_path: Path) -> None:
    """Members tell their shares, one is killed, and the others have all queues."""
    command = [sys.executable, str(BENCH / "rebalance_bench.py"), "--queues", "30", "--members", "3"]
    done = subprocess.run(
        [*command, "--disk", str(tmp_path)], env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["queues_of_the_dead"] == 10


@pytest.mark.all  # and in `make bench-small`, as every row
@pytest.mark.spark
@pytest.mark.slow
def test_spark_rows(tmp_path: Path) -> None:
    """The rows of Spark's source and sink, of micro-batches and their planning are measured; the bench counts what was written."""
    keys = (
        "spark,spark-of-parquet-1000,spark-sink,spark-sink-of-once-1000,spark-floor-empty,spark-floor-one,spark-driver"
    )
    rows = _run(tmp_path, keys)
    assert list(rows) == keys.split(",")
    assert all(row["median"] > 0 for row in rows.values())


def _script(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """What a script of Spark's says; it is run again where Spark gave its Python too little time."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(BENCH / name), *flags], env=environment(), capture_output=True, text=True,
            timeout=WHOLE_PATIENCE, check=False,
        )  # fmt: skip

    def check(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr[-10_000:])
        return done

    return run_through(run, check)


@pytest.mark.all  # and in `make bench-small`, as every row
@pytest.mark.spark
@pytest.mark.slow
def test_figures_of_the_pipelines(tmp_path: Path) -> None:
    """Archive beside Spark's writers, its latency, compaction and row changes: the bench counts what was written."""
    done = _script("pipeline_figures.py", "--scale=0.002", "--runs=0", "--seconds=3", f"--disk={tmp_path}")
    found = json.loads(done.stdout)
    assert "writer_cpu_100" in found  # of so little that what a query costs in any case outweighs it
    for name in ("archive_100", "stream_1000", "compact", "plain", "changes_parquet"):
        assert found[name][0] > 0, name
    assert 0 < found["latency_p50"][0] <= found["latency_p99"][0]


@pytest.mark.all
@pytest.mark.spark
@pytest.mark.slow
def test_memory_of_an_archive(tmp_path: Path) -> None:
    """A short run archives what was sent, and leaves samples and a table; its slopes mean nothing."""
    flags = ("--minutes=0.2", "--trigger=1", "--every=1", "--collect=3", "--rate=500", "--most=1e9")
    done = _script("spark_memory.py", *flags, f"--disk={tmp_path}", f"--output={tmp_path}")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sent"] == found["rows"] > 1000
    assert {"driver", "jvm", "workers", "broker"} <= {line["name"] for line in found["lines"]}
    assert (tmp_path / "memory.csv").read_text().count("\n") == found["samples"] + 1
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_topics_by_use(tmp_path: Path) -> None:
    """Topics are made over eight connections, over one, and one after the other, beside a sender that goes on."""
    command = [sys.executable, str(BENCH / "topics_bench.py"), "--quick", "--disk", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("200 topics by use") == 3


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


def test_decoding_of_the_archive(tmp_path: Path) -> None:
    """Each decoder gives rows, each file has them, and batches come to a table."""
    pytest.importorskip("pyiceberg", reason="pip install 'pymetaq[iceberg]'")
    pytest.importorskip("fastavro", reason="pip install 'pymetaq[decode]'")
    command = [
        sys.executable,
        str(BENCH / "decode_bench.py"),
        "--count",
        "2000",
        "--runs",
        "1",
        "--disk",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert len(figures) == 12
    assert all(value > 0 for value in figures.values())
