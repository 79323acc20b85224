"""The benchmarks of Spark's source, sink and pipelines run with small counts, so that they cannot rot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.spark.engine.slow_start import run_through
from tests.bench.running import BENCH, run_rows
from tests.support import WHOLE_PATIENCE, environment


@pytest.mark.all  # and in `make bench-small`, as every row
@pytest.mark.spark
@pytest.mark.slow
def test_spark_rows(tmp_path: Path) -> None:
    """The rows of Spark's source and sink, of micro-batches and their planning are measured; the bench counts what was written."""
    keys = (
        "spark,spark-of-parquet-1000,spark-sink,spark-sink-of-once-1000,spark-floor-empty,spark-floor-one,spark-driver"
    )
    rows = run_rows(tmp_path, keys)
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
