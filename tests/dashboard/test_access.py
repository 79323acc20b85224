"""Pages of accounts, quotas and clients: rights without secrets, what would become of a request, what subjects take, who consumes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from metaq.admin import Admin
from tests.dashboard.running import Site, browsing, cluster, dashboard, looping
from tests.dashboard.test_login import log_in

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard")]

SECRET = "12345678-of-an-account"
ACL = f"""
globalWhiteRemoteAddresses:
  - 10.7.*.*
accounts:
  - accessKey: operator
    secretKey: {SECRET}
    admin: true
  - accessKey: reader-1
    secretKey: {SECRET}
    whiteRemoteAddress: 10.8.0.*
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - orders=SUB
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a dashboard of a broker with accounts."""
    folder: pathlib.Path = tmp_path_factory.mktemp("accounts")
    (folder / "plain_acl.yml").write_text(ACL)
    (folder / "plain_acl.yml").chmod(0o600)
    with (
        looping() as loop,
        cluster(loop, folder, acl_enable=True, acl_path=str(folder / "plain_acl.yml")) as up,
        dashboard(loop, up.namesrv.address, login=True) as running,
        browsing(running) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(guarded: httpx.Client) -> httpx.Client:
    assert log_in(guarded, "operator", SECRET).status_code == 303
    return guarded


def json_of(client: httpx.Client, path: str, **params: str) -> Any:
    answer = client.get(path, params={"format": "json", **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_accounts_are_shown_with_their_rights_and_no_secret(client: httpx.Client):
    found = json_of(client, "/accounts")
    rows = {row["account"]: row for row in found["rows"]["rows"]}
    assert set(rows) == {"operator", "reader-1"}
    assert rows["operator"]["admin"] is True
    reader = rows["reader-1"]
    assert (reader["default_topic"], reader["default_group"], reader["topics"]) == ("DENY", "SUB", ["orders=SUB"])
    assert (reader["white"], reader["servers"]) == ("10.8.0.*", ["broker-a"])
    assert found["white"] == [{"server": "broker-a", "addresses": ["10.7.*.*"]}]
    assert (found["explained"], found["notes"]) == ([], [])
    for path in ("/accounts", "/accounts?format=json"):
        assert SECRET not in client.get(path).text


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"account": "reader-1", "act": "subscribe", "resource": "topic:orders"}, True),
        ({"account": "reader-1", "act": "publish", "resource": "topic:orders"}, False),
        ({"account": "reader-1", "act": "publish", "resource": "topic:orders", "address": "10.7.1.1"}, True),
        ({"account": "operator", "act": "publish", "resource": "topic:orders", "unsigned": "true"}, False),
        ({"account": "", "act": "publish", "resource": "topic:orders"}, False),
    ],
)
def test_what_would_become_of_a_request_is_explained(client: httpx.Client, asked: dict[str, str], allowed: bool):
    found = json_of(client, "/accounts", **asked)
    (one,) = found["explained"]
    assert (one["server"], one["allowed"]) == ("broker-a", allowed)
    assert one["why"]
    assert one["why"] in client.get("/accounts", params=asked).text.replace("&#39;", "'").replace("&#34;", '"')


@pytest.mark.parametrize(
    "asked",
    [{"act": "fly", "resource": "topic:orders"}, {"act": "publish", "resource": "<b>orders"}],
)
def test_what_cannot_be_explained_is_said(client: httpx.Client, asked: dict[str, str]):
    found = json_of(client, "/accounts", **asked)
    assert found["fault"]
    assert found["explained"] == []
    assert "<b>orders" not in client.get("/accounts", params=asked).text


def test_an_account_that_may_not_see_accounts_is_told_so(guarded: httpx.Client):
    with httpx.Client(base_url=guarded.base_url, timeout=guarded.timeout) as other:
        assert log_in(other, "reader-1", SECRET).status_code == 303
        found = json_of(other, "/accounts")
        assert found["rows"]["rows"] == []
        assert "accounts of broker-a" in found["notes"][0]


def test_a_cluster_without_accounts_says_what_that_means(site: Site):
    with browsing(site.shows) as client:
        found = json_of(client, "/accounts")
        assert (found["rows"]["rows"], found["without"], found["notes"]) == ([], ["broker-a"], [])
        assert "everybody may do everything: broker-a" in client.get("/accounts").text


def test_quotas_are_shown_with_what_their_subjects_take(site: Site):
    with Admin(site.up.namesrv.address) as admin, browsing(site.shows) as client:
        admin.set_quota("address", "10.1.2.3", "requestsPerSecond=7,bytesInPerSecond=1M")
        try:
            found = json_of(client, "/quotas", q="10.1.2.3")
            (row,) = found["rows"]["rows"]
            assert (row["kind"], row["name"], row["own"], row["broker"]) == ("address", "10.1.2.3", True, "broker-a")
            assert row["limits"] == "requestsPerSecond=7,bytesInPerSecond=1048576"
            assert (found["untold"], found["notes"]) == ([], [])
            assert "requestsPerSecond=7" in client.get("/quotas").text
        finally:
            admin.remove_quota("address", "10.1.2.3")


def test_clients_are_listed_with_language_release_and_groups(site: Site):
    with browsing(site.shows) as client:
        found = json_of(client, "/clients")
        (row,) = found["rows"]["rows"]
        assert (row["language"], row["release"], row["groups"]) == ("PYTHON", "4.9.8", ["mailer"])
        assert row["address"].startswith("127.0.0.1:")
        assert found["releases"] == [{"language": "PYTHON", "release": "4.9.8", "clients": 1}]
        assert json_of(client, "/clients", q="no such")["rows"]["found"] == 0
        assert row["client"] in client.get("/clients").text
