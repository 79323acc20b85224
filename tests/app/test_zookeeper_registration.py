"""ZooKeeper is for brokers whose settings name one: others load nothing for it, and these say what they miss."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_start_that_waits_for_zookeeper_says_so(tmp_path: Path) -> None:
    """A broker that registers there, and one of a group with failover: before the start goes on without it, and what follows from that."""
    pytest.importorskip("kazoo")
    program = """
import asyncio, logging, sys
from metaq.app.broker import start_broker
from metaq.options import BrokerOptions, StoreOptions
async def main(folder, zookeeper):
    options = BrokerOptions(
        listen_port=0, ha_listen_port=0, broker_name="a", broker_id=1, failover="zookeeper", failover_zookeeper=zookeeper
    )
    store = StoreOptions(store_path_root_dir=folder, mapped_file_size_commit_log=1 << 20)
    told = []
    broker = await start_broker(options, store, told=told.append)
    print(*dict.fromkeys(told), sep="\\n")
    await broker.close()
logging.basicConfig(format="%(message)s")
asyncio.run(main(*sys.argv[1:]))
"""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        group = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "group"), address],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        alone = started(tmp_path, "import logging; logging.basicConfig()\n", zkConnect=address)
        out, group_told = group.communicate(timeout=PATIENCE)
    assert (alone.returncode, group.returncode) == (0, 0), alone.stderr + group_told
    away = f"ZooKeeper {address} cannot be reached (no answer)"
    assert f"{away}. Clients of MetaQ 1.x do not find this broker until it is registered; trying on" in alone.stderr
    lines = [line for line in group_told.splitlines() if address in line]
    assert lines[0] == f"{away}: this broker takes no messages before it is; trying on"
    assert "the start goes on" in lines[1]
    assert f"taking its role, which ZooKeeper {address} has to tell: clients are not served yet" in out.splitlines()
    assert "kazoo" not in group_told
