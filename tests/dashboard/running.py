"""A cluster with a dashboard, in an event loop of a thread of their own; and a browser."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import re
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar
from unittest import mock
from urllib.parse import urlencode

import httpx
import pytest

import metaq
from metaq.admin import Admin
from metaq.admin.queues.browsing import at, place_of
from metaq.app.up import RunningUp, start_up
from metaq.client.conversation.sending.sending import GiveBack
from metaq.dashboard.page import Page
from metaq.dashboard.pages.table import PAGES
from metaq.dashboard.rendering.renderer import segment
from metaq.dashboard.sampling import sampler
from metaq.dashboard.server import RunningDashboard, start_dashboard
from metaq.dashboard.settings import DashboardSettings
from metaq.model import StoredMessage
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from tests.support import PATIENCE, eventually

T = TypeVar("T")

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


@contextlib.contextmanager
def looping() -> Iterator[Loop]:
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


@contextlib.contextmanager
def cluster(loop: Loop, folder: pathlib.Path, **options: Any) -> Iterator[RunningUp]:
    """A name server and a broker."""
    broker = BrokerOptions(listen_port=0, ha_listen_port=0, broker_name="broker-a", **options)
    store = StoreOptions(
        store_path_root_dir=str(folder / "store"), mapped_file_size_commit_log=4 << 20, disk_max_used_space_ratio=95
    )
    namesrv = NamesrvOptions(listen_port=0, kv_config_path=str(folder / "kv.json"))
    up = loop.run(start_up(broker, store, namesrv))
    try:
        yield up
    finally:
        loop.run(up.close())


@contextlib.contextmanager
def dashboard(loop: Loop, namesrv: str, **settings: Any) -> Iterator[RunningDashboard]:
    with mock.patch.object(sampler, "LOOK_SECONDS", 1.0):
        running = loop.run(start_dashboard(DashboardSettings(namesrv=namesrv, port=0, **settings)))
        try:
            yield running
        finally:
            loop.run(running.close())


@contextlib.contextmanager
def browsing(running: RunningDashboard) -> Iterator[httpx.Client]:
    """An HTTP client, with cookies as a browser's."""
    with httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        yield client


def page_of(client: httpx.Client, path: str, ready: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The values of a page, once they are ready: the sampler looks each few seconds."""

    def values() -> dict[str, Any] | None:
        answer = client.get(path, params={"format": "json"})
        found = answer.json() if answer.status_code == 200 else None
        return found if found is not None and ready(found) else None

    return eventually(values, what=f"{path} is ready")


def fill(namesrv: str) -> list[Any]:
    """Topics, messages, groups: one that is read, one that nobody reads. Returns what is to be closed."""
    with Admin(namesrv) as admin:
        for name in ("orders", "payments", "invoices", "customers-changed", "audit-log"):
            admin.create_topic(name, queues=4)
        admin.set_group("mailer")
        admin.set_group("reporting")
    with metaq.Producer(namesrv) as producer:
        for number in range(200):
            producer.send("orders", b'{"id": %d}' % number, tag="paid", keys=[str(number)])
            if number % 4 == 0:
                producer.send("payments", b"x" * 300)
    with metaq.Consumer(namesrv, group="reporting", topics={"orders": "*"}, start="earliest") as reader:
        for _, message in zip(range(20), reader, strict=False):
            with message:
                pass
    mailer = metaq.Consumer(
        namesrv, group="mailer", topics={"orders": "paid || refunded", "payments": "*"}, start="earliest"
    )
    for _, message in zip(range(50), mailer, strict=False):
        with message:
            pass
    with Admin(namesrv) as admin:
        for group, lag, queues in (("mailer", 200, 8), ("reporting", 180, 4)):

            def is_there(group: str = group, lag: int = lag, queues: int = queues) -> bool:
                found = [one for one in admin.group_progress(group).queues if not one.queue.topic.startswith("%")]
                return len(found) == queues and sum(one.lag for one in found) == lag

            eventually(is_there, what=f"group {group} has saved how far it is")
    with Admin(namesrv) as admin:
        bury(admin, admin.find_messages("orders", key="3").messages[0], "mailer")
    return [mailer]


def bury(admin: Admin, message: StoredMessage, group: str) -> None:
    """Make a dead letter of a message, as a member of the group does that can do nothing with it."""
    back = GiveBack(
        group=group, broker=message.broker, topic=message.topic, message_id=message.message_id, log_offset=message.log_offset,
        delay_level=-1, max_reconsume_times=16,
    )  # fmt: skip
    admin._run(admin._open.ask_broker(message.broker, back))


def chromium() -> Any:
    """Start the system's browser. Skips where there is none."""
    if not pathlib.Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser: pip install playwright")
    playwright = sync.sync_playwright().start()
    return playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


class Site(NamedTuple):
    loop: Loop
    up: RunningUp
    shows: RunningDashboard
    """Only shows."""
    changes: RunningDashboard
    """Takes changes, too."""
    folder: str
    """Of a pipeline."""

    @property
    def paths(self) -> dict[str, str]:
        """A URL of each page."""
        of = {"topic": "orders", "group": "mailer", "address": self.up.broker.address, "folder": self.folder}
        letter, message = (f"%DLQ%{of['group']}", "0"), (of["topic"], "1")
        places = {"dead_letters/letter": letter, "messages/message": message}
        return {
            page.name: path_of(page, **of) if page.name not in places else self._path_at(page, *places[page.name], of)
            for page in PAGES
        }

    def _path_at(self, page: Page, topic: str, offset: str, names: dict[str, str]) -> str:
        """The path of a page about the message at an offset of queue 0 of a topic."""
        place = place_of(topic, f"broker-a:0:{offset}")
        with Admin(self.up.namesrv.address) as admin:
            message = admin._run(at(admin._open, place))
        query = {"place": str(place)} | ({"topic": topic} if page.name == "messages/message" else {})
        return f"{path_of(page, id=message.message_id, **names)}?{urlencode(query)}"


def path_of(page: Page, **names: str) -> str:
    """The path of a page about these names."""
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: segment(names[found[1]]), page.path)
