"""Spark Connect: a client without a JVM, and a server from the pip package that has MetaQ installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from metaq.model.queue import MessageQueue
from metaq.testing.ports import free_port
from tests.scripted import ScriptedCluster
from tests.spark.jvm import home, java_options
from tests.spark.standalone.servers import spark_environment
from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, eventually

pytestmark = [pytest.mark.spark, pytest.mark.all, pytest.mark.spark_all]


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        running.put("orders", 0, [b'{"n": %d}' % i for i in range(10)])
        running.put("orders", 1, [b'{"n": 100}'] * 3, properties="UNIQ_KEY\x01" + "A" * 32)
        running.make_topic("copies", 2)
        yield running


@pytest.fixture
def server(tmp_path):
    """The URL of a Spark Connect server, ended with all it has started."""
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]' for Spark Connect")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    command = [f"{home()}/bin/spark-submit", "--master", "local[2,3]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
    command += ["--driver-java-options", java_options(), "spark-internal"]
    environment = spark_environment(ROOT / "src", ROOT, SPARK_HOME=home())
    with (tmp_path / "server.log").open("w") as log:
        running = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
        )
    try:

        def answers() -> bool:
            assert running.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        eventually(answers, WHOLE_PATIENCE, what="the Spark Connect server listens")
        yield f"sc://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(PATIENCE)


def test_source_sink_decoders_repeats_and_lag_work_from_a_client_and_the_archive_says_that_it_does_not(
    cluster, server, tmp_path
):
    """The client has no Java; connections to brokers are the server's, but for lag and listener, which ask themselves."""
    environment = {
        name: text for name, text in os.environ.items() if name not in {"JAVA_HOME", "METAQ_JAVA_HOME", "SPARK_HOME"}
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.spark.connect.client", server, cluster.namesrv, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("session").startswith("pyspark.sql.connect")
    assert "this session is a client of Spark Connect" in found.pop("archive")
    assert found == {
        "read": 13, "sql": 13, "decoded": 345, "not hessian": 13, "once": 11, "path": 13, "stored": True, "lag": ["connected", 0, 0.0, 13],
    }  # fmt: skip
    assert sum(cluster.ends("copies").values()) == 13 + 11
    reached = cluster.progress("spark-connected", "orders")
    assert reached == {MessageQueue("orders", "broker-a", 0): 10, MessageQueue("orders", "broker-a", 1): 3}
