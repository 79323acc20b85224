"""The dashboard as a whole: its listener, its visitors, and what it does as time passes."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from metaq.clock import SYSTEM, Clock
from metaq.dashboard.answering import Answering
from metaq.dashboard.application import Application
from metaq.dashboard.beside.sources import Sources
from metaq.dashboard.decoding.schemas import read_schemas
from metaq.dashboard.live import Live
from metaq.dashboard.login import Logins
from metaq.dashboard.pages.table import PAGES
from metaq.dashboard.rendering.renderer import Renderer
from metaq.dashboard.rendering.static import read_static
from metaq.dashboard.security.accounts import NotProven, prove
from metaq.dashboard.security.guard import Hosts
from metaq.dashboard.security.https import LOOK_SECONDS, Https
from metaq.dashboard.settings import DashboardSettings
from metaq.dashboard.visitors import Visitors
from metaq.errors import AccessDenied, MetaqError
from metaq.log import when_dead
from metaq.net.address import join_address
from metaq.net.budget import MIB, ListenLimits
from metaq.net.listener import Listener, bind
from metaq.servers.http.connection import HttpConnection, HttpSpace

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
ACCOUNTS_SECONDS: Final = 10.0
"""Interval in which a cluster that answers without accounts is asked whether it has some now."""
FIRST_SECONDS: Final = 3.0
LIMITS: Final = ListenLimits(
    connections_max=512, unanswered_bytes_max=4 * MIB, unanswered_bytes_max_total=32 * MIB, half_read_bytes_max=16 * MIB,
    peer_bytes_max=96 * MIB, idle_seconds=120,
)  # fmt: skip
"""What browsers may take: they are few, and each has some connections."""


class RunningDashboard:
    """A running dashboard. Made by `start_dashboard`."""

    def __init__(
        self,
        settings: DashboardSettings,
        visitors: Visitors,
        space: HttpSpace,
        live: Live,
        sources: Sources,
        https: Https | None = None,
    ) -> None:
        self._settings, self._space, self._live, self._sources, self._https = settings, space, live, sources, https
        self.visitors = visitors
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        assert self._listener is not None, "it has started"
        return self._listener.address

    @property
    def url(self) -> str:
        """Where browsers find it."""
        assert self._listener is not None, "it has started"
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  what is told, not where it listens
        scheme = "http" if self._https is None else "https"
        return (
            f"{scheme}://{join_address(everywhere.get(self._listener.host, self._listener.host), self._listener.port)}/"
        )

    @property
    def viewers(self) -> int:
        """Open pages that follow the cluster."""
        return self._live.viewers

    async def start(self) -> None:
        """Listen. Raises ConfigError: the address cannot be had."""
        tls = self._https.tls if self._https is not None else None
        self._listener = await bind(self._settings.host, self._settings.port, LIMITS, tls=tls)
        await self._learn_accounts(FIRST_SECONDS)
        if not self.visitors.login:  # else each account has looks of its own
            self.visitors.own.sampler.start()
        await self._listener.start(lambda peer: HttpConnection(peer, self._space))
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._watch_accounts())]
        if self._https is not None:
            self._tasks.append(asyncio.create_task(self._watch_certificate(self._https)))
        for task in self._tasks:
            task.add_done_callback(when_dead(log, "a task of the dashboard has died: start it again"))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._space.tick()
            await self.visitors.sessions.expire()

    async def _watch_accounts(self) -> None:
        while self._settings.login is None and not self.visitors.login:
            await asyncio.sleep(ACCOUNTS_SECONDS)
            await self._learn_accounts(ACCOUNTS_SECONDS)

    async def _watch_certificate(self, https: Https) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(https.look)

    async def _learn_accounts(self, seconds: float) -> None:
        """Find out whether visitors have to log in. As long as nobody answers there is nothing to show, either."""
        if self._settings.login is not None or self._settings.client.credentials is not None:
            self.visitors.login = self._settings.login is not False
            return
        own = self.visitors.own
        try:
            await own.ask(prove(own.core), seconds)
        except AccessDenied:
            self.visitors.login = True
            await own.sampler.close()
            log.info("the cluster has accounts: visitors log in with theirs")
        except (NotProven, MetaqError) as error:
            log.debug("nobody says whether the cluster has accounts: %s", error)

    async def close(self) -> None:
        """Stop listening, end open pages and connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._live.close()
        if self._listener is not None:
            await self._listener.close()
        for request in list(self._space.state.tasks):
            request.cancel()
        await self.visitors.close()
        await self._sources.close()
        if self._https is not None:
            self._https.close()


async def start_dashboard(settings: DashboardSettings, clock: Clock = SYSTEM) -> RunningDashboard:
    """Start a dashboard in this event loop. Raises ConfigError: settings, schemas, name servers, or an address that cannot be had."""
    settings.check()
    schemas = read_schemas(settings.schemas)
    https = Https(settings.https_cert, settings.https_key) if settings.https_cert else None
    live = Live(clock)
    sources = Sources(clock, settings.pipelines, settings.zookeeper)

    def looked() -> None:
        sources.looked()
        live.looked()

    visitors = Visitors(settings.namesrv, settings.client, clock, "http" if https is None else "https", looked)
    static = read_static()
    answering = Answering(
        Renderer(PAGES, static),
        visitors,
        live,
        clock,
        allow_changes=settings.allow_changes,
        sources=sources,
        schemas=schemas,
    )
    logins = Logins(visitors, answering, clock)
    application = Application(PAGES, static, visitors, logins, answering, Hosts(settings.names), clock)
    running = RunningDashboard(settings, visitors, HttpSpace(application, clock), live, sources, https)
    try:
        await running.start()
    except BaseException:
        await running.close()
        raise
    return running
