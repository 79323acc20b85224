"""The process of a dashboard: its event loop, its ready line, its end. Loads no typer."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

from metaq.app.runtime import STOP_WITH_STDIN, loop_factory
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.dashboard.settings import DashboardSettings


def folders_of(text: str) -> tuple[str, ...]:
    """Return folders that are joined by `,`."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


def run_dashboard(settings: DashboardSettings) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises ConfigError: settings, a missing package, an address that cannot be had."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings))


async def _serve(settings: DashboardSettings) -> None:
    try:
        from metaq.dashboard.server import start_dashboard
    except ImportError as error:
        raise ConfigError(f"the dashboard needs the package {error.name}: pip install 'pymetaq[dashboard]'") from None
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(STOP_WITH_STDIN) == "1":
        loop.add_reader(0, _stop_at_end, loop, stop)
    try:
        running = await start_dashboard(settings)
        print(f"ready dashboard {running.url} of {settings.namesrv}", flush=True)
        try:
            await stop.wait()
        finally:
            await running.close()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _stop_at_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        stop.set()
