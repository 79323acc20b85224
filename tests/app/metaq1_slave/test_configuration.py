"""How a broker becomes an asynchronous slave of MetaQ 1.x: 1.x's own file and words, and what cannot be."""

from __future__ import annotations

import pathlib

import pytest

from metaq.app.config_files.server_ini import read_server_ini
from metaq.app.configuration import Configuration, load
from metaq.app.metaq1_slave.config_sync import take_over, with_sections
from metaq.app.role.configured import check_role
from metaq.cli.servers.flags import read_plain, without_plugins
from metaq.errors import ConfigError

SERVING = ("broker", "store", "tls", "metaq1")
ORIGINAL = "#异步复制的slave节点的配置\r\nslaveId=2\r\n\r\nslaveGroup=meta-slave-group\r\nslaveMaxDelayInMills=300\r\nautoSyncMasterConfig=true"
INI = "[system]\nbrokerId=3\n[zookeeper]\nzk.zkConnect=127.0.0.1:2181\n[topic=test]\n"


def loaded(folder: pathlib.Path, properties: bytes | str, ini: str = INI, **more: object) -> Configuration:
    (folder / "server.ini").write_text(ini)
    file = folder / "async_slave.properties"
    file.write_bytes(properties if isinstance(properties, bytes) else properties.encode())
    return load(str(folder / "server.ini"), serving=SERVING, environment={}, metaslave=str(file), **more)  # type: ignore[arg-type]


def test_the_originals_file_is_taken_as_it_stands(tmp_path):
    """In GBK, with comments in Chinese; the name of the broker says that it is no replica to RocketMQ's tools."""
    found = loaded(tmp_path, ORIGINAL.encode("gbk"))
    options = found.metaq1
    assert (options.slave_id, options.slave_group, options.slave_max_delay_in_mills) == (2, "meta-slave-group", 300)
    assert options.auto_sync_master_config
    assert found.broker.broker_name == "broker-3-slave2"
    settings = found.metaq1_settings
    assert settings is not None
    assert (settings.path, settings.follows is not None) == (str(tmp_path / "server.ini"), True)
    check_role(found.broker, settings)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slaveGroup=g", "there is no slaveId"),
        ("slaveId=", "there is no slaveId"),
        ("slaveId=-1", "slaveId"),
        ("slaveId=x", "slaveId"),
        ("slaveId=0\nautoOffsetFromMaster=false", "a partition begins where the master's begins"),
    ],
)
def test_a_file_that_cannot_be_meant_stops_the_start(tmp_path, text, why):
    with pytest.raises(ConfigError, match=why):
        loaded(tmp_path, text)


def test_other_keys_are_passed_over_with_a_word(tmp_path):
    found = loaded(tmp_path, "slaveId=0\nslaveGruop=g\nautoOffsetFromMaster=true\nslaveMaxDelayInMills=")
    assert [one for one in found.warnings if "slaveGruop" in one and "slaveGroup" in one]
    assert not [one for one in found.warnings if "autoOffsetFromMaster is" in one]
    assert (found.metaq1.slave_group, found.metaq1.slave_max_delay_in_mills) == (None, 500)


def test_a_slave_has_one_way_to_its_master(tmp_path):
    """No name servers, whose clients would get every message twice; no copy of the log; and no master without ZooKeeper."""
    both = loaded(tmp_path, "slaveId=0", settings=["brokerRole=SLAVE", "broker.brokerId=1", "namesrvAddr=127.0.0.1:1"])
    with pytest.raises(ConfigError, match="leave one of the two out"):
        check_role(both.broker, both.metaq1_settings)
    named = loaded(tmp_path, "slaveId=0", settings=["namesrvAddr=127.0.0.1:1"])
    with pytest.raises(ConfigError, match="known in ZooKeeper alone"):
        check_role(named.broker, named.metaq1_settings)
    alone = loaded(tmp_path, "slaveId=0", ini=INI + "[zookeeper]\nzk.zkEnable=false\n")
    with pytest.raises(ConfigError, match="it finds its master there"):
        check_role(alone.broker, alone.metaq1_settings)


def test_a_server_ini_knows_no_slave(tmp_path):
    """As in 1.x; and what `stats config` tells can be read by an original."""
    (tmp_path / "server.ini").write_text("[system]\nbrokerId=0\nslaveId=1\n[zookeeper]\nzk.zkEnable=false\n")
    with pytest.raises(ConfigError, match="slaveId"):
        read_server_ini(str(tmp_path / "server.ini"))
    found = load(settings=["metaq1.enable=true", "metaq1.zkEnable=false"], serving=SERVING, environment={})
    assert b"slave" not in found.server_ini.lower()


def test_1x_words_are_a_flag(tmp_path):
    words = without_plugins(["-f", "server.ini", "-Fmetaslave=conf/async_slave.properties", "-Fother=x"])
    assert words == ["-f", "server.ini", "--metaslave=conf/async_slave.properties", "-Fother=x"]
    values = read_plain("broker", words[:3])
    assert values is not None
    assert values["metaslave"] == "conf/async_slave.properties"
    assert read_plain("up", words[:3]) is None


OWN = "; mine\n[system]\nbrokerId=0\nserverPort=8124\n\n[topic=test]\nnumPartitions=1\n[zookeeper]\nzk.zkEnable=false\n[topic = old]\n"
MASTER = "[system]\nbrokerId=0\nserverPort=8123\n[zookeeper]\nzk.zkConnect=z:2181\n[topic=test]\nnumPartitions=4\nstat=\n[topic=new]\n"


def test_topics_of_the_masters_file_come_into_the_slaves(tmp_path):
    """And nothing else of it: the slave keeps its port."""
    text = with_sections(OWN, MASTER)
    assert text == (
        "; mine\n[system]\nbrokerId=0\nserverPort=8124\n\n[zookeeper]\nzk.zkEnable=false\n\n[topic=test]\nnumPartitions=4\n\n[topic=new]\n"
    )
    assert with_sections(text, MASTER) is None
    file = tmp_path / "server.ini"
    file.write_text(OWN)
    assert take_over(str(file), MASTER.encode())
    assert not take_over(str(file), MASTER.encode())
    assert file.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["server.ini"]


@pytest.mark.parametrize(
    "wrong", ["[topic=test]\ngroup.g=com.example.JavaFilter\n", "[topic=test]\nnumPartitions=many\n", "[topic\n"]
)
def test_topics_that_cannot_be_here_change_nothing(tmp_path, wrong):
    """A file that no start can read would keep the slave from its next one."""
    file = tmp_path / "server.ini"
    file.write_text(OWN)
    with pytest.raises(ConfigError):
        take_over(str(file), wrong.encode())
    assert file.read_text() == OWN
    assert [path.name for path in tmp_path.iterdir()] == ["server.ini"]
    (tmp_path / "topic.ini").write_text("")
    with pytest.raises(ConfigError, match="move them into"):
        take_over(str(file), MASTER.encode())
