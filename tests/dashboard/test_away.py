"""Dashboards of clusters that are away, never were there, or go while somebody looks: clear, at once, with what was known last."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Iterator

import pytest

from metaq.admin import Admin
from metaq.clock import SYSTEM
from metaq.dashboard.pages.table import PAGES
from tests.dashboard.running import Loop, browsing, cluster, dashboard, looping, page_of
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard")]

PAGE_SECONDS = 10.0
"""Far above the two seconds that a page waits, for a starved machine; far below what a cluster that hangs would take."""


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with looping() as loop:
        yield loop


def test_a_dashboard_pointed_at_nothing_says_so(loop: Loop):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with dashboard(loop, address) as running, browsing(running) as client:
            found = page_of(client, "/", lambda found: found["error"])
            assert (found["seen"], found["name_servers"]) == (False, [address])
            html = client.get("/").text
            assert "Nobody answers" in html
            assert address in html
            assert "cluster away" in html
            for page in PAGES:
                if page.name != "overview":
                    answer = client.get(page.path.replace("{", "").replace(":path}", "").replace("}", ""))
                    assert (answer.status_code, page.name) in {
                        (503, page.name),
                        (200, "name_servers"),
                        (200, "messages/search"),  # forms that nothing was asked for with yet
                        (200, "messages/send"),
                        (404, page.name),
                        *(
                            (200, name)
                            for name in (
                                "accounts",
                                "quotas",
                                "events",
                                "pipelines",
                                "metaq1",
                                "metaq1_topic",
                                "zookeeper",
                            )
                        ),
                    }
            servers = client.get("/name-servers", params={"format": "json"}).json()["servers"]
            assert [bool(one["error"]) for one in servers] == [True]


def test_a_name_server_that_never_answers_holds_no_page(loop: Loop):
    """It takes connections and says nothing, as a process that was stopped."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with dashboard(loop, address) as running, browsing(running) as client:
            for path in ("/", "/topics/orders"):
                began = SYSTEM.monotonic()
                answer = client.get(path)
                assert SYSTEM.monotonic() - began < PAGE_SECONDS
                assert answer.status_code == {"/": 200}.get(path, 503)
            assert "The cluster does not answer" in answer.text


def test_a_cluster_that_goes_is_shown_with_what_was_known_last(loop: Loop, tmp_path: pathlib.Path):
    with cluster(loop, tmp_path) as up:
        with Admin(up.namesrv.address) as admin:
            admin.create_topic("orders", queues=2)
        with dashboard(loop, up.namesrv.address) as running, browsing(running) as client:
            page_of(client, "/topics", lambda found: found["rows"]["total"] == 1)
            loop.run(up.broker.close())
            found = page_of(client, "/", lambda found: found["error"])
            (broker,) = found["brokers"]
            assert broker["state"] == "down"
            assert [one["level"] for one in found["attention"] if one["pages"] == "brokers"] == ["bad"]
            html = client.get("/topics").text
            assert "orders" in html
            assert "cluster away · as of" in html
            assert client.get("/topics/orders").status_code in {404, 503}  # its broker has unregistered
            again = loop.run(restarted(up, tmp_path))
            try:
                eventually(
                    lambda: client.get("/", params={"format": "json"}).json()["error"] == "", what="it is seen again"
                )
            finally:
                loop.run(again.close())
                up.broker.close = nothing


async def nothing() -> None:
    """It is closed already."""


async def restarted(up, folder: pathlib.Path):
    from metaq.app.broker import start_broker
    from metaq.options import BrokerOptions, StoreOptions

    port = int(up.broker.address.rpartition(":")[2])
    options = BrokerOptions(listen_port=port, ha_listen_port=0, broker_name="broker-a", namesrv_addr=up.namesrv.address)
    store = StoreOptions(
        store_path_root_dir=str(folder / "store"), mapped_file_size_commit_log=4 << 20, disk_max_used_space_ratio=95
    )
    return await start_broker(options, store)
