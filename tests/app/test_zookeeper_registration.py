"""ZooKeeper is for brokers whose settings name one: others load nothing for it, and these say what they miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.interop.metaq1 import server_ini
from tests.support import PATIENCE, environment

STARTED = """
import asyncio, sys
from metaq.app.broker import start_broker
from metaq.app.configuration import load
async def main():
    flags = {"broker": {"bind_address": "127.0.0.1", "listen_port": 0}}
    found = load(sys.argv[1], flags=flags, serving=("broker", "store", "metaq1"))
    broker = await start_broker(found.broker, found.store, metaq1=found.metaq1_settings)
    print(broker.addresses["metaq1"], *sorted(name for name in sys.modules if name.split(".")[0] == "kazoo"))
    await broker.close()
asyncio.run(main())
"""


def started(tmp_path: Path, before: str = "", **zookeeper: object) -> subprocess.CompletedProcess[str]:
    """What a broker that is started and closed has loaded of kazoo, in a process of its own."""
    ini = tmp_path / "server.ini"
    system = {
        "brokerId": 0,
        "hostName": "127.0.0.1",
        "serverPort": 0,
        "dataPath": tmp_path / "data",
        "numPartitions": 1,
    }
    ini.write_text(server_ini(system, {f"zk.{key}": value for key, value in zookeeper.items()}, {"test": {}}))
    return subprocess.run(
        [sys.executable, "-c", before + STARTED, str(ini)], env=environment(), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


def test_a_broker_that_does_not_register_loads_nothing_for_it(tmp_path: Path) -> None:
    """zk.zkEnable=false: the MetaQ 1.x server is open, and kazoo is not among the modules."""
    done = started(tmp_path, zkConnect="127.0.0.1:1", zkEnable="false")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")
    assert "kazoo" not in done.stdout


def test_a_broker_that_should_register_and_cannot_says_what_to_install(tmp_path: Path) -> None:
    done = started(tmp_path, "import sys; sys.modules['kazoo'] = None\n", zkConnect="127.0.0.1:1")
    assert done.returncode != 0
    assert "zk.zkConnect=127.0.0.1:1" in done.stderr
    assert "pymetaq[zookeeper]" in done.stderr
    assert not (tmp_path / "data").exists(), "found before the store is opened"
