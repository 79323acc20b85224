"""What the options of an asynchronous slave of MetaQ 1.x do, for tests/test_metaq1_options.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
from types import SimpleNamespace

from metaq.app.configuration import load
from metaq.app.metaq1_slave.slave import TextSlave
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import FakeClock
from metaq.log import RateLimitedLog
from metaq.registry.zookeeper.replicating import MasterNodes
from metaq.wire.metaq1.commands import ResultLine

INI = "[system]\nbrokerId=7\n[zookeeper]\nzk.zkConnect=127.0.0.1:1\n[topic=test]\n"


def slave_settings(root: pathlib.Path, *options: str) -> Metaq1Settings:
    """Settings of a slave by its server.ini and these options."""
    file = root / "server.ini"
    if not file.exists():
        file.write_text(INI)
    settings = [f"metaq1.{one}" for one in ("slaveId=3", *options)]
    found = load(str(file), serving=("broker", "store", "metaq1"), settings=settings, environment={}).metaq1_settings
    assert found is not None
    return found


def config_after(root: pathlib.Path, *options: str) -> str:
    """The slave's server.ini after its master's, with another topic, has changed."""

    class Master:
        address = "10.0.0.5:8123"

        async def ask(self, *_: object) -> ResultLine:
            return ResultLine(200, INI.encode() + b"[topic=more]\n", 1)

    async def look() -> None:
        slave = TextSlave(slave_settings(root, *options))
        slave._services = SimpleNamespace(broker=SimpleNamespace(reloading=SimpleNamespace(again=lambda: None)))  # type: ignore[assignment]
        slave._faults = RateLimitedLog(logging.getLogger(), FakeClock())
        slave._link = Master()  # type: ignore[assignment]
        with contextlib.suppress(AssertionError):
            await slave._look(MasterNodes(Master.address, "123", {}))

    asyncio.run(look())
    return (root / "server.ini").read_text()
