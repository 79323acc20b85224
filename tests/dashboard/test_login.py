"""A cluster with accounts: visitors log in with theirs, act as them, and their keys stay with the dashboard."""

from __future__ import annotations

import logging
import pathlib
import re
from collections.abc import Iterator

import httpx
import pytest

from metaq.client.identity.options import client_options
from metaq.dashboard.security.guard import COOKIE
from metaq.dashboard.server import RunningDashboard
from tests.dashboard.running import browsing, cluster, dashboard, looping, page_of
from tests.support import eventually

pytestmark = pytest.mark.xdist_group("dashboard")

SECRET = "12345678-of-the-visitor"
ACL = f"""
accounts:
  - accessKey: operator
    secretKey: {SECRET}
    admin: true
  - accessKey: reader-1
    secretKey: {SECRET}
    defaultTopicPerm: SUB
    defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDashboard]:
    folder: pathlib.Path = tmp_path_factory.mktemp("guarded")
    (folder / "plain_acl.yml").write_text(ACL)
    (folder / "plain_acl.yml").chmod(0o600)
    with (
        looping() as loop,
        cluster(loop, folder, acl_enable=True, acl_path=str(folder / "plain_acl.yml")) as up,
        dashboard(loop, up.namesrv.address, allow_changes=True, client=client_options(tls=False)) as running,
    ):
        yield running


@pytest.fixture
def client(guarded: RunningDashboard) -> Iterator[httpx.Client]:
    with browsing(guarded) as client:
        yield client


def log_in(client: httpx.Client, access_key: str, secret_key: str, place: str = "/topics") -> httpx.Response:
    html = client.get("/login", params={"next": place}).text
    form = dict(re.findall(r'name="(token|next)" value="([^"]*)"', html))
    origin = str(client.base_url).rstrip("/")
    return client.post(
        "/login", data=form | {"access_key": access_key, "secret_key": secret_key}, headers={"origin": origin}
    )


def test_nothing_is_shown_to_whoever_has_not_logged_in(guarded: RunningDashboard, client: httpx.Client):
    answer = client.get("/topics?q=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Ftopics%3Fq%3Da")
    assert client.get("/topics", params={"format": "json"}).status_code == 401
    client.get("/login")
    assert client.get("/live", params={"of": "/"}).status_code == 403
    assert "This cluster has accounts" in client.get("/login").text
    assert guarded.visitors.own.sampler.look is None  # nobody looks who could not show it


def test_an_account_logs_in_sees_and_logs_out(client: httpx.Client, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        client.get("/login")
        before = client.cookies[COOKIE]
        answer = log_in(client, "operator", SECRET)
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
        assert client.cookies[COOKIE] != before
        page_of(client, "/", lambda found: [one["state"] for one in found["brokers"]] == ["up"])
        html = client.get("/").text
        assert "operator" in html
        assert SECRET not in html
        assert SECRET not in str(answer.headers)
        token = re.search(r'action="/logout".*?value="(\w+)"', html)[1]
        origin = str(client.base_url).rstrip("/")
        inside = client.cookies[COOKIE]
        assert client.post("/logout", data={"token": token}, headers={"origin": origin}).headers["location"] == "/login"
        client.cookies.set(COOKIE, inside, domain=client.base_url.host)
        assert client.get("/topics").status_code == 303
    assert SECRET not in caplog.text


def test_a_wrong_key_is_refused_and_after_some_nobody_is_asked(guarded: RunningDashboard, client: httpx.Client):
    for _ in range(5):
        answer = log_in(client, "operator", "wrong")
        assert answer.status_code == 403
        assert "No such account, or a wrong secret key." in answer.text
        assert "wrong" not in answer.text.replace("a wrong secret key", "")
    assert log_in(client, "operator", SECRET).status_code == 429
    logins_of(guarded)._failures._times.clear()
    assert log_in(client, "nobody", SECRET).status_code == 403
    assert log_in(client, "", SECRET).status_code == 400
    assert log_in(client, "x" * 300, SECRET).status_code == 400
    assert len(guarded.visitors.sessions) == 0
    logins_of(guarded)._failures._times.clear()


def logins_of(running: RunningDashboard):
    return running._space.config.loaded_app._logins


def test_a_visitor_may_what_the_account_may(guarded: RunningDashboard, client: httpx.Client):
    assert log_in(client, "reader-1", SECRET).status_code == 303
    page_of(client, "/", lambda found: found["seen"])
    address = client.get("/brokers", params={"format": "json"}).json()["rows"]["rows"][0]["address"].replace(":", "%3A")
    html = client.get(f"/brokers/{address}").text
    token = guarded.visitors.tokens.of(client.cookies[COOKIE])
    form = {"token": token, "change": "option", "key": "fileReservedTime", "value": "1"}
    client.post(f"/brokers/{address}", data=form, headers={"origin": str(client.base_url).rstrip("/")})
    told = client.get(f"/brokers/{address}").text
    assert 'class="notice bad" role="alert"' in told
    (text,) = re.findall(r'role="alert">([^<]*)<', told)
    assert "Need admin permission" in text
    assert "reader-1" in text
    assert SECRET not in html + told


def test_visitors_of_one_account_share_its_connections_until_the_last_has_gone(guarded: RunningDashboard):
    with browsing(guarded) as one, browsing(guarded) as other:
        for client in (one, other):
            assert log_in(client, "operator", SECRET).status_code == 303
        sessions = guarded.visitors.sessions._sessions
        clusters = {id(sessions[client.cookies[COOKIE]].cluster) for client in (one, other)}
        assert len(clusters) == 1
        before = len(guarded.visitors._clusters)
        for client in (one, other):
            token = guarded.visitors.tokens.of(client.cookies[COOKIE])
            client.post("/logout", data={"token": token}, headers={"origin": str(client.base_url).rstrip("/")})
        eventually(lambda: len(guarded.visitors._clusters) == before - 1, what="its connections are closed")


def test_an_open_page_is_over_with_its_session(guarded: RunningDashboard):
    with browsing(guarded) as client:
        log_in(client, "operator", SECRET)
        page_of(client, "/", lambda found: found["seen"])
        cookie = client.cookies[COOKIE]
        with client.stream("GET", "/live", params={"of": "/"}) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("event: part"))
            guarded.visitors.sessions._sessions[cookie].began = float("-inf")
            assert next(line for line in lines if line.startswith("event: over"))
