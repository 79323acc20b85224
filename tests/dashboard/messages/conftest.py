"""One cluster with messages for the pages about them, and two dashboards: one that only shows, and one that takes changes."""

from __future__ import annotations

import html
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

import metaq
from metaq.admin import Admin
from metaq.app.up import RunningUp
from metaq.dashboard.server import RunningDashboard
from metaq.model import MessageQueue
from tests.dashboard.running import Loop, browsing, cluster, dashboard, looping, page_of

HOSTILE = "<script>alert(1)</script>\"'><img/src=x>"


class Site(NamedTuple):
    loop: Loop
    up: RunningUp
    shows: RunningDashboard
    changes: RunningDashboard

    @property
    def namesrv(self) -> str:
        return self.up.namesrv.address


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: pathlib.Path = tmp_path_factory.mktemp("messages")
    with looping() as loop, cluster(loop, folder) as up:
        address = up.namesrv.address
        with Admin(address) as admin:
            for name in ("orders", "payments", "dead-ends"):
                admin.create_topic(name, queues=2)
        with metaq.Producer(address, trace=True) as producer:
            for number in range(120):
                queue = MessageQueue("orders", "broker-a", number % 2)
                body = b'{"id": %d, "note": "ok"}' % number
                producer.send("orders", body, tag="paid", keys=[f"k{number}", "all"], queue=queue)
        with dashboard(loop, address) as shows, dashboard(loop, address, allow_changes=True) as changes:
            with browsing(shows) as client:
                page_of(client, "/", lambda found: found["topic_count"] == 3)
            yield Site(loop, up, shows, changes)


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    with browsing(site.shows) as client:
        yield client


@pytest.fixture
def changing(site: Site) -> Iterator[httpx.Client]:
    with browsing(site.changes) as client:
        yield client


def values(client: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    """The values of a page; its HTML is rendered, too."""
    page = client.get(httpx.URL(path).copy_merge_params(params))
    assert page.status_code == 200, page.text
    answer = client.get(httpx.URL(path).copy_merge_params({"format": "json", **params}))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def change(client: httpx.Client, url: str, name: str, **fields: str) -> httpx.Response:
    """Send a page's form with some fields filled in, and load the page that the answer leads to."""
    text = client.get(url).text
    forms = re.findall(r'<form[^>]* method="post" action="([^"]*)">(.*?)</form>', text, re.DOTALL)
    action, form = next((where, one) for where, one in forms if f'name="change" value="{name}"' in one)
    hidden = {key: html.unescape(value) for key, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
    for key, value in re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL):
        hidden[key] = html.unescape(value)
    origin = {"origin": str(client.base_url).rstrip("/")}
    answer = client.post(html.unescape(action), data={**hidden, **fields}, headers=origin)
    assert answer.status_code == 303, answer.text
    return client.get(answer.headers["location"])


def token_of(client: httpx.Client, url: str) -> str:
    """The token of the forms of a page."""
    found = re.search(r'name="token" value="([^"]*)"', client.get(url).text)
    assert found is not None, "it has a form"
    return html.unescape(found[1])


def is_text_only(html_text: str, hostile: str = HOSTILE) -> bool:
    """Whether a hostile text is in a page, and only as text."""
    return (
        html.escape(hostile, quote=False).split("'")[0].replace('"', "&#34;") in html_text and hostile not in html_text
    )
