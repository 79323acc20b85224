"""Contexts: which cluster a command asks, and with what account and certificates."""

from __future__ import annotations

import json

import pytest

from metaq.cli.contexts.files import Context, Contexts, name_servers_of_context
from metaq.cli.output import NAMESRV_DEFAULT, chosen_name_servers
from metaq.errors import ConfigError, ConnectionFailed
from tests.support import run_metaq


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's configuration folder of its own, and no variable that chooses a cluster."""
    for name in ("NAMESRV_ADDR", "METAQ_CONTEXT", "METAQ_ACL_FILE", "METAQ_ADDRESS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_life_of_a_context(home, metaq_broker):
    """Added, listed, used by commands without an address, shown, deleted."""
    added = run_metaq("context", "add", "here", "-n", metaq_broker.namesrv, "--description", "mine")
    assert (added.returncode, added.stderr) == (0, "")
    assert json.loads(run_metaq("context", "list", "--json").stdout) == [
        {"name": "here", "in_use": False, "namesrv": metaq_broker.namesrv, "description": "mine"}
    ]
    assert run_metaq("cluster", "--context", "here").returncode == 0
    assert run_metaq("--context", "here", "cluster").returncode == 0
    assert run_metaq("--context", "nowhere", "cluster").returncode == 2
    assert "in use" in run_metaq("context", "use", "here").stdout
    assert run_metaq("cluster").returncode == 0
    assert run_metaq("context", "list").stdout.splitlines()[1].startswith("*")
    assert "it is in use" in run_metaq("context", "show").stdout
    again = run_metaq("context", "add", "here", "-n", "a:1")
    assert (again.returncode, "--replace" in again.stderr) == (2, True)
    assert run_metaq("context", "delete", "here", "--json").returncode == 0
    assert json.loads(run_metaq("context", "list", "--json").stdout) == []
    none = run_metaq("context", "show")
    assert (none.returncode, none.stderr) == (2, "metaq: no context is in use; `metaq context use NAME` selects one\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "x"), "give either the name servers of the cluster"),
        (("add", "../x", "-n", "a:1"), "cannot be the name of a context"),
        (("add", "x", "-n", "a:b:c"), "a:b:c"),
        (("add", "x", "-n", "a:1", "--acl-file", "/no/such"), "there is no file /no/such"),
        (("add", "x", "-n", "a:1", "--tls-verify", "maybe"), "not one of full, ca, none"),
        (("use",), "give the name of a context"),
    ],
)
def test_wrong_input_is_one_sentence(home, words, says):
    """Exit code 2, and nothing is written."""
    done = run_metaq("context", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr
    assert not list(home.rglob("*.json"))


@pytest.mark.parametrize("command", ["use", "delete", "show"])
def test_a_context_that_does_not_exist_is_not_found(home, command):
    done = run_metaq("context", command, "nobody")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "there is no context nobody" in done.stderr


def chosen(environ, **told):
    found = name_servers_of_context(**{"by_hand": False, "from_environment": False, **told}, environ=environ)
    return "given" if found is None else found


def test_what_beats_what(home):
    """-n, then the context that is asked for, then NAMESRV_ADDR, then the one in use."""
    environ = {"XDG_CONFIG_HOME": str(home)}
    contexts = Contexts(environ)
    assert chosen(environ) == "given"
    contexts.write("one", Context(namesrv="one:1"))
    contexts.write("two", Context(namesrv="two:1"))
    contexts.use("one")
    assert chosen(environ) == "one:1"
    assert chosen(environ, from_environment=True) == "given"
    asked = {**environ, "METAQ_CONTEXT": "two"}
    assert chosen(asked) == chosen(asked, from_environment=True) == "two:1"
    assert chosen(asked, by_hand=True) == "given"
    with pytest.raises(ConfigError, match="there is no context three"):
        chosen({**environ, "METAQ_CONTEXT": "three"})


def test_a_context_comes_before_an_address_server(home, monkeypatch):
    """Also one whose name servers are those that are the default: the page is not asked then."""
    monkeypatch.setenv("METAQ_ADDRESS_SERVER", "http://127.0.0.1:1/nobody")
    contexts = Contexts({"XDG_CONFIG_HOME": str(home)})
    contexts.write("here", Context(namesrv=NAMESRV_DEFAULT))
    with pytest.raises(ConnectionFailed, match="nobody does not answer"):
        chosen_name_servers(NAMESRV_DEFAULT, "DEFAULT")
    contexts.use("here")
    assert chosen_name_servers(NAMESRV_DEFAULT, "DEFAULT") == NAMESRV_DEFAULT


def test_account_and_certificates_go_to_their_own_cluster_only(home):
    """Set where nobody has set them; those of the context in use never go to a server that -n names."""
    environ = {"XDG_CONFIG_HOME": str(home)}
    Contexts(environ).write("prod", Context(namesrv="prod:1", tls=True, ca="/ca", acl_file="/tools.yml"))
    Contexts(environ).use("prod")
    assert chosen(environ, by_hand=True) == "given"
    assert set(environ) == {"XDG_CONFIG_HOME"}
    mine = {**environ, "METAQ_TLS_CA": "/mine", "METAQ_ACCESS_KEY": "me"}
    chosen(mine)
    assert (mine["METAQ_TLS"], mine["METAQ_TLS_CA"], "METAQ_ACL_FILE" in mine) == ("1", "/mine", False)
    chosen(environ)
    assert (environ["METAQ_TLS_CA"], environ["METAQ_ACL_FILE"]) == ("/ca", "/tools.yml")


@pytest.mark.parametrize("text", ["", "[]", '{"namesrv": 1}', '{"secretKey": "x"}', "\xff"])
def test_a_damaged_file_is_named(home, text):
    """Also one that has what no context has, such as a secret."""
    contexts = Contexts({"XDG_CONFIG_HOME": str(home)})
    contexts.write("bad", Context(namesrv="a:1"))
    (contexts.folder / "bad.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"bad cannot be read from .*bad\.json"):
        contexts.read("bad")


def test_deleting_the_one_in_use_leaves_none_in_use(home):
    """No command asks for it afterwards."""
    contexts = Contexts({"XDG_CONFIG_HOME": str(home)})
    contexts.write("one", Context(namesrv="a:1"))
    contexts.use("one")
    contexts.delete("one")
    assert (contexts.used(), contexts.names()) == ("", [])


GONE = "/no/such/file"


@pytest.mark.parametrize(
    ("before", "after", "environ", "says"),
    [
        ((), ("--acl-file", GONE), {}, f"--acl-file: {GONE} cannot be read"),
        ((), (), {"METAQ_ACL_FILE": GONE}, f"METAQ_ACL_FILE: {GONE} cannot be read"),
        ((), ("--acl-file", GONE), {"METAQ_ACL_FILE": "/another"}, f"--acl-file: {GONE} cannot be read"),
        (("--tls", "--ca", GONE), (), {}, f"--ca: {GONE} cannot be read"),
        (("--tls",), (), {"METAQ_TLS_CA": GONE}, f"METAQ_TLS_CA: {GONE} cannot be read"),
        (("--tls", "--cert", GONE), (), {}, f"--cert: {GONE} cannot be read"),
        (("--tls", "--crl", GONE), (), {"METAQ_TLS_CA": __file__}, f"--crl: {GONE} cannot be read"),
        (("--tls", "--key", __file__), (), {}, "--key without --cert"),
        ((), (), {"METAQ_TLS": "1", "METAQ_TLS_KEY": __file__}, "METAQ_TLS_KEY without METAQ_TLS_CERT"),
        (("--tls", "--tls-verify", "some"), (), {}, "--tls-verify='some': allowed are full, ca, none"),
        (("--tls",), (), {"METAQ_TLS_VERIFY": "some"}, "METAQ_TLS_VERIFY='some': allowed are full, ca, none"),
        (("--context", "nobody"), (), {}, "--context: there is no context nobody"),
        ((), ("--context", "nobody"), {}, "--context: there is no context nobody"),
        ((), (), {"METAQ_CONTEXT": "nobody"}, "METAQ_CONTEXT: there is no context nobody"),
        ((), ("--context", "wrong"), {}, f"the aclFile of context wrong: {GONE} cannot be read"),
        ((), (), {"METAQ_CONTEXT": "mistyped"}, "the context mistyped: the name server address 'a:b:c' is not host:port"),
        ((), ("-n", "a:b:c"), {}, "-n: the name server address 'a:b:c' is not host:port"),
        ((), (), {"NAMESRV_ADDR": "a:b:c"}, "NAMESRV_ADDR: the name server address 'a:b:c' is not host:port"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_where_it_came_from(home, monkeypatch, before, after, environ, says):
    """The option that was typed, the variable, or the context: not the variable by which an option reaches the client."""
    contexts = Contexts({"XDG_CONFIG_HOME": str(home)})
    contexts.write("wrong", Context(namesrv="127.0.0.1:1", acl_file=GONE))
    contexts.write("mistyped", Context(namesrv="a:b:c"))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    done = run_metaq(*before, "topic", "list", *after)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"metaq: {says}"), done.stderr


def test_a_wrong_database_is_told_with_where_it_came_from(monkeypatch):
    assert run_metaq("outbox", "list", "--database", "foo").stderr.startswith("metaq: --database begins with 'foo'")
    monkeypatch.setenv("METAQ_DATABASE", "foo")
    assert run_metaq("outbox", "list").stderr.startswith("metaq: METAQ_DATABASE begins with 'foo'")
