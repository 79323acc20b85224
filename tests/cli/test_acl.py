"""`metaq acl` against a broker with accounts, as an administrator at a listed address types it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator

import pytest

from metaq.app.acl.files import AclFiles
from metaq.model.acl.accounts import Account
from metaq.model.acl.rights import BOTH, Right
from tests.support import environment, metaq_command, process, read_line, run_metaq

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    path.write_text("# by hand\nglobalWhiteRemoteAddresses:\n- 127.0.0.1\naccounts: []\n")
    return path


@pytest.fixture(scope="module")
def cli(main: pathlib.Path) -> Iterator[Callable[..., str]]:
    """Run `metaq acl` and return what it prints; `code`: the exit code."""
    command = metaq_command("up", "--data", str(main.parent / "data"), "--port", "0", "--namesrv-port", "0")
    options = ["aclEnable=true", f"aclPath={main}", "mappedFileSizeCommitLog=1048576", "brokerName=b"]
    with process(*command, *(word for one in options for word in ("-o", one)), env=environment()) as child:
        namesrv = read_line(child, "ready up").split("namesrv=")[1].split()[0]

        def run(*words: str, code: int = 0, **more) -> str:
            done = run_metaq("acl", *words, "-n", namesrv, **more)
            assert done.returncode == code, done.stdout + done.stderr
            return done.stdout + done.stderr

        yield run
        child.terminate()


def account(main: pathlib.Path, name: str) -> Account | None:
    files = AclFiles(main)
    return files.read(files.marks()).accounts.get(name)


def test_an_account_is_created_with_a_made_secret_that_is_shown_once(cli, main) -> None:
    """And no more in the list; another gets its secret from a file."""
    told = cli("user", "create", "account-made", "--default-group", "sub", "--address", "10.0.0.*")
    secret = told.partition("secretKey: ")[2].strip()
    made = account(main, "account-made")
    assert made is not None
    assert (made.secret_key.reveal(), made.default_group, made.white.text) == (secret, Right.SUB, "10.0.0.*")
    listed = cli("user", "list")
    assert "account-made" in listed
    assert "b allows everything from 127.0.0.1" in listed
    assert secret not in listed + cli("user", "list", "--json")

    file = main.with_name("secret")
    file.write_text("87654321-file\n")
    told = cli("user", "create", "account-file", "--admin", "--secret-file", str(file))
    kept = account(main, "account-file")
    assert (kept.secret_key.reveal(), kept.admin) == ("87654321-file", True)
    assert "87654321" not in told
    assert "# by hand" in main.read_text()


def test_a_refused_account_is_told_in_our_words_only(cli) -> None:
    told = cli("user", "create", "backup", code=1)
    assert told.endswith(
        " to set the account backup: the accessKey 'backup' has 6 characters: it must have 7 to 255 that can be printed, and none of "
        "them a blank at an end\n"
    )
    assert "Exception" not in told


def test_rights_are_granted_and_revoked_and_a_check_names_the_entry_that_decides(cli, main) -> None:
    """The secret and the other entries stay."""
    cli("user", "create", "account-one")
    before = account(main, "account-one")
    cli("grant", "account-one", "both", "topic:orders")
    cli("grant", "account-one", "sub", "group:mailer")
    cli("grant", "account-one", "deny", "topic:bills")
    now = account(main, "account-one")
    assert (now.secret_key, now.topics, now.groups) == (
        before.secret_key,
        {"orders": BOTH, "bills": Right.DENY},
        {"mailer": Right.SUB},
    )
    why = cli("check", "account-one", "publish", "topic:orders")
    assert f"b: allowed: topicPerms has orders=PUB|SUB for the account account-one, and PUB is needed ({main})" in why
    told = json.loads(cli("check", "account-one", "publish", "topic:bills", "--json", code=1))
    assert told["b"]["allowed"] is False
    assert told["b"]["file"] == str(main)
    assert "topicPerms has bills=DENY" in told["b"]["why"]
    assert "AclException: No default permission for topic:bills" in told["b"]["remark"]
    assert "admin: true is needed" in cli("check", "account-one", "administer", code=1)
    assert "the secretKey is another one here" in cli("check", "account-one", "observe", "--unsigned", code=1)
    assert "there is no such account here" in cli("check", "account-gone", "observe", code=1)
    white = cli("check", "", "administer", "--address", "127.0.0.1")
    assert f"globalWhiteRemoteAddresses (127.0.0.1): everything is allowed ({main})" in white

    cli("revoke", "account-one", "topic:orders")
    assert account(main, "account-one").topics == {"bills": Right.DENY}
    assert "defaultTopicPerm is DENY" in cli("check", "account-one", "publish", "topic:orders", code=1)
    cli("user", "delete", "account-one")
    assert account(main, "account-one") is None


def test_what_cannot_be_done_is_said(cli) -> None:
    """No such account, resource, right or action; a secret that is too short, which is not shown."""
    assert "there is no account account-gone at b" in cli("grant", "account-gone", "pub", "topic:orders", code=3)
    assert "no account account-gone" in cli("user", "delete", "account-gone", code=3)
    cli("user", "create", "account-two")
    assert "write topic:NAME or group:NAME" in cli("grant", "account-two", "pub", "orders", code=2)
    assert "is none of pub, sub, both, deny" in cli("grant", "account-two", "write", "topic:orders", code=2)
    assert "is no action" in cli("check", "account-two", "fly", code=2)
    refused = cli("user", "create", "account-two", "--secret-file", "-", stdin="shh-me", code=1)
    assert "the secretKey has 6 characters" in refused
    assert "shh-me" not in refused
