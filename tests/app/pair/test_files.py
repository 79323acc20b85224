"""The files of a synchronous pair."""

from __future__ import annotations

import pytest

from metaq.app.pair.files import check_pair, pair_of, read_pair
from metaq.cli.servers.flags import read_plain, without_plugins
from metaq.cli.servers.serve import configure
from metaq.errors import ConfigError
from metaq.model.metaq1.pair import GregorSettings, SamsaSettings
from metaq.options import BrokerOptions

SHIPPED = """#\u540c\u6b65\u590d\u5236\u7684master
slave=localhost:8124
callbackThreadCount=10
recoverOffset=true
#Send message to slave timeout in milliseconds.
sendToSlaveTimeoutInMills=1500
slaveContinuousFailureThreshold=50
checkSlaveIntervalInMills=200
recoverParallel=true
recoverParallelHint=
"""


def test_the_original_s_file_is_taken_as_it_stands(tmp_path) -> None:
    path = tmp_path / "samsa_master.properties"
    path.write_bytes(SHIPPED.encode("gbk"))
    settings, warnings = read_pair("samsa", str(path))
    assert settings == SamsaSettings(
        slave="localhost:8124", recover_offset=True, send_timeout=1.5, failures_max=50, check_interval=0.2
    )
    assert [text for text in warnings if "callbackThreadCount" in text]


def test_the_defaults_are_the_original_s(tmp_path) -> None:
    path = tmp_path / "samsa"
    path.write_text("slave=h:1")
    settings, _ = read_pair("samsa", str(path))
    assert settings == SamsaSettings(
        slave="h:1", recover_offset=False, send_timeout=2.0, failures_max=100, check_interval=0.1, copy_backlog=True
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no slave"),
        ("slave=", "there is no slave"),
        ("slave=nowhere", "slave=nowhere"),
        ("slave=h:1\nrecoverOfset=true", "perhaps|recoverOffset"),
        ("slave=h:1\nsendToSlaveTimeoutInMills=0", "need a number"),
        ("slave=h:1\nslaveContinuousFailureThreshold=x", "need a number"),
        ("slave=h:1\nrecoverOffset=yes", "need true or false"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, words) -> None:
    path = tmp_path / "samsa"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_pair("samsa", str(path))


def test_a_file_that_is_missing_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing"):
        read_pair("gregor", str(tmp_path / "nothing"))


def test_a_broker_has_one_role() -> None:
    with pytest.raises(ConfigError, match="not both"):
        pair_of({"samsa": "a", "gregor": "b"})


@pytest.mark.parametrize("role", ["SYNC_MASTER", "SLAVE"])
def test_a_pair_of_both_kinds_is_refused(role) -> None:
    with pytest.raises(ConfigError, match="two kinds of replication"):
        check_pair(GregorSettings(), BrokerOptions(broker_role=role), metaq1=True)


def test_a_pair_without_clients_of_1x_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.ini"):
        check_pair(SamsaSettings(slave="h:1"), BrokerOptions(), metaq1=False)


def test_command_lines_of_1x_and_ours_name_the_files() -> None:
    for words in (["-Fgregor=g.properties"], ["--gregor", "g.properties"], ["--gregor=g.properties"]):
        values = read_plain("broker", without_plugins(words))
        assert values is not None
        assert (values["gregor"], values["samsa"]) == ("g.properties", None)


def test_a_configuration_has_the_role(tmp_path) -> None:
    (tmp_path / "conf").mkdir()
    ini, pair = tmp_path / "conf" / "server.ini", tmp_path / "gregor.properties"
    ini.write_text("[system]\nbrokerId=3\n[zookeeper]\nzk.zkEnable=false\n[topic=test]\n")
    pair.write_text("# nothing\n")
    values = read_plain("broker", ["-f", str(ini), f"--gregor={pair}"])
    assert values is not None
    configuration = configure("broker", values)
    assert configuration.pair == GregorSettings()
    settings = configuration.metaq1_settings
    assert settings is not None
    assert settings.pair == GregorSettings()
