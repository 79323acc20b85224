"""Files, flags and environment become option tables."""

from __future__ import annotations

import asyncio
import os
import re

import pytest

from metaq.app.broker import start_broker
from metaq.app.config_files.template import template
from metaq.app.configuration import load
from metaq.app.foreign.refused import PROMISES
from metaq.app.role.configured import check_role
from metaq.errors import ConfigError
from metaq.options import KIB, BrokerOptions, StoreOptions, judge
from tests.broker.metaq1.support import settings

BROKER_CONF = """\
# Licensed to the Apache Software Foundation (ASF) ...
brokerClusterName = DefaultCluster
brokerName=broker-a
brokerId = 0
deleteWhen: 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
! a comment of the other kind
namesrvAddr=10.0.0.1:9876;\\
            10.0.0.2:9876
brokerIP1 192.168.1.5
storePathRootDir=/data/store
sendMessageThreadPoolNums=128
flushDiskTyp=ASYNC_FLUSH
"""


@pytest.fixture
def broker_conf(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text(BROKER_CONF)
    return str(path)


def write(tmp_path, text, name="metaq.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_rocketmq_file_is_read_as_it_stands(broker_conf):
    """Values reach both tables, whatever separator, comment and continuation they are written with."""
    got = load(broker_conf, environment={})
    assert got.broker.broker_name == "broker-a"
    assert got.broker.namesrv_addr == "10.0.0.1:9876;10.0.0.2:9876"
    assert got.broker.broker_ip1 == "192.168.1.5"
    assert got.store.file_reserved_time == 48
    assert got.store.flush_disk_type == "SYNC_FLUSH"
    assert got.store.store_path_root_dir == "/data/store"
    assert got.store.delete_when == "04"


def test_rocketmq_key_that_we_lack_is_named_in_a_warning(broker_conf):
    """A misspelt key is told with the nearest name, a key of RocketMQ's own as one without meaning here."""
    warnings = "\n".join(load(broker_conf, environment={}).warnings)
    assert "flushDiskTyp is unknown and passed over; the nearest is flushDiskType" in warnings
    assert "sendMessageThreadPoolNums has no effect here: one event loop" in warnings
    assert "brokerName" not in warnings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yml", "accounts:\n- accessKey: a\n  secretKey: b\n"),
        ("a.xml", "<?xml version='1.0'?>\n<broker><name>a</name></broker>\n"),
        ("a.json", '{\n  "brokerName": "a"\n}\n'),
        ("my.cnf", "# mine\nuser = mysql\n"),
        ("server.properties", "process.roles=broker\nlog.dirs=/tmp\n"),
    ],
)
def test_a_file_that_is_none_of_the_three_kinds_is_told(tmp_path, name, text):
    """Before a broker starts with everything in it passed over: the account file, for example, in place of broker.conf."""
    path = write(tmp_path, text, name)
    for serving in (("broker", "store", "tls", "metaq1"), ("namesrv", "tls")):
        with pytest.raises(ConfigError) as caught:
            load(path, serving=serving, environment={})
        assert path in str(caught.value)
        assert all(word in str(caught.value) for word in ("broker.conf", "server.ini", "metaq.toml")), caught.value


def test_the_vip_port_is_on_in_a_rocketmq_file_and_off_elsewhere(tmp_path, broker_conf):
    """As RocketMQ has it; our own files and flags ask for it, and a broker.conf can do without."""
    assert load(broker_conf, environment={}).broker.vip_port_enable is True
    assert load(broker_conf, settings=["vipPortEnable=false"], environment={}).broker.vip_port_enable is False
    without = write(tmp_path, "brokerName=b\nvipPortEnable=false\n", "without.conf")
    assert load(without, environment={}).broker.vip_port_enable is False
    assert load(environment={}).broker.vip_port_enable is False
    toml = write(tmp_path, "[broker]\nvipPortEnable = true\n")
    assert load(toml, environment={}).broker.vip_port_enable is True


def test_rocketmq_file_listens_everywhere_with_a_warning(broker_conf):
    """A broker.conf is its own consent to listen beyond the machine; our own file is not."""
    got = load(broker_conf, environment={})
    assert got.broker.bind_address == "0.0.0.0"
    assert any("0.0.0.0 without access control" in warning for warning in got.warnings)


def test_without_a_file_only_this_machine_can_connect():
    """Flags alone bind the loopback address, and nothing needs a warning."""
    got = load(environment={}, serving=("broker", "store", "namesrv"))
    assert (got.broker.bind_address, got.namesrv.bind_address, got.warnings) == ("127.0.0.1", "127.0.0.1", ())


def test_other_address_needs_consent(tmp_path):
    """A metaq.toml or flag that opens the broker to the network is refused without --insecure, and warned with it."""
    path = write(tmp_path, '[broker]\nbindAddress = "0.0.0.0"\n')
    with pytest.raises(ConfigError, match=r"listening on 0\.0\.0\.0 .* add --insecure"):
        load(path, environment={})
    with pytest.raises(ConfigError, match="--insecure"):
        load(flags={"broker": {"bind_address": "10.0.0.7"}}, environment={})
    got = load(path, environment={}, insecure=True)
    assert got.broker.bind_address == "0.0.0.0"
    assert got.warnings
    both = load(environment={}, insecure=True, serving=("broker", "store", "namesrv"))
    assert both.namesrv.remote_administration_enable
    assert both.broker.remote_administration_enable
    assert not load(environment={}, serving=("namesrv",)).namesrv.remote_administration_enable
    kept = load(environment={}, settings=["remoteAdministrationEnable=false"], serving=("namesrv",), insecure=True)
    assert not kept.namesrv.remote_administration_enable


ASKED = {
    "brokerRole": ("SYNC_MASTER", "SLAVE"),
    "brokerId": ("1",),
    "storePathCommitLog": ("/a,/b",),
    "inSyncReplicas": ("2",),
    "minInSyncReplicas": ("2",),
    "storeType": ("defaultRocksDB",),
    "tls.server.mode": ("enforcing", "permissive"),
    "tls.server.need.client.auth": ("require", "optional"),
    "startAcceptSendRequestTimeStamp": ("1893456000000",),
}
"""Key → values that promise something. Of all others: `true` where false is kept, else a path."""


def asked(key):
    return ASKED.get(key, ("true",) if "false" in PROMISES[key].kept else ("/etc/some/path",))


@pytest.mark.parametrize("key", PROMISES)
def test_key_whose_neglect_would_break_a_promise_stops_the_start(tmp_path, key):
    """The error names key, value and file, why, and what to do; values that promise nothing start."""
    promise = PROMISES[key]
    for value in asked(key):
        path = write(tmp_path, f"brokerName=b\n{key}={value}\n", "broker.conf")
        with pytest.raises(ConfigError) as caught:
            load(path, environment={})
        assert str(caught.value) == f"{key}={value} in {path}: {promise.why}; {promise.remedy}"
        if key != "storePathCommitLog":  # a folder with a comma in its name, where no list can be meant
            with pytest.raises(ConfigError, match=re.escape(promise.why)):
                load(settings=[f"{key}={value}"], environment={})
    for kept in (*promise.kept, *(word.lower() for word in promise.kept), *([""] if key != "brokerId" else [])):
        load(write(tmp_path, f"{key}={kept}\n", "broker.conf"), environment={})


def test_group_commit_is_another_word_for_the_flush(tmp_path):
    """In each kind of source; two words that contradict each other in one file are refused."""
    for text, name in (("groupCommitEnable=true\n", "broker.conf"), ("[store]\ngroupCommitEnable = true\n", "m.toml")):
        path = write(tmp_path, text, name)
        assert load(path, environment={}).store.flush_disk_type == "SYNC_FLUSH"
        assert load(path, settings=["groupCommitEnable=false"], environment={}).store.flush_disk_type == "ASYNC_FLUSH"
    path = write(tmp_path, "groupCommitEnable=true\nflushDiskType=ASYNC_FLUSH\n", "broker.conf")
    with pytest.raises(ConfigError, match="means flushDiskType=SYNC_FLUSH, not ASYNC_FLUSH: remove one"):
        load(path, environment={})
    with pytest.raises(ConfigError, match="need true or false"):
        load(settings=["groupCommitEnable=maybe"], environment={})


@pytest.mark.parametrize("serving", [("broker", "store"), ("namesrv",)])
def test_an_unknown_key_of_tls_stops_the_start(tmp_path, serving):
    """One that only later RocketMQs have, say."""
    path = write(tmp_path, "tls.server.noClientAuth.paths=x\n", "s.conf")
    with pytest.raises(
        ConfigError, match=r"tls\.server\.noClientAuth\.paths=x in .*s\.conf: there is no such key of TLS"
    ):
        load(path, serving=serving, environment={})
    load(write(tmp_path, "tls.test.mode.enable=true\ntls.server.mode=disabled\n", "s.conf"), environment={})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tls.server.mode=enforcing\ntls.server.certPath=/c\ntls.server.keyPassword=hidden\n", "broker.conf"),
        (
            'tls.server.mode = "enforcing"\ntls.server.certPath = "/c"\ntls.server.keyPassword = "hidden"\n',
            "metaq.toml",
        ),
        ('[tls]\ntlsServerMode = "enforcing"\nserver.certPath = "/c"\nserver.keyPassword = "hidden"\n', "metaq.toml"),
        ('[broker.tls.server]\nmode = "enforcing"\ncertPath = "/c"\nkeyPassword = "hidden"\n', "metaq.toml"),
    ],
)
def test_the_keys_of_tls_stand_in_every_kind_of_file(tmp_path, text, name):
    """As RocketMQ writes them; a password is in no text of the options."""
    found = load(write(tmp_path, text, name), serving=("broker", "store", "tls"), environment={})
    assert (found.tls.tls_server_mode, found.tls.tls_server_cert_path) == ("enforcing", "/c")
    assert found.tls.tls_server_key_password == "hidden"
    assert "hidden" not in repr(found)
    assert "hidden" not in template({"tls": found.tls})
    assert "hidden" not in str(found.tls.properties())
    changed = judge(found.tls, {"tls_server_key_password": "other"}).refused["tls_server_key_password"]
    assert "hidden" not in str(changed)
    assert "other" not in str(changed)


def test_a_password_on_the_command_line_is_refused():
    with pytest.raises(ConfigError, match="whoever may list processes") as refused:
        load(settings=["tls.server.keyPassword=hidden"], environment={})
    assert "hidden" not in str(refused.value)
    assert load(settings=["tls.server.mode=disabled"], environment={}).tls.tls_server_mode == "disabled"


ROLES = {
    "brokerId = 1": "a master has 0",
    'brokerId = 1\nbrokerRole = "SYNC_MASTER"': "brokerId=1 with brokerRole=SYNC_MASTER: a master has 0",
    'brokerRole = "SLAVE"\nnamesrvAddr = "127.0.0.1:1"': "brokerId=0 with brokerRole=SLAVE",
    'brokerRole = "SLAVE"\nbrokerId = 1': "set namesrvAddr, .*or haMasterAddress",
    'brokerRole = "SLAVE"\nbrokerId = 1\nhaMasterAddress = "here"': "not host:port",
}


@pytest.mark.parametrize("lines", ROLES)
def test_a_role_that_cannot_be_kept_stops_the_start(tmp_path, lines):
    """A broker with another brokerId than 0 would be listed as a slave of nobody. Nothing is touched."""
    options = load(write(tmp_path, f"[broker]\n{lines}\n"), environment={}).broker
    with pytest.raises(ConfigError, match=ROLES[lines]):
        asyncio.run(start_broker(options, StoreOptions(store_path_root_dir=str(tmp_path / "s"))))
    assert not (tmp_path / "s").exists()


def test_the_number_of_a_1x_broker_is_no_role(tmp_path):
    """It is unique under a ZooKeeper root, and says nothing of who copies whose log."""
    ini = write(tmp_path, "[system]\nbrokerId=1\n[zookeeper]\nzk.zkEnable=false\n", "server.ini")
    assert load(ini, serving=("broker", "store", "metaq1"), environment={}).metaq1.broker_id == 1
    check_role(BrokerOptions(broker_id=1, broker_role="SLAVE", namesrv_addr="127.0.0.1:1"), settings(test=1))


def test_a_slave_finds_its_master_by_the_address_server_too(tmp_path):
    """Its page says where the name servers are."""
    lines = (
        "brokerId=1\nbrokerRole=SLAVE\nfetchNamesrvAddrByAddressServer=true\naddressServer=http://127.0.0.1:1/page\n"
    )
    check_role(load(write(tmp_path, lines, "broker.conf"), environment={}).broker, None)


def test_flags_beat_settings_beat_the_file_beat_the_environment(tmp_path):
    """Each source of a value overrides those behind it."""
    path = write(tmp_path, '[broker]\nlistenPort = 1\nbrokerName = "file"\nnamesrvAddr = "file:1"\n')
    got = load(
        path,
        environment={"NAMESRV_ADDR": "environment:1"},
        settings=["brokerName=setting", "listenPort=2"],
        flags={"broker": {"listen_port": 3, "broker_name": None}},
    )
    assert (got.broker.namesrv_addr, got.broker.broker_name, got.broker.listen_port) == ("file:1", "setting", 3)
    assert load(environment={"NAMESRV_ADDR": "environment:1"}).broker.namesrv_addr == "environment:1"


def test_a_setting_of_another_servers_section_is_told_to_have_no_effect():
    """A broker with `-o namesrv.httpPort` would have no metrics where they are looked for."""
    found = load(None, settings=["namesrv.httpPort=8122", "httpPort=8120"], environment={})
    assert (found.broker.http_port, found.warnings) == (
        8120,
        (
            "-o namesrv.httpPort=8122 has no effect: this server has no section [namesrv], only [broker], [store], [tls]",
        ),
    )
    both = load(None, settings=["namesrv.httpPort=8122"], serving=("broker", "store", "namesrv", "tls"), environment={})
    assert (both.namesrv.http_port, both.warnings) == (8122, ())


def test_setting_may_name_its_section():
    """Where broker and name server have the same key, the section says which is meant; without, the broker."""
    got = load(
        settings=["namesrv.listenPort=5", "listenPort=6", "store.fileReservedTime=7"],
        serving=("broker", "store", "namesrv"),
        environment={},
    )
    assert (got.namesrv.listen_port, got.broker.listen_port, got.store.file_reserved_time) == (5, 6, 7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[broker]\nlistenPrt = 1\n", r"\[broker\] of .*metaq.toml: there is no option 'listenPrt'; .* listenPort"),
        ("[borker]\nlistenPort = 1\n", r"\[borker\] is not a section"),
        ('[broker]\nlistenPort = "x"\n', "listenPort='x' in .*: need a whole number"),
        ("[broker]\nlistenPort = 70000\n", "listenPort=70000: the largest allowed value is 65535"),
        ("[broker]\nlistenPort = 1.5\n", "need a whole number"),
        ("[broker]\nbrokerName = 7\n", "need a text in quotes"),
        ('[store]\ndeleteWhen = "4am"\n', "deleteWhen='4am': need hours"),
        ('[store]\nflushDiskType = "MAYBE"\n', "allowed are ASYNC_FLUSH, SYNC_FLUSH"),
        ("[broker\n", "not valid TOML"),
    ],
)
def test_wrong_line_in_metaq_toml_stops_the_start(tmp_path, text, says):
    """Our own file is ours to check: key, section, type and bounds."""
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, text), environment={})


@pytest.mark.parametrize("text", ["04", "4", "00;23", " 04 ; 16 ", "04;16;", "99"])
def test_hours_at_which_files_are_deleted(text):
    """As RocketMQ reads them."""
    assert load(settings=[f"deleteWhen={text}"], environment={}).store.delete_when == text.strip()


@pytest.mark.parametrize("setting", ["nonsense", "nosuch.key=1", "listenPrt=1", "listenPort=abc", "store.listenPort=1"])
def test_wrong_setting_is_refused(setting):
    """-o takes only options that exist, with values of their type."""
    with pytest.raises(ConfigError, match="-o"):
        load(settings=[setting], environment={})


@pytest.mark.parametrize(
    "levels", ["root=debug", "metaq.broker", "metaq=loud", "metaq=debug metaq.net=info", "metaq\n=info"]
)
def test_levels_of_parts_of_the_log_have_a_form(levels):
    """A wrong one stops the start; of the right ones tests/test_hot_options.py shows what they do."""
    with pytest.raises(ConfigError, match="logLevels"):
        load(settings=[f"broker.logLevels={levels}"], environment={})
    assert load(settings=["logLevels=metaq=error,metaq.net=debug"], environment={}).broker.log_levels


def test_missing_file_is_named(tmp_path):
    """A file that cannot be read is an error that names it, not a start with defaults."""
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml"):
        load(str(tmp_path / "nowhere.toml"), environment={})


def test_the_sizes_of_a_folders_files_beat_the_defaults_and_nothing_else(tmp_path):
    """A folder that was made with small files is opened by whoever does not say otherwise."""
    log_file = tmp_path / "commitlog" / f"{0:020d}"
    queue_file = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    for path, size in ((log_file, 128 * KIB), (queue_file, 2000)):
        path.parent.mkdir(parents=True)
        path.touch()
        os.truncate(path, size)
    defaults = {"store": {"store_path_root_dir": str(tmp_path), "mapped_file_size_commit_log": 1 << 20}}
    found = load(defaults=defaults, environment={}).store
    assert found.mapped_file_size_commit_log == 128 * KIB
    assert found.mapped_file_size_consume_queue == 2000
    said = load(defaults=defaults, environment={}, settings=["mappedFileSizeCommitLog=1048576"]).store
    assert said.mapped_file_size_commit_log == 1 << 20, (
        "what is set is obeyed, and the store says what is wrong with it"
    )
    empty = load(
        defaults={"store": {**defaults["store"], "store_path_root_dir": str(tmp_path / "new")}}, environment={}
    )
    assert empty.store.mapped_file_size_commit_log == 1 << 20


def origins(configuration, section):
    return {name: tuple(origin) for name, origin in configuration.origins[section].items()}


def test_where_each_value_comes_from_is_known(tmp_path):
    """Of what was said last; what follows from something else says from what."""
    path = write(tmp_path, "fileReservedTime=72\ntraceOn=false\nregionId=r\ngroupCommitEnable=true\n", "broker.conf")
    found = load(
        path, flags={"broker": {"listen_port": 5, "broker_name": None}}, settings=["traceOn=true", "store.deleteWhen=05"],
        environment={"NAMESRV_ADDR": "10.0.0.1:9876"},
    )  # fmt: skip
    assert origins(found, "broker") == {
        "namesrv_addr": ("environment", "NAMESRV_ADDR"),
        "region_id": ("file", path),
        "trace_on": ("command line", "-o"),
        "listen_port": ("command line", "a flag"),
        "vip_port_enable": ("derived", "the file is RocketMQ's"),
        "enable_property_filter": ("derived", "the file is RocketMQ's"),
        "bind_address": ("derived", "the kind of the file"),
    }
    assert origins(found, "store") == {
        "file_reserved_time": ("file", path), "flush_disk_type": ("file", path), "delete_when": ("command line", "-o"),
    }  # fmt: skip
    assert found.store.flush_disk_type == "SYNC_FLUSH"


def test_what_a_server_ini_means_for_the_broker_is_derived(tmp_path):
    path = write(
        tmp_path, "[system]\nbrokerId=3\nmaxSegmentSize=1048576\n[zookeeper]\nzk.zkEnable=false\n", "server.ini"
    )
    found = load(path, serving=("broker", "store", "tls", "metaq1"), environment={})
    assert found.store.mapped_file_size_commit_log == 1048576
    assert origins(found, "store")["mapped_file_size_commit_log"] == ("derived", "options of MetaQ 1.x")
    assert origins(found, "metaq1")["broker_id"] == ("file", path)
    assert origins(found, "metaq1")["enable"] == ("derived", "a server.ini is loaded")
