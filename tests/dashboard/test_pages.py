"""Every page about a running cluster: its values, its HTML, its changes, what it refuses, and how it follows the cluster."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from metaq.address import split_address
from metaq.dashboard import live
from metaq.dashboard.pages.table import PAGES
from metaq.dashboard.security.guard import COOKIE, HEADERS
from tests.dashboard.running import Site, browsing, page_of
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.xdist_group("dashboard")


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    with browsing(site.shows) as client:
        yield client


@pytest.fixture
def changing(site: Site) -> Iterator[httpx.Client]:
    with browsing(site.changes) as client:
        yield client


def test_every_page_is_html_and_json_of_the_same_values(site: Site, client: httpx.Client):
    paths = site.paths
    for page in PAGES:
        path = paths[page.name]
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert "<main" in answer.text
        values = client.get(httpx.URL(path).copy_merge_params({"format": "json"}))
        assert values.headers["content-type"] == "application/json"
        msgspec.json.decode(values.content, type=page.values)
        for found in (answer, values):
            assert HEADERS.items() <= dict(found.headers).items()
            assert found.headers["cache-control"] == "no-store"


def test_the_overview_tells_what_needs_attention_first(client: httpx.Client):
    found = page_of(client, "/", lambda found: any(one["name"] == "reporting" for one in found["attention"]))
    (one,) = [one for one in found["attention"] if one["name"] == "reporting"]
    assert (one["level"], one["text"]) == ("warn", "has no members, and 180 messages wait for it")
    assert [broker["state"] for broker in found["brokers"]] == ["up"]
    assert {one["group"]: one["lag"] for one in found["groups"]} == {"mailer": 200, "reporting": 180}
    assert found["undecided"] == 0


def test_topics_are_searched_sorted_and_cut_by_their_url(client: httpx.Client):
    def names(**params: Any) -> list[str]:
        found = client.get("/topics", params={"format": "json", **params}).json()
        return [row["topic"] for row in found["rows"]["rows"]]

    # What another test has deleted is known until the next look.
    eventually(lambda: names() == ["audit-log", "customers-changed", "invoices", "orders", "payments"])
    assert names(sort="-waiting")[:2] == ["orders", "payments"]
    assert names(sort="-topic", rows=2, page=2) == ["invoices", "customers-changed"]
    assert names(q="PAY") == ["payments"]
    assert "%RETRY%mailer" in names(system="true")
    html = client.get("/topics", params={"sort": "-waiting", "q": "a"}).text
    assert re.search(r'aria-sort="descending"><a href="/topics\?sort=waiting&amp;q=a"', html)


def test_a_topic_tells_its_queues_and_who_reads_it(client: httpx.Client):
    found = client.get("/topics/orders", params={"format": "json"}).json()
    assert [row["first"] for row in found["queues"]] == [0] * 4
    assert sum(row["messages"] for row in found["queues"]) == found["messages"] == 200
    assert {(row["group"], row["online"], row["lag"]) for row in found["readers"]} == {
        ("mailer", True, 150),
        ("reporting", False, 180),
    }
    assert [(row["read_queues"], row["perm"]) for row in found["places"]] == [(4, "read and write")]
    assert client.get("/topics/%25RETRY%25mailer", params={"format": "json"}).json()["group"] == "mailer"


def test_a_group_tells_members_owners_and_lag(client: httpx.Client):
    found = client.get("/groups/mailer", params={"format": "json"}).json()
    (member,) = found["members"]
    assert (member["language"], member["release"], member["queues"]) == ("PYTHON", "4.9.8", 9)
    assert found["subscriptions"] == {"orders": "paid || refunded", "payments": "*"}
    owned = [row for row in found["queues"] if row["topic"] == "orders"]
    assert [row["owner"] for row in owned] == [member["client"]] * 4
    assert sum(row["lag"] for row in found["queues"]) == found["lag"] == 200
    assert found["lag_seconds"] > 0
    assert found["waiting_bytes"] > 200 * 50
    assert client.get("/groups/reporting", params={"format": "json"}).json()["members"] == []


def test_a_broker_tells_figures_replicas_and_options(site: Site, client: httpx.Client):
    found = client.get(site.paths["broker"], params={"format": "json", "q": "fileReserved"}).json()
    assert [(row["key"], row["value"], row["hot"]) for row in found["options"]] == [("fileReservedTime", "72", True)]
    assert found["options_total"] > 100
    (replica,) = found["replicas"]
    assert (replica["leads"], replica["role"], replica["behind"]) == (True, "ASYNC_MASTER", None)
    assert found["broker"]["put_p99_ms"] > 0


def test_name_servers_tell_whom_they_know(site: Site, client: httpx.Client):
    found = client.get("/name-servers", params={"format": "json"}).json()
    assert [(row["address"], row["brokers"], row["missing"]) for row in found["servers"]] == [
        (site.up.namesrv.address, 1, [])
    ]
    assert [row["broker"] for row in found["brokers"]] == ["broker-a"]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/topics/nowhere", 404, "there is no topic nowhere"),
        ("/groups/nobody", 404, "knows consumer group nobody"),
        ("/brokers/127.0.0.1%3A1", 404, "no broker at 127.0.0.1:1 is registered"),
        ("/brokers/evil.example%3A80", 404, "no broker at evil.example:80"),
        ("/topics?page=0", 400, "a parameter is wrong"),
        ("/topics?sort=colour", 400, "not sorted by"),
        ("/topics?colour=red", 400, "a parameter is wrong"),
        ("/nowhere", 404, "Not Found"),
        ("/topics/%3Cscript%3E", 404, "&lt;script&gt;"),
    ],
)
def test_what_is_not_there_is_said_so(client: httpx.Client, path: str, status: int, text: str):
    answer = client.get(path)
    assert answer.status_code == status
    assert text in answer.text
    problem = client.get(path + ("&" if "?" in path else "?") + "format=json")
    assert (problem.status_code, problem.headers["content-type"]) == (status, "application/problem+json")
    assert problem.json()["status"] == status


def test_files_are_kept_for_good_under_the_names_of_their_contents(client: httpx.Client):
    found = re.findall(r'(?:href|src)="(/static/[^"]+)"', client.get("/").text)
    assert len(found) == 3
    for url in found:
        answer = client.get(url)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/static/..%2fserver.py").status_code == 404


def test_another_name_in_host_is_refused(client: httpx.Client):
    answer = client.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "orders" not in answer.text
    assert client.get("/", headers={"host": "localhost:9"}).status_code == 200


# ---------------------------------------------------------------- changes


def form_of(client: httpx.Client, url: str) -> dict[str, str]:
    """The hidden fields of a page's form."""
    html = client.get(url).text
    form = html[html.index('<form class="change" method="post"') :]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[: form.index("</form>")]))


def origin(client: httpx.Client) -> dict[str, str]:
    return {"origin": str(client.base_url).rstrip("/")}


def test_an_option_is_looked_at_then_changed_and_the_page_tells(site: Site, changing: httpx.Client):
    path = site.paths["broker"]
    looked_at = f"{path}?q=fileReserved&change=fileReservedTime&to=48"
    assert "becomes <code>48</code> at once" in changing.get(looked_at).text
    answer = changing.post(path, data=form_of(changing, looked_at), headers=origin(changing))
    assert (answer.status_code, answer.headers["location"]) == (303, f"{path}?q=fileReserved")
    html = changing.get(answer.headers["location"]).text
    assert "Changed at broker-a: fileReservedTime was 72, is 48." in html
    assert "Changed at broker-a" not in changing.get(path).text
    fields = form_of(changing, f"{path}?change=fileReservedTime&to=72")
    changing.post(path, data=fields, headers=origin(changing))
    refused = changing.get(f"{path}?change=storePathRootDir&to=/tmp/x").text
    assert 'method="post"' not in refused[refused.index("<main") :]


def test_a_value_that_the_broker_refuses_is_told(site: Site, changing: httpx.Client):
    path = site.paths["broker"]
    fields = form_of(changing, f"{path}?change=fileReservedTime&to=72") | {"value": "<b>x"}
    changing.post(path, data=fields, headers=origin(changing))
    html = changing.get(path).text
    assert 'class="notice bad" role="alert"' in html
    assert "&lt;b&gt;x" in html
    assert "<b>x" not in html


def test_a_dashboard_that_only_shows_takes_no_change(site: Site, client: httpx.Client, changing: httpx.Client):
    path = site.paths["broker"]
    html = client.get(f"{path}?change=fileReservedTime&to=48").text
    assert "This dashboard only shows" in html
    assert 'value="option"' not in html
    client.get("/")
    token = site.shows.visitors.tokens.of(client.cookies[COOKIE])
    form = {"token": token, "change": "option", "key": "fileReservedTime", "value": "48"}
    answer = client.post(path, data=form, headers=origin(client))
    assert answer.status_code == 403
    assert "--allow-changes" in answer.text
    del changing


@pytest.mark.parametrize(
    "fault",
    ["no token", "token of another", "no cookie", "origin elsewhere", "no origin", "json", "no change", "too long"],
)
def test_forged_forms_change_nothing(site: Site, changing: httpx.Client, fault: str):
    path = site.paths["broker"]
    form = form_of(changing, f"{path}?change=fileReservedTime&to=48")
    headers, more = origin(changing), {}
    match fault:
        case "no token":
            del form["token"]
        case "token of another":
            form["token"] = site.changes.visitors.tokens.of("0" * 32)
        case "no cookie":
            changing.cookies.clear()
        case "origin elsewhere":
            headers = {"origin": "http://evil.example"}
        case "no origin":
            headers = {}
        case "no change":
            form["change"] = "format"
        case "too long":
            form["value"] = "x" * (9 << 20)
        case "json":
            more = {"json": form}
    answer = changing.post(path, headers=headers, **(more or {"data": form}))
    assert answer.status_code == {"json": 415, "no change": 400, "too long": 413}.get(fault, 403)
    options = changing.get(path, params={"format": "json", "q": "fileReservedTime"}).json()["options"]
    assert [row["value"] for row in options] == ["72"]


def test_pages_without_changes_take_no_form(changing: httpx.Client):
    assert changing.post("/topics", data={"a": "b"}, headers=origin(changing)).status_code == 405


def test_a_link_elsewhere_keeps_the_visitors_cookie(client: httpx.Client):
    """Browsers do not send a strict cookie with such a request: a new one would take the place of the visitor's."""
    from_elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
    answer = client.get("/topics?q=a", headers=from_elsewhere)
    assert 'http-equiv="refresh" content="0; url=/topics?q=a"' in answer.text
    assert "set-cookie" not in answer.headers
    assert "HttpOnly; Path=/; SameSite=strict" in client.get("/").headers["set-cookie"]


# ---------------------------------------------------------------- open pages


def parts_of(client: httpx.Client, of: str, count: int) -> list[dict[str, str]]:
    found = []
    with client.stream("GET", "/live", params={"of": of}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"html"' in line:
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == count:
                    return found
    return found


def test_an_open_page_gets_its_parts_and_what_changes_of_them(site: Site, client: httpx.Client):
    client.get("/")
    html = client.get("/topics?q=orders").text
    found = parts_of(client, "/topics?q=orders", 2)
    assert {one["id"] for one in found} == {"live-state", "live-topics"}
    topics = next(one for one in found if one["id"] == "live-topics")
    assert "orders" in topics["html"]
    assert "payments" not in topics["html"]
    assert 'id="live-topics"' in html
    eventually(lambda: site.shows.viewers == 0, what="the viewer has left")


def test_viewers_of_one_page_share_it(site: Site):
    with browsing(site.shows) as one, browsing(site.shows) as other:
        one.get("/"), other.get("/")
        with (
            one.stream("GET", "/live", params={"of": "/groups"}),
            other.stream("GET", "/live", params={"of": "/groups"}),
        ):
            eventually(lambda: site.shows.viewers == 2)
            assert site.shows._live.pages == 1
    eventually(lambda: site.shows.viewers == 0, what="the viewers have left")


@pytest.mark.parametrize("of", ["/nowhere", "/static/dashboard.css", "/login"])
def test_only_pages_can_be_followed(client: httpx.Client, of: str):
    client.get("/")
    answer = client.get("/live", params={"of": of})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_an_open_page_of_somebody_without_a_cookie_is_refused(client: httpx.Client):
    assert client.get("/live", params={"of": "/"}, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_viewer_who_never_reads_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "UNREAD_SECONDS", 0.2)
    pieces = 0

    async def much(_live: object, watched: Any, _make: object) -> None:
        nonlocal pieces
        while True:
            for viewer in watched.viewers:
                pieces += 1
                viewer.news["live-groups"] = f"{pieces}" + "x" * (1 << 18)
                viewer.woken.set()
            await asyncio.sleep(0.01)

    monkeypatch.setattr(live.Live, "_follow", much)
    host, port = split_address(site.shows.address)
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.settimeout(PATIENCE)
        silent.connect((host, port))
        silent.sendall(
            f"GET /live?of=/groups HTTP/1.1\r\nhost: {host}:{port}\r\ncookie: {COOKIE}={'a' * 32}\r\n\r\n".encode()
        )
        eventually(lambda: pieces > 0, what="it is followed")
        eventually(lambda: site.shows.viewers == 0, what="it is ended")
