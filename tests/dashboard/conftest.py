"""One cluster for all tests of pages, with a dashboard that shows and one that changes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.dashboard.running import Site, browsing, cluster, dashboard, fill, looping, page_of


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: pathlib.Path = tmp_path_factory.mktemp("dashboard")
    with looping() as loop, cluster(loop, folder) as up:
        address = up.namesrv.address
        clients = fill(address)
        with dashboard(loop, address) as shows, dashboard(loop, address, allow_changes=True) as changes:
            site = Site(loop, up, shows, changes)
            with browsing(shows) as client:
                page_of(
                    client,
                    "/",
                    lambda found: {one["lag"] for one in found["groups"]} == {200, 180} and found["topic_count"] == 5,
                )
            yield site
        for client in clients:
            client.close()
