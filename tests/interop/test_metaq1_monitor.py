"""`metaq meta1 monitor` at the original server 1.4.6.2 and at ours, with a ZooKeeper."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.wire.hot import crc31
from tests.interop.metaq1 import OriginalServer, OurServer, TextConnection, TextServer, Zookeeper
from tests.support import run_metaq

pytestmark = pytest.mark.interop

ROOT = "/monitor-command"
TOPICS = {"orders": {"numPartitions": 1, "stat": "true"}}


@pytest.fixture(params=[OriginalServer, OurServer])
def server(request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path: Path) -> Iterator[TextServer]:
    root = f"{ROOT}-{request.param.__name__}"
    with request.param(tmp_path, zookeeper, TOPICS, registry={"zk.zkRoot": root}) as running:
        running.root = root
        yield running


def looked(server: TextServer, *words: str, code: int) -> dict[str, dict]:
    done = run_metaq("meta1", "monitor", server.text, "--topic", "orders", "--once", "--json", "--load", "1000", *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    return {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}


def test_a_server_in_order_and_one_that_is_not(server: TextServer, zookeeper: Zookeeper, tmp_path: Path) -> None:
    """The probe's message comes back; a group that is behind is an alarm with its name; one server that is gone is an alarm."""
    with TextConnection(server.text) as text:
        assert text.ask("put orders 0 2 0 1", b"hi").code == 200
    with zookeeper.nodes() as nodes:
        nodes.client.create(f"{server.root}/consumers/readers/offsets/orders/0-0", b"-5-0", makepath=True)
        fine = ("--zookeeper", zookeeper.address, "--root", server.root, "--memory", "100")
        found = looked(server, *fine, "--offset-gap", "100000", code=0)
        assert found["probe"]["state"] == "ok"
        assert found["zookeeper"]["state"] == found["connections"]["state"] == found["put-failed"]["state"] == "ok"
        assert found["disk"]["state"] == "unknown"
        assert "JMX alone" in found["prepared"]["text"]
        seen = tmp_path / "alarm"
        script = tmp_path / "page.py"
        script.write_text(
            f"import json, pathlib, sys\npathlib.Path({str(seen)!r}).write_text(json.dumps(sys.argv[1:]))\n"
        )
        found = looked(server, *fine, "--on-alarm", f"{sys.executable} {script}", code=1)
        assert (found["offset-gap"]["state"], found["offset-gap"]["group"]) == ("alarm", "readers")
        state, check, address, group, words = json.loads(seen.read_text())
        assert (state, check, address, group) == ("alarm", "offset-gap", server.text, "readers")
        assert "behind the end of partition 0-0 of orders" in words
    with TextConnection(server.text), TextConnection(server.text):
        found = looked(server, "--per-ip", "1", "--connections", "1", "--memory", "100", code=1)
        assert found["connections"]["state"] == found["connections-per-ip"]["state"] == "alarm"
    found = looked(server, "--data-dir", str(server.data), "--disk", "0", code=1)
    assert found["disk"]["state"] == "alarm"
    server.stop()
    found = looked(server, code=1)
    assert found["probe"]["state"] == "alarm"
    assert found["connections"]["state"] == "unknown"


def test_prepared_transactions_of_our_broker(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """Which the original tells by JMX alone."""
    with OurServer(tmp_path, None, TOPICS) as server, TextConnection(server.text) as text:
        key = "XID:1:6162:63:q"
        assert text.ask(f"transaction {key} session-1 BEGIN q 1").code == 200
        assert text.ask(f"put orders 0 2 0 {crc31(b'hi')} {key} 2", b"hi").code == 200
        assert text.ask(f"transaction {key} session-1 PREPARE q 4").code == 200
        found = looked(server, "--broker", server.broker, "--memory", "100", "--prepared", "1", code=1)
        assert found["prepared"]["state"] == "alarm"
        assert found["disk"]["state"] in {"ok", "alarm"}
