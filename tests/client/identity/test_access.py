"""Where a client's credentials come from, and that they are shown nowhere."""

from __future__ import annotations

import pickle

import pytest

from metaq.client.identity.access import ENVIRONMENT, Access
from metaq.client.identity.options import client_options
from metaq.client.shared import cores
from metaq.errors import ConfigError
from metaq.model.acl.secret import Credentials, Secret
from tests.support import PATIENCE

SECRET = "12345678-secret"
PAIR = {"access_key": "account-one", "secret_key": SECRET}
SIGNED = Credentials("account-one", Secret(SECRET))
NAMESRV = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ENVIRONMENT.values():
        monkeypatch.delenv(name, raising=False)


def tools(tmp_path, text: str) -> str:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    return str(path)


def test_arguments_the_file_and_the_environment(tmp_path, monkeypatch):
    """Each alone; a token where there is one; nothing signs nothing."""
    assert client_options().credentials is None
    assert client_options(**PAIR).credentials == SIGNED
    assert client_options(**PAIR, security_token="t").credentials == Credentials(
        "account-one", Secret(SECRET), Secret("t")
    )
    path = tools(tmp_path, f"accessKey: account-one\nsecretKey: {SECRET}\n")
    assert client_options(acl_file=path).credentials == SIGNED
    monkeypatch.setenv("METAQ_ACL_FILE", path)
    assert client_options().credentials == SIGNED
    monkeypatch.delenv("METAQ_ACL_FILE")
    for name, value in PAIR.items():
        monkeypatch.setenv(ENVIRONMENT[name], value)
    assert client_options().credentials == SIGNED


def test_arguments_win_over_the_environment_as_a_whole(tmp_path, monkeypatch):
    """A file that is given is not mixed with keys that are set, nor half a pair with the other half."""
    monkeypatch.setenv("METAQ_ACCESS_KEY", "another-one")
    monkeypatch.setenv("METAQ_SECRET_KEY", "another-secret")
    path = tools(tmp_path, f"accessKey: account-one\nsecretKey: {SECRET}\n")
    assert client_options(acl_file=path).credentials == SIGNED
    assert client_options(**PAIR).credentials == SIGNED
    with pytest.raises(ConfigError, match="secret_key is missing, and access_key given"):
        client_options(access_key="account-one")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"access_key": "account-one"}, "secret_key is missing, and access_key given"),
        ({"secret_key": SECRET}, "access_key is missing, and secret_key given"),
        ({"security_token": SECRET}, "access_key is missing, and security_token given"),
        ({"access_key": "", "secret_key": SECRET}, "access_key is missing"),
        ({**PAIR, "acl_file": "x"}, "access_key and secret_key and acl_file are given"),
        ({"acl_file": ""}, "acl_file is empty"),
        ({"acl_file": "/nowhere/tools.yml"}, "acl_file: /nowhere/tools.yml cannot be read"),
        ({**PAIR, "secret_key": f"{SECRET}\n"}, "secret_key begins or ends with a blank"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, says):
    """By name, and without the secret."""
    with pytest.raises(ConfigError, match=says) as caught:
        client_options(**arguments)
    assert SECRET not in str(caught.value)


def test_half_a_pair_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("METAQ_SECRET_KEY", SECRET)
    with pytest.raises(ConfigError, match="METAQ_ACCESS_KEY is missing, and METAQ_SECRET_KEY given") as caught:
        client_options()
    assert SECRET not in str(caught.value)


def test_a_secret_of_a_wrong_type_is_not_shown():
    with pytest.raises(TypeError, match="secret_key is a bytes: pass text") as caught:
        client_options(access_key="account-one", secret_key=SECRET.encode())
    assert SECRET not in str(caught.value)


def test_a_file_with_a_mistake_is_told_with_its_line(tmp_path):
    path = tools(tmp_path, f"accessKey: account-one\nsecretKeyy: {SECRET}\n")
    with pytest.raises(ConfigError, match=r"tools\.yml, line 2.*is secretKey meant") as caught:
        client_options(acl_file=path)
    assert SECRET not in str(caught.value)


def test_nothing_shows_a_secret():
    """Neither the options nor what Spark's processes get; that can be pickled all the same."""
    access = Access(**PAIR, security_token="the-token")
    shown = f"{client_options(**PAIR)} {client_options(**PAIR)!r} {access} {access!r}"
    assert SECRET not in shown
    assert "the-token" not in shown
    assert "account-one" in shown
    assert pickle.loads(pickle.dumps(access)).credentials() == access.credentials()


def test_clients_of_different_accounts_share_no_core():
    """Nor a client id, by which brokers know them; those of one account do."""
    everybody, one, two = client_options(), client_options(**PAIR), client_options(access_key="two", secret_key=SECRET)
    made = [(cores.acquire(NAMESRV, options), options) for options in (everybody, one, two, client_options(**PAIR))]
    try:
        found = [core for core, _ in made]
        assert len(set(map(id, found))) == 3
        assert found[1] is found[3]
        assert len({core.client_id for core in found}) == 3
        assert [core.credentials for core in found] == [None, SIGNED, two.credentials, SIGNED]
    finally:
        for core, options in made:
            core.thread.run(cores.release(core, options), timeout=PATIENCE)


def test_one_instance_name_is_one_account():
    """Brokers would take both for one client."""
    one, two = client_options(**PAIR, instance_name="i"), client_options(instance_name="i")
    core = cores.acquire(NAMESRV, one)
    try:
        with pytest.raises(
            ConfigError, match=r"instance_name='i' sign as another account.*an instance_name of its own"
        ):
            cores.acquire(NAMESRV, two)
    finally:
        core.thread.run(cores.release(core, one), timeout=PATIENCE)
    other = cores.acquire(NAMESRV, two)
    other.thread.run(cores.release(other, two), timeout=PATIENCE)
