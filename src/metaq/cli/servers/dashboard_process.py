"""The dashboard beside `metaq up`: a process of its own, so that pages take nothing of the broker's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

from metaq.app.runtime import STOP_WITH_STDIN
from metaq.errors import ConfigError

log = logging.getLogger(__name__)

READY_SECONDS: Final = 60.0
END_SECONDS: Final = 5.0
_READY: Final = b"ready dashboard "


class DashboardProcess:
    """A running one. Made by `start_dashboard_process`."""

    def __init__(self, child: asyncio.subprocess.Process, url: str) -> None:
        self._child, self.url = child, url
        self._closing = False
        self._watch = asyncio.create_task(self._watched())

    async def _watched(self) -> None:
        code = await self._child.wait()
        if not self._closing:
            log.error(
                "the dashboard at %s has ended with exit code %s; `metaq dashboard` starts one by itself",
                self.url,
                code,
            )

    async def close(self) -> None:
        """End it: it stops with its standard input."""
        self._closing = True
        await _end(self._child)
        self._watch.cancel()


async def start_dashboard_process(namesrv: str, port: int) -> DashboardProcess:
    """Start a dashboard of the cluster at a name server, and wait until it is ready. Raises ConfigError: it does not start."""
    # -P: a module in the working directory must not stand in for one of ours.
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "metaq", "dashboard", "-n", namesrv, "--port", str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, STOP_WITH_STDIN: "1"},
    )  # fmt: skip
    assert child.stdout is not None, "it is a pipe"
    line = b""
    try:
        async with asyncio.timeout(READY_SECONDS):
            line = await child.stdout.readline()
    except TimeoutError:
        pass
    finally:
        if not line.startswith(_READY):
            await _end(child)
    if not line.startswith(_READY):
        raise ConfigError(
            f"dashboardPort={port}: the dashboard has not started, its reason is on standard error; leave dashboardPort out to start without"
        )
    return DashboardProcess(child, line.decode().split()[2])


async def _end(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None, "it is a pipe"
    child.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
