"""The command line at a broker with access control: a file with the account, and never a secret as an argument."""

from __future__ import annotations

import json

import pytest

from metaq.admin import Admin
from metaq.testing import EmbeddedBroker
from tests.accounts import ACCOUNTS, ADMIN, SECRET, tools_yml
from tests.support import run_metaq


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(accounts=ACCOUNTS) as running, Admin(running.namesrv, **ADMIN) as admin:
        admin.create_topic("refusing", queues=1)
        yield running


@pytest.fixture
def account(tmp_path):
    """The path of a file with the account of that name."""

    def write(name: str, secret: str = SECRET) -> str:
        path = tmp_path / f"{name}.yml"
        path.write_text(tools_yml({"access_key": name, "secret_key": secret}))
        return str(path)

    return write


def test_commands_sign_with_the_file(broker, account, monkeypatch):
    """Administration, sending and receiving; by the option, and by the environment, over which the option wins."""
    admin, user = account("account-admin"), account("account-user")
    at = ("-n", broker.namesrv)
    created = run_metaq("topic", "create", "orders", "--queues", "2", *at, "--acl-file", admin)
    assert created.returncode == 0, created.stderr
    sent = run_metaq("send", "orders", "one", "--acl-file", user, *at)
    assert sent.returncode == 0, sent.stderr
    monkeypatch.setenv("METAQ_ACL_FILE", user)
    assert run_metaq("send", "orders", "two", *at).returncode == 0
    for more in ((), ("--group", "g")):
        got = run_metaq("consume", "orders", "-c", "2", "--json", *more, *at)
        assert sorted(json.loads(line)["body"] for line in got.stdout.splitlines()) == ["one", "two"], got.stderr
    refused = run_metaq("topic", "create", "others", *at)
    assert refused.returncode == 1
    assert "It was signed as account-user: have the right granted" in refused.stderr
    assert run_metaq("topic", "create", "others", *at, "--acl-file", admin).returncode == 0


def test_what_is_refused_is_one_line_without_the_secret(broker, account):
    """And nothing is tried for ever."""
    wrong = run_metaq(
        "send", "refusing", "x", "-n", broker.namesrv, "--acl-file", account("account-user", "another-secret")
    )
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") == 1
    assert "It was signed as account-user: check its secret key" in wrong.stderr
    assert "another-secret" not in wrong.stderr
    unsigned = run_metaq("consume", "refusing", "--group", "g", "-n", broker.namesrv)
    assert unsigned.returncode == 1
    assert "set METAQ_ACL_FILE" in unsigned.stderr
    shown = run_metaq("cluster", "-n", broker.namesrv).stdout.splitlines()
    assert (len(shown), max(map(len, shown[:2])) < 150, "unknown" in shown[1]) == (3, True, True)
    assert "AclException: No accessKey is configured" in shown[2]
    nothing = run_metaq("topic", "list", "-n", broker.namesrv, "--acl-file", "/nowhere/tools.yml")
    assert nothing.returncode == 2
    assert "/nowhere/tools.yml cannot be read" in nothing.stderr


@pytest.mark.parametrize("flag", ["--secret-key", "--access-key", "--security-token"])
def test_no_secret_is_taken_from_a_command_line(flag):
    """With the reason, and where it belongs; what was given is not repeated."""
    refused = run_metaq("topic", "list", flag, SECRET)
    assert refused.returncode == 2
    words = " ".join(refused.stderr.replace("│", " ").split())
    assert "can be read by every user of this machine (ps)" in words
    assert "--acl-file FILE" in words
    assert SECRET not in words
