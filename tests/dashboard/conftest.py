"""One cluster for all tests of pages, with a dashboard that shows and one that changes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.dashboard.beside import pipeline
from tests.dashboard.running import Site, browsing, cluster, dashboard, fill, looping, page_of


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: pathlib.Path = tmp_path_factory.mktemp("dashboard")
    place = folder / "archive-orders"
    with looping() as loop, cluster(loop, folder) as up, pipeline(place):
        address = up.namesrv.address
        clients = fill(address)
        beside = {"pipelines": (str(place),)}
        with (
            dashboard(loop, address, **beside) as shows,
            dashboard(loop, address, allow_changes=True, **beside) as changes,
        ):
            site = Site(loop, up, shows, changes, str(place))
            with browsing(shows) as client:
                page_of(
                    client,
                    "/",
                    lambda found: {one["lag"] for one in found["groups"]} == {200, 180} and found["topic_count"] == 5,
                )
            yield site
        for client in clients:
            client.close()
