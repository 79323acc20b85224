"""The files of access control: where they are, what counts, and when changes are in force."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pathlib
import stat
from collections.abc import Iterator

import pytest

from metaq import durable
from metaq.app.acl.files import AclFiles, AclWatch, acl_watch
from metaq.app.acl.place import acl_path
from metaq.app.configuration import load
from metaq.errors import ConfigError, Refused
from metaq.model.acl.changes import DropAccount, PutAccount
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Secret
from metaq.options import BrokerOptions
from metaq.saved import Pending
from tests.support import eventually

SECRET = "12345678-secret"


def text_of(*keys: str, **more: str) -> str:
    lines = [f"{key}: {value}" for key, value in more.items()]
    accounts = [f"- accessKey: {key}\n  secretKey: {SECRET}" for key in keys]
    return "\n".join([*lines, "accounts:", *accounts, ""])


@pytest.fixture
def main(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text_of("account-one"))
    return path


def watch(main: pathlib.Path) -> AclWatch:
    return AclWatch(AclFiles(main), lambda act: act())


def keys(found: AclWatch) -> set[str]:
    return set(found.access.rules.accounts)


def replace(path: pathlib.Path, text: str) -> None:
    """As editors do: another file under the same name."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def test_all_files_of_rocketmqs_places_are_read_together(main) -> None:
    """Those in and below `acl/` count before the main file, and only if their names end like it."""
    folder = main.parent / "acl"
    (folder / "team").mkdir(parents=True)
    (folder / "a.yml").write_text(text_of("account-two", "account-one"))
    (folder / "team" / "b.yaml").write_text(text_of("account-three"))
    (folder / "c.yml.bak").write_text("what is this")
    found = watch(main)
    assert keys(found) == {"account-one", "account-two", "account-three"}
    assert found.access.rules.file_of["account-one"] == str(folder / "a.yml")


def test_without_a_main_file_there_is_no_start(tmp_path) -> None:
    """The error says where it was looked for; so does one with an error in it, and no secret is in the text."""
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "a.yml").write_text(text_of("account-two"))
    with pytest.raises(ConfigError, match=f"there is none at {tmp_path}/plain_acl.yml"):
        watch(tmp_path / "plain_acl.yml")
    (tmp_path / "plain_acl.yml").write_text(text_of("account-one") + f"  adnim: {SECRET}\n")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml, line 4: .*adnim") as caught:
        watch(tmp_path / "plain_acl.yml")
    assert SECRET not in str(caught.value)


def test_a_change_is_in_force_at_the_next_look(main) -> None:
    """A changed file, another one under its name, a new one in the folder and one that is gone; else nothing is read."""
    found = watch(main)
    before = found.access.rules
    found.look()
    assert found.access.rules is before
    replace(main, text_of("account-one", "account-new"))
    found.look()
    assert keys(found) == {"account-one", "account-new"}
    folder = main.parent / "acl"
    folder.mkdir()
    (folder / "a.yml").write_text(text_of("account-two"))
    found.look()
    assert keys(found) == {"account-one", "account-new", "account-two"}
    (folder / "a.yml").unlink()
    main.write_text(text_of("account-one"))
    found.look()
    assert keys(found) == {"account-one"}


BROKEN = {
    "no YAML": "accounts: [",
    "an unknown key": text_of("account-one", what="1"),
    "a short secret": text_of("account-one").replace(SECRET, "short"),
    "no UTF-8": None,
    "gone": "",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_keeps_the_rules_and_is_told_once(main, caplog, how) -> None:
    """With its name and the reason, without secrets; what is right again is in force, also if it is what was before."""
    found = watch(main)
    rules = found.access.rules
    caplog.set_level(logging.ERROR)
    if how == "gone":
        main.unlink()
    elif how == "no UTF-8":
        main.write_bytes(b"accounts: \xff\n")
    else:
        main.write_text(BROKEN[how])
    for _ in range(5):
        found.look()
    assert found.access.rules is rules
    [told] = [record.getMessage() for record in caplog.records]
    assert "the accounts in force stay as they were" in told
    assert str(main) in told
    assert how == "gone" or "line" in told
    assert SECRET not in caplog.text
    replace(main, text_of("account-one", "account-new"))
    found.look()
    assert keys(found) == {"account-one", "account-new"}
    assert len(caplog.records) == 1


def test_a_file_that_may_not_be_read_is_told_with_the_reason(main, monkeypatch, caplog) -> None:
    """And is tried again."""
    found = watch(main)
    replace(main, text_of("account-new"))
    with monkeypatch.context() as patched:
        patched.setattr(
            pathlib.Path, "open", lambda *_more, **_others: (_ for _ in ()).throw(PermissionError(13, "no"))
        )
        found.look()
        assert f"{main} cannot be read" in caplog.text
    main.touch()
    os.utime(main, ns=(1, 1))
    found.look()
    assert keys(found) == {"account-new"}


def test_what_the_rules_warn_of_is_logged_at_the_start_and_at_each_change(main, caplog) -> None:
    """A white list for everybody is the worst of it."""
    main.write_text(text_of("account-one", globalWhiteRemoteAddresses='["*"]'))
    found = watch(main)
    assert "whoever can connect may do everything" in caplog.text
    caplog.clear()
    main.write_text(text_of("account-one", "account-two", globalWhiteRemoteAddresses='["*"]'))
    found.look()
    assert "whoever can connect may do everything" in caplog.text


# ---------------------------------------------------------------- the options


def test_the_main_file_is_beside_the_configuration_or_in_rocketmqs_home(tmp_path, main) -> None:
    """The first place that has one; `aclPath` beats both."""
    conf = tmp_path / "conf"
    conf.mkdir()
    home = {"ROCKETMQ_HOME": str(tmp_path)}
    (conf / "plain_acl.yml").write_text(text_of("account-home"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert acl_path(str(tmp_path / "broker.conf"), home) == str(main)
    assert acl_path(str(elsewhere / "broker.conf"), home) == str(conf / "plain_acl.yml")
    assert acl_path(str(elsewhere / "broker.conf"), {}) == str(elsewhere / "plain_acl.yml")
    assert acl_path(None, home) == str(conf / "plain_acl.yml")
    file = tmp_path / "broker.conf"
    file.write_text("aclEnable=true\nbrokerIP1=127.0.0.1\n")
    got = load(str(file), environment={})
    assert (got.broker.acl_enable, got.broker.acl_path) == (True, str(main))
    assert load(str(file), settings=["aclPath=/x/y.yml"], environment={}).broker.acl_path == "/x/y.yml"
    assert load(environment={}).broker.acl_path is None


def test_with_accounts_another_address_needs_no_consent(tmp_path, main) -> None:
    """But what they do not guard is named: the replication port, and clients that cannot sign."""
    file = tmp_path / "metaq.toml"
    file.write_text('[broker]\nbindAddress = "0.0.0.0"\naclEnable = true\n[metaq1]\nenable = true\n')
    got = load(str(file), environment={}, serving=("broker", "store", "metaq1"))
    told = "\n".join(got.warnings)
    assert "without access control" not in told
    assert "addresses that of slaves (haListenPort)" in told
    assert "clients of MetaQ 1.x cannot sign" in told
    with pytest.raises(ConfigError, match="add --insecure"):
        load(environment={}, serving=("namesrv",), flags={"namesrv": {"bind_address": "0.0.0.0"}})
    assert not load(environment={}, settings=["aclEnable=true"]).warnings


def test_an_embedded_broker_is_told_which_path_is_missing() -> None:
    """It has no configuration file to look beside."""
    with pytest.raises(ConfigError, match="aclEnable=true needs aclPath"):
        acl_watch(BrokerOptions(acl_enable=True), lambda act: act())


# ---------------------------------------------------------------- changes that are asked for


@contextlib.contextmanager
def changing(main: pathlib.Path) -> Iterator[AclWatch]:
    found = watch(main)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def ended(pending: Pending) -> Refused | None:
    eventually(lambda: pending.done, what="the change")
    return pending.error


def test_a_change_is_saved_then_in_force_and_the_rest_of_the_file_stays(main) -> None:
    """Comments, order, and who may read the file; the data version counts on."""
    main.write_text(f"# ours\n{text_of('account-one')}")
    main.chmod(0o640)
    with changing(main) as found:
        put = PutAccount("account-new", Secret("87654321"), topics={"orders": Right.PUB})
        assert ended(found.change(put)) is None
        assert keys(found) == {"account-one", "account-new"}
        assert ended(found.change(DropAccount("account-one"))) is None
        assert keys(found) == {"account-new"}
    assert main.read_text().startswith("# ours\n")
    assert stat.S_IMODE(main.stat().st_mode) == 0o640
    again = watch(main).access.rules
    assert set(again.accounts) == {"account-new"}
    assert again.files[str(main)].version.counter == 2
    assert list(main.parent.iterdir()) == [main]


def test_concurrent_changes_are_made_in_their_order_each_on_the_last(main) -> None:
    """A hundred at once: none is lost, and one by hand in between neither."""
    with changing(main) as found:
        names = [f"account-{number:03}" for number in range(100)]
        asked = [found.change(PutAccount(name, Secret("87654321"))) for name in names]
        assert [ended(one) for one in asked] == [None] * 100
        replace(main, main.read_text().replace("account-one", "account-hand"))
        assert ended(found.change(DropAccount("account-000"))) is None
        assert keys(found) == {*names[1:], "account-hand"}
    assert [account.access_key for account in watch(main).access.rules.files[str(main)].accounts[1:]] == names[1:]


def test_a_change_of_a_broken_file_is_refused_and_writes_nothing(main) -> None:
    """With file, line and reason; the accounts in force stay."""
    with changing(main) as found:
        broken = text_of("account-one") + "  adnim: true\n"
        replace(main, broken)
        refused = ended(found.change(DropAccount("account-one")))
        assert refused is not None
        assert "plain_acl.yml, line 4" in refused.text
        assert keys(found) == {"account-one"}
    assert main.read_text() == broken


def test_a_change_that_cannot_be_saved_is_refused_and_taken_back(main, monkeypatch) -> None:
    """Also when the folder cannot be synced after the rename: the next start must not find it."""
    before = main.read_text()
    with changing(main) as found:
        for syncs in (0, 1):
            left = iter([None] * syncs)

            def sync(_handle: int, left=left) -> None:
                if next(left, "full") is not None:
                    raise OSError(errno.ENOSPC, "no space left")

            with monkeypatch.context() as broken:
                broken.setattr(durable.os, "fsync", sync)
                refused = ended(found.change(DropAccount("account-one")))
            assert refused is not None
            assert "could not be saved" in refused.text
            assert main.read_text() == before
            assert keys(found) == {"account-one"}
        assert ended(found.change(DropAccount("account-one"))) is None


def test_a_linked_file_stays_a_link(main) -> None:
    """As in a container, where the file lies elsewhere."""
    elsewhere = main.with_name("elsewhere")
    main.rename(elsewhere)
    main.symlink_to(elsewhere)
    with changing(main) as found:
        assert ended(found.change(DropAccount("account-one"))) is None
    assert main.is_symlink()
    assert "account-one" not in elsewhere.read_text()


def test_a_server_that_stops_refuses_changes(main) -> None:
    """And says why."""
    found = watch(main)
    waiting = found.change(DropAccount("account-one"))
    found.start()
    found.stop()
    refused = ended(found.change(DropAccount("account-one")))
    assert "the server is stopping" in str(refused)
    eventually(lambda: waiting.done, what="an answer for what waited")


def test_no_secret_is_logged_when_accounts_change(main, caplog) -> None:
    """Neither the old nor the new one."""
    caplog.set_level(logging.DEBUG)
    with changing(main) as found:
        assert ended(found.change(PutAccount("account-one", Secret("new-secret-key")))) is None
        assert found.access.rules.accounts["account-one"].secret_key == Secret("new-secret-key")
        assert "the ACL files were read again" in caplog.text
    assert "new-secret-key" not in caplog.text
    assert SECRET not in caplog.text


def test_compatible_rules_are_warned_of_at_the_start(main, caplog) -> None:
    """With what everybody may do then; not otherwise."""
    acl_watch(BrokerOptions(acl_enable=True, acl_path=str(main)), lambda act: act())
    assert "aclCompatible" not in caplog.text
    found = acl_watch(BrokerOptions(acl_enable=True, acl_path=str(main), acl_compatible=True), lambda act: act())
    assert "aclCompatible=true: every account may send batches" in caplog.text
    assert found.access.gatekeeper.compatible


@pytest.mark.parametrize(
    ("broken", "line", "reason"),
    [
        ("accounts: what\n", 1, "must be a list"),
        (f"accounts:\n- accessKey: account-one\n  secretKey:{SECRET}\n", 4, "this is not YAML"),
        (f"accounts:\n- accessKey: six\n  secretKey: {SECRET}\n", 2, "has 3 characters"),
        ("accounts:\n- accessKey: account-one\n", 2, "secretKey of account-one is missing"),
        (f"{text_of('account-one')}  admin: maybe\n", 4, "must be true or false"),
        (f"{text_of('account-one')}  topicPerms: [orders=WRITE]\n", 4, "is no permission"),
        (f"{text_of('account-one')}  groupPerms: [mailer]\n", 4, "is written group=PUB|SUB"),
        (f"{text_of('account-one')}  whiteRemoteAddress: 10.0.0.300\n", 4, "above 255"),
        (f"{text_of('account-one', 'account-one')}", 4, "is in line 2 already"),
        ("accounts: [&a [*a]]\n", 1, "anchors"),
        (f"accounts:\n- accessKey: account-one\n\tsecretKey: {SECRET}\n", 3, "this is not YAML"),
    ],
)
def test_a_file_that_breaks_changes_nothing_and_the_log_has_line_and_reason(main, caplog, broken, line, reason) -> None:
    """Once for each state of the file, without a secret; mended, it is in force."""
    found = watch(main)
    before = found.access.rules
    replace(main, broken)
    for _ in range(3):
        found.look()
    assert found.access.rules is before
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"plain_acl.yml, line {line}: " in told
    assert reason in told
    assert SECRET not in told
    replace(main, text_of("account-two"))
    found.look()
    assert keys(found) == {"account-two"}
