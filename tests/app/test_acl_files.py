"""The files of access control: where they are, what counts, and when changes are in force."""

from __future__ import annotations

import logging
import os
import pathlib

import pytest

from metaq.app.acl_files import AclFiles, AclWatch, acl_watch
from metaq.app.configuration import acl_path, load
from metaq.errors import ConfigError
from metaq.options import BrokerOptions

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
    assert "not haListenPort" in told
    assert "clients of MetaQ 1.x cannot sign" in told
    with pytest.raises(ConfigError, match="add --insecure"):
        load(environment={}, serving=("namesrv",), flags={"namesrv": {"bind_address": "0.0.0.0"}})
    assert not load(environment={}, settings=["aclEnable=true"]).warnings


def test_an_embedded_broker_is_told_which_path_is_missing() -> None:
    """It has no configuration file to look beside."""
    with pytest.raises(ConfigError, match="aclEnable=true needs aclPath"):
        acl_watch(BrokerOptions(acl_enable=True), lambda act: act())
