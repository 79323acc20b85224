"""`metaq dashboard`: pages about a cluster, for browsers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.cli.output import NAMESRV_DEFAULT, NameServers
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.dashboard.settings import DashboardSettings

LOG_LEVELS = "debug, info, warning or error"


def run_dashboard(
    namesrv: NameServers = NAMESRV_DEFAULT,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="NUMBER", help="where it listens; 0: a free one")
    ] = 8121,
    bind: Annotated[str, typer.Option("--bind", metavar="HOST", help="address that it listens on")] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST", help="further host name under which browsers ask for it; may be repeated"
        ),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="show forms that change the cluster, and accept them")
    ] = False,
    login: Annotated[
        bool | None,
        typer.Option(
            "--login/--no-login", help="visitors log in with an account of the cluster (default: if it has accounts)"
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="listen on another address than this machine's, without TLS")
    ] = False,
    schemas: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="topics whose bodies are Avro or Protobuf, and their schemas (docs/dashboard.md)"
        ),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", metavar="LEVEL", help=LOG_LEVELS)] = "info",
) -> None:
    """Serve pages about a cluster: brokers, topics, groups, what needs attention. Ctrl-C ends it.

    It asks the cluster as any client and works on any RocketMQ 4.x. It shows, and changes nothing without --allow-changes. Where the
    cluster has accounts, visitors log in with theirs (docs/dashboard.md).
    """
    from metaq.app.runtime import loop_factory, set_up_logging
    from metaq.client.identity.options import client_options
    from metaq.dashboard.settings import DashboardSettings

    if log_level.lower() not in LOG_LEVELS.replace(" or", ",").replace(",", " ").split():
        raise typer.BadParameter(f"need {LOG_LEVELS}", param_hint="--log-level")
    set_up_logging(log_level)
    settings = DashboardSettings(
        namesrv=namesrv, host=bind, port=port, names=tuple(name or ()), allow_changes=allow_changes, login=login, insecure=insecure,
        schemas=schemas,
        client=client_options(),
    )  # fmt: skip
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings))


async def _serve(settings: DashboardSettings) -> None:
    try:
        from metaq.app.runtime import STOP_WITH_STDIN
        from metaq.dashboard.server import start_dashboard
    except ImportError as error:
        raise ConfigError(f"the dashboard needs the package {error.name}: pip install 'pymetaq[dashboard]'") from None
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    if os.environ.get(STOP_WITH_STDIN) == "1":  # `metaq up` has started it: it goes when that is gone
        loop.add_reader(0, _stop_at_end, loop, stop)
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, stop.set)
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
